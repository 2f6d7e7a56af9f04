"""Cancels, reschedules and edits a message wherever it is: at once, or when the open transaction
commits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connections, transaction
from django.dispatch import Signal

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
from ..core.signals import cancelled, report, rescheduled
from ..core.times import When, from_ms
from ..models import OutboxMessage, OutboxStatus
from ..outbox import lookup, outbox, postponed
from ..store import get_store
from ..tasks.builder import edited
from ..tasks.options import ChangeOptions
from ..tasks.redaction import refuse_mark
from . import on_commit
from .enqueue import awaited
from .finding import Target
from .sender import outbox_failed_too

logger = logging.getLogger("delayq")
T = TypeVar("T")
_AWAY = (StoreUnavailable, OutcomeUnknown)
DEFAULT = ChangeOptions()
#: How often a cancel follows a message that begins and ends to run under its hands.
TRIES = 10
#: Stands for a stamp when SQL had no row of the message.
NO_ROW = 0


# Public calls


def cancel(
    topic: str,
    key: str | None,
    message_id: str | UUID | bytes | None,
    how: ChangeOptions = DEFAULT,
) -> bool:
    """Take a waiting message back. Returns whether there was one; see DelayedTask.cancel()."""
    target = Target.of(topic, key, message_id)
    return _cancel_wherever(target, how) if how.running else _cancel_waiting(target, how)


def _cancel_waiting(target: Target, how: ChangeOptions) -> bool:
    alias = awaited(how.database, how.after_commit)
    withdrawn, may_be_live = _withdraw(target)
    try:
        if withdrawn and not may_be_live:
            return True
        if alias is not None:
            found = _cancel_later(alias, target, how, withdrawn)
        else:
            found = _cancel_now(target, how) or withdrawn
    except NotWaiting:
        if how.missing_ok:
            return False
        raise
    except _AWAY:
        if not withdrawn:
            raise
        found = True
    if not found and not how.missing_ok:
        raise target.not_live()
    return found


def _cancel_wherever(target: Target, how: ChangeOptions) -> bool:
    """Cancel at once, also what runs. Raises MessageNotFound, StoreUnavailable."""
    at_once = ChangeOptions(False, False, how.database, "raise")
    for _ in range(TRIES):
        try:
            return _cancel_waiting(target, at_once)
        except MessageNotFound:
            if how.missing_ok:
                return False
            raise target.not_live() from None
        except MessageRunning:
            row = _row(target)
            if get_store().cancel_running(*target.address):
                if row is not None:
                    stamp_us = row.enqueued_at_us
                    _update_outbox(partial(postponed.cancelled_in_redis, *target.address, stamp_us))
                report(cancelled, target.topic, [target.event()])
                return True
        # Its run has ended meanwhile: perhaps it waits for another attempt.
    raise MessageChanged


def reschedule(
    topic: str,
    key: str | None,
    message_id: str | UUID | bytes | None,
    when: When,
    how: ChangeOptions = DEFAULT,
) -> datetime | None:
    """Give a waiting message another due time, which is returned; see DelayedTask.reschedule()."""
    target = Target.of(topic, key, message_id)
    alias = awaited(how.database, how.after_commit)
    due_ms, counts = _move_pending(target, when)
    try:
        if not counts:  # the message that is live already counts
            if alias is not None:
                due_ms = _reschedule_later(alias, target, when, how, due_ms)
            else:
                due_ms = _reschedule_now(target, when, how) or due_ms
    except NotWaiting:
        if how.missing_ok:
            return None
        raise
    except _AWAY:
        if due_ms is None:
            raise
    if due_ms is None and not how.missing_ok:
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
    refuse_mark(args, kwargs)
    if on_commit.find(*target.address):
        raise InvalidMessage(
            "This message is sent when the open transaction commits: edit it after that."
        )

    change = partial(edited, identity=target.identity, args=args, kwargs=kwargs)
    row = _row(target)
    try:
        if row is not None and lookup.is_unsettled(row):
            get_store().clock_ms()  # raises while Redis is away
            raise MessageChanged  # until the relay has brought both together
        after = get_store().edit(*target.address, change)
        if after is not None:
            _update_outbox(partial(lookup.follow_edit, *target.address, after))
        found = after is not None or lookup.edit(*target.address, change)
    except _AWAY:
        if not lookup.edit(*target.address, change, only_waiting=True):
            raise
        found = True
    except MessageRunning:
        raise target.running("edited") from None
    if not found:
        raise target.not_live()


# At once


def _cancel_now(target: Target, how: ChangeOptions, stamp_us: int | None = None) -> bool:
    """Cancel at once. Returns whether there was something to take back. Raises MessageRunning, and
    StoreUnavailable when the outbox may not keep the cancel.

    `stamp_us` names the life of the row that is meant, and NO_ROW that no row is meant: another one
    may have been enqueued since.
    """
    try:
        _refuse_to_wait(how)
        row = _unless_cancelled(_row(target, stamp_us))
        if row is not None and lookup.is_unsettled(row):
            word = postponed.cancel(*target.address, stamp_us)
        else:
            word = get_store().cancel(*target.address)
            if word == "OK" and row is not None:
                _update_outbox(partial(postponed.cancelled_in_redis, *target.address, stamp_us))
            elif word == "NOT_FOUND" and row is not None:
                word = postponed.cancel(*target.address, stamp_us)
    except _AWAY as error:
        unknown = isinstance(error, OutcomeUnknown)
        keep = partial(postponed.keep_cancel, *target, unknown=unknown, stamp_us=stamp_us)
        return _keep(error, target, how, keep)
    if word == "RUNNING":
        raise target.running("cancelled")
    if word == "OK":
        report(cancelled, target.topic, [target.event()])
    return word == "OK"


def _reschedule_now(
    target: Target, when: When, how: ChangeOptions, stamp_us: int | None = None
) -> int | None:
    """Move at once. Returns the new due time in ms, None when there is nothing to move. Raises the
    same errors as _cancel_now()."""
    try:
        _refuse_to_wait(how)
        row = _unless_cancelled(_row(target, stamp_us))
        if row is not None and lookup.is_unsettled(row):
            word, moved_ms = postponed.reschedule(*target.address, when, stamp_us)
            if word == "RUNNING":
                raise MessageRunning
            due_ms = moved_ms if word == "OK" else None
        else:
            due_ms = get_store().reschedule(*target.address, when)
            if due_ms is not None:
                _update_outbox(partial(lookup.follow_move, *target.address, due_ms, stamp_us))
            elif row is not None and _row(target, row.enqueued_at_us) is not None:
                due_ms = lookup.reschedule(*target.address, when)
    except MessageRunning:
        raise target.running("moved") from None
    except _AWAY as error:
        return _keep(error, target, how, partial(postponed.keep_move, *target, when, stamp_us))
    if due_ms is not None:
        report(rescheduled, target.topic, [target.event()])
    return due_ms


def _unless_cancelled(row: OutboxMessage | None) -> OutboxMessage | None:
    """The row, or None for a cancelled one. Redis may not have that cancel yet, so it is applied
    here. Then the caller can only mean a message that was enqueued since."""
    if row is None or row.status != OutboxStatus.CANCELLED:
        return row
    postponed.cancel(row.topic, row.message_id.bytes, row.enqueued_at_us)
    return None


def _refuse_to_wait(how: ChangeOptions) -> None:
    """Raise StoreUnavailable at once, and wait for no timeout, while Redis is known to be away and
    the outbox may keep the change."""
    if get_store().breaker.open and _may_keep(how):
        raise StoreUnavailable("Redis is away.")


def _may_keep(how: ChangeOptions) -> bool:
    """Whether the outbox may keep a change that cannot reach Redis. Inside a transaction a rollback
    would take it away."""
    settings = get_settings()
    policy = how.on_redis_error or settings.on_redis_error
    return policy == "spill" and not connections[settings.database].in_atomic_block


def _keep(error: DelayQError, target: Target, how: ChangeOptions, keep: Callable[[], T]) -> T:
    """Let the outbox keep a change that could not reach Redis. Raises `error` when it may not, or
    cannot."""
    if not _may_keep(how):
        # A message that only the outbox has needs no Redis.
        if not _is_only_here(_row(target)):
            raise error
        return keep()
    is_first = not get_store().breaker.open
    get_store().breaker.trip()
    try:
        with outbox.migrated():
            kept = keep()
    except (Error, SynchronousOnlyOperation, ConfigurationError) as failed:
        raise outbox_failed_too(error, failed) from failed
    if is_first:
        logger.warning("the outbox keeps cancels and reschedules until Redis is back: %s", error)
    return kept


# When the transaction commits


def _cancel_later(alias: str, target: Target, how: ChangeOptions, withdrawn: bool) -> bool:
    """Cancel at the commit. Raises the errors that can be known now."""
    # This transaction may have cancelled the live message already. A message that it has enqueued
    # since may be a row only.
    seen = "" if on_commit.cancels(*target.address) else _state_in_redis(target, how, withdrawn)
    if seen in ("runs", "follows") and not how.missing_ok:
        raise target.running("cancelled")
    in_row, stamp_us = _change_row(alias, target, seen)
    if in_row == "marked":

        def cancel_marked() -> str:
            # `stamp_us` names the life that is meant: the same transaction may have enqueued
            # another one since.
            word = get_store().cancel(*target.address)
            if word != "OK":
                return postponed.cancel(*target.address, stamp_us)
            _update_outbox(partial(postponed.cancelled_in_redis, *target.address, stamp_us))
            return word

        act = partial(_in_redis_or_row, cancelled, target, cancel_marked)
        _at_commit(alias, "cancel", target, act, how.missing_ok)
    elif in_row == "elsewhere" or (seen and in_row != "done"):

        def now() -> str:
            return "OK" if _cancel_now(target, how, stamp_us) else "NOT_FOUND"

        _at_commit(alias, "cancel", target, now, how.missing_ok or withdrawn)
    return withdrawn or seen in ("waits", "unknown") or in_row != ""


def _reschedule_later(
    alias: str, target: Target, when: When, how: ChangeOptions, due_ms: int | None
) -> int | None:
    """Move at the commit. Returns the new due time in ms as far as it is known. Raises the errors
    that can be known now."""
    is_pending = due_ms is not None
    seen = "" if on_commit.cancels(*target.address) else _state_in_redis(target, how, is_pending)
    if seen == "runs" and not is_pending:
        raise target.running("moved")
    then = lookup.due_ms_of(when)
    in_row, stamp_us = ("", None) if is_pending else _change_row(alias, target, seen, then)
    if in_row == "marked":
        # A row of SQL has an instant. For a message that only Redis has, a delay counts from the
        # commit, as for an enqueue.
        at_then = When.at(then)

        def move_marked() -> str:
            moved = None
            with suppress(MessageRunning):
                moved = get_store().reschedule(*target.address, at_then)
            if moved is None:
                return postponed.reschedule(*target.address, at_then, stamp_us)[0]
            _update_outbox(partial(postponed.moved_in_redis, *target.address, moved))
            return "OK"

        act = partial(_in_redis_or_row, rescheduled, target, move_marked)
        _at_commit(alias, "reschedule", target, act, False)
    elif in_row == "elsewhere" or (seen not in ("", "runs") and in_row != "done"):

        def now() -> str:
            moved = _reschedule_now(target, when, how, stamp_us)
            return "NOT_FOUND" if moved is None else "OK"

        _at_commit(alias, "reschedule", target, now, is_pending)
    elif not in_row:
        return due_ms
    return due_ms or then


def _at_commit(
    alias: str, action: str, target: Target, act: Callable[[], str], quiet: bool
) -> None:
    """Call `act`, which returns a word, when the transaction commits. Nobody could catch an error
    then: every word but OK is reported. `quiet`: only when Redis is away."""

    def step() -> None:
        away = False
        try:
            word = act()
        except MessageRunning:
            word = "RUNNING"
        except _AWAY as error:
            word, away = f"{type(error).__name__}: {error}", True
        if word != "OK" and (away or not quiet):
            postponed.report_refused(action, target.topic, target.event(), word)

    on_commit.add_change(alias, target.address, step, cancels=action == "cancel")


def _in_redis_or_row(signal: Signal, target: Target, act: Callable[[], str]) -> str:
    """Do in Redis what the committed row says. If Redis is away, the relay does it later."""
    try:
        if get_store().breaker.open:
            raise StoreUnavailable
        word = act()
    except _AWAY:
        get_store().breaker.trip()
        _update_outbox(partial(postponed.relay_soon, *target.address))
        return "OK"
    if word == "OK":
        report(signal, target.topic, [target.event()])
    return word


def _state_in_redis(target: Target, how: ChangeOptions, found: bool) -> str:
    """The state in Redis now: waits, runs, follows (one runs, another waits for its end), unknown
    or "" (nothing). Raises StoreUnavailable unless the caller can go on without Redis."""
    store = get_store()
    spills = (how.on_redis_error or get_settings().on_redis_error) == "spill"
    try:
        if store.breaker.open and spills:
            return "unknown"
        states = [found.state for _, found in store.find_many([target.address])]
        runs = bool(states) and all(state == "leased" for state in states)
        if runs and store.has_follower(*target.address):
            return "follows"
        return "runs" if runs else "waits" if states else ""
    except _AWAY:
        if not spills and not found and not _is_only_here(_row(target)):
            raise
        if spills:
            store.breaker.trip()
        return "unknown"


def _change_row(
    alias: str, target: Target, seen: str, due_ms: int | None = None
) -> tuple[str, int]:
    """Cancel what SQL holds, or move it to `due_ms`, in the open transaction.

    Returns done (it was only there), marked (Redis may have it), elsewhere (the row is not of that
    transaction) or "", and the stamp of the row.
    """
    if alias != get_settings().database:
        row = _row(target)
        stamp_us = NO_ROW if row is None else row.enqueued_at_us
        return "elsewhere" if _is_live_row(row, seen) else "", stamp_us
    row = None
    with _savepoint(alias):
        row = lookup.lock(*target.address)
    if row is None:
        return "", NO_ROW
    stamp_us = row.enqueued_at_us
    # A cancelled row beside a live message: the row was to replace it and was taken back, or
    # somebody has enqueued again.
    is_again = row.status == OutboxStatus.CANCELLED and due_ms is None
    if not _is_live_row(row, seen) and not (is_again and seen in ("waits", "unknown")):
        return "", stamp_us
    if due_ms is not None:
        outbox.move(row, due_ms)
    if not _is_only_here(row):
        status = OutboxStatus.CANCELLED if due_ms is None else OutboxStatus.MOVED
        reason = "cancelled" if due_ms is None else ""
        lookup.mark(row, status, reason, in_ms=outbox.patience_ms())
        return "marked", stamp_us
    if due_ms is None:
        lookup.end([row])
    else:
        row.relay_at_ms = outbox.next_relay_ms(due_ms)
        row.save(using=row._state.db)
    return "done", stamp_us


def _is_only_here(row: OutboxMessage | None) -> bool:
    """Whether Redis cannot have it."""
    return row is not None and row.status == OutboxStatus.WAITING and not row.may_be_in_redis


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
    while pending := on_commit.find(*target.address):
        database, item = pending
        on_commit.replace(database, item, None)
        if item.template.durable:
            lookup.withdraw(*target.address)
        found, may_be_live = True, item.template.fixed
    return found, may_be_live


def _move_pending(target: Target, when: When) -> tuple[int | None, bool]:
    """Give another due time to what an open transaction would send at its commit.

    Returns it, and whether that message is the one that counts then, whatever is live now.
    """
    pending = on_commit.find(*target.address)
    if pending is None:
        return None, False
    database, item = pending
    if item.template.durable:
        moved = lookup.reschedule_unsent(*target.address, when)
        if moved is None:
            return None, False
        on_commit.replace(database, item, item._replace(message=moved[1]) if moved[1] else None)
        return moved[0], True
    message, replaces = item.message._replace(when=when), item.message.replaces
    if replaces:  # its new time counts, whatever is live or would be sent before it
        message = message._replace(mode="replace")
    on_commit.replace(database, item, item._replace(message=message))
    counts = replaces or not item.template.fixed
    return lookup.due_ms_of(when), counts


def _row(target: Target, stamp_us: int | None = None) -> OutboxMessage | None:
    """The row of the message, with `stamp_us` only of that life.

    None also when the database does not answer: then only Redis' answer counts.
    """
    alias, row = get_settings().database, None
    try:
        with _savepoint(alias) if connections[alias].in_atomic_block else nullcontext():
            row = lookup.find(*target.address)
    except (Error, SynchronousOnlyOperation) as error:
        logger.warning("the outbox could not be read: %s", error)
    return row if row is not None and stamp_us in (None, row.enqueued_at_us) else None


@contextmanager
def _savepoint(alias: str) -> Iterator[None]:
    """For statements in the caller's transaction. A project without the outbox's table has no row
    either, and its transaction goes on."""
    with suppress(ConfigurationError), outbox.migrated(), transaction.atomic(using=alias):
        yield


def _update_outbox(change: Callable[[], object]) -> None:
    """Make the same change in the outbox. Redis has made it already, so a failure here is only
    logged."""
    try:
        change()
    except (Error, SynchronousOnlyOperation) as error:
        logger.warning("Redis has done it, but the outbox could not be read: %s", error)
