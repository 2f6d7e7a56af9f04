"""Messages that SQL answers for: durable ones from the start, and those that Redis could not take.

A row is the message until it has ended. It is inserted in the caller's transaction, sent to Redis from here (at the
commit), by the relay or by the reconciler, always under the same stamp, and removed by the archiver with the archive
row of that stamp. Redis knows which lives are LIVE and which are DONE and not yet archived, so sending twice is safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from django.db import connections

from .conf import get_settings
from .exceptions import DelayQError
from .handle import Handle
from .message import DURABLE, STAMP
from .models import OutboxMessage, OutboxStatus
from .outgoing import Item
from .store import get_store
from .store.finished import Entry
from .store.keys import Partition
from .store.redis import Outgoing

STATEMENT_BYTES = 1024 * 1024
#: Microseconds from the insert to the send after which a row is looked at once more: somebody may have cancelled it.
LATE_US = 1_000_000
#: Times that an insert is tried while rows of its id come and go.
RACES = 3


def stamped(row: OutboxMessage) -> Outgoing:
    """The message for the enqueue script: accepted at its stamp, not now."""
    expires = str(row.expires_at_ms) if row.expires_at_ms else ""
    when = f"@{row.enqueued_at_us}:{row.due_at_ms}"
    return row.message_id.bytes, row.on_duplicate, when, expires, bytes(row.record)


def record_of(row: OutboxMessage) -> bytes:
    """The record with its stamp, as it lies in Redis."""
    return STAMP.pack(row.enqueued_at_us, row.expires_at_ms.to_bytes(6, "big")) + bytes(row.record)


def candidates(row: OutboxMessage) -> list[Partition]:
    """Where Redis can have the message, today's place first: one partition unless the topic once had fewer."""
    return get_store().partitions.candidates(row.topic, row.message_id.bytes)


def standing(row: OutboxMessage) -> tuple[Partition, str]:
    """Where the message is in Redis, and what is known of its life there: LIVE, DONE, or MISSING everywhere."""
    life = [(row.message_id.bytes, row.enqueued_at_us)]
    partitions = candidates(row)
    for partition in partitions:
        word = get_store().lives(partition, life)[0]
        if word != "MISSING":
            return partition, word
    return partitions[0], "MISSING"


def place(row: OutboxMessage) -> Partition:
    """Where to send the message: where it or another with its id is, else where it belongs today."""
    partitions = candidates(row)
    if len(partitions) == 1:
        return partitions[0]
    partition, word = standing(row)
    if word != "MISSING":
        return partition
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
    rows = [row_of(item, now_us + index, status) for index, item in enumerate(items)]
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
    rows = [row_of(item, now_us + index, OutboxStatus.WAITING) for index, item in enumerate(fresh)]
    for row in rows:
        row.relay_at_ms = now_us // 1000
    refused = _insert(rows, fresh)
    put_back([item for item in items if item.template.durable])
    for item, row in zip(fresh, rows, strict=True):
        if item.handle.outcome != "kept":
            item.handle.outcome, item.handle.due_ms = "outbox", row.due_at_ms
    return refused


def still_open(items: list[Item]) -> list[Item]:
    """What is to be sent. Of durable messages whose commit took its time only those that nobody has ended meanwhile."""
    late_us = get_store().now_us() - LATE_US if any(item.template.durable for item in items) else 0
    late = {UUID(bytes=item.message[0]) for item in items if item.template.durable and _stamp(item) < late_us}
    if not late:
        return items
    found = OutboxMessage.objects.filter(message_id__in=late, status=OutboxStatus.SENT)
    lives = set(found.values_list("message_id", "enqueued_at_us"))
    return [
        item
        for item in items
        if UUID(bytes=item.message[0]) not in late or (UUID(bytes=item.message[0]), _stamp(item)) in lives
    ]


def _stamp(item: Item) -> int:
    """Of a durable message on its way: `@stamp:due`."""
    return int(item.message[2][1:].partition(":")[0])


