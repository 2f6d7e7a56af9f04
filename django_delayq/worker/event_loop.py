"""Runs `async def` tasks on one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any

from ..core.connections import close_all
from ..core.log import log_failure
from ..store.lease import Lease

logger = logging.getLogger("delayq.worker")

#: Room for an eighth of all coroutines is worth a claim at once; less than that after so many
#: seconds.
REFILL = 8
PATIENCE = 0.02
#: A loop that does not cancel a coroutine within so many seconds is blocked: another coroutine does
#: not await.
BLOCKED = 10.0
#: Seconds for abandoned coroutines to run their finally blocks.
LAST_SECONDS = 1.0


class EventLoop:
    """Up to `size` coroutines at a time. The dispatcher feeds it and asks for its room."""

    def __init__(
        self,
        size: int,
        run: Callable[[Lease], Awaitable[None]],
        on_room: Callable[[], None],
        at_end: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.size = size
        self._run = run
        self._on_room = on_room
        self._at_end = at_end
        """Awaited when the loop ends, after all coroutines."""
        self._stopping = False
        self._asked_at = 0.0
        """When it was asked to cancel a coroutine; 0 when it has done so."""
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._tasks: dict[Any, asyncio.Task[None]] = {}
        self._fed = 0
        """Handed over so far. Written by the dispatcher's thread only, as the next one by the
        loop's: no lock."""
        self._ended = 0
        self._fed_at = 0.0
        self._wanted = False
        """Whether to call on_room when there is room again."""

    def start(self) -> None:
        """Begin the loop."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="delayq-event-loop", daemon=True)
        self._thread.start()

    def room(self) -> int:
        """How many more messages it takes. A nearly full loop waits a little: claiming one at a
        time costs too much."""
        free = self.free
        worth = free > 0 and (
            free >= self.size // REFILL or time.monotonic() - self._fed_at > PATIENCE
        )
        self._wanted = not worth
        return free if worth else 0

    @property
    def free(self) -> int:
        """How many more coroutines may start."""
        return max(0, self.size - (self._fed - self._ended))

    def feed(
        self, leases: Sequence[Any], run: Callable[[Any], Awaitable[None]] | None = None
    ) -> None:
        """Start a coroutine for each lease; one hop into the loop for all. With `run` they are
        batches, and that runs them."""
        self._fed += len(leases)
        self._fed_at = time.monotonic()
        # An empty context, of which each coroutine gets a copy: it inherits nothing from here.
        self._loop.call_soon_threadsafe(self._begin, leases, run or self._run, context=Context())

    @property
    def running(self) -> list[Lease]:
        """What runs now."""
        return list(self._tasks)

    @property
    def blocked(self) -> bool:
        """Whether a coroutine keeps the loop from doing anything else."""
        asked_at = self._asked_at
        return bool(asked_at) and time.monotonic() - asked_at > BLOCKED

    def cancel(self, lease: Any) -> None:
        """Cancel the coroutine of a lease, if it still runs."""
        if (task := self._tasks.get(lease)) is not None and not self._loop.is_closed():
            self._asked_at = self._asked_at or time.monotonic()
            self._loop.call_soon_threadsafe(self._cancel, task)

    def stop(self) -> None:
        """End the loop. Coroutines that still run are abandoned."""
        self._stopping = True
        if self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            # A coroutine that blocks the loop keeps the thread. The process ends soon anyway.
            self._thread.join(2 * LAST_SECONDS)

    def _serve(self) -> None:
        try:
            while not self._stopping:
                self._guard(self._loop.run_forever)
            self._guard(lambda: self._loop.run_until_complete(self._end()))
        finally:
            self._loop.close()
            close_all()

    def _guard(self, run: Callable[[], None]) -> None:
        """Run the loop. It outlives SystemExit and KeyboardInterrupt, which asyncio raises out of
        the task."""
        try:
            run()
        except BaseException as error:
            text = "something that a coroutine has started failed; the event loop goes on"
            log_failure(logger, error, text)

    async def _end(self) -> None:
        """Cancel the abandoned coroutines, so that their finally blocks run."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LAST_SECONDS)
        if self._at_end is not None:
            await asyncio.wait({asyncio.ensure_future(self._at_end())}, timeout=LAST_SECONDS / 2)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        self._asked_at = 0.0
        task.cancel()

    def _begin(self, leases: Sequence[Any], run: Callable[[Any], Awaitable[None]]) -> None:
        for lease in leases:
            self._tasks[lease] = self._loop.create_task(self._guarded(lease, run))

    async def _guarded(self, lease: Any, run: Callable[[Any], Awaitable[None]]) -> None:
        try:
            await run(lease)
        finally:
            self._tasks.pop(lease, None)
            self._ended += 1
            if self._wanted and self.size - (self._fed - self._ended) >= self.size // REFILL:
                self._wanted = False
                self._on_room()
