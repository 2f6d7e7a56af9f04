"""Knows into how many partitions each topic is and was split, and so where a message can be."""

from __future__ import annotations

import time

from .keys import Partition, partition_of
from .queries import Queries
from .topic_catalog import Topics

#: Seconds after which a process reads the numbers of partitions again. It also registers its own
#: again, because FLUSHALL removes them.
REFRESH = 30.0


class Partitions:
    """The partition counts of all topics, cached."""

    def __init__(self, topics: Topics, queries: Queries) -> None:
        self._topics = topics
        self._queries = queries
        self._registered: dict[str, set[int]] = {}
        self._counts: dict[str, set[int]] = {}
        """Of the topics that were asked for since the last reading."""
        self._read_at = -REFRESH

    def counts(self, topic: str) -> set[int]:
        """Every number of partitions that the topic has had, ours included."""
        now = time.monotonic()
        if now - self._read_at >= REFRESH:
            self._registered, self._counts = self._topics.registered(), {}
            self._read_at = now
        counts = self._counts.get(topic)
        if counts is None:
            count, counts = self._topics.configured(topic), self._registered.get(topic, set())
            if count not in counts:
                counts = self._topics.register(topic, count)
            self._counts[topic] = counts
        return counts

    def single(self, topic: str) -> Partition | None:
        """The only partition of a topic that has never had more: most topics, and one look-up for a
        whole batch."""
        return Partition(topic, 0) if self.counts(topic) == {1} else None

    def all(self, topic: str) -> list[Partition]:
        """Every partition that may hold messages of the topic."""
        return [Partition(topic, number) for number in range(max(self.counts(topic)))]

    def candidates(self, topic: str, message_id: bytes) -> list[Partition]:
        """Where a message of this id can be, today's place first."""
        today = self._topics.configured(topic)
        counts = sorted(self.counts(topic), key=lambda count: count != today)
        return list(dict.fromkeys(partition_of(topic, message_id, count) for count in counts))

    def place(self, topic: str, message_id: bytes, keyed: bool) -> Partition:
        """Where to enqueue. A key that is live in an old partition stays there, so that it is live
        in one place only."""
        if keyed and len(candidates := self.candidates(topic, message_id)) > 1:
            for partition in candidates[1:]:
                if self._queries.find(partition, [message_id])[0] is not None:
                    return partition
        elif not keyed:
            self.counts(topic)
        return partition_of(topic, message_id, self._topics.configured(topic))

    def forget(self) -> None:
        """Read anew at the next use."""
        self._read_at = -REFRESH
