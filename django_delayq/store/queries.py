"""Reads of the store: messages, leases, counts and counters of partitions. Nothing here changes
anything."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ..core.chunks import chunked
from ..core.message import Attempts, Final, Found, State
from . import keys
from .beats import decode_beats
from .client import BATCH, Read, RedisClient
from .keys import Partition

#: The counters of a partition since its first message.
COUNTERS = ("enqueued", "acked", "retried", "dead", "cancelled", "expired", "reclaimed")
#: The fields of `meta` that stats.lua reads, in this order.
_META = ("paused", "wakeups", *COUNTERS)

#: Keys of one EXISTS: it tells at once that none of these partitions has leases.
TOGETHER = 50
#: What a limit holds back has this added to its due time (lua/shared/partition.lua).
HELD_MS = 2**48

#: The fields of `meta` that counters() reads.
_COUNTED = ("wakeups", "enqueued", *Final.values)


class Life(NamedTuple):
    """One message under an id. Several messages can have the same key one after the other."""

    id: bytes
    stamp_us: int
    """When it was enqueued."""


class HeldLease(NamedTuple):
    """A lease as the partition knows it."""

    partition: Partition
    id: bytes
    deadline_ms: float
    token: bytes = b""
    """Says who claimed it and when (lease.py). Only from holders()."""


class Counters(NamedTuple):
    """What is compared with the last reading of a partition. As long as they are the same and
    nothing is due or leased, as much waits as before."""

    wakeups: int
    enqueued: int
    ended: int
    """Messages that have ended."""


class PartitionStats(NamedTuple):
    """Figures of one partition at one instant."""

    now_ms: float
    waiting: int
    ready: int
    leased: int
    finished: int
    next_due_ms: int | None
    meta: dict[str, str]
    held: int = 0
    """How many of those that are ready wait for the limit of their key."""
    unarchived_s: float = 0.0
    """How long ago the oldest message ended that waits for the archiver, in seconds; 0: none."""


class TopicSample(NamedTuple):
    """A minute of a topic."""

    at_ms: int
    finished: int
    """Since the first message."""
    waiting: int
    lag: float
    """In seconds."""


class TopicSamples(NamedTuple):
    """A minute of all topics."""

    at_ms: int
    topics: Mapping[str, Mapping[str, float]]
    """By topic: finished, waiting, lag."""


class Snapshot(NamedTuple):
    """The figures of the overview."""

    stats: dict[Partition, PartitionStats]
    forecast: dict[Partition, Sequence[int]]
    heartbeats: dict[str, dict[str, Any]]
    quiet: set[str]
    samples: Sequence[dict[str, Any]]
    """Of all topics together, the oldest first."""
    used: Sequence[Partition]


class Queries:
    """Reads the partitions."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    def find(self, partition: Partition, ids: Sequence[bytes]) -> Sequence[Found | None]:
        """The live messages with these ids, None for those that are not live here."""
        found: list[Found | None] = []
        while len(found) < len(ids):  # a call ends early when it has had many bytes
            rest = ids[len(found) :]
            found += found_in(rest, self._client.call("find", partition, rest))
        return found

    def windows(
        self, asked: Iterable[tuple[Partition, Sequence[bytes]]]
    ) -> Sequence[Sequence[float]]:
        """When the window of each of these members ends, in ms, 0 without one; one round trip."""
        reads = [
            Read("ZMSCORE", None, (keys.windows_key(self._client.prefix, partition), *members))
            for partition, members in asked
        ]
        answers = self._client.read_all(reads) if reads else []
        return [[float(end_ms or 0) for end_ms in answer] for answer in answers]

    def has_follower(self, partition: Partition, message_id: bytes) -> bool:
        """Whether another message follows the run of this id."""
        return bool(
            self._client.command(
                "HEXISTS", keys.partition_keys(self._client.prefix, partition)[7], message_id
            )
        )

    def leases(self, partitions: Sequence[Partition], limit: int) -> Sequence[HeldLease]:
        """Up to `limit` leases of each partition, those that end first at the front."""
        prefix = self._client.prefix
        reads = [
            Read("ZRANGE", None, (keys.leased_key(prefix, partition), 0, limit - 1, "WITHSCORES"))
            for partition in partitions
        ]
        found: list[HeldLease] = []
        for partition, answer in zip(partitions, self._client.read_all(reads), strict=True):
            # RESP2 gives ids and deadlines in one flat list, RESP3 in pairs.
            is_flat = not answer or isinstance(answer[0], bytes)
            flat = iter(answer if is_flat else chain.from_iterable(answer))
            found += [HeldLease(partition, i, float(ms)) for i, ms in zip(flat, flat, strict=True)]
        return sorted(found, key=lambda lease: lease.deadline_ms)

    def count_leased(self, partitions: Sequence[Partition]) -> Sequence[int]:
        """How many leases each partition has; one round trip, or two of thousands of partitions:
        few of these have any."""
        leased = [keys.leased_key(self._client.prefix, partition) for partition in partitions]
        asked = leased
        if len(leased) > TOGETHER and not self._client.is_cluster:
            groups = list(chunked(leased, TOGETHER))
            there = self._client.read_all([Read("EXISTS", None, group) for group in groups])
            busy = [group for group, exists in zip(groups, there, strict=True) if exists]
            asked = list(chain.from_iterable(busy))
        answers = self._client.read_all([Read("ZCARD", None, (key,)) for key in asked])
        counts = dict(zip(asked, answers, strict=True))
        return [counts.get(key, 0) for key in leased]

    def holders(self, counts: Iterable[tuple[Partition, int]]) -> Sequence[HeldLease]:
        """So many leases of each partition, those that end first, with their tokens; one round trip
        (read_all)."""
        asked = [
            (partition, (offset, min(BATCH, count - offset)))
            for partition, count in counts
            for offset in range(0, count, BATCH)
        ]
        if not asked:
            return []
        answers = self._client.read_all([Read("holders", *place) for place in asked])
        found: dict[tuple[Partition, bytes], HeldLease] = {}
        for (partition, _), answer in zip(asked, answers, strict=True):
            flat = iter(answer)
            for message_id, deadline_ms, token in zip(flat, flat, flat, strict=True):
                # A lease that is extended between two reads may be in both.
                lease = HeldLease(partition, message_id, float(deadline_ms), token)
                found[partition, message_id] = lease
        return list(found.values())

    def find_leased(self, leases: Sequence[HeldLease]) -> Sequence[Found | None]:
        """The message of each lease, None where it is gone; one round trip (read_all)."""
        reads = [Read("find", lease.partition, (lease.id,)) for lease in leases]
        answers = zip(leases, self._client.read_all(reads), strict=True)
        return [found_in([lease.id], answer)[0] for lease, answer in answers]

    def first_waiting(
        self, partitions: Sequence[Partition], limit: int
    ) -> Iterator[tuple[Partition, Found]]:
        """Messages of each lane of each partition that are due first, up to `limit`, fewer of large
        ones; one round trip (read_all)."""
        asked = [(partition, lane) for partition in partitions for lane in (1, 2, 3)]
        reads = [Read("list", partition, (lane, "", b"", limit)) for partition, lane in asked]
        answers = self._client.read_all(reads) if reads else []
        for (partition, _), (_, *rest) in zip(asked, answers, strict=True):
            yield from ((partition, found) for found in _listed(rest))

    def list(
        self, partition: Partition, lane: int, after: tuple[int, bytes] | None, limit: int
    ) -> Sequence[Found]:
        """Up to `limit` waiting messages of a lane (0 to 2) in the order of (due, id), after the
        given place."""
        found: list[Found] = []
        is_cut = True
        while is_cut:  # it had many bytes
            left = min(limit, BATCH) - len(found)
            due, message_id = after if after else ("", b"")
            args = (lane + 1, due, message_id, left)
            is_cut, *rest = self._client.call("list", partition, args)
            found += _listed(rest)
            after = (found[-1].due_at_ms, found[-1].id) if found else None
        return found

    def records(self, partition: Partition) -> Iterator[Mapping[bytes, bytes]]:
        """Pages of all that is live in a partition, id -> record: first what follows a run, then
        what waits or runs. Whatever is live all the time is seen, also when its state changes."""
        names = keys.partition_keys(self._client.prefix, partition)
        # A follower has its due time, of 6 bytes, before its record.
        for key, record_at in ((names[7], 6), (names[4], 0)):
            cursor: Any = None
            while cursor != 0:
                cursor, page = self._client.command("HSCAN", key, cursor or 0, "COUNT", BATCH)
                yield {message_id: record[record_at:] for message_id, record in page.items()}

    def stats(self, partition: Partition) -> PartitionStats:
        """Counts by state and the counters of a partition."""
        return self.all_stats([partition])[0]

    def all_stats(self, partitions: Sequence[Partition]) -> Sequence[PartitionStats]:
        """stats() of several partitions in one round trip."""
        return [
            _stats(answer)
            for answer in self._client.read_all(
                [Read("stats", partition) for partition in partitions]
            )
        ]

    def snapshot(
        self, partitions: Sequence[Partition], instants_ms: Sequence[int], samples: int
    ) -> Snapshot:
        """All that the overview needs, in one round trip: stats and forecast of each partition,
        heartbeats, newest samples, and the partitions that are in use."""
        instants = (b"".join([at_ms.to_bytes(6, "big") for at_ms in instants_ms]),)
        reads = [
            Read(name, partition, instants if name == "forecast" else ())
            for partition in partitions
            for name in ("stats", "forecast")
        ]
        prefix = self._client.prefix
        plain = [
            Read("HGETALL", None, (keys.workers_key(prefix),)),
            Read("HKEYS", None, (keys.quiet_key(prefix),)),
            Read("XREVRANGE", None, (keys.samples_key(prefix), "+", "-", "COUNT", samples)),
            Read("SMEMBERS", None, (keys.topics_key(prefix),)),
        ]
        answers = self._client.read_all([*reads, *plain])
        heartbeats, quiet, entries, topics = answers[len(reads) :]
        return Snapshot(
            stats=dict(zip(partitions, map(_stats, answers[0 : len(reads) : 2]), strict=True)),
            forecast=dict(
                zip(partitions, (counts[1:] for counts in answers[1 : len(reads) : 2]), strict=True)
            ),
            heartbeats=decode_beats(heartbeats),
            quiet={name.decode() for name in quiet},
            samples=[json.loads(fields[b"sample"]) for _, fields in reversed(entries)],
            used=keys.partitions_in(topics),
        )

    def sample_between(self, oldest_ms: float, newest_ms: float) -> TopicSamples | None:
        """The newest sample of each topic that was taken in between. Only the last minutes are
        kept."""
        found = self._client.command(
            "XREVRANGE",
            keys.newest_samples_key(self._client.prefix),
            *(int(newest_ms), int(oldest_ms), "COUNT", 1),
        )
        if not found:
            return None
        (entry, fields) = found[0]
        return TopicSamples(int(entry.partition(b"-")[0]), json.loads(fields[b"topics"]))

    def topic_samples(self, topics: Sequence[str], limit: int) -> Sequence[Sequence[TopicSample]]:
        """The newest samples of each of these topics, the oldest first: minutes in which its
        figures changed. One round trip."""
        prefix = self._client.prefix
        reads = [
            Read("XREVRANGE", None, (keys.topic_samples_key(prefix, t), "+", "-", "COUNT", limit))
            for t in topics
        ]
        return [
            [
                TopicSample(int(one[b"at"]), int(one[b"f"]), int(one[b"w"]), float(one[b"l"]))
                for _, one in reversed(entries)
            ]
            for entries in (self._client.read_all(reads) if reads else [])
        ]

    def task_name(self, partition: Partition, code: bytes) -> str:
        """The name behind a task code, `code:` and its digits when Redis does not know it."""
        name = self._client.command(
            "HGET", keys.meta_key(self._client.prefix, partition), f"task:{code.hex()}"
        )
        return name.decode() if name else f"code:{code.hex()}"

    def counters(self, partitions: Sequence[Partition]) -> Sequence[Counters]:
        """The counters of each partition: one cheap command each, in one round trip."""
        prefix = self._client.prefix
        reads = [
            Read("HMGET", None, (keys.meta_key(prefix, partition), *_COUNTED))
            for partition in partitions
        ]
        return [
            Counters(int(wakeups or 0), int(enqueued or 0), sum(int(end or 0) for end in ends))
            for wakeups, enqueued, *ends in self._client.read_all(reads)
        ]

    def heads(self, partitions: Sequence[Partition]) -> Sequence[float | None]:
        """The earliest due time in ms of each partition, without what a limit holds back; None
        where nothing waits. One round trip, and no script."""
        prefix = self._client.prefix
        reads = [
            Read("ZRANGEBYSCORE", None, (lane, "-inf", f"({HELD_MS}", "WITHSCORES", "LIMIT", 0, 1))
            for partition in partitions
            for lane in keys.partition_keys(prefix, partition)[:3]
        ]
        # RESP2 gives an id and its score in one flat list, RESP3 in a pair.
        dues = [
            float(answer[1] if len(answer) > 1 else answer[0][1]) if answer else math.inf
            for answer in self._client.read_all(reads)
        ]
        heads = [min(dues[at : at + 3]) for at in range(0, len(dues), 3)]
        return [None if head == math.inf else head for head in heads]

    def leased_under(self, partition: Partition, token: bytes) -> Sequence[bytes]:
        """The ids that are leased under a token: the messages of a claim whose answer was lost."""
        cursor, ids = b"0", set[bytes]()
        while True:
            cursor, page = self._client.call("leased_under", partition, (cursor, token))
            ids.update(page)
            if cursor == b"0":
                return sorted(ids)

    def durable_status(self, partition: Partition, lives: Sequence[Life]) -> Sequence[str]:
        """The status of each life of a durable message: LIVE, DONE (ended, not yet archived) or
        MISSING."""
        args = [
            part
            for message_id, stamp_us in lives
            for part in (message_id, stamp_us.to_bytes(8, "big"))
        ]
        return [word.decode() for word in self._client.call("durable_status", partition, args)]

    def holding_back(self, partitions: Sequence[Partition]) -> set[Partition]:
        """The partitions where messages wait for the limits of their keys, or run under them."""
        prefix = self._client.prefix
        reads = [
            Read("EXISTS", None, (keys.partition_keys(prefix, partition)[9],))
            for partition in partitions
        ]
        answers = self._client.read_all(reads) if reads else []
        return {partition for partition, exists in zip(partitions, answers, strict=True) if exists}

    def oldest_lease_ms(self, partition: Partition) -> float | None:
        """The deadline of the lease that ends first. None when nothing is leased."""
        return next((lease.deadline_ms for lease in self.leases([partition], 1)), None)


