"""Sends messages, at once or when the transaction commits, and finds them again wherever they
are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from uuid import UUID

from ..core.exceptions import DelayQError, OutcomeUnknown, StoreUnavailable
from ..core.message import Message, task_code_of
from ..core.present import view
from ..core.transactions import awaited, awaited_by_durable
from ..outbox import lookup, postponed
from ..store import get_store
from ..store.client import BATCH
from ..tasks.builder import build, build_one
from ..tasks.handle import Handle
from ..tasks.naming import task_name
from ..tasks.task import Call
from . import on_commit
from .changes import Target, cancel, edit, reschedule
from .duplicates import split_live
from .enqueue import Sender, refuse, store_one

__all__ = ["cancel", "edit", "get", "reschedule", "send", "send_one"]

# Public calls


def send(calls: Iterable[Call]) -> list[Handle]:
    """Check, encode and store one message per call; inside a transaction when it commits. Returns
    their handles.

    An error that stops it half-way carries the handles of what was sent before as `enqueued`.
    """
    handles: list[Handle] = []
    try:
        with Sender() as sender:
            for chunk in _chunks(calls):
                items = build(chunk)
                alias = _awaited(chunk[0])
                handles += [item.handle for item in items]
                if alias is not None:
                    items, live = split_live(items)
                    sender.duplicates += live
                    on_commit.give_way(item for item in items if item.template.durable)
                items = sender.accept(items)
                if items and alias is not None:
                    on_commit.add(alias, items)
                elif items:
                    if postponed.unsaid:
                        postponed.catch_up((item.template.topic, item.message[0]) for item in items)
                    sender.store(items)
    except DelayQError as error:
        error.enqueued = tuple(handle for handle in handles if handle.outcome)
        raise
    refuse(sender.duplicates)
    return handles


def send_one(call: Call) -> Handle:
    """send() for one call. Without its chunks and batches a lone enqueue costs the producer half as
    much."""
    if call.task.options.durable:
        return send([call])[0]
    item = build_one(call)
    alias = _awaited(call)
    if alias is None:
        if postponed.unsaid:
            postponed.catch_up([(item.template.topic, item.message[0])])
        store_one(item)
    else:
        refuse(split_live([item])[1])
        on_commit.add(alias, [item])
    return item.handle


def get(topic: str, key: str | None, message_id: str | UUID | bytes | None) -> Message | None:
    """The live message, or None."""
    identity = Target.of(topic, key, message_id).identity
    try:
        message = _get_from_redis(topic, identity)
    except (StoreUnavailable, OutcomeUnknown):
        kept = lookup.get(topic, identity, only_waiting=True)
        if kept is None and not lookup.is_cancelled(topic, identity):
            raise
    else:
        if message is not None:
            return message
        kept = lookup.get(topic, identity)
    return view(topic, kept[0], kept[1].state, kept[1]) if kept else None


# Sending


def _chunks(calls: Iterable[Call]) -> Iterator[list[Call]]:
    """Up to 500 calls of one destination: same topic, same database, same moment of sending,
    durable or not."""
    iterator = iter(calls)
    waiting = list(islice(iterator, BATCH))
    while waiting:
        first = _destination(waiting[0])
        size = next(
            (i for i, call in enumerate(waiting) if _destination(call) != first), len(waiting)
        )
        yield waiting[:size]
        waiting = waiting[size:] or list(islice(iterator, BATCH))


def _destination(call: Call) -> tuple[str, str | None, bool | None, bool]:
    options = call.task.options
    return options.topic, options.database, options.after_commit, options.durable


def _awaited(call: Call) -> str | None:
    """Alias of the transaction that the message waits for. Raises InvalidMessage."""
    options = call.task.options
    if options.durable:
        return awaited_by_durable(options.database)
    return awaited(options.database, options.after_commit)


# Finding


def _get_from_redis(topic: str, identity: bytes) -> Message | None:
    located = get_store().find(topic, identity)
    if located is None:
        return None
    partition, found = located
    return view(topic, task_name(partition, task_code_of(found.record)), found.state, found)
