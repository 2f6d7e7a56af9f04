"""Postponed cancels and moves of messages that Redis may have. The outbox keeps them until Redis
has applied them.

The message's row keeps them. A message that only Redis has gets a row without a record. They are
applied at the commit, or else by the relay. To apply them twice changes nothing, and a message that
was enqueued later is left alone, as far as clocks tell (CLOCK_ERROR_US).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from uuid import UUID

from django.db import Error, connections, transaction

from ..archive import archive_rows
from ..core import signals
from ..core.conf import get_settings
from ..core.database import locked
from ..core.exceptions import MessageNotFound, MessageRunning, StoreError
from ..core.message import HEADER_END, is_same_content, stamp_us_of, without_stamp
from ..core.signals import Event
from ..core.times import When
from ..models import OutboxMessage, OutboxStatus
from ..store import get_store
from ..store.store import replacing
from . import outbox
from .lookup import begin_anew, due_ms_of, end, lock, mark
from .outbox import move

logger = logging.getLogger("delayq")

#: Rows that one round of the relay applies. Each takes a few calls of Redis. There are few such
#: rows: those of an outage.
BATCH = 100
#: Microseconds by which this process's estimate of Redis' clock may be behind, with a reading of
#: the clock and without one.
CLOCK_ERROR_US = 100_000
CLOCK_UNKNOWN_US = 2_000_000
#: Stands in place of the instant of a cancel when Redis has applied it.
APPLIED = 0

# Keeping


#: The changes that this process has kept and that Redis may not have yet; True for a cancel. An
#: enqueue of the same key must not overtake them.
pending: dict[tuple[str, bytes], bool] = {}
MOST_PENDING = 10_000


def remember(topic: str, identity: bytes, *, cancels: bool) -> None:
    """Note that a cancel or a move was kept."""
    if len(pending) >= MOST_PENDING:
        pending.clear()
    pending[topic, identity] = cancels


def catch_up(places: Iterable[tuple[str, bytes]]) -> None:
    """Before an enqueue, apply the changes that this process has kept for these ids, unless another
    process has done so."""
    for topic, identity in pending.keys() & places:
        pending.pop((topic, identity), None)
        if get_store().breaker.open:
            continue  # then the enqueue takes the row over
        try:
            with transaction.atomic(using=get_settings().database):
                row = lock(topic, identity)
                if row is not None and row.status in (OutboxStatus.CANCELLED, OutboxStatus.MOVED):
                    _apply(row)
        except (StoreError, Error) as error:
            logger.warning(
                "the relay applies later what was kept for message %s: %s", identity.hex(), error
            )


def keep_cancel(
    topic: str,
    identity: bytes,
    key: str | None,
    *,
    unknown: bool = False,
    stamp_us: int | None = None,
) -> bool:
    """Keep a cancel until Redis is back. Returns False when the message is already cancelled.

    `unknown`: Redis may have applied it. With `stamp_us` only that life is cancelled; a life that
    came since takes its place.
    """
    with transaction.atomic(using=get_settings().database):
        row = _row(topic, identity, key)
        if row.record and stamp_us not in (None, row.enqueued_at_us):
            row.on_duplicate, row.may_be_in_redis = replacing(row.on_duplicate), True
            row.save(using=row._state.db, update_fields=["on_duplicate", "may_be_in_redis"])
            return True
        if row.status == OutboxStatus.CANCELLED:
            may_be_live = is_applied(row)
            # Marked anew, the cancel also means what has been enqueued since.
            mark(row, OutboxStatus.CANCELLED, row.reason)
            if may_be_live:
                remember(topic, identity, cancels=True)
            return may_be_live
        if row.status == OutboxStatus.WAITING and row.record and not row.may_be_in_redis:
            end([row])
        else:
            row.may_be_in_redis = row.may_be_in_redis and not (unknown and not row.record)
            mark(row, OutboxStatus.CANCELLED, "cancelled")
            remember(topic, identity, cancels=True)
        return True


def keep_move(
    topic: str, identity: bytes, key: str | None, when: When, stamp_us: int | None = None
) -> int | None:
    """Keep a move until Redis is back. Returns the new due time in ms, or None when the message is
    cancelled.

    With `stamp_us` only that life is moved.
    """
    with transaction.atomic(using=get_settings().database):
        row = _row(topic, identity, key)
        if row.record and stamp_us not in (None, row.enqueued_at_us):
            return row.due_at_ms
        if row.status == OutboxStatus.CANCELLED and is_applied(
            row
        ):  # what has been enqueued since is meant
            end([row])
            row = _row(topic, identity, key)
        if row.status == OutboxStatus.CANCELLED:
            return None
        move(row, due_ms_of(when))
        if row.status == OutboxStatus.WAITING and row.record and not row.may_be_in_redis:
            row.relay_at_ms = outbox.next_relay_ms(row.due_at_ms)
            row.save(using=row._state.db)
        else:
            mark(row, OutboxStatus.MOVED)
            remember(topic, identity, cancels=False)
        return row.due_at_ms


def _row(topic: str, identity: bytes, key: str | None) -> OutboxMessage:
    """The row of the message, locked; one without a record when only Redis can have it."""
    rows = OutboxMessage.objects.using(get_settings().database)
    for _ in range(outbox.RACES):
        row = lock(topic, identity)
        if row is not None:
            return row
        now_us = get_store().now_us()
        empty = OutboxMessage(
            message_id=UUID(bytes=identity),
            enqueued_at_us=now_us,
            topic=topic,
            key=key or "",
            on_duplicate="replace",
            due_at_ms=0,
            record=b"",
            status=OutboxStatus.WAITING,
            relay_at_ms=0,
            may_be_in_redis=True,
        )
        rows.bulk_create([empty], ignore_conflicts=True)
    raise MessageNotFound  # the id is that of a message of another topic


# Applying


def cancel(topic: str, identity: bytes, stamp_us: int | None = None) -> str:
    """Cancel a message that has a row, wherever the message is. With `stamp_us` only that life is
    cancelled.

    Returns OK (also when another life has taken its place), RUNNING, or NOT_FOUND (it has ended).
    """
    with transaction.atomic(using=get_settings().database):
        row = lock(topic, identity)
        if row is None:
            return "NOT_FOUND"
        if stamp_us not in (None, row.enqueued_at_us):
            return "OK"
        if row.status == OutboxStatus.WAITING and not row.may_be_in_redis:
            end([row])
            return "OK"
        if row.status != OutboxStatus.CANCELLED:
            mark(row, OutboxStatus.CANCELLED, "cancelled")
        return apply_cancel(row)


def reschedule(
    topic: str, identity: bytes, when: When, stamp_us: int | None = None
) -> tuple[str, int]:
    """Move a message that has a row, wherever the message is. With `stamp_us` only that life is
    moved.

    Returns OK (also when another life has taken its place), RUNNING or NOT_FOUND, and the due time
    in ms.
    """
    with transaction.atomic(using=get_settings().database):
        row = lock(topic, identity)
        if row is not None and stamp_us not in (None, row.enqueued_at_us):
            return "OK", row.due_at_ms
        if row is None or row.status == OutboxStatus.CANCELLED:
            return "NOT_FOUND", 0
        move(row, due_ms_of(when))
        mark(row, OutboxStatus.MOVED)
        return apply_move(row), row.due_at_ms


def cancelled_in_redis(topic: str, identity: bytes, stamp_us: int | None = None) -> None:
    """Redis has cancelled the message. A row that waits under its id ends too. A sent row must not
    be sent again when Redis loses its memory before the archiver has read of the cancel. With
    `stamp_us` only that life ends."""
    with transaction.atomic(using=get_settings().database):
        row = lock(topic, identity)
        if row is None or stamp_us not in (None, row.enqueued_at_us):
            return
        if not row.record:
            row.delete()
        elif row.status == OutboxStatus.WAITING and not row.may_be_in_redis:
            end([row])
        else:
            row.status, row.reason = OutboxStatus.CANCELLED, row.reason or "cancelled"
            _mark_applied(row)


def moved_in_redis(topic: str, identity: bytes, due_ms: int) -> None:
    """Redis has moved the message: the row notes that, unless its transaction has moved it once
    more."""
    rows = OutboxMessage.objects.filter(
        message_id=UUID(bytes=identity), topic=topic, status=OutboxStatus.MOVED, due_at_ms=due_ms
    ).exclude(task="")
    # Redis may have moved another message, which was enqueued while this one still waited here.
    rows.filter(may_be_in_redis=True).update(
        status=OutboxStatus.WAITING, relay_at_ms=outbox.redis_now_ms()
    )
    rows.update(status=OutboxStatus.SENT, relay_at_ms=outbox.redis_now_ms() + outbox.patience_ms())


def all_cancelled_in_redis(rows: Sequence[OutboxMessage], reason: str) -> None:
    """cancelled_in_redis() for many rows of just these lives, in the caller's transaction."""
    pks = [row.pk for row in _locked_lives(rows)]
    OutboxMessage.objects.filter(pk__in=pks).update(
        status=OutboxStatus.CANCELLED,
        reason=reason[:200],
        changed_at_us=APPLIED,
        relay_at_ms=outbox.redis_now_ms() + outbox.patience_ms(),
    )


