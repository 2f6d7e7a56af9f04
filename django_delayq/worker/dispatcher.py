"""Claims messages when they fall due and hands them to the pool. The only thread that claims."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core import signals
from ..core.exceptions import DelayQError, OutcomeUnknown, StoreError
from ..core.message import task_code_of
from ..core.service import Service
from ..store.client import BATCH
from ..store.keys import Partition
from ..store.lease import Lease, holder_code, new_token
from ..tasks import registry
from ..tasks.task import Task, TaskKind
from .agenda import Agenda, Visit
from .claim_hold import ClaimHold
from .claims import Claims
from .event_loop import EventLoop
from .fleet import Fleet
from .quarantine import Quarantine
from .shared import Shared
from .sweeper import Sweeper
from .thread_pool import ThreadPool
from .turns import Turns

if TYPE_CHECKING:
    from .batches.gatherer import Gatherer

logger = logging.getLogger("delayq.worker")

#: Seconds until the next round while claimed messages wait beside idle threads.
KICK = 0.002
#: A message that has waited in the buffer for so many seconds is released. That is well within the
#: shortest lease (1 s).
BUFFER_SECONDS = 0.5
#: Seconds until the next claim from a partition that answers with an error.
DAMAGED_S = 5
#: Seconds after the due time. A wake-up a moment before it would cost another round for nothing.
WAKE_MARGIN = 0.0001
#: What a thread has run for so many seconds makes the worker a busy one.
BUSY_AFTER = 0.02
#: Milliseconds until the next claim from a partition that waits for the archiver.
UNARCHIVED_LOOK_MS = 1_000


class Dispatcher(Service):
    """Sleeps until the earliest due time of all partitions; woken by hints and by free slots."""

    name = "dispatcher"
    reports_outages = True

    def __init__(
        self,
        shared: Shared,
        fleet: Fleet,
        pool: ThreadPool[Lease],
        event_loop: EventLoop,
        release: Callable[..., None],
        make_gatherer: Callable[[], Gatherer],
    ) -> None:
        super().__init__()
        self._shared = shared
        self._store = shared.store
        self._claims = Claims(shared.store, shared.settings)
        self._clock = shared.clock
        self._code = holder_code(shared.name)
        self._pool = pool
        self._event_loop = event_loop
        self._release = release
        self.agenda = Agenda({name: topic.weight for name, topic in shared.settings.topics.items()})
        self._turns = Turns(shared, fleet, self.agenda, self._claims.is_limited)
        self.sweeper = Sweeper(shared, self.agenda, self._claims, fleet)
        self._turns.on_unknown = self.sweeper.note_partition
        self.quarantine = Quarantine(
            shared, partial(self._feed, at_once=True), partial(release, later=True)
        )
        self._down_since = 0.0
        self._unanswered: list[tuple[Partition, bytes]] = []
        self._claim_hold = ClaimHold(shared.before_claims, self.sleeper.wake)
        self._taken = self._declared = 0
        self._met: dict[str, set[TaskKind]] = {}
        self._make_gatherer = make_gatherer
        self.gatherer: Gatherer | None = None
        """Gathers the messages of batch tasks; None until there is such a task."""
        self.returned: Callable[[], int] = lambda: 0
        """How many claimed messages have been given back unrun."""
        self.limit: int | None = None
        """Claim no more than so many in all (--max-messages)."""
        self.quiet = False
        """Claim nothing more. Messages that are already claimed go on."""
        self.nothing_due = False
        """Whether the last round found nothing due anywhere."""

    def stop(self) -> None:
        """End the loop after the current run, and the reading of the outbox."""
        super().stop()
        self._claim_hold.stop()

    def hint(self, partition: Partition | None, due_ms: float) -> None:
        """The partition (None: any) may have a message that is due then. Thread-safe."""
        if self._turns.hear(partition, due_ms):
            self.sleeper.wake()

    def fleet_changed(self) -> None:
        """Another worker says that it is there, busy, or gone. Thread-safe."""
        self.sleeper.wake()

    def note_unfit(self) -> None:
        """A message was put off: other workers, whose code may fit, come first from now on.
        Thread-safe."""
        self._turns.note_unfit()
        self.sleeper.wake()  # to say so before the message is due again

    def set_quiet(self, quiet: bool) -> None:
        """Claim nothing from now on, or go on. Thread-safe."""
        if quiet != self.quiet:
            logger.warning("told to claim nothing" if quiet else "told to claim again")
            self.quiet = quiet
            self.hint(None, 0)

    def run_once(self) -> float:
        """Claim what is due and return how long to sleep."""
        try:
            pause = self._round()
        except DelayQError:
            self._down_since = self._down_since or time.monotonic()
            self._turns.hear(None, 0)  # visit every partition: anything may have happened
            self._claim_hold.needed = True
            self.sweeper.start_over()
            raise
        if self._down_since:
            logger.warning("Redis is back after %.1f s", time.monotonic() - self._down_since)
            self._down_since = 0.0
        return pause

    @property
    def claimed(self) -> int:
        """How many messages were claimed to run."""
        return self._taken - self.returned()

    @property
    def connected(self) -> bool:
        """Whether Redis answered the last time."""
        return self._clock.known and not self._down_since

    # One round

    def _round(self) -> float:
        self._turns.wakes_at = math.inf
        self._recover()
        self._turns.follow()
        self.sweeper.run_when_due()
        # These have waited too long for a thread: another worker, or this one later, is quicker.
        if old := self._pool.take_back(BUFFER_SECONDS):
            self._release(old)
        if self._claim_hold.must_wait():
            return 0.1
        waiting = self.quarantine.step() or self._serve()
        most = math.inf if self.gatherer is None else self.gatherer.step(BUFFER_SECONDS)
        most = min(most, self._turns.tell_fleet(self._busy, claims=not self.quiet))
        if self._pool.stuck:
            self._pool.kick()
            return min(KICK, most)
        if self.quarantine.keeps:  # nothing wakes us when the last neighbour is settled
            return 0.005
        if waiting:
            # The pool wakes us when there is room. The bound limits the age of buffered messages.
            return min(0.02, most)
        next_due = None if self.quiet else self.agenda.next_due_ms()
        until_due = (
            math.inf if next_due is None else (next_due - self._clock.now_ms()) / 1000 + WAKE_MARGIN
        )
        now = time.monotonic()
        pause = max(0.0, min(self.sweeper.at - now, until_due, most, self._turns.follow_in))
        self._turns.wakes_at = now + pause
        # Hints that came before the line above have perhaps not woken us.
        return 0.0 if self._turns.has_hints else pause

    def _serve(self) -> bool:
        """Make the visits that are due, as far as there is room. True when some had to wait."""
        if self.quiet:
            self.nothing_due = True
            return False
        now_ms = self._clock.now_ms() if self._clock.known else float("inf")
        visits, late = self._turns.choose(self.agenda.due(now_ms))
        waiting, before = False, self._taken
        for visit in visits:
            # Told to be quiet meanwhile, or an earlier visit has brought a suspect.
            if self.quiet or self.quarantine.keeps:
                waiting = True
                self._turns.note_backlog(visit)
                break
            # Room for the kinds of tasks that the topic is known to hold.
            kinds = self._kinds.get(visit.partition.topic, {"def"})
            room = min(self._room_for(kind).room() for kind in kinds)
            if self.limit is not None:
                room = min(room, self.limit - self.claimed)
            if room <= 0:
                waiting = True
                self._turns.note_backlog(visit)
                continue
            taken = self._taken
            # If several topics are due, each gets a part. The rest comes in the next round.
            self._claim(visit, max(1, room // len(visits)))
            if visit in late and self._taken > taken:
                self._turns.report_late(visit)
        head = self.agenda.next_due_ms()
        found = waiting or self._taken != before or self.quarantine.owes
        self.nothing_due = not found and (head is None or head > self._clock.now_ms())
        return waiting

    def _claim(self, visit: Visit, limit: int) -> None:
        token = new_token(self._code, self._clock.now_ms())
        try:
            claimed = self._claims.claim(visit.partition, limit, token)
        except OutcomeUnknown:
            self._unanswered.append((visit.partition, token))
            raise
        except StoreError as error:
            if not error.is_bug:
                raise
            # Only this partition is damaged: the others go on.
            logger.error(
                "%s cannot be claimed from, next try in %d s: %s", visit.partition, DAMAGED_S, error
            )
            self.agenda.plan(visit, self._clock.now_ms() + DAMAGED_S * 1000)
            return
        self._clock.sync(claimed.now_us)
        visit.wakeups = claimed.wakeups
        # Not before the answer: the reclaimer may have looked in between.
        visit.may_be_leased = visit.to_sweep = True
        # No hint says that there is room again if the archiver has another limit, or if somebody
        # emptied the stream by hand.
        again_ms = self._clock.now_ms() + UNARCHIVED_LOOK_MS if claimed.unarchived else None
        next_ms = again_ms or claimed.next_due_ms
        visit.backlog = False
        if next_ms is not None and 1000 * next_ms <= claimed.now_us:
            self._turns.note_backlog(visit)
        self._turns.plan(visit, next_ms)
        if claimed.leases:
            self._shared.held.update(claimed.leases)
            self._taken += len(claimed.leases)
            self._feed(self.quarantine.admit(claimed.leases))
        if claimed.over:
            topic = visit.partition.topic
            signals.report_ids(signals.expired, topic, claimed.over, "expired")
        self.agenda.charge(visit.partition.topic, max(1, len(claimed.leases)))

    def _feed(self, leases: list[Lease], *, at_once: bool = False) -> None:
        """Hand leases of one partition to the pool, those of coroutines to the event loop, and
        those of batch tasks to the gatherer."""
        if leases and any(kinds != {"def"} for kinds in self._kinds.values()):
            kinds = self._kinds.setdefault(leases[0].partition.topic, {"def"})
            coroutines, functions = list[Lease](), list[Lease]()
            batches: dict[Task[..., Any], list[Lease]] = {}
            for lease in leases:
                task = registry.by_code.get(task_code_of(lease.record))
                kind = "def" if task is None else task.definition.kind
                # using(topic=...) sends a message to a topic that declares other tasks. The next
                # claim knows of it.
                kinds.add(kind)
                if kind == "batch" and task is not None:
                    batches.setdefault(task, []).append(lease)
                else:
                    (coroutines if kind == "async" else functions).append(lease)
            leases = functions
            for batch_task, gathered in batches.items():
                self._gathers().add(batch_task, gathered, at_once=at_once)
            if coroutines:
                room = self._event_loop.free
                self._event_loop.feed(coroutines[:room])
                self._release(coroutines[room:])
        if leases:
            self._pool.feed(leases)

    def _busy(self) -> float:
        """The share of threads, or of coroutines, that run something which takes a while."""
        since, slots, loop = time.monotonic() - BUSY_AFTER, self._pool.slots, self._event_loop
        runs = sum(slot.lease is not None and slot.begun < since for slot in slots)
        return max(runs / len(slots), len(loop.running) / loop.size)

    def _room_for(self, kind: TaskKind) -> ThreadPool[Lease] | EventLoop | Gatherer:
        """What takes messages of such tasks."""
        if kind == "batch":
            return self._gathers()
        return self._pool if kind == "def" else self._event_loop

    def _gathers(self) -> Gatherer:
        self.gatherer = self.gatherer or self._make_gatherer()
        return self.gatherer

    @property
    def _kinds(self) -> dict[str, set[TaskKind]]:
        """Topic -> the kinds of its tasks: declared for it, or met."""
        if len(registry.by_name) != self._declared:  # some are declared by their first message
            self._declared = len(registry.by_name)
            for task in list(registry.by_name.values()):
                self._met.setdefault(task.options.topic, set()).add(task.definition.kind)
        return self._met

    def _recover(self) -> None:
        """Give back the messages of a claim whose answer never came. Nobody knows of them, and
        their leases would run out."""
        while self._unanswered:
            partition, token = self._unanswered[-1]
            ids = self._store.queries.leased_under(partition, token)
            for at in range(0, len(ids), BATCH):
                leases = [
                    Lease(partition, i, b"", b"\0" * 16 + token, 0.0) for i in ids[at : at + BATCH]
                ]
                self._store.release(partition, leases, repeated=True)
            self._unanswered.pop()
