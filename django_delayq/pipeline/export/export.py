"""The job export, from the archive to the lake: it plans, writes, verifies and commits batch by
batch, and can prune them in SQL."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from django.db import close_old_connections
from django.db.models import Max, Q
from django.utils.timezone import get_default_timezone, make_aware
from pyspark.sql import SparkSession

from ...archive.selection import newest_id
from ...core.signal_handlers import handled
from ...core.times import stored
from ...models import ArchivedMessage, OperatorAction
from ..job_errors import Code, LakeConflict, LakeError, Refused
from ..lake import batches, compaction, pruning
from ..lake.lake import Commit, Lake, last_id
from ..lake.ledger import VERIFIED, WRITTEN, Ledger
from ..lake.watermark import last_settled_id, unseen_writers
from ..params import Database, ExportOptions, Params, Report, Tell
from ..sinks import parquet_files
from ..sources.archive_source import read_archive
from ..sources.ranges import Range

#: Rows after a batch among which the one that was archived first is sought. Several archivers
#: insert at a time, so it need not be the first row.
NEXT_ROWS = 1_000
#: A prune without an end that began longer than this before the last commit was interrupted before
#: it.
LONGEST_PRUNE = timedelta(days=1)
#: Most batches that a report names: with an interval there is no last batch.
REPORTED_BATCHES = 1_000


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Export all settled rows, and compact and prune when the options say so. With an interval,
    repeat it until SIGTERM or Ctrl-C; the batch that runs is finished first.

    Raises Refused, and LakeError when the lake is not as its commits say.
    """
    work = _Export(spark, params, tell)
    if params.dry_run:
        return work.foresee()
    try:
        if work.options.interval is None:
            work.export()
        else:
            work.export_at_intervals(work.options.interval)
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
    """Write the rows of the archive with lo < id <= hi to the lake; verify and commit them.

    `lo` has to be the last id of the lake. `settle`: as in ExportOptions, for Commit.settled_at.
    Raises Refused; LakeConflict when another writer was quicker (then nothing of this one counts);
    and LakeError when the files do not hold the rows of SQL.
    """
    lo, hi = ids
    ledger = Ledger(lake)
    last = last_id(ledger.catch_up())
    if last != lo:
        raise LakeConflict(
            f"The lake has the rows up to id {last:,}, and this batch begins after {lo:,}."
        )
    settled_at = _settled_at(hi, settle)
    tell(f"copying the rows up to id {hi:,}")
    attempt = ledger.plan(lo, hi)
    try:
        source = batches.copy(spark, database, ids, attempt)
        ledger.enter(attempt, WRITTEN, rows=source.rows, signature=str(source.signature))
        written = batches.verified(
            spark, lake, lambda: batches.source_rows(spark, database, ids), attempt, source
        )
        digest = written.digest
        ledger.enter(
            attempt, VERIFIED, rows=digest.rows, signature=str(digest.signature), problem=""
        )
        if digest.rows and not lo < digest.lowest <= digest.highest <= hi:
            raise LakeError(
                f"{attempt} has the ids {digest.lowest} to {digest.highest}, outside of {ids}."
            )
        if written.files:
            lake.persist(attempt)
        commit = lake.add(
            Commit.of(
                "append",
                written,
                lo=lo,
                hi=hi,
                hours=written.hours,
                settled_at=settled_at.isoformat().replace("+00:00", "Z"),
                archive=ledger.archive,
            )
        )
        ledger.committed(commit)
    except LakeConflict:
        lake.drop(attempt)
        ledger.catch_up()
        raise
    except LakeError as error:
        ledger.enter(attempt, WRITTEN, problem=str(error))
        raise
    tell(f"committed {commit.rows:,} rows up to id {hi:,}")
    return commit


def _settled_at(hi: int, settle: float) -> datetime:
    """All rows that were archived before this instant have an id up to `hi`."""
    following = ArchivedMessage.objects.filter(pk__gt=hi).order_by("pk")
    times = [datetime.now(tz=timezone.utc)]
    for when in following.values_list("archived_at", flat=True)[:NEXT_ROWS]:
        if when.tzinfo:
            times.append(when)
        else:
            # Without USE_TZ, one database has the clock of the project's zone, another one UTC.
            times += [when.replace(tzinfo=timezone.utc), make_aware(when, get_default_timezone())]
    return min(times) - timedelta(seconds=settle)