def all_moved(moves: Sequence[tuple[OutboxMessage, int]]) -> None:
    """Give rows another due time in ms, in the caller's transaction. Redis does not have them, or
    has moved them already."""
    to = {row.pk: due_ms for row, due_ms in moves}
    rows = _locked_lives([row for row, _ in moves])
    for row in rows:
        move(row, to[row.pk])
        if row.status == OutboxStatus.WAITING:
            row.relay_at_ms = outbox.next_relay_ms(row.due_at_ms)
    fields = ["due_at_ms", "expires_at_ms", "moved_to_ms", "relay_at_ms"]
    OutboxMessage.objects.bulk_update(rows, fields, batch_size=100)


def all_edited(edits: Sequence[tuple[OutboxMessage, bytes]]) -> None:
    """Give rows of just these lives another record, as Redis has it, in the caller's
    transaction."""
    to = {row.pk: record for row, record in edits}
    rows = _locked_lives([row for row, _ in edits])
    for row in rows:
        row.record = without_stamp(to[row.pk])
    OutboxMessage.objects.bulk_update(rows, ["record"], batch_size=20)


def _locked_lives(rows: Sequence[OutboxMessage]) -> list[OutboxMessage]:
    """The rows as they are now, if they are still about the same lives."""
    lives = {row.pk: row.enqueued_at_us for row in rows}
    if not lives:
        return []
    locked_rows = OutboxMessage.objects.filter(pk__in=lives).select_for_update().order_by("pk")
    return [row for row in locked_rows if row.enqueued_at_us == lives[row.pk]]


