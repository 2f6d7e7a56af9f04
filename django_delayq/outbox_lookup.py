"""Operations on one message that SQL answers for: Redis does not know it yet, or does not know it any more."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

from django.db import transaction

from . import archive, outbox
from .conf import get_settings
from .exceptions import DelayQError, MessageChanged, MessageRunning
from .message import EXPIRES_WITH_DUE, STAMP, Found, State
from .models import OutboxMessage, OutboxStatus
from .store import get_store
from .store.finished import Entry
from .store.keys import Partition, partition_of
from .store.link import BATCH
from .store.redis import Outgoing

logger = logging.getLogger("delayq")


def find(topic: str, identity: bytes) -> OutboxMessage | None:
    """The row of a message."""
    row: OutboxMessage | None = OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic=topic).first()
    return row


def get(topic: str, identity: bytes, *, only_waiting: bool = False) -> tuple[str, Found] | None:
    """Name of the task and the message, when it is live and only here. `only_waiting` asks nothing of Redis."""
    row = find(topic, identity)
    if row is None or (row.status == OutboxStatus.SENT and (only_waiting or outbox.is_done(row))):
        return None
    state = State("ready" if row.due_at_ms <= get_store().now_us() // 1000 else "delayed")
    return row.task, Found(identity, state, row.due_at_ms, outbox.record_of(row), None)


def cancel(topic: str, identity: bytes, *, only_waiting: bool = False) -> bool:
    """Take back a message that is only here, or that Redis has lost. False when there is none.

    `only_waiting` asks nothing of Redis. Raises MessageRunning.
    """
    with transaction.atomic(using=get_settings().database):
        row = _lock(topic, identity)
        if row is None:
            return False
        if row.status == OutboxStatus.WAITING:
            end([row])
            return True
        if only_waiting:
            return False
        partition, store = outbox.place(row), get_store()
        # The relay may have sent it between our look into Redis and the lock.
        answer = store.cancel(partition, [identity])[0]
        if answer == "NOT_FOUND":
            answer = store.bury(partition, identity, outbox.record_of(row))
        if answer in ("RUNNING", "LIVE"):
            raise MessageRunning
        return answer == "OK"


def reschedule(topic: str, identity: bytes, when: str, *, only_waiting: bool = False) -> int | None:
    """Move a message that is only here, or that Redis has lost. Returns its new due time in ms; None: there is none.

    `only_waiting` asks nothing of Redis. Raises MessageRunning.
    """
    with transaction.atomic(using=get_settings().database):
        row = _lock(topic, identity)
        if row is None:
            return None
        if row.status == OutboxStatus.SENT:
            if only_waiting:
                return None
            partition, word = outbox.standing(row)
            if word == "LIVE":  # the relay has sent it between our look into Redis and the lock
                due_ms = get_store().reschedule(partition, identity, when)
                follow(topic, identity, due_ms)
                return due_ms
            if word == "DONE" or archive.is_archived(identity, row.enqueued_at_us):  # an exactly_once task has run
                return None
            _begin_anew(row, partition)
        _move(row, _due_ms(when))
        row.relay_at_ms = max(outbox.now_ms(), outbox.relay_at_ms(row.due_at_ms))
        row.save(using=row._state.db)
        return row.due_at_ms


def _begin_anew(row: OutboxMessage, partition: Partition) -> None:
    """Another life for a message that Redis does not have: the relay sends it, and nobody the one before."""
    first = outbox.record_of(row)
    row.enqueued_at_us += 1
    row.status, row.relay_at_ms = OutboxStatus.WAITING, max(outbox.now_ms(), outbox.relay_at_ms(row.due_at_ms))
    # After the commit: a rollback would leave a life that neither Redis nor SQL wants to send.
    transaction.on_commit(lambda: _outrun(row, partition, first), using=row._state.db)


def _outrun(row: OutboxMessage, partition: Partition, first: bytes) -> None:
    """Whoever is about to send the message as it was comes too late; what was sent meanwhile is changed too."""
    identity, store = row.message_id.bytes, get_store()
    try:
        if store.bury(partition, identity, first, None) == "LIVE":
            store.reschedule(partition, identity, str(row.due_at_ms))
            store.edit(partition, identity, first, first[: STAMP.size] + bytes(row.record))
    except DelayQError as error:
        logger.warning("message %s may still run as it was before: %s", identity.hex(), error)


def reschedule_unsent(topic: str, identity: bytes, when: str) -> tuple[int, Outgoing | None] | None:
    """Move a message that this transaction has written. Returns its due time, and what to send at the commit, if so."""
    row = find(topic, identity)
    if row is None:
        return None
    _move(row, _due_ms(when))
    far = outbox.relay_at_ms(row.due_at_ms) > outbox.now_ms()
    if far:
        row.status, row.relay_at_ms = OutboxStatus.WAITING, outbox.relay_at_ms(row.due_at_ms)
    row.save(using=row._state.db)
    return row.due_at_ms, None if far else outbox.stamped(row)


def follow(topic: str, identity: bytes, due_ms: int) -> None:
    """Redis has moved the message: what SQL holds under its id moves too, be it the same or one that waits for it."""
    row = find(topic, identity)
    if row is None:
        return
    _move(row, due_ms)
    changes = {"due_at_ms": row.due_at_ms, "expires_at_ms": row.expires_at_ms}
    if row.status == OutboxStatus.WAITING:
        changes["relay_at_ms"] = max(outbox.now_ms(), outbox.relay_at_ms(due_ms))
    # Not save(): the row may be gone by now, or about another life.
    OutboxMessage.objects.filter(pk=row.pk, enqueued_at_us=row.enqueued_at_us, status=row.status).update(**changes)


def edit(topic: str, identity: bytes, change: Callable[[bytes], bytes], *, only_waiting: bool = False) -> bool:
    """Change the record of a message that is only here, or that Redis has lost. False when there is none.

    `only_waiting` asks nothing of Redis. Raises MessageChanged and what `change` raises.
    """
    with transaction.atomic(using=get_settings().database):
        row = _lock(topic, identity)
        if row is None:
            return False
        if row.status == OutboxStatus.SENT:
            if only_waiting:
                return False
            partition, word = outbox.standing(row)
            if word == "DONE" or archive.is_archived(identity, row.enqueued_at_us):
                return False
            if word == "LIVE":  # the relay has sent it between our look into Redis and the lock
                raise MessageChanged
            _begin_anew(row, partition)
        row.record = change(outbox.record_of(row))[STAMP.size :]
        row.save(using=row._state.db)
        return True


def follow_edit(topic: str, identity: bytes, record: bytes) -> None:
    """Redis has another record for the message: so has SQL, should it have to send it again."""
    stamp_us = STAMP.unpack_from(record)[0]
    rows = OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic=topic, enqueued_at_us=stamp_us)
    rows.update(record=record[STAMP.size :])


def withdraw(topic: str, identity: bytes) -> None:
    """End a message that this transaction has written and not yet sent."""
    row = find(topic, identity)
    if row is not None:
        end([row])


def purge(topic: str, reason: str, most: float = math.inf) -> Iterator[Sequence[str]]:
    """End what waits only here now, at most so many, in batches of 500, each a transaction. Gives the ids of each."""
    waiting = OutboxMessage.objects.filter(topic=topic, status=OutboxStatus.WAITING)
    newest = waiting.order_by("-id").values_list("id", flat=True).first()
    while newest is not None and most > 0:
        size = int(min(BATCH, most))
        with transaction.atomic(using=get_settings().database):
            rows = list(waiting.filter(id__lte=newest).select_for_update().order_by("due_at_ms", "id")[:size])
            end(rows, reason)
        most -= len(rows)
        if rows:
            yield [row.message_id.hex for row in rows]
        if len(rows) < BATCH:
            return


def end(rows: Sequence[OutboxMessage], reason: str = "cancelled") -> None:
    """Make these rows ones of the archive: nobody will send them. Two statements, in the caller's transaction."""
    archive.archive_all([_cancelled(row, reason) for row in rows])
    OutboxMessage.objects.filter(pk__in=[row.pk for row in rows]).delete()


def _lock(topic: str, identity: bytes) -> OutboxMessage | None:
    rows = OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic=topic)
    row: OutboxMessage | None = rows.select_for_update().first()
    return row


def _move(row: OutboxMessage, due_ms: int) -> None:
    if row.expires_at_ms and bytes(row.record)[0] & EXPIRES_WITH_DUE:
        row.expires_at_ms = max(row.expires_at_ms + due_ms - row.due_at_ms, 1)
    row.due_at_ms = due_ms


def _cancelled(row: OutboxMessage, reason: str) -> Entry:
    detail = json.dumps({"reason": reason}).encode()
    # Not outbox.place(), which asks Redis: it may be away, and no part of the topic has the message.
    partition = partition_of(row.topic, row.message_id.bytes, get_store().partitions.configured(row.topic))
    record = outbox.record_of(row)
    return Entry(b"", partition, row.message_id.bytes, "cancelled", outbox.now_ms(), record, b"", detail)


def _due_ms(when: str) -> int:
    return outbox.now_ms() + int(when) if when[0] == "+" else int(when)
