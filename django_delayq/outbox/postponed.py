"""What Redis has yet to hear: cancels and moves of messages that it may have, kept in the outbox
until they are said.

Beside a message's row, or as a row without a record for a message that Redis alone has. They are
said at the commit, else by the relay. Saying them twice changes nothing, and a message that was
enqueued later is not meant, as far as clocks tell (CLOCK_ERROR_US).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from uuid import UUID

from django.db import Error, connections, transaction

from ..archive import archive_rows
from ..core import signals
from ..core.conf import get_settings
from ..core.exceptions import MessageNotFound, MessageRunning, StoreError
from ..core.message import HEADER_END, is_same_content, stamp_us_of, without_stamp
from ..core.signals import Event
from ..models import OutboxMessage, OutboxStatus
from ..store import get_store
from . import outbox
from .lookup import begin_anew, due_ms_of, end, lock, mark, move

logger = logging.getLogger("delayq")

#: Rows that one round of the relay looks at. Each takes a few calls of Redis, and they are few:
#: those of an outage.
BATCH = 100
#: Microseconds by which this process's idea of Redis' clock may be behind, with a reading of it and
#: without one.
CLOCK_ERROR_US = 100_000
CLOCK_UNKNOWN_US = 2_000_000
#: In place of the instant of a cancel: Redis has obeyed, so that nothing was enqueued before it any
#: more.
OBEYED = 0
#: Milliseconds after which the relay tries again what Redis did not take.
AGAIN_MS = 500

# Keeping


#: What this process has kept and Redis has perhaps not heard yet: an enqueue of the same key must
#: not overtake it. And whether it is a cancel.
unsaid: dict[tuple[str, bytes], bool] = {}
MOST_UNSAID = 10_000


def remember(topic: str, identity: bytes, *, cancels: bool) -> None:
    """Something was kept."""
    if len(unsaid) >= MOST_UNSAID:
        unsaid.clear()
    unsaid[topic, identity] = cancels


def catch_up(places: Iterable[tuple[str, bytes]]) -> None:
    """Before an enqueue: tell Redis what this process has kept for these ids, unless it was
    told."""
    for topic, identity in unsaid.keys() & places:
        unsaid.pop((topic, identity), None)
        if get_store().breaker.open:
            continue  # then the enqueue takes the row over
        try:
            with transaction.atomic(using=get_settings().database):
                row = lock(topic, identity)
                if row is not None and row.status in (OutboxStatus.CANCELLED, OutboxStatus.MOVED):
                    _say(row)
        except (StoreError, Error) as error:
            logger.warning(
                "the relay tells Redis what was kept for message %s: %s", identity.hex(), error
            )


def keep_cancel(
    topic: str,
    identity: bytes,
    key: str | None,
    *,
    unknown: bool = False,
    stamp_us: int | None = None,
) -> bool:
    """Cancel without Redis, which hears of it later. False: it is cancelled already.

    `unknown`: Redis may have obeyed. `stamp_us`: only that life; one that came since takes its
    place.
    """
    with transaction.atomic(using=get_settings().database):
        row = _row(topic, identity, key)
        if row.record and stamp_us not in (None, row.enqueued_at_us):
            row.on_duplicate, row.told = "replace", True
            row.save(using=row._state.db, update_fields=["on_duplicate", "told"])
            return True
        if row.status == OutboxStatus.CANCELLED:
            may_be_live = has_obeyed(row)
            mark(row, OutboxStatus.CANCELLED, row.reason)  # also for what has been enqueued since
            if may_be_live:
                remember(topic, identity, cancels=True)
            return may_be_live
        if row.status == OutboxStatus.WAITING and row.record and not row.told:
            end([row])
        else:
            row.told = row.told and not (unknown and not row.record)
            mark(row, OutboxStatus.CANCELLED, "cancelled")
            remember(topic, identity, cancels=True)
        return True


def keep_move(
    topic: str, identity: bytes, key: str | None, when: str, stamp_us: int | None = None
) -> int | None:
    """Reschedule without Redis, which hears of it later. Returns the new due time in ms; None: it
    is cancelled.

    `stamp_us`: only that life.
    """
    with transaction.atomic(using=get_settings().database):
        row = _row(topic, identity, key)
        if row.record and stamp_us not in (None, row.enqueued_at_us):
            return row.due_at_ms
        if row.status == OutboxStatus.CANCELLED and has_obeyed(
            row
        ):  # what has been enqueued since is meant
            end([row])
            row = _row(topic, identity, key)
        if row.status == OutboxStatus.CANCELLED:
            return None
        move(row, due_ms_of(when))
        if row.status == OutboxStatus.WAITING and row.record and not row.told:
            row.relay_at_ms = max(outbox.now_ms(), outbox.relay_at_ms(row.due_at_ms))
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
        word = OutboxMessage(
            message_id=UUID(bytes=identity),
            enqueued_at_us=now_us,
            topic=topic,
            key=key or "",
            on_duplicate="replace",
            due_at_ms=0,
            record=b"",
            status=OutboxStatus.WAITING,
            relay_at_ms=0,
            told=True,
        )
        rows.bulk_create([word], ignore_conflicts=True)
    raise MessageNotFound  # the id is that of a message of another topic


# Saying


def cancel(topic: str, identity: bytes, stamp_us: int | None = None) -> str:
    """Cancel what SQL has a row of, wherever it is; with `stamp_us` only that life.

    Returns OK (also when another life has taken its place), RUNNING, or NOT_FOUND (it has ended).
    """
    with transaction.atomic(using=get_settings().database):
        row = lock(topic, identity)
        if row is None:
            return "NOT_FOUND"
        if stamp_us not in (None, row.enqueued_at_us):
            return "OK"
        if row.status == OutboxStatus.WAITING and not row.told:
            end([row])
            return "OK"
        if row.status != OutboxStatus.CANCELLED:
            mark(row, OutboxStatus.CANCELLED, "cancelled")
        return say_cancel(row)


def reschedule(
    topic: str, identity: bytes, when: str, stamp_us: int | None = None
) -> tuple[str, int]:
    """Move what SQL has a row of, wherever it is; with `stamp_us` only that life.

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
        return say_move(row), row.due_at_ms


