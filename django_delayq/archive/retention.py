"""Prunes the archive by itself: what DELAYQ["ARCHIVE_RETENTION"] no longer keeps goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from ..core.conf import get_settings
from ..core.database import reached
from ..core.service import Service
from ..store.store import RedisStore
from .prune import Pruned, prune, prune_months

#: Seconds between two runs.
INTERVAL = 600.0
#: Rows that go in one transaction.
BATCH = 500
#: While tasks run, it rests after each transaction this many times as long as that took.
REST = 4.0


class _PruneNeeded(Exception):
    """There is something to prune."""


class _Stops(Exception):
    """The process stops, or another one has the lock by now."""


class Retention(Service):
    """Runs in each process that archives, when the setting is there. One of them prunes at a
    time."""

    name = "retention"
    interval = INTERVAL

    def __init__(self, store: RedisStore, *, tasks_run: Callable[[], bool] = bool) -> None:
        super().__init__()
        self._store = store
        self._tasks_run = tasks_run
        self._batch_began_at = 0.0
        self.deleted = 0

    @property
    def figures(self) -> dict[str, Any]:
        """Rows that were deleted here."""
        return {"deleted": self.deleted}

    def run_once(self) -> float:
        """Prune each state by its own age, each recorded as a prune. Raises StoreUnavailable and
        DatabaseUnavailable: the service tries again."""
        if not self._store.workers.acquire_lock(self.name, int(INTERVAL * 900)):
            return self.interval
        try:
            with reached():
                ages = {
                    state: timedelta(seconds=seconds)
                    for state, seconds in get_settings().archive_retention.items()
                }
                # First all states at once: of one of them alone, no month may be over.
                self._delete(partial(prune_months, ages))
                for state, age in ages.items():
                    if self._has_old(age, state):
                        self._delete(partial(self._prune, age, state))
        except _Stops:
            return 0.0
        return self.interval

    def _prune(self, age: timedelta, state: str, **how: Any) -> Pruned:
        """What no lake has yet stays, and what goes with its month."""
        return prune(age, state=state, exported=True, whole_months=True, batch=BATCH, **how)

    def _delete(self, pruning: Callable[..., object]) -> None:
        """Prune, count the rows, and pause after each transaction."""
        before = 0

        def progress(pruned: Pruned) -> None:
            nonlocal before
            self.deleted += pruned.count - before
            before = pruned.count
            # Before the first transaction and after each. Raises _Stops.
            if self._tasks_run() and not self.stopping:
                self.sleeper.wait(REST * (time.monotonic() - self._batch_began_at))
            if self.stopping:
                self._store.workers.release_lock(self.name)
                raise _Stops
            self._store.workers.extend_lock(self.name, int(INTERVAL * 900))
            self._batch_began_at = time.monotonic()

        self._batch_began_at = time.monotonic()
        pruning(by='DELAYQ["ARCHIVE_RETENTION"]', progress=progress)

    def _has_old(self, age: timedelta, state: str) -> bool:
        """Whether a prune would delete anything: one that does not would only leave a record."""

        def progress(pruned: Pruned) -> None:
            if self.stopping:
                raise _Stops
            if pruned.count:
                raise _PruneNeeded

        try:
            found = self._prune(age, state, dry_run=True, progress=progress)
        except _PruneNeeded:
            return True
        return found.count > 0
