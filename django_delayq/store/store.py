"""The store: changes the states of messages in Redis. One method and one Lua file per
transition."""

from __future__ import annotations

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, compress
from typing import Any, NamedTuple, TypeVar

from ..core.chunks import chunked, chunked_by_weight
from ..core.conf import Settings
from ..core.exceptions import (
    MessageChanged,
    MessageNotFound,
    MessageRunning,
    NotReplicated,
    StoreError,
)
from ..core.limits import TopicLimits
from ..core.message import Found, lane_sent
from ..core.times import When
from .bulk_load import BulkLoader
from .client import BATCH, BATCH_BYTES, Read, RedisClient
from .connection import RedisPy
from .keys import (
    Partition,
    messages_key,
    partition_keys,
    partition_of,
    progress_key,
    rate_keys,
    result_key,
    windows_key,
)
from .lease import Lease
from .queries import Life, Queries, found_in, optional
from .repair import Repair
from .reports import Reports
from .requests import Requests
from .topic_catalog import Topics
from .workers import Workers

#: How long a message waits after its worker has crashed for the second time. After the first crash
#: it is due at once.
CRASH_BACKOFF_MS = 5_000

#: Seconds after which we send the names of tasks to a partition again, because FLUSHALL removes
#: them. At every call each would cost 2 us.
SEND_NAMES_AGAIN = 30.0
#: Seconds after which a process reads the numbers of partitions again. It also registers its own
#: again, because FLUSHALL removes them.
READ_COUNTS_AGAIN = 30.0
#: Topics that are asked for messages by a script each. Of more than these a cheap command first
#: finds those that have the message: of 10,000 it saves 150 ms.
FEW = 100
#: Messages that are looked for together. Python looks through its memory when many objects are new
#: (garbage collection): of 10,000 at once that took 90 ms more.
TOGETHER = 1_000
T = TypeVar("T")
Ids = list[bytes]
Leases = list[Lease]


class Outgoing(NamedTuple):
    """A message for the enqueue script."""

    id: bytes
    mode: str
    """raise, keep, replace, extend, earliest or adopt; also with a limit, such as replace:60000,
    a call (of_call()), or a window, such as keep/60000: see enqueue.lua."""
    when: When
    expires: When
    record: bytes
    """Without its stamp."""

    @property
    def replaces(self) -> bool:
        """Whether it takes the place of a live message with its id."""
        return replaces(self.mode)


def replaces(mode: str) -> bool:
    """Whether a message of this mode takes the place of a live one with its id."""
    return base_mode(mode) in ("replace", "extend", "earliest")


def base_mode(mode: str) -> str:
    """The mode without its limit, its call and its window."""
    return mode.partition(":")[0].partition("/")[0].partition("#")[0]


def of_call(mode: str, call: bytes, ms: int) -> str:
    """The mode of a message that this call stores once within so many ms, whatever becomes of the
    message."""
    head, slash, window = mode.partition("/")
    return f"{head}#{call.hex()}:{ms}{slash}{window}"


def has_call(mode: str) -> bool:
    """Whether a call stores the message once."""
    return "#" in mode


def without_call(mode: str) -> str:
    """The mode as SQL keeps it."""
    head, _, rest = mode.partition("#")
    return "".join((head, *rest.partition("/")[1:]))


def replacing(mode: str) -> str:
    """The mode that replaces whatever is live, with the window of this mode."""
    _, slash, window = mode.partition("/")
    return f"replace{slash}{window}"


def has_window(mode: str) -> bool:
    """Whether the key of a message with this mode takes no other for some time."""
    return "/" in mode


class Claimed(NamedTuple):
    """What a claim found in a partition."""

    now_us: int
    """Redis' clock."""
    next_due_ms: int | None
    """The earliest due time that waits there now. While a pause has an end, that end."""
    wakeups: int
    """Changes when a message comes that is due before all others."""
    leases: Leases
    over: Ids
    """Ids that had expired or had no record."""
    paused: bool
    unarchived: bool
    """Nothing is claimed because too many finished messages wait for the archiver."""