def cancelled_in_redis(topic: str, identity: bytes, stamp_us: int | None = None) -> None:
    """Redis has obeyed. What waits here under its id ends too; of a sent one nothing may come back,
    should Redis lose its memory before the archiver has read of it. `stamp_us`: only that life."""
    with transaction.atomic(using=get_settings().database):
        row = lock(topic, identity)
        if row is None or stamp_us not in (None, row.enqueued_at_us):
            return
        if not row.record:
            row.delete()
        elif row.status == OutboxStatus.WAITING and not row.told:
            end([row])
        else:
            row.status, row.reason = OutboxStatus.CANCELLED, row.reason or "cancelled"
            _obeyed(row)


def moved_in_redis(topic: str, identity: bytes, due_ms: int) -> None:
    """Redis has obeyed: the row says so, unless its transaction has moved it on, which Redis hears
    next."""
    rows = OutboxMessage.objects.filter(
        message_id=UUID(bytes=identity), topic=topic, status=OutboxStatus.MOVED
    )
    rows.filter(due_at_ms=due_ms).exclude(task="").update(
        status=OutboxStatus.SENT, relay_at_ms=outbox.now_ms() + patience_ms()
    )


def hurry(topic: str, identity: bytes) -> None:
    """The commit could not tell Redis: the relay does it as soon as it can."""
    rows = OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic=topic)
    rows.filter(status__in=[OutboxStatus.CANCELLED, OutboxStatus.MOVED]).update(
        relay_at_ms=outbox.now_ms()
    )


def say_all() -> bool:
    """Tell Redis what it has yet to hear, one batch. Returns whether there may be more. Raises
    StoreError."""
    connection = connections[get_settings().database]
    errors: list[StoreError] = []
    rows = OutboxMessage.objects.filter(
        status__in=[OutboxStatus.CANCELLED, OutboxStatus.MOVED],
        relay_at_ms__lte=get_store().now_us() // 1000,
    )
    if not rows.exists():
        return False
    with transaction.atomic(using=connection.alias):
        if connection.features.has_select_for_update_skip_locked:
            rows = rows.select_for_update(skip_locked=True)
        found = list(rows.order_by("relay_at_ms")[:BATCH])
        for row in found:
            try:
                _say(row)
            except StoreError as error:
                errors.append(error)
                OutboxMessage.objects.filter(pk=row.pk).update(
                    relay_at_ms=outbox.now_ms() + AGAIN_MS
                )
                break
    if errors:
        raise errors[0]
    return len(found) == BATCH


