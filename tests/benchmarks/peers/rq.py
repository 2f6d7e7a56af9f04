"""rq: its scheduler, which moves due jobs once a second."""

from __future__ import annotations

import os
from datetime import datetime, timezone

from redis import Redis
from rq import Queue

from tests.benchmarks.journal import note

queue = Queue(connection=Redis.from_url(os.environ["DELAYQ_BENCH_REDIS"]))


def noop(index: int, padding: str) -> None:
    """The body that all have."""
    note(index)


def enqueue(index: int, due: float, padding: str) -> None:
    """One message."""
    queue.enqueue_at(
        datetime.fromtimestamp(due, tz=timezone.utc), noop, index, padding, result_ttl=0
    )