def _stats(answer: Sequence[Any]) -> PartitionStats:
    now_us, waiting, ready, leased, finished, next_due, meta, held, age_ms = answer
    fields = {
        name: value.decode() for name, value in zip(_META, meta, strict=True) if value is not None
    }
    unarchived_s = max(0.0, (optional(age_ms) or 0) / 1000)
    due_ms = optional(next_due)
    return PartitionStats(
        now_us / 1000, waiting, ready, leased, finished, due_ms, fields, held, unarchived_s
    )


def lag_of(parts: Iterable[PartitionStats]) -> float:
    """Seconds since the oldest waiting message of these partitions fell due; 0 without a
    backlog."""
    late = [
        (part.now_ms - part.next_due_ms) / 1000 for part in parts if part.next_due_ms is not None
    ]
    return max([0.0, *late])


def optional(number: Any) -> int | None:
    """A number in a script's answer; '' stands for none."""
    return None if number == b"" else int(number)


def found_in(ids: Sequence[bytes], answer: Sequence[Any]) -> Sequence[Found | None]:
    """Reads the answer of find.lua for these ids, or the first of them."""
    return [
        _found(message_id, *item) if item else None
        for message_id, item in zip(ids, answer, strict=False)
    ]


def _listed(answer: Iterable[Any]) -> list[Found]:
    """Reads the messages in the answer of list.lua."""
    flat = iter(answer)
    return [_found(*fields) for fields in zip(flat, flat, flat, flat, flat, strict=True)]


def _found(message_id: bytes, state: bytes, due_ms: int, record: bytes, entry: bytes) -> Found:
    return Found(
        message_id, State(state.decode()), due_ms, record, Attempts.decode(entry) if entry else None
    )
