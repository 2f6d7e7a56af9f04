"""archive -> lake: batch by batch planned, written, verified, committed, and pruned when that is
wanted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

from django.db.models import Max, Q
from django.utils.timezone import get_default_timezone, make_aware
from pyspark.sql import SparkSession

from ...core.times import stored
from ...models import ArchivedMessage, OperatorAction
from ..errors import Code, LakeConflict, LakeError, Refused
from ..jobs import Tell
from ..lake import batches, compaction, pruning, writer
from ..lake.lake import Commit, Lake, last_id
from ..lake.ledger import VERIFIED, WRITTEN, Ledger
from ..lake.watermark import last_settled_id, unseen_writers
from ..options import ExportOptions
from ..params import Database, Params, Report
from ..sources.archive import read_archive
from ..sources.rows import Range

#: Rows after a batch among which the one that was archived first is looked for: those of several
#: archivers at a time.
NEXT_ROWS = 1_000
#: A prune without an end that began longer before the last commit did not go on after it: it was
#: interrupted.
LONGEST_PRUNE = timedelta(days=1)


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Export all that is settled, and compact and prune when the options say so.

    Raises Refused, and LakeError when the lake is not as its commits say.
    """
    options = params.options(ExportOptions)
    lake = Lake(params.lake)
    work = _Export(spark, params, options, lake, tell)
    if params.dry_run:
        return work.foresee()
    try:
        work.run()
    except LakeConflict as error:
        work.report.code = Code.REFUSED
        work.report.problems.append(
            f"{error} Nothing of this batch counts; what came before it does. Run it again."
        )
    return work.report


def append(
    spark: SparkSession,
    lake: Lake,
    database: Database,
    ids: Range,
    tell: Tell,
    *,
    settle: float = 60.0,
) -> Commit:
    """Write the rows of the archive with lo < id <= hi to the lake; verify and commit them. The
    stream does it, too.

    `lo` has to be the lake's last id. `settle`: as in ExportOptions, for Commit.settled_at. Raises
    Refused, LakeConflict when another writer was quicker (then nothing of this one counts), and
    LakeError when the files are not what SQL holds.
    """
    lo, hi = ids
    ledger = Ledger(lake)
    there = last_id(ledger.follow())
    if there != lo:
        raise LakeConflict(
            f"The lake has the rows up to id {there:,}, and this batch begins after {lo:,}."
        )
    settled_at = _settled_at(hi, settle)
    tell(f"copying the rows up to id {hi:,}")
    attempt = ledger.plan(lo, hi)
    try:
        source = batches.copy(spark, database, ids, attempt)
        ledger.enter(attempt, WRITTEN, rows=source.rows, signature=str(source.signature))
        written = batches.verified(
            spark, lake, lambda: batches.archived(spark, database, ids), attempt, source
        )
        content = written.content
        ledger.enter(
            attempt, VERIFIED, rows=content.rows, signature=str(content.signature), problem=""
        )
        commit = _commit(ledger, attempt, written, ids, settled_at)
    except LakeConflict:
        lake.drop(attempt)
        ledger.follow()
        raise
    except LakeError as error:
        ledger.enter(attempt, WRITTEN, problem=str(error))
        raise
    tell(f"committed {commit.rows:,} rows up to id {hi:,}")
    return commit


def _commit(
    ledger: Ledger, attempt: Path, written: batches.Written, ids: Range, settled_at: datetime
) -> Commit:
    content = written.content
    if content.rows and not ids[0] < content.lowest <= content.highest <= ids[1]:
        raise LakeError(
            f"{attempt} has the ids {content.lowest} to {content.highest}, outside of {ids}."
        )
    if written.files:
        ledger.lake.persist(attempt)
    commit = ledger.lake.add(
        Commit(
            seq=0,
            kind="append",
            lo=ids[0],
            hi=ids[1],
            rows=content.rows,
            signature=str(content.signature),
            oldest=content.oldest,
            newest=content.newest,
            hours=written.hours,
            settled_at=settled_at.isoformat().replace("+00:00", "Z"),
            files=written.files,
            archive=ledger.archive,
        )
    )
    ledger.committed(commit)
    return commit


def _settled_at(hi: int, settle: float) -> datetime:
    """Whatever was archived before this has an id up to `hi`."""
    following = (
        ArchivedMessage.objects.filter(pk__gt=hi)
        .order_by("pk")
        .values_list("archived_at", flat=True)
    )
    now = datetime.now(tz=timezone.utc)
    return min([_earliest(when) for when in following[:NEXT_ROWS]] + [now]) - timedelta(
        seconds=settle
    )


def _earliest(when: datetime) -> datetime:
    """Without USE_TZ the clock of one database is in the project's zone, that of another one in
    UTC."""
    return (
        when
        if when.tzinfo
        else min(when.replace(tzinfo=timezone.utc), make_aware(when, get_default_timezone()))
    )


