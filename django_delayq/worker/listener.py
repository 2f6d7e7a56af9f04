"""Hears the hints that producers and workers publish. Only hints: the dispatcher's sweep holds
every guarantee without them."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..core.service import Service
from ..store.hints import HintStream
from ..store.keys import CANCELLED_HINT, FLEET_HINT, QUIET_HINT, Partition
from .fleet import Fleet
from .shared import Shared


class Listener(Service):
    """Passes `topic:p:due_at_ms` on to the dispatcher, what workers say of themselves to the fleet,
    `quiet` hints to the heartbeat, and those of cancelled messages to the lease keeper."""

    name = "listener"

    def __init__(
        self,
        shared: Shared,
        fleet: Fleet,
        hint: Callable[[Partition | None, float], None],
        fleet_changed: Callable[[], None],
        check_quiet: Callable[[], None],
        check_lease: Callable[[bytes], None],
    ) -> None:
        super().__init__()
        self._stream = HintStream(shared.store, fleet.place, self._call_when_some_are_missing)
        self._subscriptions = 0
        self._fleet = fleet
        self._fleet_changed = fleet_changed
        self._sweep_interval = shared.settings.sweep_interval
        self._hint = hint
        self._check_quiet = check_quiet
        self._check_lease = check_lease

    def hints_are_complete(self) -> bool:
        """Whether it is certain that no hint of the last moments was lost."""
        return time.monotonic() - self._stream.complete_until < 3 * self._sweep_interval

    def _call_when_some_are_missing(self, subscriptions: int) -> None:
        """A subscription has ended, or those whose turn it was have published no beat; or nobody
        has called for long."""
        fleet = self._fleet
        if subscriptions < self._subscriptions or fleet.place() or fleet.is_call_due:
            fleet.call()
        self._subscriptions = subscriptions

    def run_once(self) -> float:
        """Wait for one hint. A new connection counts as a hint for every partition, because hints
        were lost meanwhile."""
        if self._stream.connect():
            self._hint(None, 0)
        heard = self._stream.read(seconds=min(1.0, self._sweep_interval))
        if heard is None:
            return 0.0
        partition, due_ms = heard
        if partition and partition.topic == QUIET_HINT:
            self._check_quiet()
        elif partition and partition.topic == CANCELLED_HINT:
            self._check_lease(partition.number.to_bytes(16, "big"))
        elif partition and partition.topic.startswith(FLEET_HINT):
            name = partition.topic[len(FLEET_HINT) :]
            if self._fleet.hear(name, partition.number):
                self._fleet_changed()
        else:
            self._hint(partition, due_ms)
        return 0.0
