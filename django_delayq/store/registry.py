"""What is known of all topics and workers: the keys outside the partitions, and the flags that hold
a topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ..core.exceptions import OutcomeUnknown, StoreFull, StoreUnavailable
from . import keys
from .keys import Partition
from .link import Link
from .partitions import Partitions

#: From one sample to the next, and how many are kept: a day.
SAMPLE_MS = 60_000
SAMPLES = 1_440
#: The fields of `meta` that hold a partition.
_PAUSE = ("paused", "paused_until")


class Registry(Link):
    """Topics with their numbers of partitions, paused ones, and heartbeats."""

    partitions: Partitions

    def pause(self, topic: str, note: str, until_ms: int | None = None) -> None:
        """Nothing of the topic is claimed from now on, at most until then. `note` (JSON) says who,
        when and why."""

        def hold(partition: Partition) -> None:
            # One command: what a full Redis refuses changes nothing.
            fields = ("paused", note, "paused_until", "" if until_ms is None else until_ms)
            self.command("HSET", keys.meta_key(self.prefix, partition), *fields)
            # Its dispatchers learn when it ends.
            self.command("HINCRBY", keys.meta_key(self.prefix, partition), "wakeups", 1)
            self.command("PUBLISH", keys.wakeups_channel(self.prefix), f"{partition}:0")

        self._each(topic, hold)

    def resume(self, topic: str) -> None:
        """The topic goes on; its dispatchers are told."""
        self._each(topic, lambda partition: self.call("resume", partition, ()))

    def _each(self, topic: str, change: Callable[[Partition], object]) -> None:
        """Change all partitions of a topic. Raises OutcomeUnknown when it fails after some of
        them."""
        partitions = self.partitions.all(topic)
        for number, partition in enumerate(partitions):
            try:
                change(partition)
            except StoreUnavailable as error:
                if not number:
                    raise
                words = (
                    f"Only {number} of the {len(partitions)} partitions of {topic!r} were changed; "
                    f"do it again."
                )
                raise OutcomeUnknown(f"{words} {error}") from error

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
        if not numbers:
            return
        first = keys.meta_key(self.prefix, Partition(topic, 0))
        pause = zip(_PAUSE, self.command("HMGET", first, *_PAUSE), strict=True)
        fields = [part for name, value in pause if value is not None for part in (name, value)]
        for number in numbers if fields else ():
            self.command("HSET", keys.meta_key(self.prefix, Partition(topic, number)), *fields)

    def topics(self) -> Sequence[str]:
        """Every topic that has ever been used with this prefix."""
        members = self.command("SMEMBERS", keys.topics_key(self.prefix))
        return sorted({member.decode().rpartition(":")[0] for member in members})

    def beat(self, worker: str, heartbeat: str) -> None:
        """Write the heartbeat of a worker."""
        self.command("HSET", keys.workers_key(self.prefix), worker, heartbeat)

    def forget_worker(self, *workers: str, ended: bool = True) -> None:
        """Remove heartbeats. Of one that has perhaps not `ended`, and is only cut off, it is kept
        that it is quiet."""
        self.command("HDEL", keys.workers_key(self.prefix), *workers)
        if ended:
            self.command("HDEL", keys.quiet_key(self.prefix), *workers)

    def quiet(self, worker: str) -> None:
        """The worker claims nothing from now on. What was said to others more than a day ago is
        forgotten: they are gone, and their names do not come again."""
        key, at_ms = keys.quiet_key(self.prefix), int(self.clock_ms())
        if old := [
            name
            for name, at in self.command("HGETALL", key).items()
            if int(at) < at_ms - 86_400_000
        ]:
            self.command("HDEL", key, *old)
        self.command("HSET", key, worker, at_ms)
        self.command("PUBLISH", keys.wakeups_channel(self.prefix), f"{keys.TOLD}:0:0")

    def unquiet(self, worker: str) -> None:
        """The worker claims again."""
        self.command("HDEL", keys.quiet_key(self.prefix), worker)
        self.command("PUBLISH", keys.wakeups_channel(self.prefix), f"{keys.TOLD}:0:0")

    def is_quiet(self, worker: str) -> bool:
        """Whether the worker is told to claim nothing."""
        return bool(self.command("HEXISTS", keys.quiet_key(self.prefix), worker))

    def takes_turn(self, name: str, ms: int) -> bool:
        """Whether it is on the caller to do something: true for one of all processes within so much
        time."""
        return bool(self.command("SET", keys.turn_key(self.prefix, name), 1, "NX", "PX", ms))

    def keep_turn(self, name: str, ms: int) -> None:
        """Nobody else is to do it within so much time from now."""
        self.command("SET", keys.turn_key(self.prefix, name), 1, "PX", ms)

    def end_turn(self, name: str) -> None:
        """It is on whoever comes next."""
        self.command(
            "EXPIRE", keys.turn_key(self.prefix, name), 0
        )  # a right that the Redis user has anyway

    def add_sample(self, sample: str) -> None:
        """Keep a sample (JSON), and those of a day before it."""
        self.command(
            "XADD", keys.samples_key(self.prefix), "MAXLEN", "~", SAMPLES, "*", "sample", sample
        )

    def heartbeats(self) -> dict[str, dict[str, Any]]:
        """All heartbeats by worker, also old ones."""
        raw = self.command("HGETALL", keys.workers_key(self.prefix))
        return {name.decode(): json.loads(value) for name, value in raw.items()}

    def used_partitions(self) -> Sequence[Partition]:
        """Every partition of every topic that has ever been used with this prefix."""
        return used(self.command("SMEMBERS", keys.topics_key(self.prefix)))


def used(members: Iterable[bytes]) -> Sequence[Partition]:
    """The partitions behind the members of the set of topics."""
    counts: dict[str, int] = {}
    for member in members:
        topic, _, count = member.decode().rpartition(":")
        counts[topic] = max(counts.get(topic, 0), int(count))
    return [
        Partition(topic, number)
        for topic, count in sorted(counts.items())
        for number in range(count)
    ]