class _Export:
    """One run."""

    def __init__(
        self, spark: SparkSession, params: Params, options: ExportOptions, lake: Lake, tell: Tell
    ) -> None:
        self.spark, self.params, self.options, self.lake, self.tell = (
            spark,
            params,
            options,
            lake,
            tell,
        )
        self.ledger = Ledger(lake)
        self.report = Report(
            job="export", figures={"batches": 0, "rows": 0, "bytes": 0, "files": 0}
        )

    def run(self) -> None:
        """All steps; what is done so far is in the report whatever happens."""
        commits = self.ledger.follow()
        refuse_restored(commits)
        self.report.problems += unseen_writers()
        figures, begun = self.report.figures, time.monotonic()
        figures["swept"] = self.lake.sweep(self.options.grace)
        writer.tidy(self.lake.data, self.options.grace)
        settled = last_settled_id(self.options.settle)
        while ids := self._next(settled):
            self._export(ids)
        seconds = time.monotonic() - begun
        figures |= {
            "seconds": round(seconds, 3),
            "last_id": self.lake.last_id,
            "settled_id": settled,
        }
        if figures["rows"]:
            figures["rows_per_second"] = round(figures["rows"] / seconds)
        if self.options.compact:
            figures |= compaction.compact(
                self.spark, self.lake, datetime.now(tz=timezone.utc), self.tell
            )
        self._prune(dry_run=False)

    def foresee(self) -> Report:
        """What run() would do."""
        commits = self.ledger.check()
        refuse_restored(commits)
        self.report.problems += unseen_writers()
        settled = last_settled_id(self.options.settle)
        lo = last_id(commits)
        rows = ArchivedMessage.objects.filter(pk__gt=lo, pk__lte=settled).count()
        self.report.figures = {
            "rows": rows,
            "batches": -(-rows // self.options.batch),
            "last_id": lo,
            "settled_id": settled,
            "to_sweep": len(
                [*self.lake.abandoned(self.options.grace), *self.lake.replaced(self.options.grace)]
            ),
        }
        if self.options.compact:
            small = compaction.small_files(self.lake, datetime.now(tz=timezone.utc))
            self.report.figures["files_to_compact"] = len(small)
        self._prune(dry_run=True)
        return self.report

    def _next(self, settled: int) -> Range | None:
        """The ids of the next batch: those of one that was begun, or as many rows as the options
        say."""
        lo = self.lake.last_id
        begun = self.ledger.pending(lo)
        rows = ArchivedMessage.objects.filter(pk__gt=lo, pk__lte=settled)
        if begun and begun.hi <= settled and rows.filter(pk__lte=begun.hi).exists():
            return lo, begun.hi
        pks = rows.order_by("pk").values_list("pk", flat=True)
        full: Sequence[int] = pks[self.options.batch - 1 : self.options.batch]
        hi = full[0] if full else rows.aggregate(last=Max("pk"))["last"]
        return (lo, hi) if hi else None

    def _export(self, ids: Range) -> None:
        commit = append(
            self.spark, self.lake, self.params.database, ids, self.tell, settle=self.options.settle
        )
        row: dict[str, Any] = {
            "commit": commit.seq,
            "after_id": ids[0],
            "up_to_id": ids[1],
            "rows": commit.rows,
        }
        row |= {"files": len(commit.files), "bytes": sum(file.bytes for file in commit.files)}
        for name in ("rows", "files", "bytes"):
            self.report.figures[name] += row[name]
        self.report.figures["batches"] += 1
        self.report.rows = [
            *self.report.rows,
            {**row, "oldest": commit.oldest, "newest": commit.newest},
        ]

    def _prune(self, *, dry_run: bool) -> None:
        if self.options.prune is None:
            return
        age = timedelta(seconds=self.options.prune)
        archive = partial(read_archive, self.spark, self.params.database)
        done = pruning.prune(
            self.ledger, age, archive, by=self.options.by, dry_run=dry_run, tell=self.tell
        )
        self.report.figures |= {"pruned": done.count, "kept_dead_letters": done.kept}
        self.report.problems.extend(done.problems)
        if done.problems:
            self.report.code = Code.REFUSED


def refuse_restored(commits: Sequence[Commit]) -> None:
    """Raise Refused when the archive ends below the lake and nobody pruned it: its ids would be
    given again."""
    appended = [commit for commit in commits if commit.kind == "append"]
    newest = ArchivedMessage.objects.aggregate(last=Max("pk"))["last"] or 0
    if not appended or newest >= appended[-1].hi:
        return
    at = datetime.fromtimestamp(appended[-1].at, tz=timezone.utc)
    going_on = Q(finished_at=None, started_at__gte=stored(at - LONGEST_PRUNE))
    later = Q(started_at__gte=stored(at)) | Q(finished_at__gte=stored(at)) | going_on
    if not OperatorAction.objects.filter(later, action="prune").exists():
        raise Refused(
            f"The archive ends at id {newest:,}, the lake has rows up to {appended[-1].hi:,}, and "
            f"no prune is on "
            "record: the archive was restored from a backup, and may give these ids to other "
            "messages. Begin a new "
            "lake in an empty directory."
        )
