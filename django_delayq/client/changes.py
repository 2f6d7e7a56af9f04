"""Cancels, reschedules and edits a message wherever it is: at once, or when the open transaction
commits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connections, transaction

from ..archive.archive_rows import is_archived
from ..core.conf import get_settings
from ..core.exceptions import (
    ConfigurationError,
    DelayQError,
    InvalidMessage,
    MessageChanged,
    MessageNotFound,
    MessageRunning,
    NotWaiting,
    OutcomeUnknown,
    StoreUnavailable,
)
from ..core.ids import key_id, parse_id
from ..core.signals import Event, cancelled, report, rescheduled
from ..core.times import from_ms
from ..core.transactions import awaited
from ..models import OutboxMessage, OutboxStatus
from ..outbox import lookup, outbox, postponed
from ..outbox.existing import check_existing
from ..store import get_store
from ..tasks.builder import edited
from ..tasks.handle import DEFAULT, Manner
from ..tasks.options import check_key
from . import on_commit
from .enqueue import named, unkept

logger = logging.getLogger("delayq")
T = TypeVar("T")
_AWAY = (StoreUnavailable, OutcomeUnknown)
#: In place of a stamp: SQL had no row of the message that is meant.
NO_ROW = 0


class Target(NamedTuple):
    """The message that is meant."""

    topic: str
    identity: bytes
    key: str | None

    @classmethod
    def of(cls, topic: str, key: str | None, message_id: str | UUID | bytes | None) -> Target:
        """Raises InvalidMessage and its subclasses."""
        check_existing(topic)
        if (key is None) == (message_id is None):
            raise InvalidMessage("Give either key or id.")
        identity = (
            key_id(topic, check_key(key) or "") if message_id is None else parse_id(message_id)
        )
        return cls(topic, identity, key)

    @property
    def place(self) -> tuple[str, bytes]:
        """Topic and id."""
        return self.topic, self.identity

    def event(self) -> Event:
        return Event(self.identity.hex(), key=self.key)

    def not_live(self) -> MessageNotFound:
        words = f"{named(self.key, self.identity)} is not live in topic {self.topic!r}"
        return MessageNotFound(f"{words}: never sent, finished or cancelled.")

    def running(self, verb: str) -> MessageRunning:
        return MessageRunning(
            f"{named(self.key, self.identity)}: a worker holds it, so it can no longer be {verb}."
        )


# Public calls


def cancel(
    topic: str, key: str | None, message_id: str | UUID | bytes | None, manner: Manner = DEFAULT
) -> bool:
    """Take a waiting message back. Returns whether there was one; see DelayedTask.cancel()."""
    target = Target.of(topic, key, message_id)
    alias = awaited(manner.database, manner.after_commit)
    withdrawn, may_be_live = _withdraw(target)
    try:
        if withdrawn and not may_be_live:
            return True
        if alias is not None:
            found = _cancel_later(alias, target, manner, withdrawn)
        else:
            found = _cancel_now(target, manner) or withdrawn
    except NotWaiting:
        if manner.missing_ok:
            return False
        raise
    except _AWAY:
        if not withdrawn:
            raise
        found = True
    if not found and not manner.missing_ok:
        raise target.not_live()
    return found


def reschedule(
    topic: str,
    key: str | None,
    message_id: str | UUID | bytes | None,
    when: str,
    manner: Manner = DEFAULT,
) -> datetime | None:
    """Give a waiting message another due time, which is returned; see DelayedTask.reschedule()."""
    target = Target.of(topic, key, message_id)
    alias = awaited(manner.database, manner.after_commit)
    due_ms, counts = _move_pending(target, when)
    try:
        if not counts:  # what is live already is what counts
            if alias is not None:
                due_ms = _reschedule_later(alias, target, when, manner, due_ms)
            else:
                due_ms = _reschedule_now(target, when, manner) or due_ms
    except NotWaiting:
        if manner.missing_ok:
            return None
        raise
    except _AWAY:
        if due_ms is None:
            raise
    if due_ms is None and not manner.missing_ok:
        raise target.not_live()
    return None if due_ms is None else from_ms(due_ms)


def edit(
    topic: str, message_id: str | UUID | bytes, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Give a waiting message other arguments, at once. Raises MessageNotFound, MessageRunning,
    MessageChanged, InvalidMessage, and StoreUnavailable when Redis may have it and is away.

    What an open transaction has yet to send is refused too.
    """
    target = Target.of(topic, None, message_id)
    if on_commit.find(*target.place):
        raise InvalidMessage(
            "This message is sent when the open transaction commits: edit it after that."
        )

    def change(record: bytes) -> bytes:
        return edited(record, args, kwargs)

    row = _row(target)
    try:
        if row is not None and lookup.is_unsettled(row):
            get_store().clock_ms()  # raises while Redis is away
            raise MessageChanged  # until the relay has brought both together
        found = _edit_in_redis(target, change) or lookup.edit(*target.place, change)
    except _AWAY:
        if not lookup.edit(*target.place, change, only_waiting=True):
            raise
        found = True
    except MessageRunning:
        raise target.running("edited") from None
    if not found:
        raise target.not_live()


