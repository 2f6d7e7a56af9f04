"""Sends messages, at once or when the transaction commits, and finds them again wherever they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connections

from . import outbox_lookup, pending
from .conf import get_settings
from .exceptions import (
    DelayQError,
    InvalidMessage,
    MessageChanged,
    MessageNotFound,
    MessageRunning,
    OutcomeUnknown,
    StoreUnavailable,
)
from .handle import Handle
from .identity import key_id, parse_id
from .message import Message
from .naming import task_name
from .options import check_key
from .outgoing import Item, build, build_one, edited
from .sending import Sender, named, refuse, store_one
from .signals import Event, cancelled, report, rescheduled
from .store import get_store
from .store.link import BATCH
from .tasks import Call, check_topic
from .times import from_ms
from .viewing import view

logger = logging.getLogger("delayq")

# Public calls


def send(calls: Iterable[Call]) -> list[Handle]:
    """Check, encode and store one message per call; inside a transaction when it commits. Returns their handles.

    An error that stops it half-way carries the handles of what was sent before as `enqueued`.
    """
    handles: list[Handle] = []
    try:
        with Sender() as sender:
            for chunk in _chunks(calls):
                items = build(chunk)
                handles += [item.handle for item in items]
                items = sender.accept(items)
                if items and not _put_off(chunk[0], items):
                    sender.store(items)
    except DelayQError as error:
        error.enqueued = tuple(handle for handle in handles if handle.outcome)
        raise
    refuse(sender.duplicates)
    return handles


def send_one(call: Call) -> Handle:
    """send() for one call. Without its chunks and batches a lone enqueue costs the producer half as much."""
    if call.task.options.durable:
        return send([call])[0]
    item = build_one(call)
    if not _put_off(call, [item]):
        store_one(item)
    return item.handle


def cancel(topic: str, key: str | None, message_id: str | UUID | bytes | None) -> None:
    """Take a waiting message back. Raises MessageNotFound or MessageRunning."""
    identity = _identity(topic, key, message_id)
    found = _withdraw(topic, identity)
    try:
        if _cancel_in_redis(topic, identity):
            found = True
            # Another one with its key may wait behind it.
            _tell_outbox(partial(outbox_lookup.cancel, topic, identity, only_waiting=True))
        else:
            found = outbox_lookup.cancel(topic, identity) or found
    except MessageRunning:
        raise MessageRunning(f"{named(key, identity)}: a worker holds it, so it can no longer be cancelled.") from None
    except (StoreUnavailable, OutcomeUnknown):
        found = outbox_lookup.cancel(topic, identity, only_waiting=True) or found
        if not found:
            raise
    if not found:
        raise _not_live(topic, key, identity)
    report(cancelled, topic, [Event(identity.hex(), key=key)])


def reschedule(topic: str, key: str | None, message_id: str | UUID | bytes | None, when: str) -> datetime:
    """Give a waiting message another due time. Raises MessageNotFound or MessageRunning."""
    identity = _identity(topic, key, message_id)
    due_ms, counts = _move_pending(topic, identity, when)
    try:
        if not counts:  # what is live already is what counts
            due_ms = _reschedule_in_redis(topic, identity, when) or due_ms
        if due_ms is None:
            due_ms = outbox_lookup.reschedule(topic, identity, when)
    except (StoreUnavailable, OutcomeUnknown):
        due_ms = due_ms or outbox_lookup.reschedule(topic, identity, when, only_waiting=True)
        if due_ms is None:
            raise
    except MessageRunning:
        raise MessageRunning(f"{named(key, identity)}: a worker holds it, it can no longer be moved.") from None
    if due_ms is None:
        raise _not_live(topic, key, identity)
    report(rescheduled, topic, [Event(identity.hex(), key=key)])
    return from_ms(due_ms)


def edit(topic: str, message_id: str | UUID | bytes, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Give a waiting message other arguments. Raises MessageNotFound, MessageRunning, MessageChanged, InvalidMessage.

    What an open transaction has yet to send is refused too.
    """
    identity = _identity(topic, None, message_id)
    if pending.find(topic, identity):
        raise InvalidMessage("This message is sent when the open transaction commits: edit it after that.")

    def change(record: bytes) -> bytes:
        return edited(record, args, kwargs)

    try:
        found = _edit_in_redis(topic, identity, change) or outbox_lookup.edit(topic, identity, change)
    except (StoreUnavailable, OutcomeUnknown):
        if not outbox_lookup.edit(topic, identity, change, only_waiting=True):
            raise
        found = True
    except MessageRunning:
        raise MessageRunning(f"{named(None, identity)}: a worker holds it, it can no longer be edited.") from None
    if not found:
        raise _not_live(topic, None, identity)


