"""Moves waiting messages from one partition to another, and from one topic to another. No message
is lost on the way.

A message is first put into the target, due in a minute at the earliest. Then it is removed from the
source, and then it gets its due time back. So it does not run in both, and after a crash in between
it is in one of them at least. The next move finds it there and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import msgspec
from django.db import IntegrityError, transaction

from ..archive import archive_rows
from ..archive.endings import find_end
from ..core.chunks import chunked
from ..core.conf import get_settings
from ..core.exceptions import (
    DelayQError,
    InvalidMessage,
    MessageNotFound,
    MessageRunning,
    UndecodableMessage,
)
from ..core.message import (
    DURABLE,
    EXPIRES_WITH_DUE,
    Found,
    Priority,
    Record,
    State,
    decode_body,
    key_id,
    seal_again,
    stamp_of,
    stamp_us_of,
    with_stamp,
    without_stamp,
)
from ..core.present import counted
from ..core.times import When
from ..models import BulkMessage, OutboxMessage, OutboxStatus
from ..outbox import outbox
from ..outbox.existing import check_existing
from ..store import get_store, keys
from ..store.client import BATCH
from ..store.keys import Partition
from ..store.repair import Suspect
from ..store.store import Outgoing, RedisStore
from ..tasks.naming import kept_task_name
from ..tasks.registry import check_topic

#: A moved message waits in its new place for so many milliseconds at least, so that it is in one
#: place before it runs.
MOVE_MS = 60_000
#: Messages with a row in the outbox that move in one transaction: each of its own would cost a
#: write to the disk.
TOGETHER = 50
#: Milliseconds for which nobody else moves messages of the topic.
LOCK_MS = 60_000


#: A partition and an id in it.
Place = tuple[Partition, bytes]


class Carried(NamedTuple):
    """How far a message has come."""

    word: str
    """MOVED, GONE, RUNNING, TAKEN (another message has its id there) or UNREADABLE."""
    due_ms: int | None = None
    """When it is due, if it still waits for its minute: tell arrive()."""


def carry(
    store: RedisStore,
    source: Place,
    target: Place,
    *,
    stamp: bytes | None = None,
    alone: bool = False,
) -> Carried:
    """Move a message unchanged to a partition, perhaps under another id. With `stamp`, only that
    life of it.

    `alone`: nobody else moves it at the same time. Then, if it was claimed or cancelled here
    meanwhile, its copy there is always removed.
    """
    (here, message_id), (there, as_id) = source, target
    (found,) = store.queries.find(here, [message_id])
    if found is None or (stamp is not None and stamp_of(found.record) != stamp):
        return Carried("GONE")
    if found.state == State.LEASED:
        return Carried("RUNNING")
    try:
        record = Record.decode(found.record)
        as_sent = seal_again(found.record, message_id, as_id)
    except UndecodableMessage:
        return Carried("UNREADABLE")
    (before,) = store.queries.find(there, [as_id])
    if not _has_room(store, target, before, record.enqueued_at_us):
        return Carried("TAKEN")
    ((window_ms,),) = store.queries.windows([(here, [message_id])])
    # What is left of its window moves too.
    window = f"/{window_ms - record.enqueued_at_us // 1000:.0f}" if window_ms else ""
    name = kept_task_name(here, record.task_code)
    found = msgspec.structs.replace(found, record=as_sent)
    word, parked_ms = _park(store, target, found, record, name, window)
    if word not in ("", "SAME", "DONE"):  # another life of the key is there
        return Carried("TAKEN")
    # A move that died halfway has left it there.
    halfway = word == "SAME" and before and before.state != State.LEASED and not before.attempts
    due_ms = found.due_at_ms if not word or halfway else None  # else it has run there
    entry = store.client.command(
        "HGET", keys.partition_keys(store.client.prefix, here)[5], message_id
    )
    if due_ms is not None and entry:
        store.repair.mend(there, "no_attempts", [Suspect(as_id, argument=entry)])
    if due_ms == parked_ms and not word:  # it waits for its own time anyway
        due_ms = None
    return _leave(
        store, source, target, stamp_of(found.record), due_ms, fresh=not word, alone=alone
    )


def arrive(store: RedisStore, target: Place, carried: Carried) -> None:
    """Give a message that has been carried its due time back."""
    if carried.word == "MOVED" and carried.due_ms is not None:
        with suppress(MessageNotFound, MessageRunning):
            store.reschedule_in(*target, When.at(carried.due_ms))


def _park(
    store: RedisStore, target: Place, found: Found, record: Record, name: str, window: str
) -> tuple[str, int]:
    """Put the message into the target under its stamp, due in a minute at the earliest. Returns the
    word of the enqueue, and that due time in ms."""
    parked_ms = max(found.due_at_ms, store.now_us() // 1000 + MOVE_MS)
    expires_ms = record.expires_at_ms
    if expires_ms and record.flags & EXPIRES_WITH_DUE:  # moves back with the due time
        expires_ms += parked_ms - found.due_at_ms
    when = When.accepted(record.enqueued_at_us, parked_ms)
    expires = When.at(expires_ms) if expires_ms else When()
    names = {} if name.startswith("code:") else {record.task_code: name}
    message = Outgoing(target[1], f"keep{window}", when, expires, without_stamp(found.record))
    return store.enqueue(target[0], names, [message])[1].get(0, ""), parked_ms


def _leave(  # noqa: PLR0913 - one step, cut out so that tests can die before it
    store: RedisStore,
    source: Place,
    target: Place,
    stamp: bytes,
    due_ms: int | None,
    *,
    fresh: bool,
    alone: bool,
) -> Carried:
    (here, message_id), (there, as_id) = source, target
    if store.repair.mend(here, "surplus", [Suspect(message_id, stamp)])[0]:
        store.client.command("ZREM", keys.windows_key(store.client.prefix, here), message_id)
        return Carried("MOVED", due_ms)
    recorded = store.queries.find(here, [message_id])[0] is not None
    if alone or (fresh and recorded):  # somebody has claimed it here meanwhile, or ended it
        store.repair.mend(there, "surplus", [Suspect(as_id, stamp)])
    return Carried("RUNNING" if recorded else "GONE")


def _has_room(store: RedisStore, target: Place, live: Found | None, stamp_us: int) -> bool:
    """Whether the message can go there: its id is free there, or the message itself has it."""
    if live is not None:
        return stamp_us_of(live.record) == stamp_us
    there, as_id = target
    found = store.repair.diagnose(there, [as_id])
    blocking = {"no_record", "stray_follower"}
    return not any(blocking.intersection(diagnosis.damages) for diagnosis in found)


# Whole topics


@dataclass
class Moved:
    """What move_topic() has done."""

    moved: int = 0
    running: int = 0
    """Held by workers: they stay, and end where they are."""
    taken: list[str] = field(default_factory=list)
    """Keys, or ids, of those that stay because another message with theirs is live in the other
    topic."""
    unreadable: int = 0
    """Not moved: their records cannot be decoded."""

    def __str__(self) -> str:
        words = f"moved {counted(self.moved, 'message')}"
        if self.taken:
            more = f" and {len(self.taken) - 10:,} more" if len(self.taken) > 10 else ""
            keys = ", ".join(self.taken[:10])
            words += f"; {len(self.taken):,} stay, their keys are live there: {keys}{more}"
        words += f"; {self.running:,} run and stay" if self.running else ""
        return words + (f"; {self.unreadable:,} cannot be read and stay" if self.unreadable else "")


def move_topic(
    topic: str, to: str, progress: Callable[[Moved], object] = lambda so_far: None
) -> Moved:
    """Move all that waits in a topic, in Redis and in the outbox, to another one that is declared.

    A message keeps its id, due time, attempts and enqueued_at. A message with a key keeps the key
    and gets another id, which is a hash of topic and key. `progress` is called every 500 messages.
    Raises UnknownTopic and InvalidMessage. Called again, it goes on where it stopped.
    """
    store = get_store()
    check_topic(to)
    if check_existing(topic) == to:
        raise InvalidMessage("A topic is moved to another one.")
    check_not_in_transaction()
    mover, partitions = Mover(topic, to, progress), store.partitions.all(topic)
    if not mover.acquire():
        raise InvalidMessage(
            f"Somebody moves the topic {topic!r} already, or died at it: try again in a minute."
        )
    try:
        for partition in partitions:
            store.reclaim(partition)  # where no worker serves the topic nobody else does it
            for lane in Priority:
                after: tuple[int, bytes] | None = None
                while page := store.queries.list(partition, lane, after, BATCH):
                    mover.move(partition, page)
                    after = page[-1].due_at_ms, page[-1].id
        mover.move_rows()
    finally:
        mover.release()
    mover.done.running = sum(part.leased for part in store.queries.all_stats(partitions))
    return mover.done


def check_not_in_transaction() -> None:
    """Raise InvalidMessage inside a transaction: after its rollback messages would be changed in
    Redis, and their rows not."""
    try:
        with transaction.atomic(using=get_settings().database, durable=True):
            pass  # Django itself knows which transactions are those of a TestCase
    except RuntimeError:
        raise InvalidMessage(
            "Redis changes at once, whatever becomes of a transaction: call this outside."
        ) from None


class _Journey(NamedTuple):
    """A message, and where it goes."""

    source: Place
    target: Place
    stamp: bytes
    durable: bool
    name: str
    """Its key, or its id."""


class Mover:
    """Moves messages of one topic to another one. Only who has acquired it may move."""

    def __init__(
        self, topic: str, to: str, progress: Callable[[Moved], object] = lambda so_far: None
    ) -> None:
        self._store = get_store()
        self._topic, self._to = topic, to
        self._lock_name = f"move:{topic}"
        self.done = Moved()
        self._progress = progress

    def acquire(self) -> bool:
        """Whether nobody else moves messages of the topic: then nobody else does for a minute."""
        return self._store.workers.acquire_lock(self._lock_name, LOCK_MS)

    def release(self) -> None:
        """Somebody else may move messages of the topic."""
        self._store.workers.release_lock(self._lock_name)

    def move(self, here: Partition, page: Sequence[Found]) -> dict[bytes, str]:
        """Move messages of Redis, and their rows in the outbox. Returns the word of Carried for
        each id."""
        self._extend_lock()
        words = {found.id: "UNREADABLE" for found in page}
        journeys = [journey for found in page if (journey := self._journey(here, found))]
        for together in chunked(journeys, TOGETHER):
            carried, error = self._carry_all(together)
            for journey, how in zip(together, carried, strict=False):
                # Not before the row has changed: the message may run at once.
                arrive(self._store, journey.target, how)
                self.done.moved += how.word == "MOVED"
                words[journey.source[1]] = how.word
                if how.word == "TAKEN":
                    self.done.taken.append(journey.name)
            if error:
                raise error
        return words

    def is_free(self, found: Found, key: str | None, *, asks_redis: bool = True) -> bool:
        """Whether the message of Redis or of the outbox could move now: nothing else has its id
        there. move() itself asks Redis, but not the outbox."""
        as_id = self.id_there(found.id, key)
        target = self._store.partitions.place(self._to, as_id, True), as_id
        stamp_us = stamp_us_of(found.record) or 0
        rows = OutboxMessage.objects.filter(message_id=UUID(bytes=as_id))
        if rows.exclude(topic=self._topic, enqueued_at_us=stamp_us).exists():
            return False
        if not asks_redis:
            return True
        (there,) = self._store.queries.find(target[0], [as_id])
        return _has_room(self._store, target, there, stamp_us)

    def has_arrived(self, row: BulkMessage) -> bool:
        """Whether a message of an operation that was cut off is in the other topic, or has ended
        there. It gets its due time back, if it has yet to run."""
        as_id = self.id_there(row.message_id.bytes, row.key or None)
        located = self._store.find(self._to, as_id)
        if located is not None and stamp_us_of(located.found.record) == row.enqueued_at_us:
            if located.found.state != State.LEASED and located.found.due_at_ms > row.due_at_ms:
                arrive(self._store, (located.partition, as_id), Carried("MOVED", row.due_at_ms))
            return True
        rows = OutboxMessage.objects.filter(
            message_id=UUID(bytes=as_id), topic=self._to, enqueued_at_us=row.enqueued_at_us
        )
        return rows.exists() or find_end(self._to, as_id, row.enqueued_at_us) is not None

    def _journey(self, here: Partition, found: Found) -> _Journey | None:
        try:
            record = Record.decode(found.record)
            key = decode_body(record.flags, record.body, found.id).key
        except UndecodableMessage:
            self.done.unreadable += 1
            return None
        as_id = self.id_there(found.id, key)
        target = self._store.partitions.place(self._to, as_id, True), as_id
        durable = bool(record.flags & DURABLE)
        return _Journey(
            (here, found.id), target, stamp_of(found.record), durable, key or found.id.hex()
        )

    def _carry_all(
        self, journeys: Sequence[_Journey]
    ) -> tuple[Sequence[Carried], BaseException | None]:
        """Carry messages, those with rows in one transaction. An error stops, but does not undo the
        moves before it: it is returned."""
        carried: list[Carried] = []
        durable = any(journey.durable for journey in journeys)
        with transaction.atomic(using=get_settings().database) if durable else nullcontext():
            for journey in journeys:
                try:
                    carried.append(
                        self._with_row(journey) if journey.durable else self._carry(journey)
                    )
                except (DelayQError, KeyboardInterrupt) as error:
                    return carried, error
        return carried, None

    def _carry(self, journey: _Journey) -> Carried:
        return carry(self._store, journey.source, journey.target, stamp=journey.stamp, alone=True)

    def _with_row(self, journey: _Journey) -> Carried:
        """Carry a message and change its row in the outbox. When the message stays, so does the
        row."""
        alias = get_settings().database
        with transaction.atomic(using=alias):
            row = self._lock(journey.source[1], int.from_bytes(journey.stamp, "big"))
            if row is not None and not self._readdress(row, journey.target[1]):
                return Carried("TAKEN")
            carried = self._carry(journey)
            if carried.word != "MOVED":
                transaction.set_rollback(True, using=alias)
            return carried

    def move_rows(self) -> None:
        """Move the messages that only the outbox has, and those that Redis has lost."""
        of_topic = OutboxMessage.objects.filter(topic=self._topic)
        newest, after = of_topic.order_by("-pk").values_list("pk", flat=True).first(), 0
        while newest and after < newest:
            rows = of_topic.filter(pk__gt=after, pk__lte=newest).order_by("pk")
            page = list(rows.values_list("pk", "message_id", "enqueued_at_us")[:BATCH])
            self._extend_lock()
            for together in chunked(page, TOGETHER):
                with transaction.atomic(using=get_settings().database):
                    words = [
                        self.move_row(message_id, stamp_us) for _, message_id, stamp_us in together
                    ]
                self.done.moved += sum(word == "" for word in words)
                self.done.taken += filter(None, words)
            after = page[-1][0] if page else newest

    def move_row(self, message_id: UUID, stamp_us: int) -> str | None:
        """Move a message that only the outbox has, or that Redis has lost, in the caller's
        transaction. Returns nothing when it has moved, the key that stands in its way, or None: it
        is not only here."""
        row = self._lock(message_id.bytes, stamp_us)
        if row is None:
            return None
        if row.status == OutboxStatus.SENT:
            if outbox.standing(row)[1] != "MISSING" or archive_rows.is_archived(
                message_id.bytes, stamp_us
            ):
                return None  # it runs, or it has ended
            row.status, row.relay_at_ms = OutboxStatus.WAITING, outbox.redis_now_ms()
        try:
            has_moved = self._readdress(row, self.id_there(message_id.bytes, row.key or None))
        except UndecodableMessage:  # it cannot be encrypted for its new id
            self.done.unreadable += 1
            return None
        return "" if has_moved else row.key

    def id_there(self, message_id: bytes, key: str | None) -> bytes:
        """The id that a message has in the other topic."""
        return (
            key_id(self._to, key)
            if key is not None and message_id == key_id(self._topic, key)
            else message_id
        )

    def _lock(self, message_id: bytes, stamp_us: int) -> OutboxMessage | None:
        rows = OutboxMessage.objects.filter(
            message_id=UUID(bytes=message_id), enqueued_at_us=stamp_us, topic=self._topic
        )
        return rows.select_for_update().first()

    def _readdress(self, row: OutboxMessage, as_id: bytes) -> bool:
        """In the caller's transaction. False when another row has that id."""
        record = with_stamp(row.enqueued_at_us, row.expires_at_ms, bytes(row.record))
        row.record = without_stamp(seal_again(record, row.message_id.bytes, as_id))
        row.topic, row.message_id = self._to, UUID(bytes=as_id)
        try:
            with transaction.atomic(using=row._state.db):
                row.save(
                    using=row._state.db,
                    update_fields=["topic", "message_id", "record", "status", "relay_at_ms"],
                )
        except IntegrityError:
            return False
        return True

    def _extend_lock(self) -> None:
        self._store.workers.extend_lock(self._lock_name, LOCK_MS)
        self._progress(self.done)
