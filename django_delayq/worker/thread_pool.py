"""Runs `def` tasks on threads that share one buffer of claimed messages."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from ..core.connections import (
    close_all,
    close_broken,
    make_caches,
    note_connections,
    renew_all,
)
from ..core.log import log_failure

logger = logging.getLogger("delayq.worker")

#: Seconds of work that may wait in the buffer beside what runs. Enough to outlast a round trip to
#: Redis, so that quick tasks never starve; short enough that a message of another topic, or another
#: worker, does not wait behind it.
BUFFERED_WORK = 0.02
MAX_BUFFERED = 2_000
#: A thread is woken for at least so much work (seconds): for no-op tasks one thread outruns eight
#: that share the GIL.
WORTH_A_THREAD = 0.001
#: When every thread has been at one message for so many seconds, nothing is taken in advance until
#: one of them ends: what waits behind them would only be given back and claimed anew. Well below
#: dispatcher.BUFFER_SECONDS.
HELD_UP = 0.25
#: A thread without work keeps its database connections for so many seconds, also with the usual
#: CONN_MAX_AGE of 0. The threads of a busy worker wait a moment again and again: eight of them
#: connected 480 times for 12,000 tasks with one UPDATE, and a connection costs four such tasks.
CONNECTIONS_KEPT = 1.0


class _HasClaimTime(Protocol):
    claimed_at: float


W = TypeVar("W", bound=_HasClaimTime)
"""What a thread runs at a time: a lease, or a batch of them."""


@dataclass(slots=True, eq=False)
class Slot(Generic[W]):
    """One thread and its present work."""

    idle: bool = True
    begun: float = 0.0
    lease: W | None = None
    thread: threading.Thread | None = None


class ThreadPool(Generic[W]):
    """`size` threads. The dispatcher feeds it and asks for its room; the threads take from the
    buffer themselves."""

    def __init__(
        self,
        size: int,
        run: Callable[[W], None],
        on_room: Callable[[], None],
        *,
        name: str = "delayq-pool",
    ) -> None:
        self.size = size
        self._name = name
        self._run = run
        self._on_room = on_room
        self._buffer: deque[W] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self.slots = [Slot[W]() for _ in range(size)]
        self._mean_s = 0.0
        """Running mean of the time a message takes on a thread; 0 until the first."""
        self._low_water = -1
        """on_room is called when the buffer has sunk to this; -1: it is not called."""

    def start(self) -> None:
        """Begin the threads."""
        for number, slot in enumerate(self.slots):
            self._begin(number, slot)

    def grow(self, more: int) -> None:
        """Add so many threads. One thread at a time may call it."""
        for _ in range(more):
            slot = Slot[W]()
            self._begin(self.size, slot)
            self.slots.append(slot)
            self.size += 1
        self._on_room()

    def room(self) -> int:
        """How many more messages it takes: the idle threads, and a little work in advance when
        tasks are short."""
        buffered = len(self._buffer)
        ahead = 0
        if self._mean_s:
            ahead = min(MAX_BUFFERED, int(BUFFERED_WORK * self.size / self._mean_s))
            since = time.monotonic() - HELD_UP
            if all(slot.lease is not None and slot.begun < since for slot in self.slots):
                ahead = 0
        idle = sum(slot.idle for slot in self.slots)
        room = idle + ahead - buffered
        if room <= 0:
            self._low_water = (idle + ahead) // 2
        elif ahead and buffered > ahead // 2:
            # Claiming a handful at a time would cost a round trip for each; wait until half is
            # free.
            self._low_water, room = ahead // 2, 0
        else:
            self._low_water = -1
        return max(0, room)

    def feed(self, leases: list[W]) -> None:
        """Take the leases and wake as many threads as the work is worth."""
        self._buffer.extend(leases)
        self._wake_threads(
            math.ceil(len(self._buffer) * self._mean_s / WORTH_A_THREAD)
            if self._mean_s
            else len(leases)
        )

    def kick(self) -> None:
        """Wake every idle thread that the buffer has work for: the tasks take longer than they
        did."""
        if self._buffer:
            self._wake_threads(len(self._buffer))

    @property
    def stuck(self) -> bool:
        """Work waits although threads are idle: kick() within a few ms."""
        return bool(self._buffer) and any(slot.idle for slot in self.slots)

    @property
    def running(self) -> list[W]:
        """What the threads run now."""
        return [lease for slot in self.slots if (lease := slot.lease) is not None]

    @property
    def buffered(self) -> int:
        """How many messages wait for a thread."""
        return len(self._buffer)

    @property
    def filled(self) -> bool:
        """Whether the next message of each thread is here."""
        return len(self._buffer) >= self.size

    def take_back(self, older_than: float = -1.0) -> list[W]:
        """Remove what has waited in the buffer for longer than so many seconds, to release it."""
        taken: list[W] = []
        now = time.monotonic()
        while True:
            try:
                lease = self._buffer.popleft()
            except IndexError:
                return taken
            if now - lease.claimed_at < older_than:
                self._buffer.appendleft(lease)
                return taken
            taken.append(lease)

    def stop(self) -> None:
        """End the threads when they have finished what they run."""
        for _ in self.slots:
            self._wake.put(False)

    def _begin(self, number: int, slot: Slot[W]) -> None:
        slot.thread = threading.Thread(
            target=self._work, args=(slot,), name=f"{self._name}-{number}", daemon=True
        )
        slot.thread.start()

    def _wake_threads(self, count: int) -> None:
        idle = sum(slot.idle for slot in self.slots)
        for _ in range(min(max(1, count), idle)):
            self._wake.put(True)

    def _work(self, slot: Slot[W]) -> None:
        make_caches()
        note_connections()
        try:
            going_on = True
            while going_on:
                try:
                    going_on = self._wait() and self._empty_buffer(slot)
                except BaseException as error:  # no message may cost the others a thread
                    log_failure(logger, error, "a thread of the pool failed; it goes on")
                slot.lease = None
                slot.idle = True
                self._on_room()
        finally:
            close_all()

    def _wait(self) -> bool:
        """Wait for work. False: for the end.

        The server may have closed connections meanwhile. Between two messages the executor's check
        after each run is enough: a second one costs 2.2 us, a sixth of all that a no-op message
        costs the worker.
        """
        try:
            going_on = self._wake.get(timeout=CONNECTIONS_KEPT)
            renew_all()
        except Empty:
            close_broken()
            going_on = self._wake.get()
            close_broken()
        return going_on

    def _empty_buffer(self, slot: Slot[W]) -> bool:
        """Run until the buffer is empty. Returns True."""
        buffer, run = self._buffer, self._run
        slot.idle = False
        while True:
            try:
                lease = buffer.popleft()
            except IndexError:
                return True
            slot.begun = begun = time.monotonic()
            slot.lease = lease
            run(lease)
            slot.lease = None
            took = time.monotonic() - begun
            # A race between two threads loses a sample; a lock would cost more than the sample is
            # worth.
            self._mean_s += (took - self._mean_s) * 0.05 if self._mean_s else took
            if len(buffer) <= self._low_water:
                self._low_water = -1
                self._on_room()
