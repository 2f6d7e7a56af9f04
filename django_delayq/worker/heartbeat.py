"""Says in Redis that this worker lives, and what it does."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from typing import Any

from ..core.service import Service
from .shared import Shared

#: Heartbeats older than this are those of workers that ended without saying so (seconds).
DEAD_AFTER = 60.0
#: They are kept for so long (seconds): somebody will ask what became of the worker.
FORGOTTEN_AFTER = 1800.0


class Heartbeat(Service):
    """Writes the worker's figures and removes those of workers long gone."""

    name = "heartbeat"
    interval = 10.0

    def __init__(
        self,
        shared: Shared,
        figures: Callable[[], dict[str, Any]],
        set_quiet: Callable[[bool], None],
    ) -> None:
        super().__init__()
        self._shared = shared
        self._figures = figures
        self._set_quiet = set_quiet
        self._asked = False
        self._beats = 0

    def check_quiet(self) -> None:
        """Ask at once whether this worker shall claim nothing, or claim again."""
        self._asked = True
        self.sleeper.wake()

    def run_once(self) -> float:
        """Write the heartbeat."""
        store, worker = self._shared.store, self._shared.name
        now_ms = store.clock_ms()
        # This also notices that Redis' clock was set while nothing was claimed.
        self._shared.clock.sync(int(now_ms * 1000))
        if self._asked or self._beats % 6 == 0:  # hints may be lost
            self._asked = False  # before the question: a hint after it counts for the next time
            self._set_quiet(store.workers.is_quiet(worker))
        figures = {**self._figures(), "at_ms": int(now_ms), "rss_kb": rss_kb()}
        if store.client.settings.redis_next:
            figures["next"] = store.client.next_where
        store.workers.beat(worker, json.dumps(figures))
        if self._beats % 6 == 0:
            beats = store.workers.heartbeats()
            old = [n for n in beats if now_ms - beats[n]["at_ms"] > FORGOTTEN_AFTER * 1000]
            if old:
                store.workers.forget(*old, ended=False)
        self._beats += 1
        return self.interval


def rss_kb() -> int:
    """Memory of this process in KiB: the present use on Linux, the peak elsewhere."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize() // 1024
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // 1024 if sys.platform == "darwin" else peak
