"""Says how far a job of Spark is, with Spark Connect and without."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

#: Seconds between two looks at how far a job is.
PACE = 0.5


@contextmanager
def watched(spark: SparkSession, show: Callable[[float], object]) -> Iterator[None]:
    """Call show(share) again and again, with the share of the tasks that have ended (0 to 1)."""
    if is_remote():

        def handle(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
            if total := sum(stage.num_tasks for stage in stages):
                show(sum(stage.num_completed_tasks for stage in stages) / total)

        spark.registerProgressHandler(handle)  # type: ignore[arg-type]
        try:
            yield
        finally:
            spark.removeProgressHandler(handle)  # type: ignore[arg-type]
        return
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        while not ended.wait(PACE):
            with suppress(Exception):  # Java may end meanwhile: the job itself says so
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                if found := [stage for stage in stages if stage and stage.numTasks]:
                    show(found[0].numCompletedTasks / found[0].numTasks)

    thread = threading.Thread(target=watch, name="delayq-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
