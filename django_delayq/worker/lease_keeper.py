"""Extends the leases of everything that is held, so that a message is run again only when its
worker is gone."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import time
from collections.abc import Callable

from ..core import signals
from ..core.exceptions import StoreError
from ..core.message import task_code_of
from ..core.service import Service
from ..core.signals import Event
from ..store.client import BATCH
from ..store.keys import Partition
from ..store.lease import Lease
from ..tasks import registry
from .shared import Shared

logger = logging.getLogger("delayq.worker")


class LeaseKeeper(Service):
    """Extends each lease when a third of it has passed, up to the task's max_runtime."""

    name = "lease-keeper"
    interval = 0.25

    def __init__(
        self, shared: Shared, on_overrun: Callable[[Lease], None], runs: Callable[[Lease], bool]
    ) -> None:
        super().__init__()
        self._store = shared.store
        self._held = shared.held
        self._on_overrun = on_overrun
        self._runs = runs
        self._given_up: set[Lease] = set()

    def run_once(self) -> float:
        """Extend what needs it."""
        due: dict[Partition, list[Lease]] = {}
        failed: StoreError | None = None
        now = time.monotonic()
        held = list(self._held)  # one C call under the GIL: other threads add and remove
        self._given_up.intersection_update(held)
        for lease in held:
            is_fresh = now - lease.renewed_at < lease.ttr_ms / 3000
            if not (self._runs_too_long(lease, now) or lease.lost or is_fresh):
                due.setdefault(lease.partition, []).append(lease)
        for partition, leases in due.items():
            for at in range(0, len(leases), BATCH):
                try:
                    self._extend(partition, leases[at : at + BATCH], now)
                except StoreError as error:
                    if not error.is_bug:
                        raise  # Redis is away: all others would fail too
                    failed = error
        if failed is not None:
            raise failed
        return self.interval

    @property
    def overrun(self) -> int:
        """How many messages run for longer than they may."""
        return sum(map(self._runs, list(self._given_up)))

    def gave_up(self, lease: Lease) -> bool:
        """Whether the message runs for longer than it may and its lease is left to end."""
        return lease in self._given_up

    def _extend(self, partition: Partition, leases: list[Lease], now: float) -> None:
        lost = [lease for lease in self._store.extend(partition, leases) if lease in self._held]
        for lease in leases:
            if not lease.lost:
                lease.renewed_at = now
        if lost:
            events = [
                Event(lease.id.hex(), attempt=lease.attempts.attempt, reason="lease ended")
                for lease in lost
            ]
            signals.report(signals.lease_lost, partition.topic, events)
            logger.warning(
                "%d leases of topic %s ended although their tasks still run",
                len(lost),
                partition.topic,
            )

    def _runs_too_long(self, lease: Lease, now: float) -> bool:
        if not lease.started_at:
            return False
        task = registry.by_code.get(task_code_of(lease.record))
        if task is None or now - lease.started_at < task.max_runtime_s:
            return False
        if lease not in self._given_up:
            if not self._runs(lease):  # its task has ended in time; the result waits for Redis
                return False
            self._given_up.add(lease)
            logger.error(
                "task %s has run for %.0f s, more than its max_runtime; its lease is given up and "
                "it will run again",
                task.name,
                now - lease.started_at,
            )
            self._on_overrun(lease)
            if not task.definition.is_async:  # show where it hangs
                with contextlib.suppress(Exception):  # stderr may be something that is no file
                    faulthandler.dump_traceback(all_threads=True)
        return True