# At once


def _cancel_now(target: Target, manner: Manner, stamp_us: int | None = None) -> bool:
    """Whether there was something to take back. Raises MessageRunning, and StoreUnavailable when it
    may not be kept.

    `stamp_us` names the life of the row that is meant, NO_ROW none: another one has been enqueued
    since.
    """
    try:
        _refuse_to_wait(manner)
        row = _unless_cancelled(_row(target, stamp_us))
        if row is not None and lookup.is_unsettled(row):
            word = postponed.cancel(*target.place, stamp_us)
        else:
            word = get_store().cancel(*target.place)
            if word == "OK" and row is not None:
                _tell_outbox(partial(postponed.cancelled_in_redis, *target.place, stamp_us))
            elif word == "NOT_FOUND" and row is not None:
                word = postponed.cancel(*target.place, stamp_us)
    except _AWAY as error:
        unknown = isinstance(error, OutcomeUnknown)
        keep = partial(postponed.keep_cancel, *target, unknown=unknown, stamp_us=stamp_us)
        return _keep(error, target, manner, keep)
    if word == "RUNNING":
        raise target.running("cancelled")
    if word == "OK":
        report(cancelled, target.topic, [target.event()])
    return word == "OK"


def _reschedule_now(
    target: Target, when: str, manner: Manner, stamp_us: int | None = None
) -> int | None:
    """The new due time in ms, None when there is nothing to move. Raises as _cancel_now() does."""
    try:
        _refuse_to_wait(manner)
        row = _unless_cancelled(_row(target, stamp_us))
        if row is not None and lookup.is_unsettled(row):
            word, moved_ms = postponed.reschedule(*target.place, when, stamp_us)
            if word == "RUNNING":
                raise MessageRunning
            due_ms = moved_ms if word == "OK" else None
        else:
            due_ms = _reschedule_in_redis(target, when)
            if due_ms is not None:
                _tell_outbox(partial(lookup.follow, *target.place, due_ms, stamp_us))
            elif row is not None and _row(target, row.enqueued_at_us) is not None:
                due_ms = lookup.reschedule(*target.place, when)
    except MessageRunning:
        raise target.running("moved") from None
    except _AWAY as error:
        return _keep(error, target, manner, partial(postponed.keep_move, *target, when, stamp_us))
    if due_ms is not None:
        report(rescheduled, target.topic, [target.event()])
    return due_ms


def _unless_cancelled(row: OutboxMessage | None) -> OutboxMessage | None:
    """A cancel that Redis may not have heard of is said first. Then only what has come since can be
    meant."""
    if row is None or row.status != OutboxStatus.CANCELLED:
        return row
    postponed.cancel(row.topic, row.message_id.bytes, row.enqueued_at_us)
    return None


def _refuse_to_wait(manner: Manner) -> None:
    """While Redis is known to be away nobody waits for a timeout, if what is said can be kept."""
    if get_store().breaker.open and _may_keep(manner):
        raise StoreUnavailable("Redis is away.")