def put_back(items: Sequence[Item]) -> None:
    """Leave durable messages that could not be sent to the relay."""
    if items:
        ids = [UUID(bytes=item.message[0]) for item in items]
        rows = OutboxMessage.objects.filter(message_id__in=ids, status=OutboxStatus.SENT)
        rows.update(status=OutboxStatus.WAITING, relay_at_ms=get_store().now_us() // 1000)
    for item in items:
        item.handle.outcome = "outbox"


def row_of(item: Item, now_us: int, status: str) -> OutboxMessage:
    """The row of a message that is accepted at `now_us`; waiting when it is due beyond the horizon."""
    identity, mode, when, expires, record = item.message
    accepted_ms = -(-now_us // 1000)
    due_ms = accepted_ms + int(when) if when[0] == "+" else int(when)
    look_at_ms = relay_at_ms(due_ms)
    if look_at_ms > accepted_ms:
        status = OutboxStatus.WAITING
    elif status == OutboxStatus.SENT:
        look_at_ms = accepted_ms + int(get_settings().reconcile_after * 1000)
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
        relay_at_ms=look_at_ms,
    )


def _insert(rows: Sequence[OutboxMessage], items: Sequence[Item]) -> list[Handle]:
    """One statement for new ids; for given ones what their on_duplicate says. Returns the handles of duplicates."""
    using = OutboxMessage.objects.using(get_settings().database)
    for part in _parts([row for row, item in zip(rows, items, strict=True) if not item.template.fixed]):
        using.bulk_create(part)
    refused: list[Handle] = []
    for row, item in zip(rows, items, strict=True):
        if item.template.fixed and not _insert_given(row, item.template.may_exist):
            item.handle.outcome = "kept"
            if row.on_duplicate == "raise":
                refused.append(item.handle)
    return refused


def _parts(rows: Sequence[OutboxMessage]) -> Iterator[list[OutboxMessage]]:
    """Statements of at most 1 MiB of records: MariaDB's max_allowed_packet is 16."""
    part: list[OutboxMessage] = []
    size = 0
    for row in rows:
        size += len(row.record)
        if part and size > STATEMENT_BYTES:
            yield part
            part, size = [], len(row.record)
        part.append(row)
    if part:
        yield part


def _insert_given(row: OutboxMessage, may_exist: bool) -> bool:
    """Insert a row whose id may be there. False when another message with it is live."""
    rows = OutboxMessage.objects.using(get_settings().database)
    for _ in range(RACES if row.on_duplicate != "replace" else 0):
        rows.bulk_create([row], ignore_conflicts=True)
        there = rows.filter(message_id=row.message_id).first()
        if there is None:  # closed between the two statements
            continue
        if there.enqueued_at_us == row.enqueued_at_us:
            return True
        if may_exist and bytes(there.record) == bytes(row.record):  # the same call again, under its id
            for name in ("enqueued_at_us", "due_at_ms", "expires_at_ms", "status"):
                setattr(row, name, getattr(there, name))
            return True
        if not is_done(there):
            return False
        break
    _upsert(row)
    return True


def _upsert(row: OutboxMessage) -> None:
    alias = get_settings().database
    rows = OutboxMessage.objects.using(alias)
    # Clocks of hosts differ by a little: what comes later is newer all the same.
    before = rows.filter(message_id=row.message_id).values_list("enqueued_at_us", flat=True).first()
    row.enqueued_at_us = max(row.enqueued_at_us, (before or 0) + 1)
    targets = ["message_id"] if connections[alias].features.supports_update_conflicts_with_target else None
    names = [field.name for field in OutboxMessage._meta.local_fields if field.name not in ("id", "message_id")]
    rows.bulk_create([row], update_conflicts=True, unique_fields=targets, update_fields=names)


def is_done(row: OutboxMessage) -> bool:
    """Whether the row's message has ended in Redis, and only waits for the archiver. False when Redis is away."""
    try:
        return standing(row)[1] == "DONE"
    except DelayQError:
        return False


def adopt(identity: bytes, word: str) -> None:
    """Redis had stored the message before, under the stamp in `word`: from now on the row is about that life."""
    rows = OutboxMessage.objects.filter(message_id=UUID(bytes=identity))
    rows.update(enqueued_at_us=stamp_of(word), status=OutboxStatus.SENT)


def stamp_of(word: str) -> int:
    """The stamp in `ADOPTED:stamp`."""
    return int(word.partition(":")[2])


def relay_at_ms(due_ms: int) -> int:
    """When the relay brings a message to Redis."""
    return due_ms - int(get_settings().horizon * 1000)


def now_ms() -> int:
    """Redis' clock, rounded up: a due time counts from it."""
    return -(-get_store().now_us() // 1000)


# Closing


def close(entries: Sequence[Entry], alias: str) -> Sequence[Entry]:
    """Remove the rows of durable messages that have ended, in the transaction that inserts their archive rows.

    Returns the entries whose rows another transaction has locked: waiting for it would hold up the archive of all.
    """
    lives = {(UUID(bytes=e.id), int.from_bytes(e.stamp, "big")): e for e in entries if e.stamp}
    rows, left = OutboxMessage.objects.using(alias), []
    skip_locked = connections[alias].features.has_select_for_update_skip_locked
    for ids in _chunks(sorted({message_id for message_id, _ in lives})):
        there = rows.filter(message_id__in=ids).order_by("id")
        # Locked, so that no other life of the same key takes the row before it is deleted; one that has, stays.
        locked = there.select_for_update(skip_locked=skip_locked).values_list("id", "message_id", "enqueued_at_us")
        ended = {pk: (message_id, stamp) for pk, message_id, stamp in locked if (message_id, stamp) in lives}
        rows.filter(id__in=list(ended)).delete()
        left += [lives[life] for life in there.values_list("message_id", "enqueued_at_us") if life in lives]
    return left


def _chunks(ids: Sequence[UUID], size: int = 500) -> Iterator[Sequence[UUID]]:
    return (ids[at : at + size] for at in range(0, len(ids), size))
