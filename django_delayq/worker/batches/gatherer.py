"""Gathers claimed messages of batch tasks, and runs each batch when it is full or has lingered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from ...store.lease import Lease
from ...tasks import registry
from ...tasks.task import Task
from ..event_loop import EventLoop
from ..thread_pool import ThreadPool
from .batch_executor import BatchExecutor, Gathered

#: Seconds until the next look while batches wait beside idle threads.
KICK = 0.002


class Gatherer:
    """One open batch per task. The dispatcher adds to it and closes it; nobody else does."""

    def __init__(
        self,
        executor: BatchExecutor,
        event_loop: EventLoop,
        release: Callable[[Sequence[Lease]], None],
        on_room: Callable[[], None],
        threads: int,
    ) -> None:
        self._executor = executor
        self._event_loop = event_loop
        self._release = release
        self._pool: ThreadPool[Gathered] = ThreadPool(
            threads, executor.run, on_room, name="delayq-batch"
        )
        self._pool.start()
        self._open: dict[Task[..., object], Gathered] = {}

    def room(self) -> int:
        """How many more messages it takes: full batches for the threads and coroutines that are
        free, without what is gathered already."""
        tasks = [task for task in registry.by_name.values() if task.definition.kind == "batch"]
        units = self._pool.room()
        if any(task.definition.is_async for task in tasks):
            units = min(units, self._event_loop.free)
        largest = max((task.definition.options.batch or 0 for task in tasks), default=0)
        return max(0, units * largest - sum(len(each.leases) for each in self._open.values()))

    def add(self, task: Task[..., object], leases: Iterable[Lease], *, at_once: bool) -> None:
        """Put leases of the task into its batch. `at_once`: it gathers no longer."""
        options = task.definition.options
        for lease in leases:
            gathered = self._open.get(task)
            if gathered is None:
                gathered = self._open[task] = Gathered(task, time.monotonic() + options.linger_s)
            gathered.leases.append(lease)
            if len(gathered.leases) >= (options.batch or 1):
                self._close(gathered)
        if at_once and task in self._open:
            self._close(self._open[task])

    def step(self, too_old: float) -> float:
        """Close what has lingered, and give back what has waited for a thread for `too_old`
        seconds. Returns the seconds until the next step."""
        now = time.monotonic()
        for gathered in list(self._open.values()):
            if gathered.closes_at <= now:
                self._close(gathered)
        for gathered in self._pool.take_back(too_old):
            self._release(gathered.leases)
        if self._pool.stuck:
            self._pool.kick()
            return KICK
        waits = [gathered.closes_at - now for gathered in self._open.values()]
        return min([*waits, too_old] if self._pool.buffered else waits, default=60.0)

    def take_back(self) -> list[Lease]:
        """All leases that do not run yet, to release them."""
        waiting = [*self._open.values(), *self._pool.take_back()]
        self._open.clear()
        return [lease for gathered in waiting for lease in gathered.leases]

    @property
    def running(self) -> list[Lease]:
        """The leases of the batches that run now."""
        return [lease for gathered in self._running() for lease in gathered.leases]

    def runs(self, lease: Lease) -> bool:
        """Whether the lease is of a batch that runs now."""
        return any(lease in gathered.leases for gathered in self._running())

    def end_run(self, lease: Lease) -> None:
        """The run of this lease should end. A coroutine is cancelled when its whole batch should:
        the other messages of the batch are still wanted."""
        for gathered in self._executor.coroutines:
            if lease in gathered.leases and not (
                lease.lost and any(not each.lost for each in gathered.leases)
            ):
                self._event_loop.cancel(gathered)

    def hangs(self, gave_up: Callable[[Lease], bool]) -> bool:
        """Whether every thread is at a batch that was given up."""
        running = self._pool.running
        return len(running) >= self._pool.size and all(
            any(map(gave_up, gathered.leases)) for gathered in running
        )

    def stop(self) -> None:
        """End the threads when they have finished what they run."""
        self._pool.stop()

    def _running(self) -> list[Gathered]:
        return [*self._pool.running, *list(self._executor.coroutines)]

    def _close(self, gathered: Gathered) -> None:
        del self._open[gathered.task]
        gathered.claimed_at = time.monotonic()
        if not gathered.task.definition.is_async:
            self._pool.feed([gathered])
        elif self._event_loop.free:
            self._event_loop.feed([gathered], self._executor.run_async)
        else:
            self._release(gathered.leases)
