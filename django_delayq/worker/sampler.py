"""Notes once a minute how each topic is: the history behind the charts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..core.service import Service
from ..store.keys import Partition
from ..store.queries import Counters, PartitionStats, lag_of
from ..store.store import RedisStore
from ..store.workers import SAMPLE_MS


class Sampler(Service):
    """One worker does it, and a second tries. The others try now and then: with many of them, each
    minute would cost a command of each."""

    name = "sampler"
    interval = SAMPLE_MS / 1000

    def __init__(self, store: RedisStore, spread: Callable[[], int] = lambda: 1) -> None:
        super().__init__()
        self._store = store
        self._spread = spread
        """In how many minutes this worker tries once. Not known until it has met the others."""
        self._minutes = math.inf
        """Since it has tried."""
        self._known: dict[Partition, _PartitionFigures] = {}

    def run_once(self) -> float:
        """Take the sample of this minute, unless somebody has, or it is for others to do."""
        self._minutes += 1
        if self._minutes < self._spread():
            return self.interval
        self._minutes = 0
        if self._store.workers.acquire_lock("sample", SAMPLE_MS - 5_000):
            self._look(self._store.topics.used_partitions())
            parts: dict[str, list[_PartitionFigures]] = defaultdict(list)
            for partition, figures in self._known.items():
                parts[partition.topic].append(figures)
            topics = {topic: sample_of(of_topic) for topic, of_topic in parts.items()}
            self._store.workers.add_sample(int(self._store.clock_ms()), topics)
        return self.interval

    def _look(self, partitions: Sequence[Partition]) -> None:
        """Read those in which something may have happened. One that is idle costs a command in
        place of a script with 16: for 1,000 of them that is 17 commands a second, and not 280."""
        counters = self._store.queries.counters(partitions)
        known, now_ms = self._known, self._store.clock_ms()
        self._known, moved = {}, []
        for partition, found in zip(partitions, counters, strict=True):
            figures = known.get(partition)
            if figures and figures.counters == found and now_ms < figures.until_ms:
                self._known[partition] = figures
            else:
                moved.append((partition, found))
        # Read after the counters: what happens in between is another count in the next minute.
        for (partition, found), stats in zip(
            moved, self._store.queries.all_stats([one for one, _ in moved]), strict=True
        ):
            self._known[partition] = _figures_of(found, stats)


class _PartitionFigures(NamedTuple):
    """A partition at the last sample."""

    counters: Counters
    waiting: int
    lag: float
    until_ms: float
    """Until then they change only with the counters."""


def _figures_of(counters: Counters, stats: PartitionStats) -> _PartitionFigures:
    due_ms = stats.next_due_ms
    until_ms = 0.0 if stats.leased else math.inf if due_ms is None else due_ms
    return _PartitionFigures(counters, stats.waiting, lag_of([stats]), until_ms)


def sample_of(parts: Sequence[_PartitionFigures]) -> dict[str, Any]:
    """Of the partitions of one topic: finished so far (a counter), waiting, lag in seconds."""
    return {
        "finished": sum(part.counters.ended for part in parts),
        "waiting": sum(part.waiting for part in parts),
        "lag": max(part.lag for part in parts),
    }
