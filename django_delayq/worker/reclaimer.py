"""Takes back what crashed workers held."""

from __future__ import annotations

import logging

from ..core import signals
from ..core.exceptions import StoreError
from ..core.present import counted
from ..core.service import Service
from ..store.client import BATCH
from .agenda import Agenda
from .shared import Shared

logger = logging.getLogger("delayq.worker")


class Reclaimer(Service):
    """Reads the end of the oldest lease in each partition, and reclaims when it has passed.

    It does so every 1.5 s: an idle topic stays below two commands a second together with the sweep,
    and a crash is noticed within ttr + 1.5 s.
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
                if ends is None or ends > self._clock.now_ms():
                    continue
                back, dead = self._store.reclaim(partition)
                more = more or len(back) + len(dead) >= BATCH
                if back:
                    messages = counted(len(back), "message")
                    logger.warning("%s of %s sent back: the worker vanished", messages, partition)
                    signals.report_ids(signals.reclaimed, partition.topic, back, "lease ended")
                if dead:
                    messages = counted(len(dead), "message")
                    logger.error(
                        "%s of %s dead after too many crashed workers", messages, partition
                    )
                    signals.report_ids(signals.dead, partition.topic, dead, "poison")
            except StoreError as error:
                if not error.is_bug:
                    raise
                failed = error  # only this partition is damaged
        if failed is not None:
            raise failed
        return 0.0 if more else self.interval