class Reclaimed(NamedTuple):
    """What a reclaim did with the messages whose leases had ended."""

    back: Ids
    """Ids of the messages that wait again."""
    dead: Ids
    more: bool
    """Whether there may be more to reclaim."""


class Located(NamedTuple):
    """A live message, and the partition that has it."""

    partition: Partition
    found: Found


class Partitions:
    """Knows into how many partitions each topic is and was split, and so where a message can be."""

    def __init__(self, topics: Topics, queries: Queries) -> None:
        self._topics = topics
        self._queries = queries
        self._registered: dict[str, frozenset[int]] = {}
        self._counts: dict[str, frozenset[int]] = {}
        """Of the topics that were asked for since the last reading."""
        self._read_at = -READ_COUNTS_AGAIN

    def counts(self, topic: str) -> frozenset[int]:
        """Every number of partitions that the topic has had, ours included."""
        now = time.monotonic()
        if now - self._read_at >= READ_COUNTS_AGAIN:
            self._registered, self._counts = self._topics.registered(), {}
            self._read_at = now
        counts = self._counts.get(topic)
        if counts is None:
            count, counts = self._topics.configured(topic), self._registered.get(topic, frozenset())
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
        known = self.counts(topic)
        if len(known) == 1:
            return [partition_of(topic, message_id, *known)]
        today = self._topics.configured(topic)
        counts = sorted(known, key=lambda count: count != today)
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
        self._read_at = -READ_COUNTS_AGAIN


