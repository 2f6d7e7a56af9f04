"""Messages that SQL answers for: durable ones from the start, and those that Redis could not take.

A row is the message until it has ended. It is inserted in the caller's transaction, sent to Redis
from here (at the commit), by the relay or by the reconciler, always under the same stamp, and
removed by the archiver with the archive row of that stamp. Redis knows which lives are LIVE and
which are DONE and not yet archived, so sending twice is safe.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any
from uuid import UUID

from django.db import OperationalError, ProgrammingError, connections
from django.db.models import Q, QuerySet

from ..archive import archive_rows
from ..core.chunks import chunked_by_weight
from ..core.conf import get_settings
from ..core.exceptions import ConfigurationError, DelayQError, StoreUnavailable
from ..core.message import DURABLE, EXPIRES_WITH_DUE, with_stamp
from ..core.times import When
from ..models import OutboxMessage, OutboxStatus
from ..store import get_store
from ..store.entries import Entry
from ..store.keys import Partition, partition_of
from ..store.queries import Life
from ..store.store import Outgoing, base_mode, replaces, replacing, without_call
from ..tasks.builder import Item
from ..tasks.task import Receipt

STATEMENT_BYTES = 1024 * 1024
#: Microseconds between insert and send after which the row is read again: somebody may have
#: cancelled it.
LATE_US = 1_000_000
#: Milliseconds after which the relay sends again a message that Redis did not take.
AGAIN_MS = 500
#: Times that an insert is tried while rows of its id come and go.
RACES = 5


def stamped(row: OutboxMessage) -> Outgoing:
    """The message for the enqueue script: accepted at its stamp, not now."""
    when = When.accepted(row.enqueued_at_us, row.due_at_ms)
    expires = When.at(row.expires_at_ms) if row.expires_at_ms else When()
    return Outgoing(row.message_id.bytes, row.on_duplicate, when, expires, bytes(row.record))


def record_of(row: OutboxMessage) -> bytes:
    """The record with its stamp, as it lies in Redis."""
    return with_stamp(row.enqueued_at_us, row.expires_at_ms, bytes(row.record))


def candidates(row: OutboxMessage) -> list[Partition]:
    """The partitions where Redis can have the message, today's first: one partition unless the
    topic once had fewer."""
    return get_store().partitions.candidates(row.topic, row.message_id.bytes)


def standing(row: OutboxMessage) -> tuple[Partition, str]:
    """The partition that has the message, and what Redis knows of its life there: LIVE, DONE, or
    MISSING everywhere."""
    life = Life(row.message_id.bytes, row.enqueued_at_us)
    return get_store().durable_status(row.topic, life)


def place(row: OutboxMessage) -> Partition:
    """The partition to send the message to: where it or another with its id is, else where it
    belongs today."""
    partitions = candidates(row)
    if len(partitions) == 1:
        return partitions[0]
    partition, word = standing(row)
    if word != "MISSING":
        return partition
    return get_store().partitions.place(row.topic, row.message_id.bytes, True)


#: The fields that another life of an id writes into the row.
_CONTENT = tuple(
    f.name for f in OutboxMessage._meta.local_fields if f.name not in ("id", "message_id")
)
#: The fields that a call which is repeated under its id takes from the row of the first call.
_LIFE = ("enqueued_at_us", "due_at_ms", "expires_at_ms", "status")

# Accepting


def accept(items: Sequence[Item], unsent: Iterable[bytes] = ()) -> tuple[list[Item], list[Receipt]]:
    """Insert durable messages in the caller's transaction. `unsent`: the ids that it has inserted
    before, and that go to Redis when it commits.

    Returns those to send once it commits, and the receipts of those that are refused as duplicates.
    """
    store = get_store()
    now_us = store.now_us()
    status: str = OutboxStatus.WAITING if store.breaker.open else OutboxStatus.SENT
    # A microsecond apart: two messages with one key, in one call, are two lives.
    rows = [new_row(item, now_us + index, status) for index, item in enumerate(items)]
    with migrated():
        refused = _insert(rows, items, set(unsent))
    to_send: list[Item] = []
    for item, row in zip(items, rows, strict=True):
        if item.receipt.outcome != "kept":
            is_sent = row.status == OutboxStatus.SENT
            item.receipt.due_ms, item.receipt.outcome = row.due_at_ms, "" if is_sent else "outbox"
            if is_sent:
                to_send.append(item._replace(message=stamped(row)))
    return to_send, refused


def spill(items: Sequence[Item], *, unknown: bool, wait_ms: int = 0) -> list[Receipt]:
    """Keep messages that Redis could not take, or may have taken. The relay sends them after
    `wait_ms`.

    Returns the receipts of refused duplicates.
    """
    get_store().breaker.after_outage = True
    now_us = get_store().now_us()
    fresh = [item for item in items if not item.template.durable]
    rows = [new_row(item, now_us + index, OutboxStatus.WAITING) for index, item in enumerate(fresh)]
    for item, row in zip(fresh, rows, strict=True):
        row.relay_at_ms = now_us // 1000 + wait_ms
        # Redis may hold another message with the same key.
        row.may_be_in_redis = unknown or item.template.fixed
    with migrated():
        refused = _insert(rows, fresh, set())
    put_back([item for item in items if item.template.durable])
    for item, row in zip(fresh, rows, strict=True):
        if item.receipt.outcome != "kept":
            item.receipt.outcome, item.receipt.due_ms = "outbox", row.due_at_ms
    return refused


def behind_others(items: Sequence[Item]) -> list[Item]:
    """The items that are not durable and whose key has a row of which Redis has yet to hear. Call
    it after an outage. When there is no such row any more, the outage is over for this process."""
    keyed = [item for item in items if item.template.fixed and not item.template.durable]
    if not keyed:
        return []
    rows = unheard()
    ids = {UUID(bytes=item.message.id) for item in keyed}
    found = set(rows.filter(message_id__in=ids).values_list("message_id", flat=True))
    if not found and not rows.exists():
        get_store().breaker.after_outage = False
    return [item for item in keyed if UUID(bytes=item.message.id) in found]


def unheard() -> QuerySet[OutboxMessage]:
    """Rows of which Redis has yet to hear, though it may have a message with their id. The relay is
    about to cancel it, to move it, or to send another one in its place."""
    # Those that Redis did not take at once are included.
    soon_ms = get_store().now_us() // 1000 + AGAIN_MS
    changed = Q(status__in=[OutboxStatus.CANCELLED, OutboxStatus.MOVED])
    return OutboxMessage.objects.filter(
        changed | Q(status=OutboxStatus.WAITING, may_be_in_redis=True), relay_at_ms__lte=soon_ms
    )


def still_open(items: list[Item]) -> list[Item]:
    """The items that have to be sent. When the commit took long, a durable message is among them
    only if nobody has ended it meanwhile."""
    late_us = get_store().now_us() - LATE_US if any(item.template.durable for item in items) else 0
    late = {
        UUID(bytes=item.message.id)
        for item in items
        if item.template.durable and item.message.when.stamp_us < late_us
    }
    if not late:
        return items
    found = OutboxMessage.objects.filter(message_id__in=late, status=OutboxStatus.SENT)
    lives = set(found.values_list("message_id", "enqueued_at_us"))
    return [
        item
        for item in items
        if UUID(bytes=item.message.id) not in late
        or (UUID(bytes=item.message.id), item.message.when.stamp_us) in lives
    ]


def put_back(items: Sequence[Item]) -> None:
    """Leave durable messages that could not be sent to the relay."""
    if items:
        # With their stamps: by now another life of a key may have the row.
        ids = [UUID(bytes=item.message.id) for item in items]
        stamps = [item.message.when.stamp_us for item in items]
        rows = OutboxMessage.objects.filter(
            message_id__in=ids, enqueued_at_us__in=stamps, status=OutboxStatus.SENT
        )
        rows.update(
            status=OutboxStatus.WAITING,
            may_be_in_redis=True,
            relay_at_ms=get_store().now_us() // 1000,
        )
    for item in items:
        item.receipt.outcome = "outbox"


def new_row(item: Item, now_us: int, status: str) -> OutboxMessage:
    """The row of a message that is accepted at `now_us`; waiting when it is due beyond the
    horizon."""
    identity, mode, when, expires, record = item.message
    accepted_ms = -(-now_us // 1000)
    due_ms = when.from_ms(accepted_ms)
    look_at_ms = relay_at_ms(due_ms)
    if look_at_ms > accepted_ms:
        status = OutboxStatus.WAITING
    elif status == OutboxStatus.SENT:
        look_at_ms = accepted_ms + patience_ms()
    return OutboxMessage(
        message_id=UUID(bytes=identity),
        enqueued_at_us=now_us,
        topic=item.template.topic,
        task=item.template.name,
        key=item.receipt.key or "",
        on_duplicate=without_call(mode),
        due_at_ms=due_ms,
        expires_at_ms=expires.from_ms(due_ms),
        record=bytes((record[0] | DURABLE,)) + record[1:],
        status=status,
        relay_at_ms=look_at_ms,
    )


def _insert(
    rows: Sequence[OutboxMessage], items: Sequence[Item], unsent: set[bytes]
) -> list[Receipt]:
    """Insert new ids in one statement, and given ids as their on_duplicate says. Returns the
    receipts of refused duplicates."""
    using = OutboxMessage.objects.using(get_settings().database)
    new = [row for row, item in zip(rows, items, strict=True) if not item.template.fixed]
    for part in chunked_by_weight(new, lambda row: len(row.record), STATEMENT_BYTES):
        using.bulk_create(part)
    refused: list[Receipt] = []
    # In one order, so that two calls with the same keys wait for each other and do not deadlock.
    for row, item in sorted(zip(rows, items, strict=True), key=lambda pair: pair[0].message_id):
        if not item.template.fixed:
            continue
        if _insert_given(row, item.template.may_exist, item.message.id in unsent):
            unsent.add(item.message.id)
            continue
        item.receipt.outcome = "kept"
        if base_mode(row.on_duplicate) == "raise":
            refused.append(item.receipt)
    return refused


def _insert_given(row: OutboxMessage, may_exist: bool, is_unsent: bool) -> bool:
    """Insert a row whose id may be there. False when another message with it is live. `is_unsent`:
    we have inserted that one, and Redis has yet to hear of it."""
    alias = get_settings().database
    rows = OutboxMessage.objects.using(alias)
    with_id = rows.filter(message_id=row.message_id)
    for attempt in range(RACES):
        rows.bulk_create([row], ignore_conflicts=True)
        # Locked it is the newest, also where the snapshot of the transaction shows an older state
        # (REPEATABLE READ of MariaDB and MySQL).
        is_locked = attempt > 0 and connections[alias].in_atomic_block
        there = (with_id.select_for_update() if is_locked else with_id).first()
        if there is None:  # it was closed between the two statements
            continue
        if there.enqueued_at_us == row.enqueued_at_us:
            return True
        # A row that only notes a move does not tell whether there is a message to move.
        is_live = there.status != OutboxStatus.CANCELLED and bool(there.record)
        if (
            is_live and may_exist and bytes(there.record) == bytes(row.record)
        ):  # the same call again, under its id
            _copy(row, {name: getattr(there, name) for name in _LIFE})
            return True
        if is_live and not replaces(row.on_duplicate) and not is_done(there):
            return False
        if _take_over(row, there, is_unsent):
            return True
    if not replaces(row.on_duplicate):
        return False  # a live one was there each time
    raise StoreUnavailable("Others replace this key all the time: it was not enqueued. Try again.")


def _take_over(row: OutboxMessage, there: OutboxMessage, is_unsent: bool) -> bool:
    """Write the row over another life of its id. False when somebody has changed that one
    meanwhile."""
    # The clocks of hosts differ by a little: the later life is newer all the same.
    stamp_us = max(row.enqueued_at_us, there.enqueued_at_us + 1)
    changes = {name: getattr(row, name) for name in _CONTENT} | {"enqueued_at_us": stamp_us}
    chosen = _chosen(row, there, is_unsent)
    changes |= chosen
    if there.status == OutboxStatus.CANCELLED:
        # Unless Redis has obeyed, it may still have the cancelled message.
        mode = row.on_duplicate
        changes["on_duplicate"] = replacing(mode) if there.changed_at_us else mode
        if there.record:
            archive_rows.archive_all([cancelled_entry(there, there.reason or "cancelled")])
    else:
        changes |= _noted_move(there)
    if (there.may_be_in_redis or there.status != OutboxStatus.WAITING) and not (
        relay_at_ms(changes["due_at_ms"]) > redis_now_ms() and is_done(there)
    ):
        # Redis has to hear that the life before is over, however far the new one is from due. The
        # caller or the relay tells it.
        if (
            row.status == OutboxStatus.WAITING
            and not row.may_be_in_redis
            and not get_store().breaker.open
        ):
            changes["status"] = OutboxStatus.SENT
            changes["relay_at_ms"] = redis_now_ms() + patience_ms()
        elif row.status == OutboxStatus.WAITING:
            changes["relay_at_ms"] = redis_now_ms()
        changes["may_be_in_redis"] = True
    rows = OutboxMessage.objects.using(get_settings().database).filter(
        pk=there.pk,
        enqueued_at_us=there.enqueued_at_us,
        status=there.status,
        due_at_ms=there.due_at_ms,
    )
    if not rows.update(**changes):
        return False
    if is_unsent and there.status == OutboxStatus.SENT:
        # Redis gets both, and chooses as if they came one by one. The row is for the case that it
        # gets none of them.
        changes = {name: value for name, value in changes.items() if name not in chosen}
    _copy(row, changes)
    return True


def _noted_move(there: OutboxMessage) -> dict[str, Any]:
    """The move of what is live under the row's id, if Redis has yet to hear of it."""
    moved_to_ms = there.moved_to_ms if there.record else there.due_at_ms
    if not moved_to_ms:
        return {}
    return {"moved_to_ms": moved_to_ms, "changed_at_us": there.changed_at_us}


