"""Takes back what crashed workers held."""

from __future__ import annotations

import logging

from ..core import signals
from ..core.exceptions import StoreError
from ..core.service import Service
from ..core.signals import Event
from ..core.text import counted
from ..store.client import BATCH
from ..store.keys import Partition
from .agenda import Agenda
from .shared import Shared

logger = logging.getLogger("delayq.worker")


class Reclaimer(Service):
    """Looks at the lease that ends first in each partition, and reclaims when it has ended.

    1.5 s between two looks: with the sweep it keeps an idle topic below two commands a second,
    and a crash is noticed
    within ttr + 1.5 s.
    """

    name = "reclaimer"
    interval = 1.5

    def __init__(self, shared: Shared, agenda: Agenda) -> None:
        super().__init__()
        self._store = shared.store
        self._clock = shared.clock
        self._agenda = agenda

    def run_once(self) -> float:
        """Reclaim in every partition."""
        more, failed = False, None
        for partition in list(self._agenda.visits):
            try:
                ends = self._store.queries.oldest_lease_ms(partition)
                if ends is not None and ends <= self._clock.now_ms():
                    more = self._reclaim(partition) or more
            except StoreError as error:
                if not error.is_bug:
                    raise
                failed = error  # only this partition is damaged
        if failed is not None:
            raise failed
        return 0.0 if more else self.interval

    def _reclaim(self, partition: Partition) -> bool:
        back, dead = self._store.reclaim(partition)
        if back:
            logger.warning(
                "%s of %s sent back: the worker vanished", counted(len(back), "message"), partition
            )
            signals.report(
                signals.reclaimed,
                partition.topic,
                [Event(i.hex(), reason="lease ended") for i in back],
            )
        if dead:
            logger.error(
                "%s of %s dead after too many crashed workers",
                counted(len(dead), "message"),
                partition,
            )
            signals.report(
                signals.dead, partition.topic, [Event(i.hex(), reason="poison") for i in dead]
            )
        return len(back) + len(dead) >= BATCH
