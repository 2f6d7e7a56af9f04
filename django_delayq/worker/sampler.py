"""Notes once a minute how each topic is: the history behind the charts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ..core.message import Final
from ..core.service import Service
from ..store.queries import PartitionStats, lag_of
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

    def run_once(self) -> float:
        """Take the sample of this minute, unless somebody has, or it is for others to do."""
        self._minutes += 1
        if self._minutes < self._spread():
            return self.interval
        self._minutes = 0
        if self._store.workers.acquire_lock("sample", SAMPLE_MS - 5_000):
            partitions = self._store.topics.used_partitions()
            parts: dict[str, list[PartitionStats]] = defaultdict(list)
            found = self._store.queries.all_stats(partitions)
            for partition, stats in zip(partitions, found, strict=True):
                parts[partition.topic].append(stats)
            topics = {topic: sample_of(of_topic) for topic, of_topic in parts.items()}
            self._store.workers.add_sample(int(self._store.clock_ms()), topics)
        return self.interval


def sample_of(parts: list[PartitionStats]) -> dict[str, Any]:
    """Of the partitions of one topic: finished so far (a counter), waiting, lag in seconds."""
    return {
        "finished": sum(int(part.meta.get(name, 0)) for part in parts for name in Final.values),
        "waiting": sum(part.waiting for part in parts),
        "lag": lag_of(parts),
    }
