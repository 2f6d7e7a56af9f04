"""Finds out where something has happened of which no hint has told. The guarantees hold because of
this."""

from __future__ import annotations

import time
from collections.abc import Callable

from .agenda import Agenda
from .claims import Claims
from .shared import Shared

#: Seconds after which partitions that were added are noticed.
PARTITIONS_S = 10.0
#: Seconds between two sweeps of all partitions while the hints are complete, at least; and how many
#: partitions a second: with the look at its leases each costs three commands.
EVERYWHERE_S, EVERYWHERE_RATE = 30.0, 5.0


class Sweeper:
    """Compares the counters of partitions with what they were: those where something may happen;
    all of them while hints may be missing, and now and then."""

    def __init__(self, shared: Shared, agenda: Agenda, claims: Claims) -> None:
        self._shared = shared
        self._agenda = agenda
        self._claims = claims
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
                    self._agenda.add(partition)
            self.partitions_at = now + PARTITIONS_S
        if now >= self.everywhere_at:
            visits = self._agenda.visits
            self._claims.find_held_back(visits)
            for visit in visits.values():
                visit.may_be_leased = visit.to_sweep = True
            self.everywhere_at = now + max(EVERYWHERE_S, len(visits) / EVERYWHERE_RATE)
        self._compare()
        self.at = now + self._shared.settings.sweep_interval

    def start_over(self) -> None:
        """Redis was away: anything may have happened."""
        self.at = self.everywhere_at = 0.0

    def _compare(self) -> None:
        everywhere = not self.hints_are_complete()
        swept = [each for each in self._agenda.visits.values() if everywhere or each.to_sweep]
        counters = self._shared.store.queries.counters([each.partition for each in swept])
        for visit, (wakeups, finished) in zip(swept, counters, strict=True):
            visit.to_sweep = visit.may_be_leased
            if wakeups != visit.wakeups:
                self._agenda.expect(visit.partition, 0)
            if finished != visit.finished:
                visit.finished = finished
                self.on_finished()