def relay_soon(topic: str, identity: bytes) -> None:
    """The commit could not reach Redis: let the relay apply the change as soon as it can."""
    rows = OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic=topic)
    rows.filter(status__in=[OutboxStatus.CANCELLED, OutboxStatus.MOVED]).update(
        relay_at_ms=outbox.redis_now_ms()
    )


def apply_all() -> bool:
    """Apply one batch in Redis. Returns whether there may be more. Raises StoreError."""
    connection = connections[get_settings().database]
    failed: StoreError | None = None
    rows = OutboxMessage.objects.filter(
        status__in=[OutboxStatus.CANCELLED, OutboxStatus.MOVED],
        relay_at_ms__lte=get_store().now_us() // 1000,
    )
    if not rows.exists():
        return False
    # A Redis that does not answer fails here, while no row is locked: SQLite would keep all writers
    # waiting for the whole time limit.
    get_store().clock_ms()
    with transaction.atomic(using=connection.alias):
        found = list(locked(rows).order_by("relay_at_ms")[:BATCH])
        for row in found:
            try:
                _apply(row)
            except StoreError as error:
                failed = error
                OutboxMessage.objects.filter(pk=row.pk).update(
                    relay_at_ms=outbox.redis_now_ms() + outbox.AGAIN_MS
                )
                break
    if failed:
        raise failed
    return len(found) == BATCH


def _apply(row: OutboxMessage) -> None:
    action, signal, apply = "cancel", signals.cancelled, apply_cancel
    if row.status == OutboxStatus.MOVED:
        action, signal, apply = "reschedule", signals.rescheduled, apply_move
    event = Event(row.message_id.hex, row.task, row.key or None)
    word = apply(row)
    if word == "OK":
        signals.report(signal, row.topic, [event])
    elif word == "RUNNING" or (
        not row.record and row.may_be_in_redis
    ):  # the archive shows how others ended
        report_refused(action, row.topic, event, word)


def report_refused(action: str, topic: str, event: Event, word: str) -> None:
    """Log and signal that a cancel or a move, which was accepted during an outage, could not be
    applied."""
    why = {"RUNNING": "running", "NOT_FOUND": "not found"}.get(word, word)
    level = logging.WARNING if word != "NOT_FOUND" else logging.INFO
    name = f"{event.key!r}" if event.key else event.id
    logger.log(
        level,
        "%s of message %s of topic %s came too late, or to nothing: %s",
        action,
        name,
        topic,
        why,
    )
    signals.report(signals.refused, topic, [event._replace(reason=why)], action=action)