def _may_keep(manner: Manner) -> bool:
    """Whether the outbox may keep what Redis cannot be told. Inside a transaction a rollback would
    take it away."""
    settings = get_settings()
    how = manner.on_redis_error or settings.on_redis_error
    return how == "spill" and not connections[settings.database].in_atomic_block


def _keep(error: DelayQError, target: Target, manner: Manner, keep: Callable[[], T]) -> T:
    """Let the outbox keep what Redis could not be told. Raises `error` when it may not, or
    cannot."""
    if not _may_keep(manner):
        # What only the outbox has needs no Redis.
        if not _is_only_here(_row(target)):
            raise error
        return keep()
    is_first = not get_store().breaker.open
    get_store().breaker.trip()
    try:
        with outbox.migrated():
            kept = keep()
    except (Error, SynchronousOnlyOperation, ConfigurationError) as failed:
        raise unkept(error, failed) from failed
    if is_first:
        logger.warning(
            "what cancel and reschedule say is kept in the outbox until Redis is back: %s", error
        )
    return kept


# When the transaction commits


def _cancel_later(alias: str, target: Target, manner: Manner, withdrawn: bool) -> bool:
    """Cancel at the commit. Raises what can be known now."""
    # What is live now may be cancelled by this transaction already; what it has enqueued since may
    # be a row only.
    seen = "" if on_commit.is_cancelled(*target.place) else _look(target, manner, withdrawn)
    if seen in ("runs", "follows") and not manner.missing_ok:
        raise target.running("cancelled")
    in_row, stamp_us = _cancel_row(alias, target, seen)
    if in_row == "marked":
        act = partial(_say_at_commit, "cancel", target, manner.missing_ok, stamp_us)
        on_commit.add_change(alias, target.place, act, cancels=True)
    elif in_row == "elsewhere" or (seen and in_row != "ended"):
        act = partial(_cancel_at_commit, target, manner, manner.missing_ok or withdrawn, stamp_us)
        on_commit.add_change(alias, target.place, act, cancels=True)
    return withdrawn or seen in ("waits", "unknown") or in_row != ""


def _cancel_at_commit(target: Target, manner: Manner, quiet: bool, stamp_us: int) -> None:
    """Never raises what somebody could have expected: nobody could catch it."""
    try:
        word = "OK" if _cancel_now(target, manner, stamp_us) else "NOT_FOUND"
    except MessageRunning:
        word = "RUNNING"
    except _AWAY as error:
        word, quiet = f"{type(error).__name__}: {error}", False
    if word != "OK" and not quiet:
        postponed.tell_refused("cancel", target.topic, target.event(), word)


def _reschedule_later(
    alias: str, target: Target, when: str, manner: Manner, due_ms: int | None
) -> int | None:
    """Move at the commit. Returns the new due time in ms as far as it is known. Raises what can be
    known now."""
    pending_one = due_ms is not None
    seen = "" if on_commit.is_cancelled(*target.place) else _look(target, manner, pending_one)
    if seen == "runs" and not pending_one:
        raise target.running("moved")
    then = lookup.due_ms_of(when)
    in_row, stamp_us = ("", None) if pending_one else _move_row(alias, target, then, seen)
    if in_row == "marked":
        # What SQL holds has an instant; what only Redis has counts a delay from the commit, as an
        # enqueue does.
        act = partial(_say_at_commit, "reschedule", target, False, stamp_us, str(then))
        on_commit.add_change(alias, target.place, act, cancels=False)
    elif in_row == "elsewhere" or (seen not in ("", "runs") and in_row != "moved"):
        act = partial(_reschedule_at_commit, target, when, manner, pending_one, stamp_us)
        on_commit.add_change(alias, target.place, act, cancels=False)
    elif not in_row:
        return due_ms
    return due_ms or then


def _reschedule_at_commit(
    target: Target, when: str, manner: Manner, quiet: bool, stamp_us: int | None
) -> None:
    try:
        word = "OK" if _reschedule_now(target, when, manner, stamp_us) is not None else "NOT_FOUND"
    except MessageRunning:
        word = "RUNNING"
    except _AWAY as error:
        word, quiet = f"{type(error).__name__}: {error}", False
    if word != "OK" and not quiet:
        postponed.tell_refused("reschedule", target.topic, target.event(), word)


