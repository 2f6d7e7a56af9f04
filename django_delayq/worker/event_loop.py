"""Runs `async def` tasks on one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from ..store.lease import Lease


class EventLoop:
    """Up to `size` coroutines at a time. The dispatcher feeds it and asks for its room."""

    def __init__(self, size: int, run: Callable[[Lease], Awaitable[None]], on_room: Callable[[], None]) -> None:
        self.size = size
        self._run = run
        self._on_room = on_room
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._tasks: dict[Lease, asyncio.Task[None]] = {}
        self._handed = 0
        """Handed over and not yet finished; changed by the loop's thread and, under the GIL, by the feeder."""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin the loop."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="delayq-event-loop", daemon=True)
        self._thread.start()

    def room(self) -> int:
        """How many more messages it takes."""
        return max(0, self.size - self._handed)

    def feed(self, leases: list[Lease]) -> None:
        """Start a coroutine for each lease; one hop into the loop for all."""
        with self._lock:
            self._handed += len(leases)
        self._loop.call_soon_threadsafe(self._begin, leases)

    @property
    def running(self) -> list[Lease]:
        """What runs now."""
        return list(self._tasks)

    def cancel(self, lease: Lease) -> None:
        """Cancel the coroutine of a lease, if it still runs."""
        if (task := self._tasks.get(lease)) is not None:
            self._loop.call_soon_threadsafe(task.cancel)

    def stop(self) -> None:
        """End the loop; what still runs is abandoned."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _begin(self, leases: list[Lease]) -> None:
        for lease in leases:
            task = self._loop.create_task(self._guarded(lease))
            self._tasks[lease] = task

    async def _guarded(self, lease: Lease) -> None:
        try:
            await self._run(lease)
        finally:
            self._tasks.pop(lease, None)
            with self._lock:
                self._handed -= 1
            if self._handed <= self.size // 2 or self._handed == 0:
                self._on_room()