class _Export:
    """A run of the job: one pass over what is settled, or a pass per interval."""

    def __init__(self, spark: SparkSession, params: Params, tell: Tell) -> None:
        self.spark, self.params, self.tell = spark, params, tell
        self.options = params.options(ExportOptions)
        self.lake = Lake(params.lake)
        self.ledger = Ledger(self.lake)
        self.report = Report(
            job="export",
            figures={"batches": 0, "rows": 0, "bytes": 0, "files": 0, "swept": 0, "seconds": 0.0},
        )
        self.ending = threading.Event()
        """When it is set, no further batch is begun."""

    def export_at_intervals(self, interval: float) -> None:
        """Export again and again until a signal ends it."""
        # The batch that runs is finished first.
        with handled((signal.SIGTERM, signal.SIGINT), lambda *_: self.ending.set()):
            while True:
                try:
                    self.export()
                except LakeConflict as error:
                    self.tell(f"{error} The next export takes what is left.")
                if self.ending.wait(interval):
                    return
                close_old_connections()

    def export(self) -> None:
        """Make one pass. After an error, the report has what was done until then."""
        begun = time.monotonic()
        refuse_restored(self.ledger.catch_up())
        self.report.code, self.report.problems = Code.DONE, unseen_writers()
        self._add(swept=self.lake.sweep(self.options.grace))
        parquet_files.tidy(self.lake.data, self.options.grace)
        settled = last_settled_id(self.options.settle)
        while not self.ending.is_set() and (ids := self._next(settled)):
            commit = append(
                self.spark,
                self.lake,
                self.params.database,
                ids,
                self.tell,
                settle=self.options.settle,
            )
            row: dict[str, Any] = {
                "commit": commit.seq,
                "after_id": ids[0],
                "up_to_id": ids[1],
                "rows": commit.rows,
                "files": len(commit.files),
                "bytes": sum(file.bytes for file in commit.files),
                "oldest": commit.oldest,
                "newest": commit.newest,
            }
            self._add(batches=1, rows=row["rows"], files=row["files"], bytes=row["bytes"])
            self.report.rows = [*self.report.rows, row][-REPORTED_BATCHES:]
        figures = self.report.figures
        figures["seconds"] = round(figures["seconds"] + time.monotonic() - begun, 3)
        figures |= {"last_id": self.lake.last_id, "settled_id": settled}
        if figures["rows"]:
            figures["rows_per_second"] = round(figures["rows"] / figures["seconds"])
        if self.options.compact and not self.ending.is_set():
            now = datetime.now(tz=timezone.utc)
            self._add(**compaction.compact(self.spark, self.lake, now, self.tell))
        if not self.ending.is_set():
            self._prune(dry_run=False)

    def foresee(self) -> Report:
        """Report what export() would do."""
        commits = self.ledger.check()
        refuse_restored(commits)
        self.report.problems = unseen_writers()
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
        """The ids of the next batch: of one that was begun before, or else as many rows as the
        options say."""
        lo = self.lake.last_id
        begun = self.ledger.pending(lo)
        rows = ArchivedMessage.objects.filter(pk__gt=lo, pk__lte=settled)
        if begun and begun.hi <= settled and rows.filter(pk__lte=begun.hi).exists():
            return lo, begun.hi
        pks = rows.order_by("pk").values_list("pk", flat=True)
        full: Sequence[int] = pks[self.options.batch - 1 : self.options.batch]
        hi = full[0] if full else rows.aggregate(last=Max("pk"))["last"]
        return (lo, hi) if hi else None

    def _prune(self, *, dry_run: bool) -> None:
        if self.options.prune is None:
            return
        age = timedelta(seconds=self.options.prune)
        archive = partial(read_archive, self.spark, self.params.database)
        done = pruning.prune_batches(
            self.ledger, age, archive, by=self.options.by, dry_run=dry_run, tell=self.tell
        )
        self._add(pruned=done.count)
        self.report.figures["kept_dead_letters"] = done.kept
        self.report.problems = [*self.report.problems, *done.problems]
        if done.problems:
            self.report.code = Code.REFUSED

    def _add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.report.figures[name] = self.report.figures.get(name, 0) + count


def refuse_restored(commits: Sequence[Commit]) -> None:
    """Raise Refused when the archive ends below the lake although nobody pruned or erased its last
    rows: the database would give the ids of the lake to other messages."""
    appended = [commit for commit in commits if commit.kind == "append"]
    newest = newest_id()
    if not appended or newest >= appended[-1].hi:
        return
    at = datetime.fromtimestamp(appended[-1].at, tz=timezone.utc)
    going_on = Q(finished_at=None, started_at__gte=stored(at - LONGEST_PRUNE))
    later = Q(started_at__gte=stored(at)) | Q(finished_at__gte=stored(at)) | going_on
    if not OperatorAction.objects.filter(later, action__in=("prune", "erase")).exists():
        raise Refused(
            f"The archive ends at id {newest:,}, the lake has rows up to {appended[-1].hi:,}, and "
            f"no prune is on record: the archive was restored from a backup, and may give these "
            f"ids to other messages. Begin a new lake in an empty directory."
        )
