"""SAQ: its scheduler moves due jobs once a second."""

from __future__ import annotations

import os
from typing import Any

from saq import Queue

from tests.benchmarks.journal import note

queue = Queue.from_url(os.environ["DELAYQ_BENCH_REDIS"])


async def noop(context: dict[str, Any], *, index: int, padding: str) -> None:
    """The body that all have."""
    note(index)


settings = {"queue": queue, "functions": [("noop", noop)], "concurrency": 50}


async def opened() -> None:
    """Connect."""
    await queue.connect()


async def enqueue(index: int, due: float, padding: str) -> None:
    """One message."""
    await queue.enqueue("noop", index=index, padding=padding, scheduled=due, ttl=-1, retries=5)
