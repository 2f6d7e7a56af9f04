"""What changes nothing: looks at messages, counts and counters of partitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ..core.message import Attempts, Found, State
from . import keys
from .errors import ERRORS
from .keys import Partition
from .link import BATCH, Read
from .registry import Registry, used

#: What stats.lua reads of `meta`, in this order.
_META = (
    "paused",
    "wakeups",
    "enqueued",
    "acked",
    "retried",
    "dead",
    "cancelled",
    "expired",
    "reclaimed",
)

#: The counters of what ends a message.
ENDS = ("acked", "dead", "cancelled", "expired")
#: What a sweep reads of it.
_SWEPT = ("wakeups", *ENDS)


class PartitionStats(NamedTuple):
    """Figures of one partition at one instant."""

    now_ms: float
    waiting: int
    ready: int
    leased: int
    finished: int
    next_due_ms: int | None
    meta: dict[str, str]


_BOTH = ("stats", "forecast")


class Snapshot(NamedTuple):
    """What the overview reads."""

    stats: dict[Partition, PartitionStats]
    forecast: dict[Partition, Sequence[int]]
    heartbeats: dict[str, dict[str, Any]]
    quiet: set[str]
    samples: Sequence[dict[str, Any]]
    """The oldest first."""
    used: Sequence[Partition]


class Looking(Registry):
    """The reading half of the store."""

    def find(self, partition: Partition, ids: Sequence[bytes]) -> Sequence[Found | None]:
        """The live messages with these ids, None for those that are not live here."""
        answer = self.call("find", partition, ids)
        return [
            _found(message_id, *item) if item else None
            for message_id, item in zip(ids, answer, strict=True)
        ]

    def has_follower(self, partition: Partition, message_id: bytes) -> bool:
        """Whether another message follows the run of this id."""
        return bool(
            self.command("HEXISTS", keys.partition_keys(self.prefix, partition)[7], message_id)
        )

    def find_all(self, places: Sequence[tuple[Partition, bytes]]) -> Sequence[Found | None]:
        """The live message in each of these places, None where there is none; one round trip
        (read_all)."""
        answers = self.read_all(
            [Read("find", partition, (message_id,)) for partition, message_id in places]
        )
        return [
            _found(message_id, *answer[0]) if answer[0] else None
            for (_, message_id), answer in zip(places, answers, strict=True)
        ]

    def leases(
        self, partitions: Sequence[Partition], limit: int
    ) -> Sequence[tuple[Partition, bytes, float]]:
        """Id and deadline (ms) of up to `limit` leases of each partition, those that end first at
        the front."""
        reads = [
            Read("ZRANGE", None, (keys.leased_key(self.prefix, one), 0, limit - 1, "WITHSCORES"))
            for one in partitions
        ]
        found = [
            (partition, message_id, deadline_ms)
            for partition, answer in zip(partitions, self.read_all(reads), strict=True)
            for message_id, deadline_ms in _pairs(answer)
        ]
        return sorted(found, key=lambda lease: lease[2])

    def list(
        self, partition: Partition, lane: int, after: tuple[int, bytes] | None, limit: int
    ) -> Sequence[Found]:
        """Up to `limit` waiting messages of a lane (0 to 2) in the order of (due, id), after the
        given place."""
        due, message_id = after if after else ("", b"")
        flat = iter(self.call("list", partition, (lane + 1, due, message_id, min(limit, BATCH))))
        return [_found(*fields) for fields in zip(flat, flat, flat, flat, flat, strict=True)]

    def stats(self, partition: Partition) -> PartitionStats:
        """Counts by state and the counters of a partition."""
        return _stats(self.call("stats", partition, ()))

    def all_stats(self, partitions: Sequence[Partition]) -> Sequence[PartitionStats]:
        """stats() of several partitions in one round trip."""
        return [
            _stats(answer) for answer in self.read_all([Read("stats", one) for one in partitions])
        ]

    def forecast(self, partition: Partition, instants_ms: Sequence[int]) -> Sequence[int]:
        """How many waiting messages are due before each instant (100 at most)."""
        counts: list[int] = self.call("forecast", partition, instants_ms)
        return counts[1:]

    def snapshot(
        self, partitions: Sequence[Partition], instants_ms: Sequence[int], samples: int
    ) -> Snapshot:
        """All that the overview needs, in one round trip: stats and forecast of each partition,
        heartbeats, newest samples, and the partitions that are in use."""
        reads = [
            Read(name, one, instants_ms if name == "forecast" else ())
            for one in partitions
            for name in _BOTH
        ]
        plain = [
            Read("HGETALL", None, (keys.workers_key(self.prefix),)),
            Read("HKEYS", None, (keys.quiet_key(self.prefix),)),
            Read("XREVRANGE", None, (keys.samples_key(self.prefix), "+", "-", "COUNT", samples)),
            Read("SMEMBERS", None, (keys.topics_key(self.prefix),)),
        ]
        answers = self.read_all([*reads, *plain])
        heartbeats, quiet, entries, topics = answers[len(reads) :]
        return Snapshot(
            stats=dict(zip(partitions, map(_stats, answers[0 : len(reads) : 2]), strict=True)),
            forecast=dict(
                zip(partitions, (counts[1:] for counts in answers[1 : len(reads) : 2]), strict=True)
            ),
            heartbeats={name.decode(): json.loads(beat) for name, beat in heartbeats.items()},
            quiet={name.decode() for name in quiet},
            samples=[json.loads(fields[b"sample"]) for _, fields in reversed(entries)],
            used=used(topics),
        )

    def task_name(self, partition: Partition, code: bytes) -> str:
        """The name behind a task code, `code:` and its digits when nobody has said it."""
        name = self.command("HGET", keys.meta_key(self.prefix, partition), f"task:{code.hex()}")
        return name.decode() if name else f"code:{code.hex()}"

    def counters(self, partitions: Sequence[Partition]) -> Sequence[tuple[int, int]]:
        """Wake-ups, and how many messages have ended, of each partition: one cheap command each,
        for sweeps."""
        try:
            pipeline = self.client.pipeline(transaction=False)
            for partition in partitions:
                pipeline.hmget(keys.meta_key(self.prefix, partition), _SWEPT)
            return [
                (int(first or 0), sum(int(end or 0) for end in ends))
                for first, *ends in pipeline.execute()
            ]
        except ERRORS as error:
            raise self.failed(error) from error

    def oldest_lease_ms(self, partition: Partition) -> float | None:
        """The deadline that ends first."""
        head = self.command("ZRANGE", keys.leased_key(self.prefix, partition), 0, 0, "WITHSCORES")
        return float(head[0][1] if isinstance(head[0], list | tuple) else head[1]) if head else None


def _pairs(answer: Sequence[Any]) -> Iterable[tuple[bytes, float]]:
    """Members and scores: RESP3 gives them in pairs, RESP2 flat."""
    flat = answer if not answer or isinstance(answer[0], bytes) else chain.from_iterable(answer)
    members = iter(flat)
    return ((member, float(score)) for member, score in zip(members, members, strict=True))


def _stats(answer: Sequence[Any]) -> PartitionStats:
    now_us, waiting, ready, leased, finished, next_due, meta = answer
    fields = {
        name: value.decode() for name, value in zip(_META, meta, strict=True) if value is not None
    }
    return PartitionStats(
        now_us / 1000, waiting, ready, leased, finished, optional(next_due), fields
    )


def lag_of(parts: Iterable[PartitionStats]) -> float:
    """Seconds since the oldest waiting message of these partitions fell due; 0 without a
    backlog."""
    late = [
        (part.now_ms - part.next_due_ms) / 1000 for part in parts if part.next_due_ms is not None
    ]
    return max([0.0, *late])


def optional(number: Any) -> int | None:
    """A number of a script, which says '' for none."""
    return None if number == b"" else int(number)


def _found(message_id: bytes, state: bytes, due_ms: int, record: bytes, entry: bytes) -> Found:
    return Found(
        message_id, State(state.decode()), due_ms, record, Attempts.decode(entry) if entry else None
    )