def _chosen(row: OutboxMessage, there: OutboxMessage, is_unsent: bool) -> dict[str, Any]:
    """What changes when the row's mode chooses between its due time and that of the row whose place
    it takes. Of rows that Redis has, Redis chooses, unless they were moved since."""
    mode, _, limit = row.on_duplicate.partition(":")
    is_moved = there.status == OutboxStatus.MOVED
    is_here = there.status == OutboxStatus.WAITING or is_moved or is_unsent
    if not (is_here and there.record) or row.on_duplicate == "replace" or not replaces(mode):
        return {}
    due_ms = row.due_at_ms
    if mode != "replace":
        due_ms = (max if mode == "extend" else min)(due_ms, there.due_at_ms)
    before, limits = base_mode(there.on_duplicate), there.on_duplicate.split(":")[1:]
    if limit:
        first_ms = int(limits[1]) if len(limits) > 1 else there.enqueued_at_us // 1000
        due_ms = min(due_ms, first_ms + int(limit))
        limit = f"{limit}:{first_ms}"
    merged = copy(row)
    move(merged, due_ms)
    # What Redis may have was to be replaced, or has another due time than it was moved to.
    mode = "replace" if is_moved or before == "replace" else mode
    merged.on_duplicate = f"{mode}:{limit}" if limit else mode
    names = ["on_duplicate", "due_at_ms", "expires_at_ms"]
    if (
        there.status == OutboxStatus.WAITING
        and not there.may_be_in_redis
        and not row.may_be_in_redis
    ):
        merged.relay_at_ms = next_relay_ms(merged.due_at_ms)
        if merged.relay_at_ms > redis_now_ms():
            merged.status = OutboxStatus.WAITING
        elif merged.status == OutboxStatus.SENT:
            merged.relay_at_ms = redis_now_ms() + patience_ms()
        names += ["status", "relay_at_ms"]
    return {name: getattr(merged, name) for name in names}


