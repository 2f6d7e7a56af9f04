"""What the benchmarks run: a task that does nothing but note when it started."""

from __future__ import annotations

import mmap
import os
import struct
import time
from functools import lru_cache

from django_delayq import delayed_task

SLOT = struct.Struct("<dI4x")
SLOTS = 2_000_000


@lru_cache(maxsize=1)
def journal() -> mmap.mmap:
    """Shared memory: for each message the time of its newest start and the number of its starts."""
    path = os.environ["DELAYQ_BENCH_JOURNAL"]
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, SLOT.size * SLOTS)
    return mmap.mmap(descriptor, SLOT.size * SLOTS)


def note(index: int) -> None:
    """About a microsecond."""
    at = SLOT.size * index
    memory = journal()
    SLOT.pack_into(memory, at, time.time(), SLOT.unpack_from(memory, at)[1] + 1)


@delayed_task(topic="bench", ttr=30)
def noop(index: int, padding: str) -> None:
    """The no-op of every workload."""
    note(index)


@delayed_task(topic="bench", ttr=2)
def short(index: int, seconds: float) -> None:
    """For the crash workload: notes its start, then takes a while."""
    note(index)
    time.sleep(seconds)
    note(index + SLOTS // 2)
