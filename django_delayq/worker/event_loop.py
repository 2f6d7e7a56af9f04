"""Runs `async def` tasks on one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

from ..store.lease import Lease

#: Room for an eighth of all coroutines is worth a claim at once; less than that after so many seconds.
REFILL = 8
PATIENCE = 0.02


class EventLoop:
    """Up to `size` coroutines at a time. The dispatcher feeds it and asks for its room."""

    def __init__(self, size: int, run: Callable[[Lease], Awaitable[None]], on_room: Callable[[], None]) -> None:
        self.size = size
        self._run = run
        self._on_room = on_room
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._tasks: dict[Lease, asyncio.Task[None]] = {}
        self._fed = 0
        """Handed over so far. Written by the dispatcher's thread only, as the next one by the loop's: no lock."""
        self._ended = 0
        self._fed_at = 0.0
        self._wanted = False
        """The dispatcher wants to hear when there is room again."""

    def start(self) -> None:
        """Begin the loop."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="delayq-event-loop", daemon=True)
        self._thread.start()

    def room(self) -> int:
        """How many more messages it takes. A nearly full loop waits a little: claiming one at a time costs too much."""
        free = self.size - (self._fed - self._ended)
        worth = free > 0 and (free >= self.size // REFILL or time.monotonic() - self._fed_at > PATIENCE)
        self._wanted = not worth
        return free if worth else 0

    def feed(self, leases: list[Lease]) -> None:
        """Start a coroutine for each lease; one hop into the loop for all."""
        self._fed += len(leases)
        self._fed_at = time.monotonic()
        self._loop.call_soon_threadsafe(self._begin, leases)

    @property
    def running(self) -> list[Lease]:
        """What runs now."""
        return list(self._tasks)

    def cancel(self, lease: Lease) -> None:
        """Cancel the coroutine of a lease, if it still runs."""
        if (task := self._tasks.get(lease)) is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(task.cancel)

    def stop(self) -> None:
        """End the loop; what still runs is abandoned."""
        if self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1.0)  # a coroutine that blocks the loop keeps it: the process ends soon

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
            if self._tasks:  # abandoned: end them here, so that their finally blocks run
                tasks = list(self._tasks.values())
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        finally:
            self._loop.close()

    def _begin(self, leases: list[Lease]) -> None:
        for lease in leases:
            task = self._loop.create_task(self._guarded(lease))
            self._tasks[lease] = task

    async def _guarded(self, lease: Lease) -> None:
        try:
            await self._run(lease)
        finally:
            self._tasks.pop(lease, None)
            self._ended += 1
            if self._wanted and self.size - (self._fed - self._ended) >= self.size // REFILL:
                self._wanted = False
                self._on_room()
