"""The job export, from the archive to the lake: it copies and commits batch by batch, compacts what
is past, and can drop old days and prune the archive."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from functools import partial

from django.db import close_old_connections
from django.db.models import Max
from pyspark.sql import SparkSession

from ...core.job_report import Code, Report, Tell
from ...core.signal_handlers import handled
from ...models import ArchivedMessage
from ..job_errors import LakeConflict, LakeError
from ..lake import batches, compaction, pruning
from ..lake.differences import compare_batches
from ..lake.files import LakeFile
from ..lake.lake import Lake
from ..lake.ledger import Ledger
from ..lake.watermark import last_settled_id, unseen_writers
from ..params import Database, ExportOptions, Params
from ..session import parallelism
from ..sources.ranges import Range

#: Rows of a batch for each task that runs at a time.
ROWS_OF_TASK = 500_000
#: Most batches that a report names: with an interval there is no last batch.
REPORTED_BATCHES = 1_000


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Export all settled rows, compact, and drop and prune when the options say so. With an
    interval, repeat it until SIGTERM or Ctrl-C; the batch that runs is finished first.

    Raises Refused, and LakeError when the lake is not as its log says.
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
    spark: SparkSession, ledger: Ledger, database: Database, ids: Range, tell: Tell
) -> tuple[int, list[LakeFile]]:
    """Write the rows of the archive with lo < id <= hi to the lake, and commit them. Returns the
    version of the table that has them, and their files.

    `lo` has to be the last id of the lake. Raises LakeConflict when another writer was quicker
    (then nothing of this one counts); and LakeError when the files do not hold the rows of SQL.
    """
    lake = ledger.lake
    if lake.last_id != ids[0]:
        raise LakeConflict(
            f"The lake has the rows up to id {lake.last_id:,}, and this batch begins after "
            f"{ids[0]:,}."
        )
    ledger.plan(ids)
    there = _count(ids)
    tell(f"copying {there:,} rows up to id {ids[1]:,}")
    files = batches.copy(spark, database, lake.storage, ids, there, tell)
    rows = sum(file.rows for file in files)
    # Rows may be pruned or erased meanwhile, and none can come.
    if rows < (left := _count(ids)) or rows > there:
        raise LakeError(
            f"SQL had {there:,} rows with the ids {ids[0] + 1:,} to {ids[1]:,}, and {left:,} after "
            f"they were copied; the files have {rows:,}. The batch is not committed."
        )
    version = lake.append(files, ids)
    ledger.committed(ids, version, rows)
    tell(f"committed {rows:,} rows up to id {ids[1]:,}")
    return version, files


def _count(ids: Range) -> int:
    rows: int = ArchivedMessage.objects.filter(pk__gt=ids[0], pk__lte=ids[1]).count()
    return rows


class _Export:
    """A run of the job: one pass over what is settled, or a pass per interval."""

    def __init__(self, spark: SparkSession, params: Params, tell: Tell) -> None:
        self.spark, self.params, self.tell = spark, params, tell
        self.options = params.options(ExportOptions)
        self.size = self.options.batch or ROWS_OF_TASK * parallelism(spark)
        """Rows of a batch."""
        self.lake = Lake(params.lake)
        self.ledger = Ledger(self.lake)
        self.report = Report(
            job="export",
            figures={"batches": 0, "rows": 0, "bytes": 0, "files": 0, "seconds": 0.0},
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
        self.lake.refresh()
        self.ledger.catch_up()
        self.ledger.refuse_restored()
        self.report.code = Code.DONE
        self.report.problems = [*unseen_writers(), *self.ledger.other_lakes()]
        settled = last_settled_id(self.options.settle)
        while not self.ending.is_set() and (ids := self._next(settled)):
            self.lake.create()
            done = append(self.spark, self.ledger, self.params.database, ids, self.tell)
            self._note(ids, *done)
        figures = self.report.figures
        figures["seconds"] = round(figures["seconds"] + time.monotonic() - begun, 3)
        figures |= {"last_id": self.lake.last_id, "settled_id": settled}
        if figures["rows"]:
            figures["rows_per_second"] = round(figures["rows"] / figures["seconds"])
        self._maintain()
        if not self.ending.is_set():
            self._prune(dry_run=False)

    def foresee(self) -> Report:
        """Report what export() would do."""
        self.ledger.check()
        self.ledger.refuse_restored()
        self.report.problems = [*unseen_writers(), *self.ledger.other_lakes()]
        settled = last_settled_id(self.options.settle)
        lo = self.lake.last_id
        rows = _count((lo, settled))
        self.report.figures = {
            "rows": rows,
            "batches": -(-rows // self.size),
            "last_id": lo,
            "settled_id": settled,
        }
        if self.options.compact:
            small = compaction.groups(self.lake, datetime.now(tz=timezone.utc))
            self.report.figures["files_to_compact"] = sum(map(len, small))
        if first := self._first_kept():
            old = self.lake.files(until=str(first - timedelta(days=1)))
            self.report.figures["rows_to_drop"] = sum(file.rows for file in old)
        self._prune(dry_run=True)
        return self.report

    def _note(self, ids: Range, version: int, files: Sequence[LakeFile]) -> None:
        counts = {
            "rows": sum(file.rows for file in files),
            "files": len(files),
            "bytes": sum(file.bytes for file in files),
        }
        self._add(batches=1, **counts)
        row = {"version": version, "after_id": ids[0], "up_to_id": ids[1], **counts}
        self.report.rows = [*self.report.rows, row][-REPORTED_BATCHES:]

    def _next(self, settled: int) -> Range | None:
        """The ids of the next batch: of one that was begun before, or else as many rows as the
        options say."""
        lo = self.lake.last_id
        begun = self.ledger.pending(lo)
        rows = ArchivedMessage.objects.filter(pk__gt=lo, pk__lte=settled)
        if begun and begun.hi <= settled and rows.filter(pk__lte=begun.hi).exists():
            return lo, begun.hi
        pks = rows.order_by("pk").values_list("pk", flat=True)
        full: Sequence[int] = pks[self.size - 1 : self.size]
        hi = full[0] if full else rows.aggregate(last=Max("pk"))["last"]
        return (lo, hi) if hi else None

    def _maintain(self) -> None:
        """Compact, drop old days, and delete what is left over: that once a day, with the first
        compaction of a new day, because it lists the whole store."""
        changed = False
        if self.options.compact and not self.ending.is_set():
            now = datetime.now(tz=timezone.utc)
            counts = compaction.compact(self.spark, self.lake, now, self.tell)
            self._add(**counts)
            changed = counts["compacted_into"] > 0
        if first := self._first_kept():
            dropped = self.lake.retain(first)
            self._add(dropped_rows=sum(file.rows for file in dropped))
            changed = changed or bool(dropped)
        if changed and not self.ending.is_set():
            self._add(deleted_files=self.lake.tidy(self.options.grace))

    def _first_kept(self) -> date | None:
        """The first day that `retain` keeps."""
        if self.options.retain is None:
            return None
        return (datetime.now(tz=timezone.utc) - timedelta(seconds=self.options.retain)).date()

    def _prune(self, *, dry_run: bool) -> None:
        if self.options.prune is None:
            return
        age = timedelta(seconds=self.options.prune)
        compare = partial(compare_batches, self.spark, self.params.database, self.ledger)
        done = pruning.prune_batches(
            self.ledger, age, compare, by=self.options.by, dry_run=dry_run, tell=self.tell
        )
        self._add(pruned=done.count)
        self.report.figures["kept_dead_letters"] = done.kept
        self.report.problems = [*self.report.problems, *done.problems]
        if done.problems:
            self.report.code = Code.REFUSED

    def _add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.report.figures[name] = self.report.figures.get(name, 0) + count
