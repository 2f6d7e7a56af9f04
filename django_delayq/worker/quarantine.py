"""Runs a message that may kill the process alone in it, so that its neighbours do not die with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..store.lease import Lease
from .shared import Shared

#: How long everything else in the process gets to finish before a suspect runs beside it after all (seconds).
PATIENCE = 5.0
_NO_CRASHES = b"\0\0"


class Quarantine:
    """A suspect has one crash left: its next one makes it a dead letter with reason `poison`.

    When a process dies, everything it held counts a crash, the culprit and its neighbours alike. Alone in a process
    the culprit is known, and no neighbour can reach its last crash through somebody else.
    """

    def __init__(
        self, shared: Shared, feed: Callable[[list[Lease]], None], release: Callable[[Sequence[Lease]], None]
    ) -> None:
        self._held = shared.held
        self._last_chance = shared.settings.poison_limit - 1
        self._feed = feed
        self._release = release
        self._suspect: Lease | None = None
        self._since = 0.0
        self._runs = False

    def admit(self, leases: list[Lease]) -> list[Lease]:
        """The leases that may run at once. Of the suspects among them one is kept, the others are given back."""
        suspects = [lease for lease in leases if lease.entry[2:4] != _NO_CRASHES and self._is_suspect(lease)]
        if not suspects:
            return leases
        self._release(suspects[1:])
        self._suspect, self._since, self._runs = suspects[0], time.monotonic(), False
        chosen = set(suspects)
        return [lease for lease in leases if lease not in chosen]

    def busy(self) -> bool:
        """Whether a suspect waits or runs: nothing more may be claimed meanwhile."""
        if self._suspect is None:
            return False
        if self._runs:
            if self._suspect not in self._held:
                self._suspect = None
        elif len(self._held) == 1 or time.monotonic() - self._since > PATIENCE:
            self._runs = True
            self._feed([self._suspect])
        return self._suspect is not None

    def take_back(self) -> list[Lease]:
        """The suspect that has not run yet, to release it."""
        if self._suspect is None or self._runs:
            return []
        suspect, self._suspect = self._suspect, None
        return [suspect]

    def _is_suspect(self, lease: Lease) -> bool:
        return 0 < self._last_chance <= lease.crashes
