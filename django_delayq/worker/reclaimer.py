"""Takes back what crashed workers held."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..core import signals
from ..core.exceptions import StoreError
from ..core.present import counted
from ..core.service import Service
from ..store.keys import Partition
from .agenda import Agenda
from .fleet import Fleet
from .shared import Shared

logger = logging.getLogger("delayq.worker")


class Reclaimer(Service):
    """Reads the end of the oldest lease in each partition where something may be leased, and
    reclaims when it has passed.

    It does so every 1.5 s: a topic stays below two commands a second together with the sweep, and a
    crash is noticed within ttr + 1.5 s. Whatever worker leases a message, it was due: this worker
    was its home or stood in for it, and looks until nothing is leased. While hints may be missing
    it looks wherever this worker is the home.
    """

    name = "reclaimer"
    interval = 1.5

    def __init__(
        self,
        shared: Shared,
        agenda: Agenda,
        fleet: Fleet,
        hints_are_complete: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._fleet = fleet
        self._hints_are_complete = hints_are_complete
        self._store = shared.store
        self._clock = shared.clock
        self._agenda = agenda

    def run_once(self) -> float:
        """Reclaim in every partition."""
        more, failed, everywhere = False, None, not self._hints_are_complete()
        for visit in list(self._agenda.visits.values()):
            # A visit that is due is not made while this worker is quiet or has no room.
            is_due = visit.due_ms is not None and visit.due_ms <= self._clock.now_ms()
            in_doubt = everywhere and not self._fleet.rank(visit.partition)
            if not (visit.may_be_leased or is_due or in_doubt):
                continue
            visit.may_be_leased = False  # first: a claim in between sets it again
            try:
                ends = self._store.queries.oldest_lease_ms(visit.partition)
                visit.may_be_leased |= ends is not None
                if ends is None:
                    visit.to_sweep = True  # messages have ended
                elif ends <= self._clock.now_ms():
                    more = self._reclaim(visit.partition) or more
            except StoreError as error:
                visit.may_be_leased = True
                if not error.is_bug:
                    raise
                failed = error  # only this partition is damaged
        if failed is not None:
            raise failed
        return 0.0 if more else self.interval

    def _reclaim(self, partition: Partition) -> bool:
        """Whether there may be more."""
        back, dead, more = self._store.reclaim(partition)
        if back:
            messages = counted(len(back), "message")
            logger.warning("%s of %s sent back: the worker vanished", messages, partition)
            signals.report_ids(signals.reclaimed, partition.topic, back, "lease ended")
        if dead:
            messages = counted(len(dead), "message")
            logger.error("%s of %s dead after too many crashed workers", messages, partition)
            signals.report_ids(signals.dead, partition.topic, dead, "poison")
        return more
