"""Runs a message that may kill the process alone in it, so that its neighbours do not die with
it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..core.message import has_crashed
from ..store.lease import Lease
from .shared import Shared

#: How long everything else in the process gets to finish before a suspect runs beside it after all
#: (seconds).
PATIENCE = 5.0
#: How long a suspect may keep the process to itself (seconds). Most crashes come soon. A task that
#: still runs then is long, or hangs, and other work goes on beside it.
ALONE = 5.0
#: How long no other suspect runs beside it (seconds). If the process died while two of them run,
#: both would be dead.
UNMATCHED = 60.0
#: How long a suspect that is given back waits: a random number of ms between these, so that
#: suspects that were claimed together do not come back together.
AWAY_MS = (500, 1500)


class Quarantine:
    """A suspect has one crash left: its next one makes it a dead letter with reason `poison`.

    When a process dies, everything it held counts a crash, the culprit and its neighbours alike.
    Alone in a process the culprit is known, and no neighbour can reach its last crash through
    somebody else.

    One suspect is kept at a time, the others are given back: another process may take them, or this
    one a moment later. After a suspect the process does other work for at least as long as the
    suspect kept it, so that many of them take no more than half of its time.
    """

    def __init__(
        self,
        shared: Shared,
        feed: Callable[[list[Lease]], None],
        give_back: Callable[[Sequence[Lease]], None],
    ) -> None:
        self._held = shared.held
        self._last_chance = shared.settings.poison_limit - 1
        self._feed = feed
        self._give_back = give_back
        self._suspect: Lease | None = None
        self._since = 0.0
        """When the suspect was claimed, and later when it began to run."""
        self._claimed_at = 0.0
        self._runs = False
        self._shares = False
        """It has run alone for long enough: other work goes on beside it."""
        self._rest_until = 0.0
        self._owed_until = 0.0

    def admit(self, leases: list[Lease]) -> list[Lease]:
        """The leases that may run at once. Of the suspects among them one is kept at the most."""
        last_chance = self._last_chance
        suspects = [
            lease
            for lease in leases
            if has_crashed(lease.entry) and 0 < last_chance <= lease.attempts.crashes
        ]
        if not suspects:
            return leases
        chosen = set(suspects)
        now = time.monotonic()
        if self._suspect is None and now >= self._rest_until:
            self._suspect, self._runs, self._shares = suspects.pop(0), False, False
            self._since = self._claimed_at = now
        if suspects:
            self._owed_until = now + AWAY_MS[1] / 1000
            self._give_back(suspects)
        return [lease for lease in leases if lease not in chosen]

    @property
    def keeps(self) -> bool:
        """Whether a suspect has the process to itself, or waits for that: nothing more may be
        claimed."""
        return self._suspect is not None and not self._shares

    @property
    def owes(self) -> bool:
        """Whether suspects that were due and given back may still be away."""
        return time.monotonic() < self._owed_until

    def step(self) -> bool:
        """Take the suspect one step on: from waiting to running, then from alone to beside others,
        then to its end. Returns `keeps`."""
        if self._suspect is None:
            return False
        now = time.monotonic()
        suspect, elapsed = self._suspect, now - self._since
        if self._runs:
            # When its lease has ended, the crash is counted already, and a dead letter crashes no
            # more: the suspicion is over. A task that hangs keeps its thread, and nothing else.
            if suspect not in self._held or suspect.ended or elapsed > UNMATCHED:
                self._end(now)
            elif elapsed > ALONE and not self._shares:
                self._shares = True
                self._rest(now)
        elif suspect.ended:  # this process stood still: another one has it by now
            self._give_back([suspect])
            self._end(now)
        # Would others suffer if the process died? A task that hangs has lost its lease already.
        elif elapsed > PATIENCE or not any(
            lease is not suspect and not lease.ended for lease in list(self._held)
        ):
            self._runs, self._since = True, now
            suspect.claimed_at = now  # it has not waited in the pool's buffer so far
            self._feed([suspect])
        return self.keeps

    def take_back(self) -> list[Lease]:
        """The suspect that has not run yet, to release it."""
        if self._suspect is None or self._runs:
            return []
        suspect, self._suspect = self._suspect, None
        return [suspect]

    def _end(self, now: float) -> None:
        if not self._shares:
            self._rest(now)
        self._suspect = None

    def _rest(self, now: float) -> None:
        self._rest_until = now + (now - self._claimed_at)
