"""The store: the message states as they lie in Redis. One method and one Lua file per
transition."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..core.conf import Settings
from ..core.exceptions import MessageNotFound, MessageRunning, NotReplicated
from ..core.times import When
from .connection import Client
from .keys import Partition, partition_keys
from .lease import Lease
from .link import BATCH
from .loading import Loading
from .looking import optional
from .mending import Mending
from .partitions import Partitions

#: Wait before a message is sent back a second time after a crash; the first time it waits for
#: nothing.
CRASH_BACKOFF_MS = 5_000

#: Seconds after which a partition is told the names of tasks again (FLUSHALL). Once a call would
#: cost 2 us of each.
SAY_AGAIN = 30.0
Ids = list[bytes]
Leases = list[Lease]

#: Id and stamp (us): one life of an id.
Life = tuple[bytes, int]


class Outgoing(NamedTuple):
    """A message for the enqueue script."""

    id: bytes
    mode: str
    """raise, keep, replace or adopt: see enqueue.lua."""
    when: When
    expires: When
    record: bytes
    """Without its stamp."""


class Claimed(NamedTuple):
    """What a claim found in a partition."""

    now_us: int
    """Redis' clock."""
    next_due_ms: int | None
    """The earliest due time that waits there now; the end of a pause that has one."""
    wakeups: int
    """How often the head of the partition had come sooner; changes when there is something new to
    look at."""
    leases: Leases
    over: Ids
    """Ids that had expired or had no record."""
    paused: bool
    unarchived: bool
    """Nothing is claimed because too many finished messages wait for the archiver."""


