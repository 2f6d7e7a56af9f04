"""Extends the leases of everything that is held, so that a message is run again only when its
worker is gone."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping

from ..core import signals
from ..core.exceptions import StoreError
from ..core.message import task_code_of
from ..core.service import Service
from ..core.signals import Event
from ..store.client import BATCH
from ..store.keys import Partition
from ..store.lease import Lease
from ..tasks import registry
from ..tasks.task import Task
from .shared import Shared

logger = logging.getLogger("delayq.worker")

#: Seconds after its claim at which a lease needs the first look: a third of the shortest lease.
#: Most leases of a busy worker end before. A look at each took 5 % of its time when it ran batches.
YOUNG = 1 / 3
#: Seconds until the second look at a lease whose message has ended: its own run may have ended it
#: a moment ago.
LOOK_AGAIN = 0.05
#: An isolated run is killed at its max_runtime by the thread that waits for it. It is given up here
#: only when that has not worked for so many seconds.
KILL_PATIENCE = 10.0


class LeaseKeeper(Service):
    """Extends each lease when a third of it has passed, up to the task's max_runtime. Ends the run
    of a coroutine that takes longer, or whose lease is lost."""

    name = "lease-keeper"
    interval = 0.25

    def __init__(
        self, shared: Shared, end_run: Callable[[Lease], None], runs: Callable[[Lease], bool]
    ) -> None:
        super().__init__()
        self._store = shared.store
        self._held = shared.held
        self._end_run = end_run
        self._runs = runs
        self._given_up: set[Lease] = set()
        self._to_check: deque[bytes] = deque()
        self._gone: set[Lease] = set()
        """Leases whose messages had ended at the last look."""

    def check(self, message_id: bytes) -> None:
        """Look at the lease of this message at once: it was cancelled while it ran. Thread-safe."""
        self._to_check.append(message_id)
        self.sleeper.wake()

    def run_once(self) -> float:
        """Extend what needs it."""
        due: dict[Partition, list[Lease]] = {}
        now = time.monotonic()
        held = list(self._held)  # one C call under the GIL: other threads add and remove
        self._given_up.intersection_update(held)
        self._end_gone()
        to_check = {self._to_check.popleft() for _ in range(len(self._to_check))}
        young = now - YOUNG
        for lease in held:
            if lease.claimed_at > young and lease.renewed_at > young and not to_check:
                continue
            is_fresh = now - lease.renewed_at < lease.ttr_ms / 3000 and lease.id not in to_check
            if not (self._runs_too_long(lease, now) or lease.lost or is_fresh):
                due.setdefault(lease.partition, []).append(lease)
        self._extend_all(due, now)
        return LOOK_AGAIN if self._gone else self.interval

    @property
    def overrun(self) -> int:
        """How many messages run for longer than they may."""
        return sum(map(self._runs, list(self._given_up)))

    def gave_up(self, lease: Lease) -> bool:
        """Whether the message runs for longer than it may and its lease is left to end."""
        return lease in self._given_up

    def _extend_all(self, due: Mapping[Partition, list[Lease]], now: float) -> None:
        """One partition that is damaged does not keep the others from it."""
        failed: StoreError | None = None
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

    def _extend(self, partition: Partition, leases: list[Lease], now: float) -> None:
        lost = self._store.extend(partition, leases, self._gone)
        for lease in leases:
            if not lease.lost:
                lease.renewed_at = now
        lost = [lease for lease in lost if lease in self._held]
        if lost:
            self._end_lost(partition, lost, "lease ended")
            logger.warning(
                "%d leases of topic %s ended although their tasks still run",
                len(lost),
                partition.topic,
            )

    def _end_gone(self) -> None:
        """The messages of these leases had ended at the last look. Where the task still runs, or is
        still to run, somebody else has ended the message."""
        gone, self._gone = self._gone, set()
        for lease in gone:
            if lease in self._held and (not lease.started_at or self._runs(lease)):
                lease.lost = True
                self._end_lost(lease.partition, [lease], "cancelled while it ran")
                logger.info(
                    "message %s of topic %s was cancelled; its run here is ended, or told so",
                    lease.id.hex(),
                    lease.partition.topic,
                )

    def _end_lost(self, partition: Partition, lost: list[Lease], reason: str) -> None:
        events = [
            Event(lease.id.hex(), attempt=lease.attempts.attempt, reason=reason) for lease in lost
        ]
        signals.report(signals.lease_lost, partition.topic, events)
        for lease in lost:
            self._end_run(lease)

    def _runs_too_long(self, lease: Lease, now: float) -> bool:
        if not lease.started_at:
            return False
        task = registry.by_code.get(task_code_of(lease.record))
        if task is None or now - lease.started_at < task.max_runtime_s:
            return False
        if now < _may_run_until(lease, task):
            self._given_up.discard(lease)  # it was extended in the last moment
            return False
        if lease not in self._given_up:
            if not self._runs(lease):  # its task has ended in time; the result waits for Redis
                return False
            # The messages of a batch begin, and are given up, together.
            is_new = lease.started_at not in {other.started_at for other in self._given_up}
            self._given_up.add(lease)
            if not is_new:
                return True
            logger.error(
                "task %s has run for %.0f s, more than its max_runtime; its lease is given up and "
                "it will run again",
                task.name,
                now - lease.started_at,
            )
            self._end_run(lease)
            if not task.definition.is_async:  # show where it hangs
                with contextlib.suppress(Exception):  # stderr may be something that is no file
                    faulthandler.dump_traceback(all_threads=True)
        return True


def _may_run_until(lease: Lease, task: Task[..., object]) -> float:
    """Local monotonic time."""
    until = lease.started_at + task.max_runtime_s
    if lease.report is not None:
        until = max(until, lease.report.may_run_until)
    return until + KILL_PATIENCE if task.definition.options.isolate else until
