"""Decides which of the due visits this worker makes, and which it leaves to others (fleet.py)."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from ..core.exceptions import StoreError
from ..store.keys import Partition
from .agenda import Agenda, Visit
from .fleet import FULL, STEP_IN, UNFIT, Fleet
from .shared import Shared

logger = logging.getLogger("delayq.worker")

#: A worker that could not take all that was due counts as full for so many seconds.
FULL_S = 1.0
#: A worker that has put a message off leaves what it can to others for so many seconds: by default
#: others meet the message for so long (UNKNOWN_TASK_GRACE). Else the home would meet it each time.
UNFIT_S = 600.0
#: A worker looks at the order of the workers at once when the last look took less than QUICK_S
#: seconds. Slower looks take a tenth of its time: the next one waits, for MOST_WAIT_S at most.
QUICK_S, MOST_WAIT_S = 0.002, 0.3


class Turns:
    """Hears hints and plans the visits: at the due time where it is this worker's turn, and
    wherever it knows of a backlog. For some other partitions it stands in: a moment later it looks
    whether the message is claimed, and claims what is late."""

    def __init__(
        self,
        shared: Shared,
        fleet: Fleet,
        agenda: Agenda,
        is_limited: Callable[[Partition], bool],
    ) -> None:
        self._shared = shared
        self._topics = frozenset(shared.topics)
        self._fleet = fleet
        self._agenda = agenda
        self._is_limited = is_limited
        """Whether a limit may hold back what is due in a partition."""
        self._hints: deque[tuple[Partition | None, float]] = deque()
        self._fleet_changes = 0
        self._follow_at = 0.0
        self._standing_in: dict[Visit, float] = {}
        """Visits for which this worker stands in, with the due times that it knows of."""
        self._full_until = self._unfit_until = 0.0
        self.wakes_at = math.inf
        """Local monotonic time at which the next round begins by itself; inf during a round."""
        self.on_unknown: Callable[[Partition], None] = lambda partition: None
        """Called when a hint tells of a partition that has no visits."""

    # What is heard

    @property
    def has_hints(self) -> bool:
        """Whether there are hints that follow() has not seen."""
        return bool(self._hints)

    def hear(self, partition: Partition | None, due_ms: float) -> bool:
        """The partition (None: any) may have a message that is due then. Returns whether to begin a
        round for it. Thread-safe."""
        wait: float | None = 0.0
        if partition is not None:
            visit = self._agenda.visits.get(partition)
            if visit is None and partition.topic not in self._topics:
                return False  # this worker does not serve it
            if visit is not None and not visit.backlog and not self._fleet.is_alone:
                self._note_rank(visit)
                wait = self._fleet.patience(partition, due_ms)
        if wait is None:  # a matter of others
            return False
        self._hints.append((partition, due_ms))
        if wait:
            # A worker that stands in need not wake up for each message: one look is for all.
            wait += max(0.0, due_ms - self._shared.clock.now_ms()) / 1000
        return not wait or time.monotonic() + wait < self.wakes_at

    def follow(self) -> None:
        """Plan the visits that hints ask for, and those that fall to this worker because others
        have gone or are busy."""
        if not self.follow_in:
            self._follow_fleet()
        while self._hints:
            partition, due_ms = self._hints.popleft()
            if partition is None:
                for each in self._agenda.visits.values():
                    if each.rank < 2:
                        self._agenda.expect(each.partition, due_ms)
            elif (visit := self._agenda.visits.get(partition)) is None:
                self.on_unknown(partition)
            elif self._is_mine(visit):
                visit.is_own = True
                self._agenda.expect(partition, due_ms)
            else:
                self._stand_in(visit, max(due_ms, self._shared.clock.now_ms()))

    @property
    def follow_in(self) -> float:
        """Seconds until the order of the workers is looked at, because it may be another; infinite
        when it is not."""
        if self._fleet.changes == self._fleet_changes:
            return math.inf
        return max(0.0, self._follow_at - time.monotonic())

    def _follow_fleet(self) -> None:
        begun = time.monotonic()
        self._fleet_changes = self._fleet.changes
        for visit in self._agenda.visits.values():
            before, visit.rank = visit.rank, self._fleet.rank(visit.partition)
            if visit.rank < min(before, 2):
                visit.may_be_leased = visit.to_sweep = True
                self._agenda.expect(visit.partition, 0)
        for visit, due_ms in list(self._standing_in.items()):
            if self._is_mine(visit):
                del self._standing_in[visit]
                visit.is_own = True
                self._agenda.expect(visit.partition, due_ms)
        took = time.monotonic() - begun
        self._follow_at = begun + (min(MOST_WAIT_S, 10 * took) if took > QUICK_S else 0.0)

    # What is planned and chosen

    def plan(self, visit: Visit, due_ms: float | None) -> None:
        """Plan the next visit, now that it is known what is due first."""
        self._standing_in.pop(visit, None)
        # Of one where nothing waits there is nothing to tell others.
        visit.is_own = due_ms is not None and self._is_mine(visit)
        self._agenda.plan(visit, due_ms if visit.is_own else None)
        if not visit.is_own and due_ms is not None:
            self._stand_in(visit, due_ms)

    def choose(self, visits: Sequence[Visit]) -> tuple[Sequence[Visit], Collection[Visit]]:
        """Of visits that are due, those that this worker makes; and those of them that others
        should have made. Raises StoreError."""
        if self._fleet.is_alone or not visits:
            return visits, ()
        mine, looks = list[Visit](), list[Visit]()
        for visit in visits:
            if self._is_mine(visit):
                self._standing_in.pop(visit, None)
                mine.append(visit)
            elif visit.is_own:  # tell it to whose turn it is now
                self._shared.store.workers.hint(f"{visit.partition}:0")
                self.plan(visit, self._shared.clock.now_ms())
            else:
                looks.append(visit)
        late = self._look(looks) if looks else ()
        return [*mine, *late], late

    def _look(self, looks: Sequence[Visit]) -> Collection[Visit]:
        """Read what is due there first. Returns the visits where it is late."""
        late: set[Visit] = set()
        heads = self._heads([visit.partition for visit in looks])
        too_old_ms = self._shared.clock.now_ms() - 1000 * STEP_IN
        for visit, head_ms in zip(looks, heads, strict=True):
            stands_in = visit in self._standing_in
            if stands_in:  # something was due
                visit.may_be_leased = visit.to_sweep = True
            if head_ms is not None and head_ms <= too_old_ms:
                late.add(visit)
                continue
            self.plan(visit, head_ms)
            if head_ms is not None and not stands_in and visit not in self._standing_in:
                # A sweep has led here, and others are to claim it. Their hint may be lost, too.
                self._shared.store.workers.hint(f"{visit.partition}:{int(head_ms)}")
        return late

    def _heads(self, partitions: Sequence[Partition]) -> Sequence[float | None]:
        """Queries.heads(), without those of partitions that are damaged: their homes report it."""
        try:
            return self._shared.store.queries.heads(partitions)
        except StoreError as error:
            if not error.is_bug:
                raise
        if len(partitions) == 1:
            return [None]
        return [head for partition in partitions for head in self._heads([partition])]

    def report_late(self, visit: Visit) -> None:
        """The workers that come before this one have left messages to it: until they say something
        it takes their places, wherever they were the home. Raises StoreError."""
        # What a limit holds back is late without anybody's fault.
        if visit.backlog or self._is_limited(visit.partition):
            return
        if late := self._fleet.report_late(visit.partition):
            logger.info(
                "%s did not claim from %s in time: others look after its partitions until it says "
                "something",
                ", ".join(late),
                visit.partition,
            )

    def note_backlog(self, visit: Visit) -> None:
        """More is due there than this worker takes now."""
        visit.backlog = True
        self._full_until = time.monotonic() + FULL_S

    def note_unfit(self) -> None:
        """This worker's code cannot run what is due. Thread-safe."""
        self._unfit_until = time.monotonic() + UNFIT_S

    def tell_fleet(self, busy: Callable[[], float], *, claims: bool) -> float:
        """Say whether this worker claims; how busy it is, from 0 to 1, or that it is full; and
        whether its code fits. Returns after how many seconds there may be something to say again.
        Raises StoreError."""
        fleet, now = self._fleet, time.monotonic()
        if not claims:
            fleet.leave()
            return math.inf
        unfit = UNFIT if now < self._unfit_until else 0
        if fleet.is_alone:  # then it costs nothing to ask
            return fleet.say(unfit)
        if now >= self._full_until:
            return fleet.say(unfit + round(8 * busy()))
        was_full = fleet.is_full
        pause = min(fleet.say(unfit + FULL), self._full_until - now)
        if not was_full:  # whose turn it is now has perhaps not kept the hint
            for visit in self._agenda.visits.values():
                if visit.backlog:
                    self._shared.store.workers.hint(f"{visit.partition}:0")
        return pause

    def _is_mine(self, visit: Visit) -> bool:
        """Whether this worker claims there as soon as something is due."""
        fleet = self._fleet
        return fleet.is_alone or visit.backlog or not fleet.turn(visit.partition)

    def _stand_in(self, visit: Visit, due_ms: float) -> None:
        """Look a moment after the due time, if that is for this worker to do."""
        self._note_rank(visit)
        patience = self._fleet.patience(visit.partition, due_ms)
        if patience is not None:
            self._standing_in[visit] = min(due_ms, self._standing_in.get(visit, math.inf))
            self._agenda.expect(visit.partition, due_ms + 1000 * patience)

    def _note_rank(self, visit: Visit) -> None:
        """What is left to others now falls to this worker when they have gone, also if they came
        and went between two looks at the order. So this comes before the message is left."""
        visit.rank = max(visit.rank, self._fleet.rank(visit.partition))