class RedisStore:
    """The only way to change the state of a message. Each transition is one method here and one Lua
    file; everything else is done by a part.

    Every method raises StoreUnavailable (nothing changed), OutcomeUnknown (perhaps changed; calling
    again with the same ids and tokens is safe) or StoreError (a bug).
    """

    def __init__(self, redis_py: RedisPy | None, settings: Settings) -> None:
        self.client = RedisClient(redis_py, settings)
        """Runs scripts and commands; has the settings, the prefix and the clock."""
        self.breaker = self.client.breaker
        """Open while Redis does not answer."""
        self.queries = Queries(self.client)
        """Reads messages, leases and counts of partitions."""
        self.topics = Topics(self.client)
        """Pauses and resumes topics, and knows which there are."""
        self.partitions = Partitions(self.topics, self.queries)
        """Says in which partition a message can be."""
        self.workers = Workers(self.client)
        """Heartbeats, quiet workers, locks, samples."""
        self.bulk_load = BulkLoader(self.client)
        """Adds very many messages, each once."""
        self.reports = Reports(self.client, self.partitions.candidates)
        """Reads results and progress."""
        self.requests = Requests(self.client)
        """Counts the calls of the HTTP API, and keeps answers."""
        self.repair = Repair(self.client)
        """Finds and mends damage, for the audit."""
        self._names_sent_at: dict[tuple[Partition, bytes], float] = {}

    def now_us(self) -> int:
        """Redis' clock in microseconds as this process knows it; see RedisClient.now_us()."""
        return self.client.now_us()

    def clock_ms(self) -> float:
        """Redis' clock; asks Redis."""
        return self.client.clock_ms()

    def close(self) -> None:
        """Close the connections, those to Sentinel too."""
        self.client.close()

    # By topic: wherever the message is

    def find(self, topic: str, message_id: bytes) -> Located | None:
        """The live message with this id, None when there is none."""
        return next(iter(self.find_many([(topic, message_id)])), None)

    def find_many(self, places: Iterable[tuple[str, bytes]]) -> Sequence[Located]:
        """The live messages among these topics and ids. One round trip (read_all) for TOGETHER of
        them, or two in many topics. A key may be live in two partitions: two processes had
        different numbers of them."""
        located: list[Located] = []
        for some in chunked(dict.fromkeys(places), TOGETHER):
            is_wide = len(some) > FEW and len({topic for topic, _ in some}) > FEW
            asked = self._with_records(some) if is_wide else some
            batches = self._batches((topic, i, i) for topic, i in asked)
            answers = self.client.read_all([Read("find", *batch) for batch in batches])
            for (partition, ids), answer in zip(batches, answers, strict=True):
                found = found_in(ids, answer)
                if len(found) < len(ids):  # the call ended early: it had many bytes
                    found = [*found, *self.queries.find(partition, ids[len(found) :])]
                located += [Located(partition, one) for one in found if one is not None]
        return located

    def _with_records(self, places: Iterable[tuple[str, bytes]]) -> Sequence[tuple[str, bytes]]:
        """Those of these topics and ids that have a record: a cheap command each, in one round
        trip, before a script is asked about them."""
        where, owners = list[str](), list[tuple[str, bytes]]()
        prefix, candidates = self.client.prefix, self.partitions.candidates
        for place in places:
            for partition in candidates(*place):
                where.append(messages_key(prefix, partition))
                owners.append(place)
        known = self.client.have_fields(where, [message_id for _, message_id in owners])
        return list(dict.fromkeys(compress(owners, known)))

    def recent(self, places: Iterable[tuple[str, bytes, bytes]]) -> set[tuple[str, bytes]]:
        """Those of these topics, ids and members of their windows (the id, or a window_mark()) that
        go on, each as topic and member; one round trip (read_all)."""
        batches = self._batches((topic, i, (topic, m)) for topic, i, m in dict.fromkeys(places))
        now_ms = self.now_us() // 1000
        ends = self.queries.windows((part, [m for _, m in batch]) for part, batch in batches)
        return {
            place
            for (_, batch), found in zip(batches, ends, strict=True)
            for place, end_ms in zip(batch, found, strict=True)
            if end_ms > now_ms
        }

    def has_follower(self, topic: str, message_id: bytes) -> bool:
        """Whether another message follows the run of this id."""
        candidates = self.partitions.candidates(topic, message_id)
        return any(self.queries.has_follower(partition, message_id) for partition in candidates)

    def cancel(self, topic: str, message_id: bytes) -> str:
        """Delayed -> cancelled in every partition that can have it. Returns RUNNING, OK or
        NOT_FOUND."""
        candidates = self.partitions.candidates(topic, message_id)
        words = {self.cancel_in(partition, [message_id])[0] for partition in candidates}
        return next((word for word in ("RUNNING", "OK") if word in words), "NOT_FOUND")

    def cancel_running(self, topic: str, message_id: bytes) -> bool:
        """Leased -> cancelled in every partition that can have it. Returns whether there was a
        lease. Its holder hears of it (a hint), or notices when it extends the lease."""
        candidates = self.partitions.candidates(topic, message_id)
        words = {self.cancel_running_in(partition, message_id) for partition in candidates}
        if "OK" in words:
            with suppress(StoreError):  # only a hint
                self.workers.hint_cancelled(message_id)
        return "OK" in words

    def reschedule(self, topic: str, message_id: bytes, when: When) -> int | None:
        """Delayed -> delayed with another due time, which is returned, in every partition that can
        have it. None when the message is not live. Raises MessageRunning when it runs and waits
        nowhere."""
        due_ms, running = None, False
        for partition in self.partitions.candidates(topic, message_id):
            try:
                due_ms = self.reschedule_in(partition, message_id, when)
            except MessageNotFound:
                continue
            except MessageRunning:
                running = True
        if due_ms is None and running:
            raise MessageRunning
        return due_ms

    def edit(self, topic: str, message_id: bytes, change: Callable[[bytes], bytes]) -> bytes | None:
        """Delayed -> delayed with the record that `change` makes of the old one. Returns the new
        record, or None when the message is not live. Raises MessageRunning and MessageChanged."""
        for partition, found in self.find_many([(topic, message_id)]):
            after = change(found.record)
            word = self.edit_in(partition, message_id, found.record, after)
            if word in ("RUNNING", "CHANGED"):
                raise MessageRunning if word == "RUNNING" else MessageChanged
            if word == "OK":
                return after
        return None

    def durable_status(self, topic: str, life: Life) -> tuple[Partition, str]:
        """Where a durable message is, and its status there: LIVE, DONE (ended, not yet archived),
        or MISSING everywhere."""
        candidates = self.partitions.candidates(topic, life.id)
        for partition in candidates:
            (status,) = self.queries.durable_status(partition, [life])
            if status != "MISSING":
                return partition, status
        return candidates[0], "MISSING"

    def missing(self, lives: Iterable[tuple[str, Life]]) -> set[Life]:
        """The durable messages among these, each with its topic, that are in no partition: neither
        live nor ended."""
        batches = self._batches((topic, life.id, life) for topic, life in lives)
        statuses = [
            (life, status)
            for partition, batch in batches
            for life, status in zip(
                batch, self.queries.durable_status(partition, batch), strict=True
            )
        ]
        known = {life for life, status in statuses if status != "MISSING"}
        return {life for life, _ in statuses} - known

    def _batches(
        self, asked: Iterable[tuple[str, bytes, T]]
    ) -> Sequence[tuple[Partition, Sequence[T]]]:
        """The items by the partitions that can have their ids, in batches of up to 500."""
        grouped: dict[Partition, list[T]] = defaultdict(list)
        for topic, message_id, item in asked:
            for partition in self.partitions.candidates(topic, message_id):
                grouped[partition].append(item)
        return [
            (partition, items[at : at + BATCH])
            for partition, items in grouped.items()
            for at in range(0, len(items), BATCH)
        ]

    # Transitions in a partition

    def enqueue(
        self, partition: Partition, tasks: Mapping[bytes, str], messages: Sequence[Outgoing]
    ) -> tuple[int, dict[int, str]]:
        """- -> delayed. Returns Redis' clock in microseconds and a word for each index that is not
        simply new."""
        now_us, words, at = 0, dict[int, str](), 0
        for part in chunked_by_weight(messages, lambda one: len(one.record), BATCH_BYTES):
            now_us, some = self.begin_enqueue(partition, tasks, part)()
            words |= {at + index: word for index, word in some.items()}
            at += len(part)
        return now_us, words

    def begin_enqueue(
        self, partition: Partition, tasks: Mapping[bytes, str], messages: Sequence[Outgoing]
    ) -> Callable[[], tuple[int, dict[int, str]]]:
        """Send an enqueue; the function that is returned reads its answer and must be called,
        once."""
        sent_since = time.monotonic() - SEND_NAMES_AGAIN
        sent_at = self._names_sent_at
        unsent = [
            code for code in tasks if sent_at.get((partition, code), -SEND_NAMES_AGAIN) < sent_since
        ]
        if unsent or len(messages) > 1:
            return self._begin_words(partition, {code: tasks[code] for code in unsent}, messages)
        message_id, mode, when, expires, record = messages[0]
        # With the other modes, and from SQL, an id may well be live: then enqueue_one would cost a
        # second round trip.
        if mode != "raise" or when.stamp_us:
            return self._begin_words(partition, {}, messages)
        all_keys = partition_keys(self.client.prefix, partition)
        script_keys = all_keys[lane_sent(record)], all_keys[4], all_keys[8]
        client = self.client
        begin = client.begin_replicated if client.settings.wait_replicas else client.begin
        answer = begin("enqueue_one", script_keys, (message_id, when, expires, record))

        def read() -> tuple[int, dict[int, str]]:
            try:
                now_us = answer()
            except NotReplicated as short:
                if short.answer:
                    raise NotReplicated((short.answer, {})) from None
                now_us = None
            return (now_us, {}) if now_us else self._begin_words(partition, {}, messages)()

        return read

    def _begin_words(
        self, partition: Partition, unsent: Mapping[bytes, str], messages: Sequence[Outgoing]
    ) -> Callable[[], tuple[int, dict[int, str]]]:
        """Send an enqueue that answers with a word for each message that is not simply new."""
        args: list[Any] = [len(unsent)]
        for code, name in unsent.items():
            args += (code.hex(), name)
        for message in messages:  # not chain(): it takes longer for a lone message
            args += message
        client = self.client
        script_keys = partition_keys(client.prefix, partition)
        if any(has_window(mode) or has_call(mode) for mode in {one.mode for one in messages}):
            script_keys = (*script_keys, windows_key(client.prefix, partition))
        # SQL keeps the messages that it has accepted: these need not wait for replicas.
        waits = client.settings.wait_replicas and not all(
            message.when.stamp_us for message in messages
        )
        begin = client.begin_replicated if waits else client.begin
        answer = begin("enqueue", script_keys, args)

        def read() -> tuple[int, dict[int, str]]:
            try:
                now_us, *words = answer()
            except NotReplicated as short:
                now_us, *words = short.answer
                raise NotReplicated((now_us, _words(words))) from None
            for code in unsent:
                self._names_sent_at[partition, code] = time.monotonic()
            return now_us, _words(words)

        return read

    def claim(self, partition: Partition, limit: int, token: bytes | None = None) -> Claimed:
        """Delayed and due -> leased, at most `limit` (and 500) messages."""
        args = self._claim_args(partition, limit, token)
        return self._claimed(partition, self.client.call("claim", partition, args))

    def claim_limited(
        self, partition: Partition, limit: int, token: bytes | None, limits: TopicLimits
    ) -> Claimed:
        """claim() in a topic with limits. The next due time is when the next message may start."""
        args = (*self._claim_args(partition, limit, token), *limits.arguments())
        more_keys = rate_keys(self.client.prefix, partition)
        answer = self.client.call("claim_limited", partition, args, *more_keys)
        return self._claimed(partition, answer)

    def _claim_args(self, partition: Partition, limit: int, token: bytes | None) -> Sequence[Any]:
        settings = self.client.settings
        return (
            min(limit, BATCH),
            token or os.urandom(16),
            int(settings.priority_ageing * 1000),
            self._archive(partition),
            settings.finished_limit,
        )

    def _claimed(self, partition: Partition, answer: Sequence[Any]) -> Claimed:
        now_us, next_due, wakeups, flat, over, paused = answer
        at = time.monotonic()
        triples = iter(flat)
        leases = [
            Lease(partition, i, r, e, at) for i, r, e in zip(triples, triples, triples, strict=True)
        ]
        return Claimed(
            now_us, optional(next_due), wakeups, leases, over, bool(paused), paused == b"UNARCHIVED"
        )

    def ack(
        self,
        partition: Partition,
        settled: Sequence[tuple[Lease, bytes]],
        *,
        repeated: bool = False,
    ) -> Leases:
        """Leased -> acked, each with its detail (JSON). Returns the leases that were refused as
        lost."""
        settings = self.client.settings
        results: tuple[str, ...] = ()
        with_result = [pair for pair in settled if pair[0].report and pair[0].report.result]
        if with_result:
            # The script takes those with results first.
            others = [pair for pair in settled if not (pair[0].report and pair[0].report.result)]
            settled = [*with_result, *others]
            results = tuple(
                result_key(settings.prefix, partition, lease.id) for lease, _ in with_result
            )
        args: list[Any] = [self._archive(partition), math.ceil(settings.result_ttl)]
        for lease, detail in settled:
            args += (lease.id, lease.token, detail)
        leases = [lease for lease, _ in settled]
        return self._fenced("ack", partition, args, leases, repeated, *results)

    def nack(
        self,
        partition: Partition,
        settled: Sequence[tuple[Lease, int | None, bool, bytes]],
        *,
        repeated: bool = False,
    ) -> Leases:
        """Leased -> delayed after a delay in ms, or -> dead (delay None).

        Each lease has its delay, whether the attempt counts, and its detail (JSON). Returns the
        leases that were refused as lost.
        """
        args: list[Any] = [self._archive(partition)]
        for lease, delay_ms, counts, detail in settled:
            delay = "" if delay_ms is None else delay_ms
            args += (lease.id, lease.token, delay, int(counts), detail)
        return self._fenced("nack", partition, args, [item[0] for item in settled], repeated)

    def release(
        self,
        partition: Partition,
        leases: Sequence[Lease],
        *,
        delays_ms: Sequence[int | None] | None = None,
        repeated: bool = False,
    ) -> Leases:
        """Leased -> delayed at the old due time, or after the delay of each lease. The attempt does
        not count."""
        args = [
            part
            for lease, delay_ms in zip(leases, delays_ms or [None] * len(leases), strict=True)
            for part in (lease.id, lease.token, "" if delay_ms is None else delay_ms)
        ]
        return self._fenced("release", partition, args, leases, repeated)

    def put_off(
        self,
        partition: Partition,
        settled: Sequence[tuple[Lease, int, bytes]],
        *,
        repeated: bool = False,
    ) -> Leases:
        """Leased -> delayed after a delay in ms, because this worker's code cannot run the message.
        The attempt does not count. Each lease has its delay and its detail (JSON)."""
        args = [
            part
            for lease, delay_ms, detail in settled
            for part in (lease.id, lease.token, delay_ms, detail)
        ]
        return self._fenced("put_off", partition, args, [item[0] for item in settled], repeated)

    def extend(
        self, partition: Partition, leases: Sequence[Lease], gone: set[Lease] | None = None
    ) -> Leases:
        """Leased -> leased for another ttr. Returns the leases that another worker holds now. A
        lease that is settled is not lost. `gone` gets those whose messages have ended: settled a
        moment ago, or cancelled."""
        args = [part for lease in leases for part in (lease.id, lease.token, lease.ttr_ms)]
        return self._fenced("extend", partition, args, leases, True, gone=gone)

    def progress(self, lease: Lease, progress: bytes, for_ms: int) -> bool:
        """Leased -> leased, with how far its task has come (JSON), kept for so many ms. Returns
        False when the lease is lost."""
        key = progress_key(self.client.prefix, lease.partition, lease.id)
        args = (lease.id, lease.token, progress, for_ms)
        return not self._fenced("progress", lease.partition, args, [lease], True, key)

    def reclaim(self, partition: Partition) -> Reclaimed:
        """Leased past the deadline -> delayed or dead, for up to 500 messages, or BATCH_BYTES."""
        settings = self.client.settings
        args = (BATCH, settings.poison_limit, CRASH_BACKOFF_MS, self._archive(partition))
        back, dead, more = self.client.call("reclaim", partition, args)
        return Reclaimed(back, dead, bool(more))

    def cancel_in(
        self,
        partition: Partition,
        ids: Sequence[bytes],
        reason: str = "cancelled",
        before_us: int | None = None,
    ) -> Sequence[str]:
        """Delayed -> cancelled. Returns OK, RUNNING or NOT_FOUND for each id.

        What was enqueued after `before_us` stays: NOT_FOUND.
        """
        args = (
            self._archive(partition),
            json.dumps({"reason": reason}),
            "" if before_us is None else before_us,
        )
        windows = windows_key(self.client.prefix, partition)
        words: list[bytes] = []
        while len(words) < len(ids):  # a call ends early when it has had many bytes
            rest = ids[len(words) :]
            words += self.client.call("cancel", partition, (*args, *rest), windows)
        return [word.decode() for word in words]

    def cancel_running_in(
        self, partition: Partition, message_id: bytes, reason: str = "cancelled while it ran"
    ) -> str:
        """Leased -> cancelled, its follower too. Returns OK, WAITING or NOT_FOUND."""
        args = (self._archive(partition), json.dumps({"reason": reason}), message_id)
        windows = windows_key(self.client.prefix, partition)
        answer: bytes = self.client.call("cancel_running", partition, args, windows)
        return answer.decode()

    def reschedule_in(
        self, partition: Partition, message_id: bytes, when: When, before_us: int | None = None
    ) -> int:
        """Delayed -> delayed with another due time, which is returned. Raises MessageNotFound or
        MessageRunning.

        What was enqueued after `before_us` stays: MessageNotFound.
        """
        args = (message_id, when, "" if before_us is None else before_us)
        word, *due = self.client.call("reschedule", partition, args)
        if word in (b"NOT_FOUND", b"RUNNING"):
            raise MessageRunning if word == b"RUNNING" else MessageNotFound
        return int(due[0])

    def shift(self, partition: Partition, moves: Sequence[tuple[Life, int, int]]) -> Sequence[str]:
        """Delayed -> delayed with another due time, for messages that are as they were read: each
        with its life, the due time that was read and the one to be, in ms. Returns OK, RUNNING,
        NOT_FOUND, CHANGED, or SAME, when it has the new due time already, for each."""
        args = [
            part
            for life, due_ms, to_ms in moves
            for part in (life.id, life.stamp_us.to_bytes(8, "big"), due_ms, to_ms)
        ]
        words: list[bytes] = []
        while len(words) < len(moves):  # a call ends early when it has had many bytes
            words += self.client.call("shift", partition, args[4 * len(words) :])
        return [word.decode() for word in words]

    def edit_in(self, partition: Partition, message_id: bytes, before: bytes, after: bytes) -> str:
        """edit_many() for one message."""
        (word,) = self.edit_many(partition, [(message_id, before, after)])
        return word

    def edit_many(
        self, partition: Partition, edits: Sequence[tuple[bytes, bytes, bytes]]
    ) -> Sequence[str]:
        """Delayed -> delayed with another body, for messages with these ids: the record that was
        read, and the one to be. Returns OK, RUNNING, NOT_FOUND, or CHANGED (the record is another
        one) for each."""
        answers = self.client.call("edit", partition, [*chain.from_iterable(edits)])
        return [word.decode() for word in answers]

    def purge(self, partition: Partition, limit: int = BATCH, reason: str = "purged") -> Ids:
        """Delayed -> cancelled for up to `limit` messages. Returns their ids; call until there are
        none."""
        args = (min(limit, BATCH), self._archive(partition), json.dumps({"reason": reason}))
        windows = windows_key(self.client.prefix, partition)
        return [*self.client.call("purge", partition, args, windows)]

    # Messages that SQL answers for

    def tombstone(
        self,
        partition: Partition,
        message_id: bytes,
        record: bytes,
        reason: str | None = "cancelled",
        due_ms: int = 0,
    ) -> str:
        """Nothing -> cancelled for a durable message that is MISSING. Returns OK, LIVE or DONE.

        Without a reason there is no entry in the finished stream: the message is only refused when
        it is sent later, and SQL gives it a newer stamp.
        """
        detail = json.dumps({"reason": reason}) if reason else ""
        args = (message_id, record, detail, due_ms)
        answer: bytes = self.client.call("tombstone", partition, args)
        return answer.decode()

    def trim_finished(
        self,
        partition: Partition,
        group: str,
        entries: Sequence[bytes],
        durable: Sequence[tuple[bytes, bytes]] = (),
    ) -> int:
        """Remove entries of the finished stream whose rows are committed, 500 at most. `durable`:
        id and stamp of each durable message among them.

        Returns how many entries are left.
        """
        limit = self.client.settings.finished_limit
        args = (group, limit, len(entries), *entries, *chain.from_iterable(durable))
        return int(self.client.call("trim_finished", partition, args))

    def _archive(self, partition: Partition) -> str:
        return self.client.settings.archive_of(partition.topic)

    def _fenced(
        self,
        name: str,
        partition: Partition,
        args: Sequence[Any],
        leases: Sequence[Lease],
        repeated: bool,
        *more_keys: str,
        gone: set[Lease] | None = None,
    ) -> Leases:
        """Call a script of lease holders. Returns the leases that are really lost, and marks them.

        In a repeated call, settled or gone means that the first call did it; `gone` gets the
        latter.
        """
        if not leases:
            return []
        fine = {"SETTLED", "GONE"} if repeated else set()
        words = _words(self.client.call(name, partition, args, *more_keys))
        lost = [leases[index] for index, word in words.items() if word not in fine]
        if gone is not None:
            gone.update(leases[index] for index, word in words.items() if word == "GONE")
        for lease in lost:
            lease.lost = True
        return lost


def _words(flat: Sequence[Any]) -> dict[int, str]:
    return {index: word.decode() for index, word in zip(flat[::2], flat[1::2], strict=True)}