def _say(row: OutboxMessage) -> None:
    action, signal, said = "cancel", signals.cancelled, say_cancel
    if row.status == OutboxStatus.MOVED:
        action, signal, said = "reschedule", signals.rescheduled, say_move
    event = Event(row.message_id.hex, row.task, row.key or None)
    word = said(row)
    if word == "OK":
        signals.report(signal, row.topic, [event])
    elif word == "RUNNING" or (
        not row.record and row.told
    ):  # of the others the archive tells how they have ended
        tell_refused(action, row.topic, event, word)


def tell_refused(action: str, topic: str, event: Event, word: str) -> None:
    """What was promised when nobody could know."""
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


def say_cancel(row: OutboxMessage) -> str:
    """Cancel in Redis what a row says is cancelled. In a transaction that holds the row.

    Returns OK, RUNNING (it goes on, and so does its row) or NOT_FOUND. The archiver removes what
    Redis knows.
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
    if any(_is_same(one, row) or stamp_us_of(one) == row.enqueued_at_us for one in running):
        _live_again(row)
        return answer
    # What runs is another life: that of the row was to follow it.
    partition, word = outbox.standing(row)
    if word == "MISSING":
        # What Redis had under another stamp was this very message: it is archived as that. Or it
        # has run exactly once.
        if any(_is_same(one, row) for one in ended) or archive_rows.is_archived(
            identity, row.enqueued_at_us
        ):
            row.delete()
            return answer
        store.tombstone(
            partition, identity, outbox.record_of(row), row.reason or "cancelled", row.due_at_ms
        )
        answer = answer if running else "OK"
    _obeyed(row)
    return answer


def say_move(row: OutboxMessage) -> str:
    """Move in Redis what a row says is moved. In a transaction that holds the row. Returns OK,
    RUNNING or NOT_FOUND."""
    answer = _move_in_redis(row, row.due_at_ms)
    if answer == "RUNNING" or not row.record:
        _live_again(row)
        return answer
    partition, word = outbox.standing(row)
    if word != "MISSING":
        _live_again(row)
        return answer
    if archive_rows.is_archived(row.message_id.bytes, row.enqueued_at_us):
        row.delete()
        return answer
    if (
        answer == "OK"
    ):  # under another stamp, so probably this very message: the relay brings both together
        row.status, row.relay_at_ms, row.told = OutboxStatus.WAITING, outbox.now_ms(), True
    else:
        begin_anew(row, partition)
    row.save(using=row._state.db)
    return "OK"


def move_live(row: OutboxMessage) -> None:
    """Another message is live under the row's id, and was moved while nobody could know of it."""
    _move_in_redis(row, row.moved_to_ms)
    OutboxMessage.objects.filter(pk=row.pk).update(moved_to_ms=0)


def _move_in_redis(row: OutboxMessage, due_ms: int) -> str:
    place = row.topic, row.message_id.bytes
    try:
        get_store().reschedule(*place, str(due_ms), _meant_before_us(row))
    except MessageRunning:
        return "RUNNING"
    except MessageNotFound:
        return "NOT_FOUND"
    return "OK"


def _live_again(row: OutboxMessage) -> None:
    if not row.record:
        row.delete()
        return
    row.status, row.reason, row.relay_at_ms = OutboxStatus.SENT, "", outbox.now_ms() + patience_ms()
    row.save(using=row._state.db)


def _obeyed(row: OutboxMessage) -> None:
    """Redis has cancelled what was meant. From now on that is the row's own life, should somebody
    send it late: what is enqueued right after the cancel is never meant, however long the archiver
    takes to close the row."""
    row.changed_at_us, row.relay_at_ms = OBEYED, outbox.now_ms() + patience_ms()
    row.save(
        using=row._state.db, update_fields=["status", "reason", "changed_at_us", "relay_at_ms"]
    )


def has_obeyed(row: OutboxMessage) -> bool:
    """Whether Redis is known to have heard of the cancel: what it has now under that id is another
    life."""
    return row.changed_at_us == OBEYED


def _is_same(record: bytes, row: OutboxMessage) -> bool:
    """Whether it is the same content: but for the flags, of which one tells that SQL has it."""
    return is_same_content(without_stamp(record), bytes(row.record)) and len(record) >= HEADER_END


def _meant_before_us(row: OutboxMessage) -> int:
    if has_obeyed(row):
        return row.enqueued_at_us
    error_us = CLOCK_ERROR_US if get_store().client.clock.known else CLOCK_UNKNOWN_US
    return row.changed_at_us + error_us


def patience_ms() -> int:
    """How long whoever is at it is left alone by the relay and the reconciler."""
    return int(get_settings().reconcile_after * 1000)
