"""One worker: its parts, how they start and how they stop."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.conf import Settings
from ..core.exceptions import DelayQError
from ..core.service import Service, Sleeper
from ..core.version import PACKAGE_VERSION
from ..store.lease import Lease
from ..store.store import RedisStore
from .dispatcher import Dispatcher
from .event_loop import EventLoop
from .executor import ChildProcesses, Executor
from .fleet import Fleet
from .heartbeat import Heartbeat
from .lease_keeper import LeaseKeeper
from .listener import Listener
from .outcome import Outcome, Result
from .quarantine import AWAY_MS
from .reclaimer import Reclaimer
from .run_report import described_runs
from .sampler import Sampler
from .settler import Settler
from .shared import PerformOnce, Shared
from .thread_grower import ThreadGrower
from .thread_pool import ThreadPool

if TYPE_CHECKING:
    from .batches.gatherer import Gatherer

#: Threads of a worker that talk to Redis, beside those of the tasks: one for each service.
SERVICE_THREADS = 7


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of the command line."""

    topics: tuple[str, ...]
    concurrency: int = 8
    """Threads for `def` tasks."""
    more_threads: bool = False
    """Add threads while all are busy and wait."""
    async_concurrency: int = 100
    """Coroutines of `async def` tasks at a time."""
    shutdown_timeout: float = 25.0
    """Seconds that running tasks get when the worker stops."""
    burst: bool = False
    """Stop when nothing is due."""
    max_messages: int | None = None
    """Stop after so many messages."""