def apply_cancel(row: OutboxMessage) -> str:
    """Cancel the message of a cancelled row in Redis. Call it in a transaction that holds the row.

    Returns OK, RUNNING (the message goes on, and so does its row) or NOT_FOUND. The archiver
    removes the row of a message that Redis knows.
    """
    store, identity, running, ended = get_store(), row.message_id.bytes, [], []
    for partition in outbox.candidates(row):
        found = store.queries.find(partition, [identity])[0]
        word = store.cancel_in(
            partition, [identity], row.reason or "cancelled", _meant_before_us(row)
        )[0]
        if word == "RUNNING":
            running.append(found.record if found is not None else b"")
        elif word == "OK" and found is not None:
            ended.append(found.record)
    answer = "RUNNING" if running else "OK" if ended else "NOT_FOUND"
    if not row.record:
        row.delete()
        return answer
    if _runs(row, running):
        _live_again(row)
        return answer
    # Another life runs: that of the row was to follow it.
    partition, word = outbox.standing(row)
    if word == "MISSING":
        # Redis had this very message under another stamp, and it is archived under that one. Or it
        # has run exactly once.
        if any(_is_same(record, row) for record in ended) or archive_rows.is_archived(
            identity, row.enqueued_at_us
        ):
            row.delete()
            return answer
        store.tombstone(
            partition, identity, outbox.record_of(row), row.reason or "cancelled", row.due_at_ms
        )
        answer = answer if running else "OK"
    _mark_applied(row)
    return answer


def apply_move(row: OutboxMessage) -> str:
    """Move the message of a moved row in Redis. Call it in a transaction that holds the row.
    Returns OK, RUNNING or NOT_FOUND."""
    moved, running = _move_in_redis(row, row.due_at_ms)
    answer = "OK" if moved else "RUNNING" if running else "NOT_FOUND"
    if not row.record:
        row.delete()
        return answer
    if not moved and _runs(row, running):
        _live_again(row)
        return answer
    # Another life runs: that of the row is to follow it.
    partition, word = outbox.standing(row)
    if word != "MISSING":
        _live_again(row)
        return answer
    if archive_rows.is_archived(row.message_id.bytes, row.enqueued_at_us):
        row.delete()
        return answer
    if moved:
        # Under another stamp, so probably this very message: the relay brings both together.
        row.status, row.relay_at_ms, row.may_be_in_redis = (
            OutboxStatus.WAITING,
            outbox.redis_now_ms(),
            True,
        )
    else:
        begin_anew(row, partition)
    row.save(using=row._state.db)
    return "OK"


def move_live(row: OutboxMessage) -> None:
    """Move another message that is live under the row's id: it was moved during an outage."""
    _move_in_redis(row, row.moved_to_ms)
    OutboxMessage.objects.filter(pk=row.pk).update(moved_to_ms=0)


def _move_in_redis(row: OutboxMessage, due_ms: int) -> tuple[bool, list[bytes]]:
    """Whether a message was moved, and the records of those that run."""
    store, identity, moved = get_store(), row.message_id.bytes, False
    running: list[bytes] = []
    for partition in outbox.candidates(row):
        try:
            store.reschedule_in(partition, identity, When.at(due_ms), _meant_before_us(row))
            moved = True
        except MessageRunning:
            found = store.queries.find(partition, [identity])[0]
            running.append(found.record if found is not None else b"")
        except MessageNotFound:
            continue
    return moved, running


def _runs(row: OutboxMessage, running: Iterable[bytes]) -> bool:
    """Whether one of these running records is the message of the row."""
    return any(
        _is_same(record, row) or stamp_us_of(record) == row.enqueued_at_us for record in running
    )


def _live_again(row: OutboxMessage) -> None:
    row.status, row.reason, row.relay_at_ms = (
        OutboxStatus.SENT,
        "",
        outbox.redis_now_ms() + outbox.patience_ms(),
    )
    row.save(using=row._state.db)


def _mark_applied(row: OutboxMessage) -> None:
    """Note that Redis has applied the cancel. From now on it means only the row's own life, in case
    somebody sends that late. A message that is enqueued right after the cancel is never meant,
    however long the archiver takes to close the row."""
    row.changed_at_us, row.relay_at_ms = APPLIED, outbox.redis_now_ms() + outbox.patience_ms()
    row.save(
        using=row._state.db, update_fields=["status", "reason", "changed_at_us", "relay_at_ms"]
    )


def is_applied(row: OutboxMessage) -> bool:
    """Whether Redis has applied the cancel: a message that it has now under that id is another
    life."""
    return row.changed_at_us == APPLIED


def _is_same(record: bytes, row: OutboxMessage) -> bool:
    """Whether both have the same content, except for the flags: one of them tells that SQL has the
    message."""
    return is_same_content(without_stamp(record), bytes(row.record)) and len(record) >= HEADER_END


def _meant_before_us(row: OutboxMessage) -> int:
    if is_applied(row):
        return row.enqueued_at_us
    error_us = CLOCK_ERROR_US if get_store().client.clock.known else CLOCK_UNKNOWN_US
    return row.changed_at_us + error_us
