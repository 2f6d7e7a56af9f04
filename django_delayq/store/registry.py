"""What is known of all topics and workers: the keys outside the partitions, and the flags that hold a topic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..exceptions import StoreFull
from . import keys
from .keys import Partition
from .link import Link
from .partitions import Partitions


class Registry(Link):
    """Topics with their numbers of partitions, paused ones, and heartbeats."""

    partitions: Partitions

    def pause(self, topic: str, note: str) -> None:
        """Nothing of the topic is claimed from now on. `note` (JSON) says who, when and why."""
        for partition in self.partitions.all(topic):
            self.command("HSET", keys.meta_key(self.prefix, partition), "paused", note)

    def resume(self, topic: str) -> None:
        """The topic goes on; its dispatchers are told."""
        for partition in self.partitions.all(topic):
            meta = keys.meta_key(self.prefix, partition)
            self.command("HDEL", meta, "paused")
            self.command("HINCRBY", meta, "wakeups", 1)
            self.command("PUBLISH", keys.wakeups_channel(self.prefix), f"{partition}:0")

    def register_topic(self, topic: str, count: int) -> set[int]:
        """Say that the topic has `count` partitions; returns every number it has had."""
        key = keys.topics_key(self.prefix)
        pairs = (member.decode().rpartition(":") for member in self.command("SMEMBERS", key))
        known = {int(number) for name, _, number in pairs if name == topic}
        if count not in known:
            with suppress(StoreFull):  # a full Redis must drain; partitions.py says it again soon
                self.command("SADD", key, f"{topic}:{count}")
                self._pause_new(topic, range(max(known, default=count), count))
        return known | {count}

    def _pause_new(self, topic: str, numbers: range) -> None:
        """Partitions that come while their topic is paused are paused too."""
        note = self.command("HGET", keys.meta_key(self.prefix, Partition(topic, 0)), "paused") if numbers else None
        for number in numbers if note else ():
            self.command("HSET", keys.meta_key(self.prefix, Partition(topic, number)), "paused", note)

    def topics(self) -> Sequence[str]:
        """Every topic that has ever been used with this prefix."""
        members = self.command("SMEMBERS", keys.topics_key(self.prefix))
        return sorted({member.decode().rpartition(":")[0] for member in members})

    def beat(self, worker: str, heartbeat: str) -> None:
        """Write the heartbeat of a worker."""
        self.command("HSET", keys.workers_key(self.prefix), worker, heartbeat)

    def forget_worker(self, *workers: str) -> None:
        """Remove heartbeats."""
        self.command("HDEL", keys.workers_key(self.prefix), *workers)

    def heartbeats(self) -> dict[str, dict[str, Any]]:
        """All heartbeats by worker, also old ones."""
        raw = self.command("HGETALL", keys.workers_key(self.prefix))
        return {name.decode(): json.loads(value) for name, value in raw.items()}

    def used_partitions(self) -> Sequence[Partition]:
        """Every partition of every topic that has ever been used with this prefix."""
        counts: dict[str, int] = {}
        for member in self.command("SMEMBERS", keys.topics_key(self.prefix)):
            topic, _, count = member.decode().rpartition(":")
            counts[topic] = max(counts.get(topic, 0), int(count))
        return [Partition(topic, number) for topic, count in sorted(counts.items()) for number in range(count)]