class Worker:
    """Claims, runs and settles messages until it is told to stop."""

    def __init__(
        self,
        store: RedisStore,
        settings: Settings,
        options: WorkerOptions,
        *,
        perform_once: PerformOnce | None = None,
        before_claims: Callable[[float], None] | None = None,
        sql_services: Callable[[Worker], Sequence[Service]] = lambda worker: (),
    ) -> None:
        name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"
        self.shared = Shared(store, settings, name, options.topics, perform_once, before_claims)
        self.options = options
        self.settled: Counter[Result] = Counter()
        self.settler = Settler(self.shared, self._on_settled, lambda: self.pool.filled)
        self.executor = Executor(self.shared, self.settler.put, isolate=_child_processes)
        self.pool = ThreadPool(options.concurrency, self.executor.run, self._on_room)
        self.event_loop = EventLoop(
            options.async_concurrency,
            self.executor.run_async,
            self._on_room,
            self.executor.close_connections,
        )
        self.fleet = Fleet(self.shared, joins=not options.burst and options.max_messages is None)
        self.dispatcher = Dispatcher(
            self.shared, self.fleet, self.pool, self.event_loop, self.release, self._gatherer
        )
        self.dispatcher.limit = options.max_messages
        self.dispatcher.returned = lambda: self.settled[Result.RELEASED]
        self.dispatcher.sweeper.on_finished = self.on_finished
        self.lease_keeper = LeaseKeeper(self.shared, self._end_run, self.runs)
        self.heartbeat = Heartbeat(self.shared, self.fleet, self.figures, self.dispatcher.set_quiet)
        self.listener = Listener(
            self.shared,
            self.fleet,
            self.dispatcher.hint,
            self.dispatcher.fleet_changed,
            self.heartbeat.check_quiet,
            self.lease_keeper.check,
        )
        self.dispatcher.sweeper.hints_are_complete = self.listener.hints_are_complete
        self.reclaimer = Reclaimer(
            self.shared, self.dispatcher.agenda, self.fleet, self.listener.hints_are_complete
        )
        self.sampler = Sampler(store, self.fleet.spread)
        self._growers = (ThreadGrower(self.pool),) if options.more_threads else ()
        self.sql_services = tuple(sql_services(self))
        """Archiver, relay, reconciler: they know models, which this package does not."""
        self.progress = Sleeper()
        """Wakes the thread that waits for the worker's end. Signal handlers wake it too, in the
        middle of whatever that thread does. With a threading.Event, that could wait for its own
        lock for ever."""
        self.draining = False
        self._started_at = time.time()

    @property
    def services(self) -> tuple[Service, ...]:
        """In the order of their start."""
        claiming = (self.settler, self.lease_keeper, self.dispatcher, self.listener, self.reclaimer)
        return (*claiming, self.heartbeat, self.sampler, *self._growers, *self.sql_services)

    def start(self) -> None:
        """Begin to work. Returns at once."""
        self.pool.start()
        self.event_loop.start()
        for service in self.services:
            service.start()

    def stop(self) -> int:
        """Drain: claim no more, let running tasks finish within the timeout, release the rest.

        Returns how many messages were still running; they are given back and will run again.
        """
        self.draining = True
        with suppress(DelayQError):  # others notice soon
            self.fleet.leave(for_good=True)
        deadline = time.monotonic() + self.options.shutdown_timeout
        for claiming in (self.listener, self.reclaimer, self.dispatcher):
            claiming.stop()
        self.dispatcher.join(self.shared.settings.socket_timeout)
        self.release([*self.pool.take_back(), *self.dispatcher.quarantine.take_back()])
        gatherer = self.dispatcher.gatherer
        if gatherer is not None:
            self.release(gatherer.take_back())
        while not self.idle and time.monotonic() < deadline:
            self.progress.wait(0.005)
        left = [lease for lease in list(self.shared.held) if not lease.lost]
        stopped = self._stop_children()
        # A task that has overrun its max_runtime counts as a crash when its lease ends. If we gave
        # it back with its attempt, it would hang the next worker, and the next, for ever.
        gave_up = self.lease_keeper.gave_up
        self.release([lease for lease in left if lease not in stopped and not gave_up(lease)])
        deadline = time.monotonic() + 2.0
        while not self.settler.idle and time.monotonic() < deadline:
            self.progress.wait(0.005)
        for service in self.services:
            service.stop()
        for service in self.sql_services:  # a transaction that is open may end
            service.join(deadline + 1.0 - time.monotonic())
        self.pool.stop()
        if gatherer is not None:
            gatherer.stop()
        self.event_loop.stop()
        with suppress(Exception):  # Redis is away: the heartbeat grows old by itself
            self.shared.store.workers.forget(self.shared.name)
        return len(left)

    def _stop_children(self) -> Collection[Lease]:
        """Kill the isolated runs that are left, before others may run their messages. The threads
        that wait for them release them."""
        stopped = self.executor.stop_children()
        deadline = time.monotonic() + 2.0
        while any(map(self.runs, stopped)) and time.monotonic() < deadline:
            self.progress.wait(0.005)
        return stopped

    def release(self, leases: Sequence[Lease], later: bool = False) -> None:
        """Give messages back unrun, their attempt with them: due at once, or in a second or so."""
        now = time.monotonic()
        outcomes = [Outcome(lease, None, Result.RELEASED, now) for lease in leases]
        for outcome in outcomes if later else ():
            outcome.delay_ms = random.randint(*AWAY_MS)
        self.settler.put_all(outcomes)

    def runs(self, lease: Lease) -> bool:
        """Whether its task runs now: not while it is buffered, nor while its result waits to be
        settled."""
        gatherer = self.dispatcher.gatherer
        return (
            lease in self.pool.running
            or lease in self.event_loop.running
            or (gatherer is not None and gatherer.runs(lease))
        )

    @property
    def idle(self) -> bool:
        """Whether nothing is claimed and everything is settled. Tasks that hang and have lost their
        leases do not count."""
        hang = self.lease_keeper.gave_up
        return (
            all(hang(lease) and lease.ended for lease in list(self.shared.held))
            and self.settler.idle
        )

    @property
    def ready(self) -> bool:
        """Whether it reaches Redis and claims: not while it stops, nor while a suspect has the
        process to itself."""
        return (
            self.dispatcher.connected and not self.dispatcher.quarantine.keeps and not self.draining
        )

    @property
    def finished(self) -> bool:
        """Whether --burst or --max-messages has come to its end."""
        limit = self.options.max_messages
        if limit is not None and self.dispatcher.claimed >= limit:
            return self.idle
        return (
            self.options.burst
            and self.dispatcher.nothing_due
            and self.shared.clock.known
            and self.idle
            and not any(service.has_work for service in self.sql_services)
        )

    @property
    def stuck(self) -> bool:
        """Whether every thread, or every coroutine, has overrun its max_runtime, or one coroutine
        blocks all others: this process can do no more."""
        hang, options = self.lease_keeper.gave_up, self.options
        gatherer = self.dispatcher.gatherer
        return (
            sum(map(hang, self.pool.running)) >= self.pool.size
            or sum(map(hang, self.event_loop.running)) >= options.async_concurrency
            or self.event_loop.blocked
            or (gatherer is not None and gatherer.hangs(hang))
        )

    def figures(self) -> dict[str, Any]:
        """For heartbeats and the health port."""
        gatherer = self.dispatcher.gatherer
        in_pool = [
            (lease, slot.thread) for slot in self.pool.slots if (lease := slot.lease) is not None
        ]
        others = [*self.event_loop.running, *(gatherer.running if gatherer is not None else ())]
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": PACKAGE_VERSION,
            "topics": list(self.options.topics),
            "concurrency": self.pool.size,
            "running": len(in_pool) + len(others),
            "busy": len(in_pool),
            **described_runs([*in_pool, *((lease, None) for lease in others)]),
            "in_flight": len(self.shared.held),
            "started_ms": int(self._started_at * 1000),
            "overrun": self.lease_keeper.overrun,
            "draining": self.draining,
            "quiet": self.dispatcher.quiet,
            "settled": {result.value: count for result, count in list(self.settled.items())},
            **{service.name: service.figures for service in self.sql_services},
        }

    def on_finished(self) -> None:
        """Tell the services that messages have ended, here or elsewhere: there is something to
        archive."""
        for service in self.sql_services:
            service.messages_ended()

    def _end_run(self, lease: Lease) -> None:
        self.event_loop.cancel(lease)
        if self.dispatcher.gatherer is not None:
            self.dispatcher.gatherer.end_run(lease)

    def _gatherer(self) -> Gatherer:
        """Imported only by a worker that has batch tasks."""
        from .batches.batch_executor import BatchExecutor
        from .batches.gatherer import Gatherer

        executor = BatchExecutor(self.shared, self.executor, self.settler.put_all)
        threads = self.options.concurrency
        return Gatherer(executor, self.event_loop, self.release, self._on_room, threads)

    def _on_room(self) -> None:
        self.dispatcher.sleeper.wake()

    def _on_settled(self, outcomes: Sequence[Outcome]) -> None:
        put_off = self.settled[Result.PUT_OFF]
        self.settled.update(outcome.result for outcome in outcomes)
        if self.settled[Result.PUT_OFF] > put_off:
            self.dispatcher.note_unfit()
        self.on_finished()
        if self.draining or self.options.burst or self.options.max_messages is not None:
            self.progress.wake()


def _child_processes(shared: Shared) -> ChildProcesses:
    """Imported only by a worker that has isolated tasks."""
    from .isolated.isolation import Isolation

    return Isolation(shared)
