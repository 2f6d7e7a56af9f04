"""Pauses and resumes topics, and records which partitions they have ever had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from ..core.exceptions import OutcomeUnknown, StoreFull, StoreUnavailable
from . import keys
from .client import RedisClient
from .keys import Partition

#: The fields of `meta` that pause a partition.
_PAUSE = ("paused", "paused_until")


class Topics:
    """Whole topics: all their partitions, or the set of topics itself."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    def pause(self, topic: str, note: str, until_ms: int | None = None) -> None:
        """Let no worker claim from the topic, until `until_ms` at most. `note` (JSON) says who
        paused it, when and why."""
        client = self._client
        fields = ("paused", note, "paused_until", "" if until_ms is None else until_ms)

        def pause(partition: Partition) -> None:
            meta = keys.meta_key(client.prefix, partition)
            # One command: if a full Redis refuses it, nothing has changed.
            client.command("HSET", meta, *fields)
            # The dispatchers learn when the pause ends.
            client.command("HINCRBY", meta, "wakeups", 1)
            client.command("PUBLISH", keys.wakeups_channel(client.prefix), f"{partition}:0")

        self._change_all(topic, pause)

    def resume(self, topic: str) -> None:
        """The topic goes on; its dispatchers get a hint."""
        self._change_all(topic, lambda partition: self._client.call("resume", partition, ()))

    def _change_all(self, topic: str, change: Callable[[Partition], object]) -> None:
        """Change all partitions of a topic. Raises OutcomeUnknown when it fails after the first."""
        count = max(self.register(topic, self.configured(topic)))
        for number in range(count):
            try:
                change(Partition(topic, number))
            except StoreUnavailable as error:
                if not number:
                    raise
                raise OutcomeUnknown(
                    f"Only {number} of the {count} partitions of {topic!r} were changed; "
                    f"do it again. {error}"
                ) from error

    def configured(self, topic: str) -> int:
        """The number of partitions that this process's settings give the topic."""
        options = self._client.settings.topics.get(topic)
        return options.partitions if options else 1

    def registered(self) -> dict[str, frozenset[int]]:
        """Every number of partitions that each topic has had."""
        counts: dict[str, frozenset[int]] = {}
        # One object for all topics that have the same: there may be thousands.
        alone: dict[str, frozenset[int]] = {}
        for member in self._client.command("SMEMBERS", keys.topics_key(self._client.prefix)):
            name, _, number = member.decode().rpartition(":")
            own = alone.get(number) or alone.setdefault(number, frozenset({int(number)}))
            counts[name] = counts[name] | own if name in counts else own
        return counts

    def register(self, topic: str, count: int) -> frozenset[int]:
        """Record that the topic has `count` partitions; returns every number it has had."""
        client = self._client
        key = keys.topics_key(client.prefix)
        known = self.registered().get(topic, frozenset())
        if count not in known:
            with suppress(StoreFull):  # a full Redis must drain; partitions.py registers again soon
                client.command("SADD", key, f"{topic}:{count}")
                added = range(max(known, default=count), count)
                if added:  # new partitions of a paused topic are paused, too
                    first = keys.meta_key(client.prefix, Partition(topic, 0))
                    pause = zip(_PAUSE, client.command("HMGET", first, *_PAUSE), strict=True)
                    fields = [part for pair in pause if pair[1] is not None for part in pair]
                    for number in added if fields else ():
                        meta = keys.meta_key(client.prefix, Partition(topic, number))
                        client.command("HSET", meta, *fields)
        return known | {count}

    def names(self) -> Sequence[str]:
        """Every topic that has ever been used with this prefix."""
        return sorted(self.registered())

    def used_partitions(self) -> Sequence[Partition]:
        """Every partition of every topic that has ever been used with this prefix."""
        key = keys.topics_key(self._client.prefix)
        return keys.partitions_in(self._client.command("SMEMBERS", key))
