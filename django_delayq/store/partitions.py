"""Knows into how many partitions each topic is and was split, and so where a message can be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .keys import Partition, partition_of

if TYPE_CHECKING:
    from .redis import RedisStore

#: Seconds after which another process's new number of partitions is seen, and our own is said again
#: (FLUSHALL).
REFRESH = 30.0


class Partitions:
    """The partition counts of all topics, cached."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._counts: dict[str, set[int]] = {}
        self._read_at: dict[str, float] = {}

    def configured(self, topic: str) -> int:
        """The number that this process's settings give."""
        options = self._store.settings.topics.get(topic)
        return options.partitions if options else 1

    def counts(self, topic: str) -> set[int]:
        """Every number of partitions that the topic has had, ours included."""
        now = time.monotonic()
        if now - self._read_at.get(topic, -REFRESH) >= REFRESH:
            self._counts[topic] = self._store.register_topic(topic, self.configured(topic))
            self._read_at[topic] = now
        return self._counts[topic]

    def single(self, topic: str) -> Partition | None:
        """The only partition of a topic that has never had more: most topics, and one look-up for a
        whole batch."""
        return Partition(topic, 0) if self.counts(topic) == {1} else None

    def all(self, topic: str) -> list[Partition]:
        """Every partition that may hold messages of the topic."""
        return [Partition(topic, number) for number in range(max(self.counts(topic)))]

    def candidates(self, topic: str, message_id: bytes) -> list[Partition]:
        """Where a message of this id can be, today's place first."""
        today = self.configured(topic)
        counts = sorted(self.counts(topic), key=lambda count: count != today)
        return list(dict.fromkeys(partition_of(topic, message_id, count) for count in counts))

    def place(self, topic: str, message_id: bytes, keyed: bool) -> Partition:
        """Where to enqueue. A key that is live in an old partition stays there, so that it is still
        found once."""
        if keyed and len(candidates := self.candidates(topic, message_id)) > 1:
            for partition in candidates[1:]:
                if self._store.find(partition, [message_id])[0] is not None:
                    return partition
        elif not keyed:
            self.counts(topic)
        return partition_of(topic, message_id, self.configured(topic))

    def forget(self) -> None:
        """Read anew at the next use."""
        self._read_at.clear()