def _say_at_commit(
    action: str, target: Target, quiet: bool, stamp_us: int | None, when: str = ""
) -> None:
    """Tell Redis what the row says since the commit. If nobody can, the relay does.

    `stamp_us` names the life that was meant: the same transaction may have enqueued another one
    since.
    """
    try:
        if get_store().breaker.open:
            raise StoreUnavailable
        if action == "cancel":
            word = get_store().cancel(*target.place)
            if word == "OK":
                _tell_outbox(partial(postponed.cancelled_in_redis, *target.place, stamp_us))
            else:
                word = postponed.cancel(*target.place, stamp_us)
        else:
            word = _move_marked(target, stamp_us, when)
    except _AWAY:
        get_store().breaker.trip()
        _tell_outbox(partial(postponed.hurry, *target.place))
        return
    if word == "OK":
        report(cancelled if action == "cancel" else rescheduled, target.topic, [target.event()])
    elif not quiet:
        postponed.tell_refused(action, target.topic, target.event(), word)


def _move_marked(target: Target, stamp_us: int | None, when: str) -> str:
    try:
        moved = _reschedule_in_redis(target, when)
    except MessageRunning:
        moved = None
    if moved is None:
        return postponed.reschedule(*target.place, when, stamp_us)[0]
    _tell_outbox(partial(postponed.moved_in_redis, *target.place, moved))
    return "OK"


def _look(target: Target, manner: Manner, found: bool) -> str:
    """What Redis has now: waits, runs, "" (nothing) or unknown. Raises StoreUnavailable where that
    is to be raised."""
    store = get_store()
    spills = (manner.on_redis_error or get_settings().on_redis_error) == "spill"
    try:
        if store.breaker.open and spills:
            return "unknown"
        states = [found.state for _, found in store.find_many([target.place])]
        runs = bool(states) and all(state == "leased" for state in states)
        if runs and store.has_follower(*target.place):
            return "follows"
        return "runs" if runs else "waits" if states else ""
    except _AWAY:
        if not spills and not found and not _is_only_here(_row(target)):
            raise
        if spills:
            store.breaker.trip()
        return "unknown"


def _cancel_row(alias: str, target: Target, seen: str) -> tuple[str, int]:
    """Cancel, in the open transaction, what SQL holds: ended (it was only there), marked (Redis may
    have it), elsewhere (the row is not of that transaction) or "". And the stamp of the row."""
    row = _row_for(alias, target)
    stamp_us = NO_ROW if row is None else row.enqueued_at_us
    if alias != get_settings().database:
        return "elsewhere" if _is_live_row(row, seen) else "", stamp_us
    if row is not None and row.status == OutboxStatus.CANCELLED and seen in ("waits", "unknown"):
        # It was to replace a live one and was taken back, or something has been enqueued since.
        lookup.mark(row, OutboxStatus.CANCELLED, "cancelled", in_ms=postponed.patience_ms())
        return "marked", stamp_us
    if row is None or not _is_live_row(row, seen):
        return "", stamp_us
    if _is_only_here(row):
        lookup.end([row])
        return "ended", stamp_us
    lookup.mark(row, OutboxStatus.CANCELLED, "cancelled", in_ms=postponed.patience_ms())
    return "marked", stamp_us


def _move_row(alias: str, target: Target, due_ms: int, seen: str) -> tuple[str, int]:
    """The same for a new due time: moved (it was only there), marked, elsewhere or ""."""
    row = _row_for(alias, target)
    stamp_us = NO_ROW if row is None else row.enqueued_at_us
    if alias != get_settings().database:
        return "elsewhere" if _is_live_row(row, seen) else "", stamp_us
    if row is None or not _is_live_row(row, seen):
        return "", stamp_us
    lookup.move(row, due_ms)
    if _is_only_here(row):
        row.relay_at_ms = max(outbox.now_ms(), outbox.relay_at_ms(due_ms))
        row.save(using=row._state.db)
        return "moved", stamp_us
    lookup.mark(row, OutboxStatus.MOVED, in_ms=postponed.patience_ms())
    return "marked", stamp_us


