"""Shared memory in which every task, ours or a peer's, notes when it started. Needs nothing but
Python."""

from __future__ import annotations

import mmap
import os
import struct
import time
from functools import lru_cache

SLOT = struct.Struct("<dI4x")
SLOTS = 2_000_000

#: Above this nothing is measured: warm-up messages and those that wait for ever.
WARM_UP = SLOTS - 10_000


@lru_cache(maxsize=1)
def journal() -> mmap.mmap:
    """For each message the time of its newest start and the number of its starts."""
    return opened(os.environ["DELAYQ_BENCH_JOURNAL"])


def opened(path: str) -> mmap.mmap:
    """The journal in this file, which is made when it is missing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, SLOT.size * SLOTS)
        return mmap.mmap(descriptor, SLOT.size * SLOTS)
    finally:
        os.close(descriptor)


def note(index: int) -> None:
    """About a microsecond."""
    at = SLOT.size * index
    memory = journal()
    SLOT.pack_into(memory, at, time.time(), SLOT.unpack_from(memory, at)[1] + 1)


def starts(count: int, first: int = 0, memory: mmap.mmap | None = None) -> list[tuple[float, int]]:
    """(time of the newest start, number of starts) of each message."""
    memory = memory or journal()
    return [SLOT.unpack_from(memory, SLOT.size * (first + index)) for index in range(count)]


class Progress:
    """Tells whether all of some messages have started, and looks at each but once: polling shares
    the cores."""

    def __init__(self, count: int, first: int = 0, memory: mmap.mmap | None = None) -> None:
        self._at, self._end = first, first + count
        self._memory = memory or journal()

    def done(self) -> bool:
        """Whether all have started."""
        while self._at < self._end and SLOT.unpack_from(self._memory, SLOT.size * self._at)[1]:
            self._at += 1
        return self._at == self._end
