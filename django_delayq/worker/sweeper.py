"""Finds out where something has happened of which no hint has told. The guarantees hold because of
this."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..store.keys import Partition
from .agenda import Agenda
from .claims import Claims
from .fleet import Fleet
from .shared import Shared

#: Seconds after which partitions that were added are noticed.
PARTITIONS_S = 10.0
#: With many workers it takes so many seconds for each of them.
PARTITIONS_S_EACH = 4.0
#: Seconds between two sweeps of all partitions while the hints are complete, at least; and how many
#: partitions a second: with the look at its leases each costs three commands. It is for a defect
#: that nobody knows of: 1,000 idle topics have to cost little.
EVERYWHERE_S, EVERYWHERE_RATE = 30.0, 0.8
#: While hints may be missing, the second worker of a partition looks with one of so many sweeps:
#: the first may be gone, and the hint that would tell it lost.
SECOND_EVERY = 5


class Sweeper:
    """Compares the counters of partitions with what they were: those where something may happen;
    and those whose home this worker is, while hints may be missing and now and then."""

    def __init__(self, shared: Shared, agenda: Agenda, claims: Claims, fleet: Fleet) -> None:
        self._shared = shared
        self._agenda = agenda
        self._claims = claims
        self._fleet = fleet
        self._count = 0
        self.at = 0.0
        """Local monotonic time of the next sweep."""
        self.everywhere_at = 0.0
        self.partitions_at = 0.0
        self.hints_are_complete: Callable[[], bool] = bool
        """Whether it is certain that no hint was lost."""
        self.on_finished: Callable[[], None] = lambda: None
        """Called when messages have ended, wherever that was."""

    def run_when_due(self) -> None:
        """Make the sweep if it is time. Raises StoreError."""
        now = time.monotonic()
        if now < self.at:
            return
        if now >= self.partitions_at:  # partitions may be added while we run
            for topic in self._shared.topics:
                for partition in self._claims.served(topic):
                    self._agenda.add(partition, self._fleet.rank(partition))
            self.partitions_at = now + max(PARTITIONS_S, PARTITIONS_S_EACH * self._fleet.size)
        if now >= self.everywhere_at:
            self._look_everywhere()
            visits = self._agenda.visits
            self.everywhere_at = now + max(EVERYWHERE_S, len(visits) / EVERYWHERE_RATE)
        self._compare()
        self.at = now + self._shared.settings.sweep_interval

    def note_partition(self, partition: Partition) -> None:
        """A hint tells of a partition that is not served yet."""
        if partition.topic in self._shared.topics:
            self.at = self.partitions_at = 0.0
            self._shared.store.partitions.forget()

    def start_over(self) -> None:
        """Redis was away: anything may have happened."""
        self.at = self.everywhere_at = 0.0

    def _look_everywhere(self) -> None:
        """Nothing is taken for granted where this worker is the home. Of the others' partitions it
        looks at a few: so somebody else sees each of them, too."""
        visits, rank = self._agenda.visits, self._fleet.rank
        self._claims.find_held_back(partition for partition in visits if rank(partition) < 2)
        for number, visit in enumerate(visits.values()):
            if not rank(visit.partition):
                visit.may_be_leased = visit.to_sweep = True
            elif self._fleet.is_drawn(self._count + number, winners=1):
                self._agenda.expect(visit.partition, 0)

    def _compare(self) -> None:
        self._count += 1
        everywhere = 0
        if not self.hints_are_complete():
            everywhere = 1 if self._count % SECOND_EVERY else 2
        rank = self._fleet.rank
        swept = [
            each
            for each in self._agenda.visits.values()
            if each.to_sweep or (everywhere and rank(each.partition) < everywhere)
        ]
        counters = self._shared.store.queries.counters([each.partition for each in swept])
        for visit, found in zip(swept, counters, strict=True):
            visit.to_sweep = visit.may_be_leased
            if found.wakeups != visit.wakeups:
                visit.wakeups = found.wakeups
                self._agenda.expect(visit.partition, 0)
            if found.ended != visit.finished:
                visit.finished = found.ended
                self.on_finished()
