"""Notes once a minute how each topic is: the history behind the overview's chart."""

from __future__ import annotations

import json
from typing import Any

from ..core.message import Final
from ..core.service import Service
from ..store.queries import PartitionStats, lag_of
from ..store.store import RedisStore
from ..store.workers import SAMPLE_MS


class Sampler(Service):
    """Every worker tries, one of them does it."""

    name = "sampler"
    interval = SAMPLE_MS / 1000

    def __init__(self, store: RedisStore) -> None:
        super().__init__()
        self._store = store

    def run_once(self) -> float:
        """Take the sample of this minute, unless somebody has."""
        if self._store.workers.acquire_lock("sample", SAMPLE_MS - 5_000):
            partitions = self._store.topics.used_partitions()
            found = list(zip(partitions, self._store.queries.all_stats(partitions), strict=True))
            topics = {
                topic: sample_of([stats for partition, stats in found if partition.topic == topic])
                for topic in {partition.topic for partition in partitions}
            }
            self._store.workers.add_sample(
                json.dumps({"at_ms": int(self._store.clock_ms()), "topics": topics})
            )
        return self.interval


def sample_of(parts: list[PartitionStats]) -> dict[str, Any]:
    """Of the partitions of one topic: finished so far (a counter), waiting, lag in seconds."""
    return {
        "finished": sum(int(part.meta.get(name, 0)) for part in parts for name in Final.values),
        "waiting": sum(part.waiting for part in parts),
        "lag": lag_of(parts),
    }
