"""Adds threads while all are busy with waiting, for `--concurrency auto`. One of the worker's
services."""

from __future__ import annotations

import logging
import time

from ..core.service import Service
from .thread_pool import ThreadPool

logger = logging.getLogger("delayq.worker")

#: More threads of one process would wait for its interpreter lock, whatever else they wait for.
MOST_THREADS = 64
#: Looks in a row at which no thread was idle, before there are more.
BUSY_LOOKS = 4
#: A process that computes for this share of the time gains nothing by more threads.
COMPUTES = 0.6


class ThreadGrower(Service):
    """Threads that were added stay: an idle one costs little, and holds no connection."""

    name = "thread-grower"
    interval = 0.25

    def __init__(self, pool: ThreadPool) -> None:  # type: ignore[type-arg]
        super().__init__()
        self._pool = pool
        self._forget()

    def run_once(self) -> float:
        """Look once, and add half as many threads as there are when it is time."""
        if any(slot.idle for slot in self._pool.slots):
            self._forget()
            return self.interval
        self._looks += 1
        if self._looks >= BUSY_LOOKS:
            passed = time.monotonic() - self._since
            computed = (time.process_time() - self._computed) / passed
            more = min(MOST_THREADS, self._pool.size * 3 // 2 + 1) - self._pool.size
            if computed < COMPUTES and more > 0:
                self._pool.grow(more)
                logger.info("all threads were busy: there are %d now", self._pool.size)
            self._forget()
        return self.interval

    def _forget(self) -> None:
        """The next busy spell begins here."""
        self._looks = 0
        self._since, self._computed = time.monotonic(), time.process_time()