def get(topic: str, key: str | None, message_id: str | UUID | bytes | None) -> Message | None:
    """The live message, or None."""
    identity = _identity(topic, key, message_id)
    try:
        message = _get_from_redis(topic, identity)
    except (StoreUnavailable, OutcomeUnknown):
        kept = outbox_lookup.get(topic, identity, only_waiting=True)
        if kept is None:
            raise
    else:
        if message is not None:
            return message
        kept = outbox_lookup.get(topic, identity)
    return view(topic, kept[0], kept[1].state, kept[1]) if kept else None


# Sending


def _chunks(calls: Iterable[Call]) -> Iterator[list[Call]]:
    """Up to 500 calls of one destination: same topic, same database, same moment of sending, durable or not."""
    iterator = iter(calls)
    waiting = list(islice(iterator, BATCH))
    while waiting:
        first = _destination(waiting[0])
        size = next((i for i, call in enumerate(waiting) if _destination(call) != first), len(waiting))
        yield waiting[:size]
        waiting = waiting[size:] or list(islice(iterator, BATCH))


def _destination(call: Call) -> tuple[str, str | None, bool | None, bool]:
    options = call.task.options
    return options.topic, options.database, options.after_commit, options.durable


def _put_off(call: Call, items: list[Item]) -> bool:
    """Put the items into the batch of the transaction that is open, if there is one to wait for."""
    options, settings = call.task.options, get_settings()
    database = options.database or settings.database
    wait = options.durable or (settings.after_commit if options.after_commit is None else options.after_commit)
    if not wait or not connections[database].in_atomic_block:
        return False
    pending.put_off(database, items)
    return True


# Finding


def _get_from_redis(topic: str, identity: bytes) -> Message | None:
    store = get_store()
    for partition in store.partitions.candidates(topic, identity):
        found = store.find(partition, [identity])[0]
        if found is not None:
            return view(topic, task_name(partition, found.record[19:23]), found.state, found)
    return None


def _cancel_in_redis(topic: str, identity: bytes) -> bool:
    store = get_store()
    for partition in store.partitions.candidates(topic, identity):
        answer = store.cancel(partition, [identity])[0]
        if answer == "RUNNING":
            raise MessageRunning
        if answer == "OK":
            return True
    return False


def _reschedule_in_redis(topic: str, identity: bytes, when: str) -> int | None:
    store = get_store()
    for partition in store.partitions.candidates(topic, identity):
        try:
            due_ms = store.reschedule(partition, identity, when)
        except MessageNotFound:
            continue
        _tell_outbox(partial(outbox_lookup.follow, topic, identity, due_ms))
        return due_ms
    return None


def _edit_in_redis(topic: str, identity: bytes, change: Callable[[bytes], bytes]) -> bool:
    store = get_store()
    for partition in store.partitions.candidates(topic, identity):
        found = store.find(partition, [identity])[0]
        if found is None:
            continue
        after = change(found.record)
        word = store.edit(partition, identity, found.record, after)
        if word == "RUNNING":
            raise MessageRunning
        if word == "CHANGED":
            raise MessageChanged
        if word == "OK":
            _tell_outbox(partial(outbox_lookup.follow_edit, topic, identity, after))
            return True
    return False


def _tell_outbox(change: Callable[[], object]) -> None:
    """Do the same to what the outbox holds. Redis has obeyed already, so nothing that goes wrong here is an error."""
    try:
        change()
    except (Error, SynchronousOnlyOperation) as error:
        logger.warning("Redis has obeyed, but the outbox could not be looked at: %s", error)


def _withdraw(topic: str, identity: bytes) -> bool:
    """Forget what an open transaction would send at its commit."""
    found = False
    while place := pending.find(topic, identity):
        database, item = place
        pending.replace(database, item, None)
        if item.template.durable:
            outbox_lookup.withdraw(topic, identity)
        found = True
    return found


def _move_pending(topic: str, identity: bytes, when: str) -> tuple[int | None, bool]:
    """Give another due time to what an open transaction would send at its commit.

    Returns it, and whether that message is the one that counts then, whatever is live now.
    """
    place = pending.find(topic, identity)
    if place is None:
        return None, False
    database, item = place
    if item.template.durable:
        moved = outbox_lookup.reschedule_unsent(topic, identity, when)
        if moved is None:
            return None, False
        pending.replace(database, item, item._replace(message=moved[1]) if moved[1] else None)
        return moved[0], True
    _, mode, _, expires, record = item.message
    pending.replace(database, item, item._replace(message=(identity, mode, when, expires, record)))
    due_ms = get_store().now_us() // 1000 + int(when) if when[0] == "+" else int(when)
    return due_ms, mode == "replace"


def _not_live(topic: str, key: str | None, identity: bytes) -> MessageNotFound:
    return MessageNotFound(f"{named(key, identity)} is not live in topic {topic!r}: never sent, finished or cancelled.")


def _identity(topic: str, key: str | None, message_id: str | UUID | bytes | None) -> bytes:
    check_topic(topic)
    if (key is None) == (message_id is None):
        raise InvalidMessage("Give either key or id.")
    return key_id(topic, check_key(key) or "") if message_id is None else parse_id(message_id)
