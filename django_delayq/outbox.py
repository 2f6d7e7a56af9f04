"""Messages that SQL answers for: durable ones from the start, and those that Redis could not take.

A row is the message until it has ended. It is inserted in the caller's transaction, sent to Redis from here (at the
commit), by the relay or by the reconciler, always under the same stamp, and removed by the archiver with the archive
row of that stamp. Redis knows which lives are LIVE and which are DONE and not yet archived, so sending twice is safe.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from django.db import connections, transaction

from . import archive
from .conf import get_settings
from .exceptions import DelayQError, MessageRunning
from .handle import Handle
from .message import DURABLE, EXPIRES_WITH_DUE, STAMP, Found, State
from .models import OutboxMessage, OutboxStatus
from .outgoing import Item
from .store import get_store
from .store.finished import Entry
from .store.keys import Partition
from .store.redis import BATCH, Outgoing


def stamped(row: OutboxMessage) -> Outgoing:
    """The message for the enqueue script: accepted at its stamp, not now."""
    expires = str(row.expires_at_ms) if row.expires_at_ms else ""
    when = f"@{row.enqueued_at_us}:{row.due_at_ms}"
    return row.message_id.bytes, row.on_duplicate, when, expires, bytes(row.record)


def record_of(row: OutboxMessage) -> bytes:
    """The record with its stamp, as it lies in Redis."""
    return STAMP.pack(row.enqueued_at_us, row.expires_at_ms.to_bytes(6, "big")) + bytes(row.record)


def place(row: OutboxMessage) -> Partition:
    """Where the message belongs. Its id is treated as given: an old partition may hold it."""
    return get_store().partitions.place(row.topic, row.message_id.bytes, True)


# Accepting


def accept(items: Sequence[Item]) -> tuple[list[Item], list[Handle]]:
    """Insert durable messages in the caller's transaction.

    Returns those to send once it commits, and the handles of those that are refused as duplicates.
    """
    store = get_store()
    now_us = store.now_us()
    status: str = OutboxStatus.WAITING if store.breaker.open else OutboxStatus.SENT
    # A microsecond apart: two messages with one key, in one call, are two lives.
    rows = [_row(item, now_us + index, status) for index, item in enumerate(items)]
    refused = _insert(rows, items)
    to_send: list[Item] = []
    for item, row in zip(items, rows, strict=True):
        if item.handle.outcome == "kept":
            continue
        item.handle.due_ms, item.handle.outcome = row.due_at_ms, "outbox"
        if row.status == OutboxStatus.SENT:
            item.handle.outcome = ""
            to_send.append(item._replace(message=stamped(row)))
    return to_send, refused


def spill(items: Sequence[Item]) -> list[Handle]:
    """Keep what Redis could not take. Returns the handles of those that are refused as duplicates."""
    now_us = get_store().now_us()
    fresh = [item for item in items if not item.template.durable]
    rows = [_row(item, now_us + index, OutboxStatus.WAITING) for index, item in enumerate(fresh)]
    for row in rows:
        row.relay_at_ms = now_us // 1000
    refused = _insert(rows, fresh)
    put_back([item for item in items if item.template.durable])
    for item, row in zip(fresh, rows, strict=True):
        if item.handle.outcome != "kept":
            item.handle.outcome, item.handle.due_ms = "outbox", row.due_at_ms
    return refused


def put_back(items: Sequence[Item]) -> None:
    """Leave durable messages that could not be sent to the relay."""
    if items:
        ids = [UUID(bytes=item.message[0]) for item in items]
        relay_at_ms = get_store().now_us() // 1000
        rows = OutboxMessage.objects.filter(message_id__in=ids, status=OutboxStatus.SENT)
        rows.update(status=OutboxStatus.WAITING, relay_at_ms=relay_at_ms)
    for item in items:
        item.handle.outcome = "outbox"


def _row(item: Item, now_us: int, status: str) -> OutboxMessage:
    identity, mode, when, expires, record = item.message
    settings = get_settings()
    now_ms = -(-now_us // 1000)
    due_ms = now_ms + int(when) if when[0] == "+" else int(when)
    relay_at_ms = due_ms - int(settings.horizon * 1000)
    if relay_at_ms > now_ms:
        status = OutboxStatus.WAITING
    elif status == OutboxStatus.SENT:
        relay_at_ms = now_ms + int(settings.reconcile_after * 1000)
    return OutboxMessage(
        message_id=UUID(bytes=identity),
        enqueued_at_us=now_us,
        topic=item.template.topic,
        task=item.template.name,
        key=item.template.key or "",
        on_duplicate=mode,
        due_at_ms=due_ms,
        expires_at_ms=due_ms + int(expires) if expires[:1] == "+" else int(expires or 0),
        record=bytes((record[0] | DURABLE,)) + record[1:],
        status=status,
        relay_at_ms=relay_at_ms,
    )


def _insert(rows: Sequence[OutboxMessage], items: Sequence[Item]) -> list[Handle]:
    """One statement for new ids; for given ones what their on_duplicate says. Returns the handles of duplicates."""
    using = OutboxMessage.objects.using(get_settings().database)
    using.bulk_create([row for row, item in zip(rows, items, strict=True) if not item.template.fixed])
    refused: list[Handle] = []
    for row, item in zip(rows, items, strict=True):
        if item.template.fixed and not _insert_given(row):
            item.handle.outcome = "kept"
            if row.on_duplicate == "raise":
                refused.append(item.handle)
    return refused


def _insert_given(row: OutboxMessage) -> bool:
    """Insert a row whose id may be there. False when another message with it is live."""
    alias = get_settings().database
    rows = OutboxMessage.objects.using(alias)
    if row.on_duplicate != "replace":
        rows.bulk_create([row], ignore_conflicts=True)
        there = rows.filter(message_id=row.message_id).values_list("enqueued_at_us", flat=True).first()
        if there in (row.enqueued_at_us, None):
            return there is not None
        if not _is_done(row, there):
            return False
    targets = ["message_id"] if connections[alias].features.supports_update_conflicts_with_target else None
    names = [field.name for field in OutboxMessage._meta.local_fields if field.name not in ("id", "message_id")]
    rows.bulk_create([row], update_conflicts=True, unique_fields=targets, update_fields=names)
    return True


def _is_done(row: OutboxMessage, enqueued_at_us: int) -> bool:
    """Whether the life that the table still holds has ended in Redis, and only waits for the archiver."""
    try:
        return get_store().lives(place(row), [(row.message_id.bytes, enqueued_at_us)]) == ["DONE"]
    except DelayQError:
        return False


# Operations on one message that Redis does not know


def find(topic: str, identity: bytes) -> OutboxMessage | None:
    """The row of a message."""
    row: OutboxMessage | None = OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic=topic).first()
    return row


def get(topic: str, identity: bytes) -> tuple[str, Found] | None:
    """Name of the task and the message, when it is live and only here."""
    row = find(topic, identity)
    if row is None or (row.status == OutboxStatus.SENT and _is_done(row, row.enqueued_at_us)):
        return None
    state = State("ready" if row.due_at_ms <= get_store().now_us() // 1000 else "delayed")
    return row.task, Found(identity, state, row.due_at_ms, record_of(row), None)


def cancel(topic: str, identity: bytes, *, only_waiting: bool = False) -> bool:
    """Take back a message that is only here, or that Redis has lost. False when there is none.

    `only_waiting` asks nothing of Redis. Raises MessageRunning.
    """
    with transaction.atomic(using=get_settings().database):
        row = _lock(topic, identity)
        if row is None:
            return False
        if row.status == OutboxStatus.WAITING:
            end(row)
            return True
        if only_waiting:
            return False
        partition, store = place(row), get_store()
        # The relay may have sent it between our look into Redis and the lock.
        answer = store.cancel(partition, [identity])[0]
        if answer == "NOT_FOUND":
            answer = store.bury(partition, identity, record_of(row))
        if answer in ("RUNNING", "LIVE"):
            raise MessageRunning
        return answer == "OK"


def reschedule(topic: str, identity: bytes, when: str) -> int | None:
    """Move a message that is only here, or that Redis has lost. Returns its new due time in ms; None: there is none."""
    store = get_store()
    with transaction.atomic(using=get_settings().database):
        row = _lock(topic, identity)
        if row is None or (row.status == OutboxStatus.SENT and _is_done(row, row.enqueued_at_us)):
            return None
        now_ms = -(-store.now_us() // 1000)
        due_ms = now_ms + int(when) if when[0] == "+" else int(when)
        _move(row, due_ms)
        row.status = OutboxStatus.WAITING
        row.relay_at_ms = max(now_ms, due_ms - int(get_settings().horizon * 1000))
        row.save()
        return due_ms


def follow(topic: str, identity: bytes, due_ms: int) -> None:
    """Redis has moved a durable message: the row says the same, should Redis lose it."""
    row = find(topic, identity)
    if row is not None:
        _move(row, due_ms)
        row.save(update_fields=["due_at_ms", "expires_at_ms"])


def withdraw(topic: str, identity: bytes) -> None:
    """End a message that this transaction has written and not yet sent."""
    row = find(topic, identity)
    if row is not None:
        end(row)


def purge(topic: str, reason: str) -> int:
    """End what waits only here, up to 500 messages. Returns how many; call until there are none."""
    with transaction.atomic(using=get_settings().database):
        waiting = OutboxMessage.objects.filter(topic=topic, status=OutboxStatus.WAITING).select_for_update()
        rows = list(waiting.order_by("id")[:BATCH])
        for row in rows:
            end(row, reason)
    return len(rows)


def end(row: OutboxMessage, reason: str = "cancelled") -> None:
    """Make the row one of the archive: nobody will send it."""
    archive.archive_one(_cancelled(row, reason))
    row.delete()


def _lock(topic: str, identity: bytes) -> OutboxMessage | None:
    rows = OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic=topic)
    row: OutboxMessage | None = rows.select_for_update().first()
    return row


def _move(row: OutboxMessage, due_ms: int) -> None:
    if row.expires_at_ms and bytes(row.record)[0] & EXPIRES_WITH_DUE:
        row.expires_at_ms = max(row.expires_at_ms + due_ms - row.due_at_ms, 1)
    row.due_at_ms = due_ms


def _cancelled(row: OutboxMessage, reason: str) -> Entry:
    now_ms = get_store().now_us() // 1000
    detail = json.dumps({"reason": reason}).encode()
    return Entry(b"", place(row), row.message_id.bytes, "cancelled", now_ms, record_of(row), b"", detail)


# Closing


def close(entries: Iterable[Entry], alias: str) -> None:
    """Remove the rows of durable messages that have ended, in the transaction that inserts their archive rows."""
    lives = {(UUID(bytes=e.id), int.from_bytes(e.record[:8], "big")) for e in entries if is_durable(e.record)}
    for ids in _chunks(sorted({message_id for message_id, _ in lives})):
        rows = OutboxMessage.objects.using(alias)
        found = rows.filter(message_id__in=ids).values_list("id", "message_id", "enqueued_at_us")
        # Another life of the same key, enqueued since, stays.
        ended = [pk for pk, message_id, stamp in found if (message_id, stamp) in lives]
        if ended:
            rows.filter(id__in=ended).delete()


def is_durable(record: bytes) -> bool:
    """Whether the outbox has a row of the message with this record."""
    return len(record) > STAMP.size and bool(record[STAMP.size] & DURABLE)


def _chunks(ids: Sequence[UUID], size: int = 500) -> Iterator[Sequence[UUID]]:
    return (ids[at : at + size] for at in range(0, len(ids), size))
