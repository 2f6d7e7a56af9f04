"""Says in Redis that this worker lives, and what it does."""

from __future__ import annotations

import json
import random
import resource
import sys
from collections.abc import Callable
from typing import Any

from ..core.service import Service
from ..store.beats import BEAT_S
from .fleet import Fleet
from .shared import Shared

#: They are kept for so long (seconds): somebody will ask what became of the worker.
FORGOTTEN_AFTER = 1800.0
#: Seconds between two heartbeats of an idle worker, for each worker there is.
BEAT_S_EACH = 3.0


class Heartbeat(Service):
    """Writes the worker's figures and removes those of workers long gone."""

    name = "heartbeat"
    interval = BEAT_S

    def __init__(
        self,
        shared: Shared,
        fleet: Fleet,
        figures: Callable[[], dict[str, Any]],
        set_quiet: Callable[[bool], None],
    ) -> None:
        super().__init__()
        self._shared = shared
        self._fleet = fleet
        fleet.on_stranger = self.read_again
        self._figures = figures
        self._set_quiet = set_quiet
        self._asked = False
        self._to_read = False
        self._beats = 0

    def check_quiet(self) -> None:
        """Ask at once whether this worker shall claim nothing, or claim again."""
        self._asked = True
        self.sleeper.wake()

    def read_again(self) -> None:
        """Read the heartbeats of the others at once: there is a new one."""
        self._to_read = True
        self.sleeper.wake()

    def run_once(self) -> float:
        """Write the heartbeat."""
        store, worker = self._shared.store, self._shared.name
        figures = self._figures()
        is_sixth = self._beats % 6 == 0
        # An idle worker of a large fleet says less often that it lives, and asks less.
        every = BEAT_S if figures.get("in_flight") else max(BEAT_S, BEAT_S_EACH * self._fleet.size)
        if every == BEAT_S or is_sixth:
            # This also notices that Redis' clock was set while nothing was claimed.
            self._shared.clock.sync(int(store.clock_ms() * 1000))
        now_ms = self._shared.clock.now_ms()
        if self._asked or is_sixth:  # hints may be lost
            self._asked = False  # before the question: a hint after it counts for the next time
            self._set_quiet(store.workers.is_quiet(worker))
        figures |= {"at_ms": int(now_ms), "rss_kb": rss_kb(), "every": every}
        if store.client.settings.redis_next:
            figures["next"] = store.client.next_where
        store.workers.beat(worker, json.dumps(figures))
        self._fleet.has_beat = True
        if self._to_read or is_sixth:
            self._to_read = False
            beats = store.workers.heartbeats()
            self._fleet.learn(beats, now_ms)
            old = [n for n in beats if now_ms - beats[n]["at_ms"] > FORGOTTEN_AFTER * 1000]
            if old:
                store.workers.forget(*old, ended=False)
        self._beats += 1
        # Those that have begun together do not beat together for ever.
        return every if every == BEAT_S else every * random.uniform(0.6, 1.4)


def rss_kb() -> int:
    """Memory of this process in KiB: the present use on Linux, the peak elsewhere."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize() // 1024
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // 1024 if sys.platform == "darwin" else peak