class RedisStore(Loading, Mending):
    """The only way to change the state of a message.

    Every method raises StoreUnavailable (nothing changed), OutcomeUnknown (perhaps changed; calling
    again with the same ids and tokens is safe) or StoreError (a bug).
    """

    def __init__(self, client: Client | None, settings: Settings) -> None:
        super().__init__(client, settings)
        self.partitions = Partitions(self)
        self._waits = settings.wait_replicas > 0
        self._said: dict[tuple[Partition, bytes], float] = {}
        """When the partition was told the name of a task."""

    # Transitions

    def enqueue(
        self, partition: Partition, tasks: Mapping[bytes, str], messages: Sequence[Outgoing]
    ) -> tuple[int, dict[int, str]]:
        """- -> delayed. Returns Redis' clock in microseconds and a word for each index that is not
        simply new."""
        return self.begin_enqueue(partition, tasks, messages)()

    def begin_enqueue(
        self, partition: Partition, tasks: Mapping[bytes, str], messages: Sequence[Outgoing]
    ) -> Callable[[], tuple[int, dict[int, str]]]:
        """Send an enqueue; the function that is returned reads its answer and must be called,
        once."""
        said_since = time.monotonic() - SAY_AGAIN
        unsaid = [
            code for code in tasks if self._said.get((partition, code), -SAY_AGAIN) < said_since
        ]
        if unsaid or len(messages) > 1:
            return self._begin_words(partition, {code: tasks[code] for code in unsaid}, messages)
        message_id, mode, when, expires, record = messages[0]
        # With the other modes, and from SQL, an id may well be live: that would be a second round
        # trip.
        if mode != "raise" or when.stamp_us:
            return self._begin_words(partition, {}, messages)
        all_keys = partition_keys(self.prefix, partition)
        # As lane_of() in shared/partition.lua, but that the record has no stamp yet.
        lane = record[0] % 4
        script_keys = all_keys[lane if lane < 3 else 1], all_keys[4], all_keys[8]
        begin = self.begin if not self._waits else self.begin_replicated
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
        self, partition: Partition, unsaid: Mapping[bytes, str], messages: Sequence[Outgoing]
    ) -> Callable[[], tuple[int, dict[int, str]]]:
        """Send an enqueue that has a word for what is not simply new."""
        args: list[Any] = [len(unsaid)]
        for code, name in unsaid.items():
            args += (code.hex(), name)
        for message in messages:
            args += message
        # What SQL has accepted is there in any case.
        waits = self._waits and not all(message.when.stamp_us for message in messages)
        begin = self.begin if not waits else self.begin_replicated
        answer = begin("enqueue", partition_keys(self.prefix, partition), args)

        def read() -> tuple[int, dict[int, str]]:
            try:
                now_us, *words = answer()
            except NotReplicated as short:
                now_us, *words = short.answer
                raise NotReplicated((now_us, _words(words))) from None
            for code in unsaid:
                self._said[partition, code] = time.monotonic()
            return now_us, _words(words)

        return read

    def claim(self, partition: Partition, limit: int, token: bytes | None = None) -> Claimed:
        """Delayed and due -> leased, at most `limit` (and 500) messages."""
        settings = self.settings
        token = token or os.urandom(16)
        ageing_ms = int(settings.priority_ageing * 1000)
        args = (
            min(limit, BATCH),
            token,
            ageing_ms,
            self._archive(partition),
            settings.finished_limit,
        )
        now_us, next_due, wakeups, flat, over, paused = self.call("claim", partition, args)
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
        args: list[Any] = [self._archive(partition)]
        for lease, detail in settled:
            args += (lease.id, lease.token, detail)
        return self._fenced("ack", partition, args, [lease for lease, _ in settled], repeated)

    def nack(
        self,
        partition: Partition,
        settled: Sequence[tuple[Lease, int | None, bool, bytes]],
        *,
        repeated: bool = False,
    ) -> Leases:
        """Leased -> delayed after a delay in ms, or -> dead (delay None); whether the attempt
        counts; detail."""
        args: list[Any] = [self._archive(partition)]
        for lease, delay_ms, counts, detail in settled:
            args += (
                lease.id,
                lease.token,
                "" if delay_ms is None else delay_ms,
                int(counts),
                detail,
            )
        return self._fenced("nack", partition, args, [item[0] for item in settled], repeated)

    def release(
        self,
        partition: Partition,
        leases: Sequence[Lease],
        *,
        delays_ms: Sequence[int | None] | None = None,
        repeated: bool = False,
    ) -> Leases:
        """Leased -> delayed at the old due time, or after the delay of each; the attempt given
        back."""
        args: list[Any] = []
        for lease, delay_ms in zip(leases, delays_ms or [None] * len(leases), strict=True):
            args += (lease.id, lease.token, "" if delay_ms is None else delay_ms)
        return self._fenced("release", partition, args, leases, repeated)

    def put_off(
        self,
        partition: Partition,
        settled: Sequence[tuple[Lease, int, bytes]],
        *,
        repeated: bool = False,
    ) -> Leases:
        """Leased -> delayed after a delay in ms, the attempt given back: this worker's code cannot
        run it; detail."""
        args: list[Any] = []
        for lease, delay_ms, detail in settled:
            args += (lease.id, lease.token, delay_ms, detail)
        return self._fenced("put_off", partition, args, [item[0] for item in settled], repeated)

    def extend(self, partition: Partition, leases: Sequence[Lease]) -> Leases:
        """Leased -> leased for another ttr. Returns the leases that another holds now; what is
        settled is not lost."""
        args: list[Any] = []
        for lease in leases:
            args += (lease.id, lease.token, lease.ttr_ms)
        return self._fenced("extend", partition, args, leases, True)

    def reclaim(self, partition: Partition, limit: int = BATCH) -> tuple[Ids, Ids]:
        """Leased past the deadline -> delayed or dead. Returns the ids sent back and the ids that
        are dead."""
        settings = self.settings
        args = (
            min(limit, BATCH),
            settings.poison_limit,
            CRASH_BACKOFF_MS,
            self._archive(partition),
        )
        back, dead = self.call("reclaim", partition, args)
        return back, dead

    def cancel(
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
            _or_nothing(before_us),
            *ids,
        )
        answer = self.call("cancel", partition, args)
        return [word.decode() for word in answer]

    def reschedule(
        self, partition: Partition, message_id: bytes, when: When, before_us: int | None = None
    ) -> int:
        """Delayed -> delayed with another due time, which is returned. Raises MessageNotFound or
        MessageRunning.

        What was enqueued after `before_us` stays: MessageNotFound.
        """
        word, *due = self.call("reschedule", partition, (message_id, when, _or_nothing(before_us)))
        if word == b"NOT_FOUND":
            raise MessageNotFound
        if word == b"RUNNING":
            raise MessageRunning
        return int(due[0])

    def edit(self, partition: Partition, message_id: bytes, before: bytes, after: bytes) -> str:
        """Delayed -> delayed with another body. Returns OK, RUNNING, NOT_FOUND, or CHANGED:
        `before` is not there."""
        answer: bytes = self.call("edit", partition, (message_id, before, after))
        return answer.decode()

    def purge(self, partition: Partition, limit: int = BATCH, reason: str = "purged") -> Ids:
        """Delayed -> cancelled for up to `limit` messages. Returns their ids; call until there are
        none."""
        detail = json.dumps({"reason": reason})
        args = (min(limit, BATCH), self._archive(partition), detail)
        return [*self.call("purge", partition, args)]

    # Messages that SQL answers for

    def lives(self, partition: Partition, lives: Sequence[Life]) -> Sequence[str]:
        """What is known of each life of a durable message: LIVE, DONE (ended, not yet archived) or
        MISSING."""
        args = [
            part
            for message_id, stamp_us in lives
            for part in (message_id, stamp_us.to_bytes(8, "big"))
        ]
        return [word.decode() for word in self.call("lives", partition, args)]

    def bury(
        self,
        partition: Partition,
        message_id: bytes,
        record: bytes,
        reason: str | None = "cancelled",
        due_ms: int = 0,
    ) -> str:
        """Nothing -> cancelled for a durable message that is MISSING. Returns OK, LIVE or DONE.

        Without a reason it is not told as ended, only refused when it is sent later: SQL gives it a
        newer stamp.
        """
        detail = json.dumps({"reason": reason}) if reason else ""
        answer: bytes = self.call("bury", partition, (message_id, record, detail, due_ms))
        return answer.decode()

    def archived(
        self, partition: Partition, group: str, finished: Sequence[tuple[bytes, bytes, bytes]]
    ) -> int:
        """Forget entries of the finished stream whose rows are committed: entry, message id, stamp
        or nothing of each.

        Returns how many entries are left.
        """
        args: list[Any] = [group, self.settings.finished_limit]
        for fields in finished:
            args += fields
        return int(self.call("archived", partition, args))

    # What a claim took whose answer was lost

    def leased_under(self, partition: Partition, token: bytes) -> Ids:
        """The ids leased under a token: what a claim took whose answer was lost."""
        cursor, ids = "0", set[bytes]()
        while True:
            next_cursor, page = self.call("leases", partition, (cursor, token))
            ids.update(page)
            cursor = next_cursor.decode()
            if cursor == "0":
                return sorted(ids)

    def _archive(self, partition: Partition) -> str:
        return self.settings.archive_of(partition.topic)

    def _fenced(
        self,
        name: str,
        partition: Partition,
        args: Sequence[Any],
        leases: Sequence[Lease],
        repeated: bool,
    ) -> Leases:
        """Call a script of lease holders. Returns the leases that are really lost, and marks them.

        In a repeated call, settled or gone means that the first call did it.
        """
        if not leases:
            return []
        fine = {"SETTLED", "GONE"} if repeated else set()
        words = _words(self.call(name, partition, args))
        lost = [leases[index] for index, word in words.items() if word not in fine]
        for lease in lost:
            lease.lost = True
        return lost


def _or_nothing(instant_us: int | None) -> int | str:
    return "" if instant_us is None else instant_us


def _words(flat: Sequence[Any]) -> dict[int, str]:
    pairs: Iterator[Any] = iter(flat)
    return {index: word.decode() for index, word in zip(pairs, pairs, strict=True)}
