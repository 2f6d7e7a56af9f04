"""archive -> lake, continuously: Structured Streaming plans the batches, and the export's own
commit takes each."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import LakeConflict, Refused
from ..jobs import Tell
from ..lake.lake import Lake
from ..lake.ledger import Ledger
from ..lake.watermark import unseen_writers
from ..options import StreamOptions
from ..params import Database, Params, Report
from ..sources.archive import ArchiveSource, encoded
from ..sources.lake_files import uri_of
from .checkpoint import Checkpoint
from .export import append, refuse_restored

#: How often a batch is tried whose ids another export takes at the same time.
TRIES = 5
#: Seconds between two looks at the query: a signal is noticed at once, an end of the query so much
#: later.
LOOK = 0.5


def run(spark: Any, params: Params, tell: Tell) -> Report:
    """Copy what is settled in the archive, batch by batch; with an interval until SIGTERM or
    Ctrl-C.

    Raises Refused, also for a checkpoint that is not of this lake; LakeError and LakeConflict as
    the export does.
    """
    begun = time.monotonic()
    options = params.options(StreamOptions)
    lake = Lake(params.lake)
    checkpoint = Checkpoint(Path(options.checkpoint or lake.root / "_stream").absolute())
    ledger = Ledger(lake)
    refuse_restored(ledger.check())
    checkpoint.check(lake)
    if params.dry_run:
        return _foretell(lake, options)
    ledger.follow()
    checkpoint.mark(lake)
    copier = _Copier(params.database, options, lake, checkpoint, tell)
    with _ended_by_signals(copier.ending):
        _follow(_start(spark, params, options, copier), copier)
    return _report(copier, time.monotonic() - begun)


def _start(spark: Any, params: Params, options: StreamOptions, copier: _Copier) -> Any:
    spark.dataSource.register(ArchiveSource)
    source = {
        "database": encoded(params.database),
        "after": str(copier.lake.last_id),
        "batch": str(options.batch),
        "settle": str(options.settle),
    }
    stream = spark.readStream.format(ArchiveSource.name()).options(**source).load()
    writer = stream.writeStream.foreachBatch(copier.take).queryName("delayq_stream")
    writer = writer.option("checkpointLocation", uri_of(copier.checkpoint.path))
    interval = options.interval
    when = (
        {"availableNow": True}
        if interval is None
        else {"processingTime": f"{round(interval * 1000)} milliseconds"}
    )
    return writer.trigger(**when).start()


def _follow(query: Any, copier: _Copier) -> None:
    """Return when the query has ended, or has ended its batch after a signal. Raises what a batch
    raised."""
    from pyspark.errors import StreamingQueryException

    try:
        while not query.awaitTermination(LOOK):
            if copier.ending.is_set() and not query.status["isTriggerActive"]:
                break
    except StreamingQueryException:
        if copier.failure is None:
            raise
    finally:
        query.stop()
    if copier.failure is not None and not isinstance(copier.failure, _EndedError):
        raise copier.failure


class _EndedError(Exception):
    """Ends a query before its next batch."""


class _Copier:
    """Takes the batches, in a thread of Spark's, and keeps what became of them."""

    def __init__(
        self,
        database: Database,
        options: StreamOptions,
        lake: Lake,
        checkpoint: Checkpoint,
        tell: Tell,
    ) -> None:
        self._database, self._settle = database, options.settle
        self.lake, self.checkpoint, self._tell = lake, checkpoint, tell
        self.ending = threading.Event()
        self.failure: Exception | None = None
        self.batches = self.rows = 0
        self._reached = lake.last_id

    def take(self, frame: Any, batch: int) -> None:
        """Bring the lake up to the end of this batch. A batch that comes again, after a crash, adds
        nothing."""
        from django.db import connections

        try:
            if self.ending.is_set():
                raise _EndedError
            # The query has a session of its own. The rows are read by the export's own reader,
            # which copies them.
            self._bring_to(self.checkpoint.end_of(batch), frame.sparkSession)
            self.checkpoint.mark(self.lake)
        except Exception as error:
            self.failure = error  # Spark would give its text only
            raise
        finally:
            connections.close_all()  # of this thread

    def _bring_to(self, hi: int, spark: Any) -> None:
        for attempt in range(1, TRIES + 1):
            lo = self.lake.last_id
            if lo < self._reached:
                raise Refused(
                    f"{self.lake.root} held the archive up to id {self._reached:,}, and now to "
                    f"{lo:,} only."
                )
            if lo >= hi:
                break
            try:
                self._append(spark, lo, hi)
                break
            except LakeConflict:
                if attempt == TRIES:
                    raise
        self._reached = hi

    def _append(self, spark: Any, lo: int, hi: int) -> None:
        commit = append(spark, self.lake, self._database, (lo, hi), self._tell, settle=self._settle)
        self.batches += 1
        self.rows += commit.rows
        self._tell(f"{self.rows:,} rows in {self.batches} batches, up to id {hi:,}")


@contextmanager
def _ended_by_signals(ending: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the job after its batch. Elsewhere than in the main thread nothing can
    be set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: ending.set()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _foretell(lake: Lake, options: StreamOptions) -> Report:
    from ...models import ArchivedMessage
    from ..lake.watermark import last_settled_id

    hi = max(lake.last_id, last_settled_id(options.settle))
    rows = ArchivedMessage.objects.filter(id__gt=lake.last_id, id__lte=hi).count()
    figures = {"rows": rows, "last_id": lake.last_id, "settled_id": hi}
    return Report(job="stream", figures=figures, problems=unseen_writers())


def _report(copier: _Copier, seconds: float) -> Report:
    figures: dict[str, Any] = {
        "rows": copier.rows,
        "batches": copier.batches,
        "last_id": copier.lake.last_id,
        "seconds": round(seconds, 3),
        "rows_per_second": round(copier.rows / seconds) if seconds else 0,
    }
    return Report(job="stream", figures=figures, problems=unseen_writers())
