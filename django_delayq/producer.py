"""Sends messages: at once or when the transaction commits, all of one transaction in one batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from django.db import connections, transaction

from . import signals, tasks
from .conf import get_settings
from .exceptions import (
    DelayQError,
    InvalidMessage,
    MessageNotFound,
    MessageRunning,
)
from .handle import Handle
from .identity import key_id, parse_id
from .message import Message, view
from .options import check_key
from .outgoing import Item, build, build_one
from .sending import Sender, named, refuse, store_items, store_one
from .store import get_store
from .store.keys import Partition
from .store.redis import BATCH
from .tasks import Call, check_topic
from .times import from_ms

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
                if not _put_off(chunk[0], items):
                    sender.store(items)
    except DelayQError as error:
        error.enqueued = tuple(handle for handle in handles if handle.outcome)
        raise
    refuse(sender.duplicates)
    return handles


def send_one(call: Call) -> Handle:
    """send() for one call. Without its chunks and batches a lone enqueue costs the producer half as much."""
    item = build_one(call)
    if not _put_off(call, [item]):
        store_one(item)
    return item.handle


def cancel(topic: str, key: str | None, message_id: str | UUID | bytes | None) -> None:
    """Take a waiting message back. Raises MessageNotFound or MessageRunning."""
    identity = _identity(topic, key, message_id)
    store = get_store()
    for partition in store.partitions.candidates(topic, identity):
        answer = store.cancel(partition, [identity])[0]
        if answer == "RUNNING":
            raise MessageRunning(f"{named(key, identity)}: a worker holds it, so it can no longer be cancelled.")
        if answer == "OK":
            signals.report(signals.cancelled, topic, [signals.Event(identity.hex(), key=key)])
            return
    raise MessageNotFound(f"{named(key, identity)} is not live in topic {topic!r}: never sent, finished or cancelled.")


def reschedule(topic: str, key: str | None, message_id: str | UUID | bytes | None, when: str) -> datetime:
    """Give a waiting message another due time. Raises MessageNotFound or MessageRunning."""
    identity = _identity(topic, key, message_id)
    store = get_store()
    for partition in store.partitions.candidates(topic, identity):
        try:
            due_ms = store.reschedule(partition, identity, when)
        except MessageNotFound:
            continue
        except MessageRunning:
            raise MessageRunning(f"{named(key, identity)}: a worker holds it, it can no longer be moved.") from None
        signals.report(signals.rescheduled, topic, [signals.Event(identity.hex(), key=key)])
        return from_ms(due_ms)
    raise MessageNotFound(f"{named(key, identity)} is not live in topic {topic!r}: never sent, finished or cancelled.")


def get(topic: str, key: str | None, message_id: str | UUID | bytes | None) -> Message | None:
    """The live message, or None."""
    identity = _identity(topic, key, message_id)
    store = get_store()
    for partition in store.partitions.candidates(topic, identity):
        found = store.find(partition, [identity])[0]
        if found is not None:
            return view(topic, task_name(partition, found.record), found.state, found)
    return None


# Sending


def _chunks(calls: Iterable[Call]) -> Iterator[list[Call]]:
    """Up to 500 calls of one destination: same topic, same database, same moment of sending."""
    iterator = iter(calls)
    pending = list(islice(iterator, BATCH))
    while pending:
        first = _destination(pending[0])
        size = next((i for i, call in enumerate(pending) if _destination(call) != first), len(pending))
        yield pending[:size]
        pending = pending[size:] or list(islice(iterator, BATCH))


def _destination(call: Call) -> tuple[str, str | None, bool | None]:
    options = call.task.options
    return options.topic, options.database, options.after_commit


def _put_off(call: Call, items: list[Item]) -> bool:
    """Put the items into the batch of the transaction that is open, if there is one to wait for."""
    options, settings = call.task.options, get_settings()
    database = options.database or settings.database
    wait = settings.after_commit if options.after_commit is None else options.after_commit
    if not wait or not connections[database].in_atomic_block:
        return False
    _Batch.of(database).add(items)
    return True


@dataclass(slots=True, eq=False)
class _Batch:
    """What one transaction has enqueued. Lives in the connection's list of commit hooks and nowhere else."""

    database: str
    confirmed: list[Item] = field(default_factory=list)
    newest: _Flush | None = None

    @classmethod
    def of(cls, database: str) -> _Batch:
        """The batch of the open transaction, found through its hook, so that a rollback forgets it."""
        hooks: list[Any] = connections[database].run_on_commit
        for _, hook, _ in reversed(hooks):
            if isinstance(hook, _Flush):
                return hook.batch
        return cls(database)

    def add(self, items: list[Item]) -> None:
        """Send the items when the transaction commits, unless the savepoint around this call is rolled back.

        Two hooks: Django drops the first with the savepoint, so what it would confirm is never sent. The second
        stands behind it and outlives every savepoint (no savepoint ids); the newest of these sends what was confirmed.
        """
        transaction.on_commit(lambda: self.confirmed.extend(items), using=self.database)
        self.newest = _Flush(self)
        hooks: list[Any] = connections[self.database].run_on_commit
        hooks.append((set(), self.newest, False))


@dataclass(slots=True, eq=False)
class _Flush:
    """Commit hook that sends a batch, if no later one will."""

    batch: _Batch

    def __call__(self) -> None:
        if self.batch.newest is self:
            items, self.batch.confirmed = self.batch.confirmed, []
            store_items(items)


# Finding


def _identity(topic: str, key: str | None, message_id: str | UUID | bytes | None) -> bytes:
    check_topic(topic)
    if (key is None) == (message_id is None):
        raise InvalidMessage("Give either key or id.")
    return key_id(topic, check_key(key) or "") if message_id is None else parse_id(message_id)


def task_name(partition: Partition, record: bytes) -> str:
    """The name of a record's task: from the registry, else from the partition."""
    code = record[19:23]
    task = tasks.by_code.get(code)
    return task.name if task else get_store().task_name(partition, code)
