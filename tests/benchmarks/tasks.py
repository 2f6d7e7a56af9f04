"""What the benchmarks run: tasks that note when they started, and some that then take a while."""

from __future__ import annotations

import asyncio
import time

from django_delayq import delayed_task
from tests.benchmarks.journal import SLOT, SLOTS, journal, note

__all__ = [
    "SLOT",
    "SLOTS",
    "apart",
    "apart_limited",
    "io",
    "journal",
    "keyed",
    "letter",
    "mixed",
    "neighbour",
    "noop",
    "note",
    "paced",
    "short",
]


@delayed_task(topic="bench", ttr=30)
def noop(index: int, padding: str) -> None:
    """The no-op of every workload."""
    note(index)


@delayed_task(topic="apart", ttr=30, isolate=True)
def apart(index: int, padding: str) -> None:
    """The no-op in a child process."""
    note(index)


@delayed_task(topic="apart", ttr=30, isolate=True, memory_limit="1GiB")
def apart_limited(index: int, padding: str) -> None:
    """The no-op in a child process whose memory is watched."""
    note(index)


@delayed_task(topic="letters-by-hand", ttr=30)
def letter(order: int, note: str) -> None:
    """What a view sends."""


@delayed_task(topic="neighbour", ttr=30)
def neighbour(index: int, padding: str) -> None:
    """The no-op of a small topic beside a flooded one."""
    note(index)


@delayed_task(topic="paced", ttr=30)
def paced(index: int, padding: str) -> None:
    """The no-op of a topic with a rate."""
    note(index)


@delayed_task(topic="keyed", ttr=30, limit_by="key:{key}", concurrency=3)
def keyed(index: int, key: int, seconds: float) -> None:
    """Notes its start, takes a while, and notes its end."""
    note(index)
    time.sleep(seconds)
    note(index + SLOTS // 2)


@delayed_task(topic="mixed", ttr=30)
def mixed(index: int, seconds: float) -> None:
    """For fairness: notes its start, then takes a while."""
    note(index)
    time.sleep(seconds)


@delayed_task(topic="async", ttr=30)
async def io(index: int, seconds: float) -> None:
    """Input and output, as an `async def` task waits for it."""
    note(index)
    await asyncio.sleep(seconds)


@delayed_task(topic="bench", ttr=2)
def short(index: int, seconds: float) -> None:
    """For the crash workload: notes its start, then takes a while, and notes its end."""
    note(index)
    time.sleep(seconds)
    note(index + SLOTS // 2)
