"""A circuit breaker: after a failure no call waits for Redis until a probe reaches it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

#: Seconds between two probes. A second of spilling more or less does not matter; a probe costs next
#: to nothing.
PROBE_INTERVAL = 0.2


class CircuitBreaker:
    """Open: Redis is away, and callers should not try. A thread of its own probes until Redis is
    back, because a probe of a host that does not answer takes a whole timeout.
    """

    def __init__(self, probe: Callable[[], object]) -> None:
        self._probe = probe
        self.opened_in = 0
        """The id of the process that has opened it, 0 while it is closed. A fork has no thread that
        closes it again."""
        self.after_outage = False
        """Whether the outbox may still have messages that it took while Redis was away. Cleared
        when the outbox has none."""
        self._lock = threading.Lock()
        self._closed_for_good = threading.Event()

    @property
    def open(self) -> bool:
        """Whether a call would probably fail."""
        return self.opened_in != 0 and self.opened_in == os.getpid()

    def trip(self) -> None:
        """A call has failed: open until a probe succeeds."""
        with self._lock:
            if self.open or self._closed_for_good.is_set():
                return
            self.opened_in = os.getpid()
            self.after_outage = True
        try:
            threading.Thread(target=self._watch, name="delayq-breaker", daemon=True).start()
        except RuntimeError:  # no threads here: then every call finds out for itself
            self.opened_in = 0

    def stop(self) -> None:
        """End the thread: the store is closed."""
        self._closed_for_good.set()
        self.opened_in = 0

    def _watch(self) -> None:
        while not self._closed_for_good.wait(PROBE_INTERVAL):
            try:
                self._probe()
            except Exception:  # of whatever kind: Redis cannot be used yet
                continue
            self.opened_in = 0
            return
