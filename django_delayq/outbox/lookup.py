"""Operations on one message that SQL answers for: Redis does not know it yet, or has lost it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

from django.db import transaction

from ..archive import archive_rows
from ..core.conf import get_settings
from ..core.exceptions import DelayQError, MessageChanged
from ..core.message import Found, State, restamped, stamp_us_of, without_stamp
from ..core.times import When
from ..models import OutboxMessage, OutboxStatus
from ..store import get_store
from ..store.client import BATCH
from ..store.keys import Partition
from ..store.store import Outgoing, replaces
from . import outbox

logger = logging.getLogger("delayq")


def find(topic: str, identity: bytes) -> OutboxMessage | None:
    """The row of a message."""
    return OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic=topic).first()


def found_of(row: OutboxMessage) -> Found:
    """The message of a row that Redis does not have."""
    state = State("ready" if row.due_at_ms <= get_store().now_us() // 1000 else "delayed")
    return Found(row.message_id.bytes, state, row.due_at_ms, outbox.record_of(row), None)


def get(topic: str, identity: bytes, *, only_waiting: bool = False) -> tuple[str, Found] | None:
    """Name of the task and the message, when it is live and only here. With `only_waiting` Redis is
    not asked."""
    row = find(topic, identity)
    if row is None or row.status == OutboxStatus.CANCELLED or not row.record:
        return None
    if row.status == OutboxStatus.SENT and (only_waiting or outbox.is_done(row)):
        return None
    return row.task, found_of(row)


def is_cancelled(topic: str, identity: bytes) -> bool:
    """Whether it is cancelled here. Redis may not have heard of that yet."""
    row = find(topic, identity)
    return row is not None and row.status == OutboxStatus.CANCELLED


def is_unsettled(row: OutboxMessage) -> bool:
    """Whether Redis may know something of the message that SQL does not, or has yet to hear of a
    change."""
    return row.status != OutboxStatus.SENT and (
        row.may_be_in_redis or row.status != OutboxStatus.WAITING
    )


def reschedule(topic: str, identity: bytes, when: When) -> int | None:
    """Move a message that is only here, or that Redis has lost. Returns its new due time in ms, or
    None when there is no such message.

    Raises MessageRunning.
    """
    with transaction.atomic(using=get_settings().database):
        row = lock(topic, identity)
        if row is None or row.status == OutboxStatus.CANCELLED:
            return None
        if row.status == OutboxStatus.SENT:
            partition, word = outbox.standing(row)
            if word == "LIVE":  # the relay has sent it between our look into Redis and the lock
                due_ms = get_store().reschedule_in(partition, identity, when)
                follow_move(topic, identity, due_ms)
                return due_ms
            if word == "DONE" or archive_rows.is_archived(
                identity, row.enqueued_at_us
            ):  # an exactly_once task has run
                return None
            begin_anew(row, partition)
        outbox.move(row, due_ms_of(when))
        row.relay_at_ms = outbox.next_relay_ms(row.due_at_ms)
        row.save(using=row._state.db)
        return row.due_at_ms


def begin_anew(row: OutboxMessage, partition: Partition) -> None:
    """Give a message that Redis does not have another life: the relay sends it, and nobody sends
    the life before."""
    first = outbox.record_of(row)
    row.enqueued_at_us += 1
    row.may_be_in_redis = True  # Redis remembers the life before as ended
    row.status, row.relay_at_ms = (
        OutboxStatus.WAITING,
        outbox.next_relay_ms(row.due_at_ms),
    )

    def outrun() -> None:
        """A process that is about to send the message as it was comes too late then. A message that
        was sent meanwhile is changed too."""
        identity, store = row.message_id.bytes, get_store()
        try:
            if store.tombstone(partition, identity, first, None) == "LIVE":
                store.reschedule_in(partition, identity, When.at(row.due_at_ms))
                store.edit_in(partition, identity, first, restamped(first, bytes(row.record)))
        except DelayQError as error:
            logger.warning("message %s may still run as it was before: %s", identity.hex(), error)

    # After the commit: a rollback would leave a life that neither Redis nor SQL wants to send.
    transaction.on_commit(outrun, using=row._state.db)


def reschedule_unsent(
    topic: str, identity: bytes, when: When
) -> tuple[int, Outgoing | None] | None:
    """Move a message that this transaction has written. Returns its due time, and the message when
    the commit has to send it."""
    row = find(topic, identity)
    if row is None:
        return None
    outbox.move(row, due_ms_of(when))
    if replaces(row.on_duplicate):  # this time counts, whatever waits in Redis
        row.on_duplicate = "replace"
    # One that replaces what Redis has is sent however far it is.
    far = outbox.relay_at_ms(row.due_at_ms) > outbox.redis_now_ms() and not row.may_be_in_redis
    if far:
        row.status, row.relay_at_ms = OutboxStatus.WAITING, outbox.relay_at_ms(row.due_at_ms)
    row.save(using=row._state.db)
    return row.due_at_ms, None if far else outbox.stamped(row)


def follow_move(topic: str, identity: bytes, due_ms: int, stamp_us: int | None = None) -> None:
    """Redis has moved the message: the row of its id moves too, also when it is another message,
    which waits for it. With `stamp_us` only that life moves."""
    row = find(topic, identity)
    if row is None or stamp_us not in (None, row.enqueued_at_us):
        return
    outbox.move(row, due_ms)
    changes = {
        "due_at_ms": row.due_at_ms,
        "expires_at_ms": row.expires_at_ms,
        "moved_to_ms": row.moved_to_ms,
    }
    if row.status == OutboxStatus.WAITING:
        changes["relay_at_ms"] = outbox.next_relay_ms(due_ms)
    # Not save(): the row may be gone by now, or about another life.
    OutboxMessage.objects.filter(
        pk=row.pk, enqueued_at_us=row.enqueued_at_us, status=row.status
    ).update(**changes)


def edit(
    topic: str, identity: bytes, change: Callable[[bytes], bytes], *, only_waiting: bool = False
) -> bool:
    """Change the record of a message that is only here, or that Redis has lost. False when there is
    none.

    `only_waiting` asks nothing of Redis. Raises MessageChanged and what `change` raises.
    """
    with transaction.atomic(using=get_settings().database):
        row = lock(topic, identity)
        if row is None or row.status == OutboxStatus.CANCELLED:
            return False
        if row.status == OutboxStatus.SENT or is_unsettled(row):
            if only_waiting:
                return False
            if is_unsettled(row):  # until the relay has brought both together
                raise MessageChanged
            partition, word = outbox.standing(row)
            if word == "DONE" or archive_rows.is_archived(identity, row.enqueued_at_us):
                return False
            if word == "LIVE":  # the relay has sent it between our look into Redis and the lock
                raise MessageChanged
            begin_anew(row, partition)
        row.record = without_stamp(change(outbox.record_of(row)))
        row.save(using=row._state.db)
        return True


def follow_edit(topic: str, identity: bytes, record: bytes) -> None:
    """Redis has another record for the message: the row gets it too, in case it has to be sent
    again."""
    rows = OutboxMessage.objects.filter(
        message_id=UUID(bytes=identity), topic=topic, enqueued_at_us=stamp_us_of(record)
    )
    rows.update(record=without_stamp(record))


def withdraw(topic: str, identity: bytes) -> None:
    """End a message that this transaction has written and not yet sent."""
    row = find(topic, identity)
    if row is not None:
        take_back([row], "cancelled")


def purge(topic: str, reason: str, most: float = math.inf) -> Iterator[Sequence[str]]:
    """End the messages that wait only here now, at most `most`, in batches of 500. Each batch is a
    transaction. Yields the ids of each batch."""
    waiting = OutboxMessage.objects.filter(topic=topic, status=OutboxStatus.WAITING)
    newest = waiting.order_by("-id").values_list("id", flat=True).first()
    while newest is not None and most > 0:
        size = int(min(BATCH, most))
        with transaction.atomic(using=get_settings().database):
            rows = list(
                waiting.filter(id__lte=newest)
                .select_for_update()
                .order_by("due_at_ms", "id")[:size]
            )
            take_back(rows, reason)
        most -= len(rows)
        if rows:
            yield [row.message_id.hex for row in rows]
        if len(rows) < BATCH:
            return


def take_back(rows: Sequence[OutboxMessage], reason: str) -> None:
    """End waiting rows, in the caller's transaction. Where Redis may have the message, the relay
    tells Redis first."""
    end([row for row in rows if not row.may_be_in_redis], reason)
    for row in rows:
        if row.may_be_in_redis:
            mark(row, OutboxStatus.CANCELLED, reason)


def mark(row: OutboxMessage, status: str, reason: str = "", *, in_ms: int = 0) -> None:
    """Note that Redis has to hear of the change. The relay tells it after `in_ms`, unless another
    process does so before."""
    row.status, row.reason = status, reason[:200]
    row.changed_at_us = get_store().now_us()
    row.relay_at_ms = outbox.redis_now_ms() + in_ms
    row.save(using=row._state.db)


def end(rows: Sequence[OutboxMessage], reason: str = "cancelled") -> None:
    """Move these rows to the archive: nobody will send them. It takes two statements, in the
    caller's transaction."""
    archive_rows.archive_all([outbox.cancelled_entry(row, reason) for row in rows])
    OutboxMessage.objects.filter(pk__in=[row.pk for row in rows]).delete()


def lock(topic: str, identity: bytes) -> OutboxMessage | None:
    """The row of a message, locked until the end of the transaction."""
    rows = OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic=topic)
    return rows.select_for_update().first()


def due_ms_of(when: When) -> int:
    """The due time in ms, by Redis' clock as far as it is known here."""
    return when.from_ms(outbox.redis_now_ms())
