"""streaq: polls a sorted set, works from a stream."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timezone

from streaq import Worker

from tests.benchmarks.journal import note

worker = Worker(redis_url=os.environ["DELAYQ_BENCH_REDIS"], concurrency=100)


@worker.task(ttl=0, silent=True)
async def noop(index: int, padding: str) -> None:
    """The body that all have."""
    note(index)


async def opened() -> None:
    """Connect."""
    await worker.__aenter__()


async def enqueue(index: int, due: float, padding: str) -> None:
    """One message."""
    await noop.enqueue(index, padding).start(schedule=datetime.fromtimestamp(due, tz=timezone.utc))


async def enqueue_bulk(indexes: Sequence[int], due: float, padding: str) -> None:
    """One call for many."""
    at = datetime.fromtimestamp(due, tz=timezone.utc)
    await worker.enqueue_many(
        [noop.enqueue(index, padding).start(schedule=at) for index in indexes]
    )
