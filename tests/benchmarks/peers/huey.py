"""huey: its schedule, which is read once a second."""

from __future__ import annotations

import os
import time

from huey import RedisHuey

from tests.benchmarks.journal import note

queue = RedisHuey("bench", url=os.environ["DELAYQ_BENCH_REDIS"], results=False)


@queue.task()
def noop(index: int, padding: str) -> None:
    """The body that all have."""
    note(index)


def enqueue(index: int, due: float, padding: str) -> None:
    """One message. By its delay, for of an eta huey drops the microseconds and runs it early."""
    noop.schedule(args=(index, padding), delay=due - time.time())