def move(row: OutboxMessage, due_ms: int) -> None:
    """Give the row another due time; an expiry that counts from it moves too."""
    if row.expires_at_ms and bytes(row.record)[0] & EXPIRES_WITH_DUE:
        row.expires_at_ms = max(row.expires_at_ms + due_ms - row.due_at_ms, 1)
    if row.moved_to_ms:  # what is live under its id was moved before: this move counts for both
        row.moved_to_ms = due_ms
    row.due_at_ms = due_ms


def _copy(row: OutboxMessage, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(row, name, value)


def is_done(row: OutboxMessage) -> bool:
    """Whether the row's message has ended in Redis, and only waits for the archiver. False when
    Redis is away."""
    try:
        return standing(row)[1] == "DONE"
    except DelayQError:
        return False


def adopt(item: Item, word: str) -> None:
    """Redis had stored the message before, under the stamp in `word`: the row is about that life
    from now on."""
    rows = OutboxMessage.objects.filter(
        message_id=UUID(bytes=item.message.id), enqueued_at_us=item.message.when.stamp_us
    )
    rows.update(enqueued_at_us=adopted_stamp(word), status=OutboxStatus.SENT)


def cancelled_entry(row: OutboxMessage, reason: str) -> Entry:
    """The entry that makes a cancelled row a row of the archive."""
    detail = json.dumps({"reason": reason}).encode()
    # Not place(), which asks Redis: it may be away, and no part of the topic has the message.
    partition = partition_of(
        row.topic, row.message_id.bytes, get_store().topics.configured(row.topic)
    )
    identity, record = row.message_id.bytes, record_of(row)
    return Entry(
        b"", partition, identity, "cancelled", redis_now_ms(), record, b"", detail, row.due_at_ms
    )


@contextmanager
def migrated() -> Iterator[None]:
    """Runs statements on the outbox. Raises ConfigurationError, which says what to do, when the
    table is missing."""
    try:
        yield
    except (ProgrammingError, OperationalError) as error:
        text, table = str(error), OutboxMessage._meta.db_table
        if table in text and any(
            words in text for words in ("no such table", "does not exist", "doesn't exist")
        ):
            alias = get_settings().database
            raise ConfigurationError(
                f"The database {alias!r} has no table {table}: run manage.py migrate --database "
                f"{alias}."
            ) from error
        raise


def adopted_stamp(word: str) -> int:
    """The stamp in `ADOPTED:stamp`."""
    return int(word.partition(":")[2])


def relay_at_ms(due_ms: int) -> int:
    """When the relay brings a message to Redis."""
    return due_ms - int(get_settings().horizon * 1000)


def next_relay_ms(due_ms: int) -> int:
    """When the relay takes a row that waits: not before now."""
    return max(redis_now_ms(), relay_at_ms(due_ms))


def redis_now_ms() -> int:
    """Redis' clock, rounded up: a due time counts from it."""
    return -(-get_store().now_us() // 1000)


def patience_ms() -> int:
    """How long the relay and the reconciler leave a row alone while its caller works on it."""
    return int(get_settings().reconcile_after * 1000)