def _row_for(alias: str, target: Target) -> OutboxMessage | None:
    """The row of the message; locked, if it is of that transaction."""
    if alias != get_settings().database:
        return _row(target)
    with _savepoint(alias):
        return lookup.lock(*target.place)
    return None  # type: ignore[unreachable]  # the database did not answer: the error ends in the savepoint


def _is_only_here(row: OutboxMessage | None) -> bool:
    """Whether Redis cannot have it."""
    return row is not None and row.status == OutboxStatus.WAITING and not row.told


def _is_live_row(row: OutboxMessage | None, seen: str) -> bool:
    """Whether the row is that of a message that can be cancelled or moved."""
    if row is None or row.status == OutboxStatus.CANCELLED or seen in ("runs", "follows"):
        return False
    if row.status != OutboxStatus.SENT or seen != "":
        return True
    # Redis has lost it, unless it has ended and the archiver has not closed its row yet.
    return not outbox.is_done(row) and not is_archived(row.message_id.bytes, row.enqueued_at_us)


# Wherever it is


def _withdraw(target: Target) -> tuple[bool, bool]:
    """Forget what an open transaction would send at its commit.

    Returns whether there was something, and whether something else under its id may be live.
    """
    found, may_be_live = False, True
    while place := on_commit.find(*target.place):
        database, item = place
        on_commit.replace(database, item, None)
        if item.template.durable:
            lookup.withdraw(*target.place)
        found, may_be_live = True, item.template.fixed
    return found, may_be_live


def _move_pending(target: Target, when: str) -> tuple[int | None, bool]:
    """Give another due time to what an open transaction would send at its commit.

    Returns it, and whether that message is the one that counts then, whatever is live now.
    """
    place = on_commit.find(*target.place)
    if place is None:
        return None, False
    database, item = place
    if item.template.durable:
        moved = lookup.reschedule_unsent(*target.place, when)
        if moved is None:
            return None, False
        on_commit.replace(database, item, item._replace(message=moved[1]) if moved[1] else None)
        return moved[0], True
    _, mode, _, expires, record = item.message
    on_commit.replace(
        database, item, item._replace(message=(target.identity, mode, when, expires, record))
    )
    return lookup.due_ms_of(when), mode == "replace" or not item.template.fixed


def _reschedule_in_redis(target: Target, when: str) -> int | None:
    """The new due time in ms, None when there is nothing. Raises MessageRunning."""
    try:
        return get_store().reschedule(*target.place, when)
    except MessageNotFound:
        return None


def _edit_in_redis(target: Target, change: Callable[[bytes], bytes]) -> bool:
    after = get_store().edit(*target.place, change)
    if after is None:
        return False
    _tell_outbox(partial(lookup.follow_edit, *target.place, after))
    return True


def _row(target: Target, stamp_us: int | None = None) -> OutboxMessage | None:
    """The row of the message, with `stamp_us` only of that life.

    None too when the outbox cannot be asked: then what Redis says has to do.
    """
    alias, row = get_settings().database, None
    try:
        if connections[alias].in_atomic_block:
            with _savepoint(alias):
                row = lookup.find(*target.place)
        else:
            row = lookup.find(*target.place)
    except (Error, SynchronousOnlyOperation) as error:
        logger.warning("the outbox could not be looked at: %s", error)
    return row if row is not None and stamp_us in (None, row.enqueued_at_us) else None


@contextmanager
def _savepoint(alias: str) -> Iterator[None]:
    """Around statements in somebody's transaction: a project that has no table for the outbox has
    no row either, and its transaction goes on."""
    with suppress(ConfigurationError), outbox.migrated(), transaction.atomic(using=alias):
        yield


def _tell_outbox(change: Callable[[], object]) -> None:
    """Do the same to what the outbox holds. Redis has obeyed already, so nothing that goes wrong
    here is an error."""
    try:
        change()
    except (Error, SynchronousOnlyOperation) as error:
        logger.warning("Redis has obeyed, but the outbox could not be looked at: %s", error)
