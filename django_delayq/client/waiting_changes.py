"""Changes many waiting messages that were found before: each only while it still is what was found,
in Redis and in the outbox.

A batch is changed in Redis first, in locate() and change_in_redis(). Then, in the transaction that
notes how far the operation is, it is changed in the outbox: change_rows(). When a process dies
between the two, the next one does the batch again as `in_doubt`: that changes nothing twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.dispatch import Signal
from msgspec import MsgspecError

from ..archive.endings import find_end
from ..archive.row_arguments import read_arguments
from ..core.chunks import chunked_by_weight
from ..core.exceptions import InvalidMessage, MessageChanged, UndecodableMessage
from ..core.message import (
    Final,
    Found,
    Message,
    Record,
    State,
    decode_body,
    stamp_us_of,
)
from ..core.present import readable
from ..core.signals import Event, cancelled, report, rescheduled
from ..core.times import When
from ..models import BulkMessage, OutboxMessage, OutboxStatus
from ..outbox import lookup, outbox, postponed
from ..store import get_store
from ..store.keys import Partition
from ..store.queries import Life
from ..tasks.argument_edit import ArgumentEdit, digest
from ..tasks.arguments import Arguments
from ..tasks.builder import edited
from ..tasks.naming import shown
from ..tasks.options import ChangeOptions
from . import changes
from .moving import Mover

#: Why a message is left as it is.
STARTED = "started"
ENDED = "ended"
CHANGED = "changed meanwhile"
KEY_LIVE = "key live"
UNDECODABLE = "undecodable"
UNSETTLED = "Redis has yet to hear of a change"
REFUSED = "arguments refused"
#: Bytes of records in one call of Redis.
CHUNK = 2_000_000

_AT_ONCE = ChangeOptions(missing_ok=True, after_commit=False, on_redis_error="raise")


class InRedis(NamedTuple):
    """A message of the batch that waits in Redis."""

    message: BulkMessage
    partition: Partition
    found: Found


class WaitingBatch:
    """Up to 500 messages, and what becomes of each. This class only looks."""

    def __init__(
        self,
        messages: Sequence[BulkMessage],
        fits: Callable[[Message], bool],
        *,
        in_doubt: bool = False,
    ) -> None:
        self.messages, self._fits, self.in_doubt = messages, fits, in_doubt
        self.skipped: dict[int, str] = {}
        """Why, by the primary key; those that are not here are changed, or would be."""
        self.in_redis: list[InRedis] = []
        self.in_outbox: list[tuple[BulkMessage, OutboxMessage]] = []
        """Messages that only the outbox has."""
        self.alone: list[BulkMessage] = []
        """Those that SQL and Redis do not agree about: each is changed on its own."""
        self.rows: dict[tuple[str, UUID], OutboxMessage] = {}
        """The rows of the outbox about these lives."""

    def locate(self) -> None:
        """Find each message, and what is in its way."""
        found_rows = OutboxMessage.objects.filter(
            message_id__in=[message.message_id for message in self.messages]
        )
        by_place = {(row.topic, row.message_id): row for row in found_rows}
        located = {
            (partition.topic, found.id, stamp_us_of(found.record)): (partition, found)
            for partition, found in get_store().find_many(
                (message.topic, message.message_id.bytes) for message in self.messages
            )
        }
        others = {(topic, message_id) for topic, message_id, _ in located}
        for message in self.messages:
            row = by_place.get((message.topic, message.message_id))
            if row is not None and row.enqueued_at_us == message.enqueued_at_us:
                self.rows[row.topic, row.message_id] = row
            else:
                row = None
            place = message.topic, message.message_id.bytes
            here = located.get((*place, message.enqueued_at_us))
            if row is not None and lookup.is_unsettled(row):
                is_same = row.due_at_ms in (message.due_at_ms, message.to_due_at_ms)
                is_live = row.status != OutboxStatus.CANCELLED and is_same
                self._put(message, "" if is_live else CHANGED, self.alone, message)
            elif here is not None:
                why = self._why_not(message, here[1], shown(*here))
                self._put(message, why, self.in_redis, InRedis(message, *here))
            elif row is not None and row.status == OutboxStatus.WAITING:
                found = lookup.found_of(row)
                why = self._why_not(message, found, readable(row.topic, row.task, found))
                self._put(message, why, self.in_outbox, (message, row))
            elif row is not None:
                self.alone.append(message)  # it has ended, or Redis has lost it
            elif self.in_doubt and self.is_done(message):
                continue
            else:
                self.skipped[message.pk] = CHANGED if place in others else ENDED

    def change_in_redis(self) -> None:
        """Change what waits in Redis."""

    def change_rows(self) -> None:
        """Change what the outbox has, in the caller's transaction, and note there what Redis has
        done."""

    def announce(self) -> None:
        """Send the signals, after the commit."""

    def is_done(self, message: BulkMessage) -> bool:
        """Of a message that is not live: whether the process before may have changed it."""
        return False

    def has_changed(self, message: BulkMessage, found: Found) -> bool:
        """Of a live message: whether the process before has changed it."""
        return False

    def is_as_listed(self, message: BulkMessage, found: Found) -> bool:
        """Whether it still is what was written down."""
        return True

    def changed(self) -> list[BulkMessage]:
        """The messages that are changed, or would be."""
        return [message for message in self.messages if message.pk not in self.skipped]

    def _put(self, message: BulkMessage, why: str, group: list[Any], member: Any) -> None:
        if why:
            self.skipped[message.pk] = why
        else:
            group.append(member)

    def _leave_out_unsettled(self) -> None:
        """Skip what Redis may still have: until the relay has brought both together nobody can tell
        what is to be changed. Then leave all that is skipped out of the groups."""
        for message in self.alone:
            if lookup.is_unsettled(self.rows[message.topic, message.message_id]):
                self.skipped[message.pk] = UNSETTLED
        skipped = self.skipped
        self.alone = [message for message in self.alone if message.pk not in skipped]
        self.in_redis = [entry for entry in self.in_redis if entry.message.pk not in skipped]
        self.in_outbox = [entry for entry in self.in_outbox if entry[0].pk not in skipped]

    def _why_not(self, message: BulkMessage, found: Found, live: Message) -> str:
        if self.in_doubt and self.has_changed(message, found):
            return ""
        if found.state == State.LEASED:
            return STARTED
        try:
            record = Record.decode(found.record)
            decode_body(record.flags, record.body, found.id)
        except UndecodableMessage:
            return UNDECODABLE
        return "" if self.is_as_listed(message, found) and self._fits(live) else CHANGED

    def _by_partition(self) -> dict[Partition, list[InRedis]]:
        grouped: dict[Partition, list[InRedis]] = defaultdict(list)
        for waiting in self.in_redis:
            grouped[waiting.partition].append(waiting)
        return grouped

    def _rows_in_redis(self) -> list[OutboxMessage]:
        """The rows of messages that were changed in Redis."""
        rows = (
            self.rows.get((message.topic, message.message_id))
            for message, _, _ in self.in_redis
            if message.pk not in self.skipped
        )
        return [row for row in rows if row is not None]

    def _lock_rows(self) -> list[tuple[BulkMessage, OutboxMessage]]:
        """The rows that still wait only in the outbox, locked. The relay has sent the others in
        this moment: each of these is changed on its own."""
        pks = [row.pk for _, row in self.in_outbox]
        rows = OutboxMessage.objects.filter(
            pk__in=pks, status=OutboxStatus.WAITING, may_be_in_redis=False
        )
        locked = {row.pk: row for row in rows.select_for_update().order_by("pk")} if pks else {}
        kept = []
        for message, before in self.in_outbox:
            row = locked.get(before.pk)
            if row is None:
                self.alone.append(message)
            elif (row.enqueued_at_us, row.due_at_ms) != (before.enqueued_at_us, before.due_at_ms):
                self.skipped[message.pk] = CHANGED
            else:
                kept.append((message, row))
        return kept


class Cancelling(WaitingBatch):
    """Cancels them, for a reason; what was enqueued after `before_us` stays."""

    def __init__(
        self,
        messages: Sequence[BulkMessage],
        fits: Callable[[Message], bool],
        reason: str,
        before_us: int,
        *,
        in_doubt: bool = False,
    ) -> None:
        super().__init__(messages, fits, in_doubt=in_doubt)
        self._reason, self._before_us = reason[:200], before_us

    def change_in_redis(self) -> None:
        """Cancel what waits in Redis."""
        for partition, together in self._by_partition().items():
            ids = [waiting.found.id for waiting in together]
            words = get_store().cancel_in(partition, ids, self._reason, self._before_us)
            for waiting, word in zip(together, words, strict=True):
                if word != "OK":
                    self.skipped[waiting.message.pk] = STARTED if word == "RUNNING" else ENDED

    def change_rows(self) -> None:
        """Cancel what waits in the outbox. A sent row of a cancelled message must not be sent
        again."""
        lookup.end([row for _, row in self._lock_rows()], self._reason)
        postponed.all_cancelled_in_redis(self._rows_in_redis(), self._reason)
        for message in self.alone:
            if not changes.cancel(message.topic, None, message.message_id, _AT_ONCE):
                is_done = self.in_doubt and self.is_done(message)
                self.skipped.update({} if is_done else {message.pk: ENDED})

    def announce(self) -> None:
        """A signal for each topic."""
        _report(cancelled, self, self._reason)

    def is_done(self, message: BulkMessage) -> bool:
        """Whether it has ended as cancelled, as far as anybody knows."""
        end = find_end(message.topic, message.message_id.bytes, message.enqueued_at_us)
        return end is None or end.row.state == Final.CANCELLED


class Shifting(WaitingBatch):
    """Gives each its new due time."""

    def change_in_redis(self) -> None:
        """Give what waits in Redis its due time."""
        for partition, together in self._by_partition().items():
            moves = [
                (
                    Life(waiting.found.id, waiting.message.enqueued_at_us),
                    waiting.message.due_at_ms,
                    waiting.message.to_due_at_ms,
                )
                for waiting in together
            ]
            for waiting, word in zip(together, get_store().shift(partition, moves), strict=True):
                # SAME: the process before has done it, or else somebody who shifts as far.
                if word != "OK" and not (word == "SAME" and self.in_doubt):
                    why = {"RUNNING": STARTED, "NOT_FOUND": ENDED}.get(word, CHANGED)
                    self.skipped[waiting.message.pk] = why

    def change_rows(self) -> None:
        """Move the rows too."""
        new = {
            (message.topic, message.message_id): message.to_due_at_ms for message in self.messages
        }
        rows = [row for _, row in self._lock_rows()]
        postponed.all_moved([(row, new[row.topic, row.message_id]) for row in rows])
        sent = self._rows_in_redis()
        postponed.all_moved([(row, new[row.topic, row.message_id]) for row in sent])
        for message in self.alone:
            when = When.at(message.to_due_at_ms)
            moved = changes.reschedule(message.topic, None, message.message_id, when, _AT_ONCE)
            if moved is None and not (self.in_doubt and self.is_done(message)):
                self.skipped[message.pk] = ENDED

    def announce(self) -> None:
        """A signal for each topic."""
        _report(rescheduled, self)

    def is_done(self, message: BulkMessage) -> bool:
        """It cannot run before it is due: so one that was to be due by now was shifted."""
        return message.to_due_at_ms <= get_store().now_us() // 1000 < message.due_at_ms

    def has_changed(self, message: BulkMessage, found: Found) -> bool:
        """Whether it has its new due time, or runs because it had."""
        if found.state == State.LEASED:
            return self.is_done(message)
        return found.due_at_ms == message.to_due_at_ms

    def is_as_listed(self, message: BulkMessage, found: Found) -> bool:
        """Whether it has the due time that was found."""
        return found.due_at_ms == message.due_at_ms


class Editing(WaitingBatch):
    """Gives each the arguments that were written down for it, as a digest."""

    def __init__(
        self,
        messages: Sequence[BulkMessage],
        fits: Callable[[Message], bool],
        edit: ArgumentEdit,
        *,
        in_doubt: bool = False,
    ) -> None:
        super().__init__(messages, fits, in_doubt=in_doubt)
        self._edit = edit
        self._after: dict[int, bytes] = {}
        """The record to be of each message, by the primary key."""

    def locate(self) -> None:
        """Also make the new records."""
        super().locate()
        waiting = [(message, found.record) for message, _, found in self.in_redis]
        waiting += [(message, outbox.record_of(row)) for message, row in self.in_outbox]
        for message, record in waiting:
            try:
                self._after[message.pk] = self._record_after(message, record)
            except MessageChanged:
                self.skipped[message.pk] = CHANGED
            except InvalidMessage:
                self.skipped[message.pk] = REFUSED
        self._leave_out_unsettled()

    def change_in_redis(self) -> None:
        """Edit what waits in Redis."""
        why = {"RUNNING": STARTED, "NOT_FOUND": ENDED, "CHANGED": CHANGED}
        for partition, together in self._by_partition().items():
            for chunk in chunked_by_weight(together, self._size, CHUNK):
                edits = [(o.found.id, o.found.record, self._after[o.message.pk]) for o in chunk]
                words = get_store().edit_many(partition, edits)
                for waiting, word in zip(chunk, words, strict=True):
                    if word != "OK":
                        self.skipped[waiting.message.pk] = why[word]

    def change_rows(self) -> None:
        """Edit the rows too."""
        read = {row.pk: bytes(row.record) for _, row in self.in_outbox}
        edits = []
        for message, row in self._lock_rows():
            if bytes(row.record) == read[row.pk]:
                edits.append((row, self._after[message.pk]))
            else:
                self.skipped[message.pk] = CHANGED
        after = {(m.topic, m.message_id): self._after.get(m.pk) for m in self.messages}
        edits += [
            (row, record)
            for row in self._rows_in_redis()
            if (record := after[row.topic, row.message_id]) is not None
        ]
        postponed.all_edited(edits)
        for message in self.alone:
            change = partial(self._record_after, message)
            try:
                if not lookup.edit(message.topic, message.message_id.bytes, change):
                    done = self.in_doubt and self.is_done(message)
                    self.skipped.update({} if done else {message.pk: ENDED})
            except (MessageChanged, InvalidMessage, UndecodableMessage):
                self.skipped[message.pk] = CHANGED

    def is_done(self, message: BulkMessage) -> bool:
        """Whether it has ended with its new arguments."""
        end = find_end(message.topic, message.message_id.bytes, message.enqueued_at_us)
        if end is None:
            return False
        try:
            found = read_arguments(end.row.message_id, end.row.body)
        except (MsgspecError, UnicodeError):
            return False
        return digest(found.arguments) == message.digest

    def has_changed(self, message: BulkMessage, found: Found) -> bool:
        """Whether it has its new arguments."""
        try:
            return digest(_arguments_of(found.record, found.id)) == message.digest
        except UndecodableMessage:
            return False

    def _record_after(self, message: BulkMessage, record: bytes) -> bytes:
        """Raises MessageChanged when it is not what was written down, and InvalidMessage."""
        identity = message.message_id.bytes
        before = _arguments_of(record, identity)
        if self.in_doubt and digest(before) == message.digest:
            return record
        after = self._edit.edited(message.topic, before)
        if after is None or digest(after) != message.digest:
            raise MessageChanged
        args, kwargs = after
        return edited(record, identity, args, kwargs)

    def _size(self, one: InRedis) -> int:
        return len(one.found.record) + len(self._after[one.message.pk])


def _arguments_of(record: bytes, identity: bytes) -> Arguments:
    decoded = Record.decode(record)
    body = decode_body(decoded.flags, decoded.body, identity)
    return body.args, body.kwargs


class Moving(WaitingBatch):
    """Moves them to another topic, by the mover of the topic that they leave. Somebody has to
    acquire the movers."""

    def __init__(
        self,
        messages: Sequence[BulkMessage],
        fits: Callable[[Message], bool],
        movers: dict[str, Mover],
        *,
        in_doubt: bool = False,
        is_dry_run: bool = False,
    ) -> None:
        super().__init__(messages, fits, in_doubt=in_doubt)
        self.movers = movers
        self._is_dry_run = is_dry_run

    def locate(self) -> None:
        """Also whether their ids are free there."""
        super().locate()
        waiting = [(message, found, self._is_dry_run) for message, _, found in self.in_redis]
        waiting += [(message, lookup.found_of(row), True) for message, row in self.in_outbox]
        for message, found, asks in waiting:
            mover = self.movers[message.topic]
            if not mover.is_free(found, message.key or None, asks_redis=asks):
                self.skipped[message.pk] = KEY_LIVE
        self._leave_out_unsettled()

    def change_in_redis(self) -> None:
        """Move what waits in Redis, and the rows of these messages."""
        why = {"TAKEN": KEY_LIVE, "RUNNING": STARTED, "GONE": ENDED, "UNREADABLE": UNDECODABLE}
        for partition, together in self._by_partition().items():
            mover = self.movers[partition.topic]
            words = mover.move(partition, [waiting.found for waiting in together])
            for waiting in together:
                if word := why.get(words[waiting.found.id]):
                    self.skipped[waiting.message.pk] = word

    def change_rows(self) -> None:
        """Move what only the outbox has, and what Redis has lost."""
        for message in [*(message for message, _ in self.in_outbox), *self.alone]:
            mover = self.movers[message.topic]
            word = mover.move_row(message.message_id, message.enqueued_at_us)
            if word is None and not (self.in_doubt and self.is_done(message)):
                self.skipped[message.pk] = ENDED
            elif word:
                self.skipped[message.pk] = KEY_LIVE

    def is_done(self, message: BulkMessage) -> bool:
        """Whether it is in the other topic."""
        return self.movers[message.topic].has_arrived(message)


def _report(signal: Signal, batch: WaitingBatch, reason: str = "") -> None:
    by_topic: dict[str, list[Event]] = defaultdict(list)
    for message in batch.changed():
        if message in batch.alone:  # announced already
            continue
        event = Event(message.message_id.hex, message.task, message.key or None, reason=reason)
        by_topic[message.topic].append(event)
    for topic, events in by_topic.items():
        report(signal, topic, events)
