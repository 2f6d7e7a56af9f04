"""Stores built messages in Redis, in batches of one partition each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connections

from ..core import signals
from ..core.exceptions import (
    ConfigurationError,
    DelayQError,
    DuplicateMessage,
    EnqueueUnknown,
    NotReplicated,
    OutcomeUnknown,
    StoreUnavailable,
    TooFewReplicas,
)
from ..core.signals import Event
from ..outbox import outbox
from ..store import get_store
from ..store.client import BATCH
from ..store.keys import Partition
from ..tasks.builder import Item
from ..tasks.handle import Handle
from . import replicated

logger = logging.getLogger("delayq")

#: Script calls of one bulk that wait for their answers at the same time, each on a connection of
#: its own.
MOST_ON_ITS_WAY = 32

Answer = Callable[[], tuple[int, dict[int, str]]]


class Sender:
    """Stores chunks of items. While Redis takes one chunk the caller builds the next: 1.4 times the
    rate in bulk."""

    def __init__(self) -> None:
        self.duplicates: list[Handle] = []
        """What is to be refused in the end."""
        self.failed: list[tuple[DelayQError, list[Item]]] = []
        """What neither Redis nor the outbox has, and why."""
        self._on_its_way: dict[Partition, tuple[Answer, list[Item]]] = {}

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.finish()
        else:
            # The answers must be read, and complete the handles; the error that is on its way is
            # the one to tell.
            with suppress(DelayQError):
                self.finish()

    def accept(self, items: list[Item]) -> list[Item]:
        """Write the durable ones into the outbox. Returns what is to be sent now, or at the
        commit."""
        durable = [item for item in items if item.template.durable]
        if not durable:
            return items
        to_send, refused = outbox.accept(durable)
        self.duplicates += refused
        return [item for item in items if not item.template.durable] + to_send

    def store(self, items: list[Item]) -> None:
        """Send the items, one script call per partition and 500. Raises what went wrong with the
        chunk before."""
        self.finish()
        items = _still_open(items)
        if get_store().breaker.open:
            items = self._spill(items, StoreUnavailable())
        errors: list[DelayQError] = []
        try:
            for partition, batch in _batches(items):
                if partition in self._on_its_way or len(self._on_its_way) == MOST_ON_ITS_WAY:
                    self.finish()  # a repeated id: the order counts; or each holds a connection
                self._on_its_way[partition] = _begin(partition, batch), batch
        except (StoreUnavailable, OutcomeUnknown) as error:
            began = {id(item) for _, batch in self._on_its_way.values() for item in batch}
            begun_not = [
                item for item in items if not item.handle.outcome and id(item) not in began
            ]
            failed = {id(item) for _, batch in self.failed for item in batch}
            errors = self._failed([item for item in begun_not if id(item) not in failed], error)
        if errors:
            raise errors[0]

    def finish(self) -> None:
        """Wait for all answers. Raises the first error after all were read."""
        on_its_way, self._on_its_way = self._on_its_way, {}
        errors: list[DelayQError] = []
        for answer, batch in on_its_way.values():
            try:
                self.duplicates += _complete(answer, batch)
            except DelayQError as error:
                errors += self._failed(batch, error)
            else:
                _announce(batch)
        if errors:
            raise errors[0]

    def _failed(self, batch: list[Item], error: DelayQError) -> list[DelayQError]:
        """Leave a batch to the outbox. Returns what to raise once all answers are read."""
        left = batch
        if isinstance(error, StoreUnavailable | OutcomeUnknown):
            try:
                left = self._spill(batch, error)
            except DelayQError as refused:  # the database failed too
                error = refused
        if left:
            self.failed.append((error, left))
        return [error] if left else []

    def _spill(self, items: list[Item], error: DelayQError) -> list[Item]:
        """Leave to the outbox what Redis could not take. Returns what may not be left there."""
        refused, left = _spill(items, error)
        self.duplicates += refused
        return left


def store_committed(items: list[Item]) -> None:
    """Send the items of a transaction that stands. What goes wrong is told by handle.outcome, a
    signal and the log: an error that a commit hook raises makes Django drop the hooks of others."""
    sender = Sender()
    try:
        with sender:
            sender.store(items)
    except DelayQError as caught:
        told = {id(item) for _, left in sender.failed for item in left}
        sender.failed.append(
            (caught, [item for item in items if not item.handle.outcome and id(item) not in told])
        )
    for handle in sender.duplicates:
        handle.outcome = "duplicate"
    _tell_refused(
        sender.duplicates, "duplicate", logging.WARNING, "another message with its key is live"
    )
    for error, left in sender.failed:
        unknown = isinstance(error, OutcomeUnknown)
        for item in left:
            # Of a durable one SQL has the row, whatever happened here: the reconciler sends it.
            item.handle.outcome = (
                "outbox" if item.template.durable else "unknown" if unknown else "failed"
            )
        lost = [item.handle for item in left if not item.template.durable]
        _tell_refused(lost, f"{type(error).__name__}: {error}", logging.ERROR, str(error))


def _tell_refused(handles: Sequence[Handle], reason: str, level: int, why: str) -> None:
    """A commit has not done what it was to do."""
    if not handles:
        return
    logger.log(level, "at the commit, %s not enqueued: %s", _names(handles), why)
    for topic in dict.fromkeys(handle.topic for handle in handles):
        events = [
            Event(one.id, one.task, one.key, reason=reason) for one in handles if one.topic == topic
        ]
        signals.report(signals.refused, topic, events, action="enqueue")


def store_one(item: Item) -> None:
    """Send one item. Raises DuplicateMessage."""
    batch, store = [item], get_store()
    try:
        if store.breaker.open and _may_spill(item):
            raise StoreUnavailable
        partition = store.partitions.place(
            item.template.topic, item.message[0], item.template.fixed
        )
        duplicates = _complete(_begin(partition, batch), batch)
    except (StoreUnavailable, OutcomeUnknown) as error:
        duplicates, left = _spill(batch, error)
        if left:
            raise
    else:
        _announce(batch)
    refuse(duplicates)


def _may_spill(item: Item) -> bool:
    """Whether the outbox may take what Redis could not.

    Inside a transaction (after_commit=False, or that of another database) a rollback would take it
    away again.
    """
    return item.template.durable or (
        item.template.spills and not connections[item.template.settings.database].in_atomic_block
    )


def _spill(items: Sequence[Item], error: DelayQError) -> tuple[list[Handle], list[Item]]:
    """Leave items to the outbox, as far as they may. Returns the handles of duplicates, and the
    items that may not.

    Raises `error` when the database fails too: then nobody has them.
    """
    store = get_store()
    spilled = [item for item in items if _may_spill(item)]
    if not spilled:
        return [], list(items)
    is_first = not store.breaker.open and not isinstance(error, TooFewReplicas)
    if is_first:
        store.breaker.trip()
    try:
        refused = outbox.spill(spilled, unknown=isinstance(error, OutcomeUnknown))
    except (Error, SynchronousOnlyOperation, ConfigurationError) as failed:
        raise unkept(error, failed) from failed
    if is_first:
        verb = "message waits" if len(spilled) == 1 else "messages wait"
        logger.warning("%d %s in the outbox until Redis takes them: %s", len(spilled), verb, error)
    return refused, [item for item in items if not _may_spill(item)]


def unkept(error: DelayQError, failed: Exception) -> DelayQError:
    """The same error, with why the outbox could not help."""
    why = str(failed).strip() or type(failed).__name__
    if isinstance(error, EnqueueUnknown):
        return EnqueueUnknown(f"{error} The outbox could not keep it either: {why}", ids=error.ids)
    return type(error)(f"{error} The outbox could not keep it either: {why}")


def _still_open(items: list[Item]) -> list[Item]:
    """outbox.still_open(). Without an answer of the database what it has is left to the
    reconciler."""
    try:
        return outbox.still_open(items)
    except Error as error:
        logger.warning(
            "durable messages are sent by the reconciler: the outbox could not be looked at: %s",
            error,
        )
        return [item for item in items if not item.template.durable]


def _announce(items: Sequence[Item]) -> None:
    if not signals.enqueued.receivers:
        return
    stored = [item.handle for item in items if item.handle.outcome != "kept"]
    events = [Event(handle.id, handle.task, handle.key) for handle in stored]
    signals.report(signals.enqueued, items[0].template.topic, events)


def refuse(duplicates: Sequence[Handle]) -> None:
    """Raise DuplicateMessage that names them, if there are any."""
    if duplicates:
        raise DuplicateMessage(
            f'{_names(duplicates)}: already live. Pass on_duplicate="keep" or "replace", or cancel '
            f"it first.",
            keys=[handle.key or handle.id for handle in duplicates],
        )


def _names(handles: Sequence[Handle]) -> str:
    names = ", ".join(named(handle.key, handle.identity) for handle in handles[:10])
    return f"{names} and {len(handles) - 10:,} more" if len(handles) > 10 else names


def _batches(items: list[Item]) -> Iterator[tuple[Partition, list[Item]]]:
    """Group by partition; a repeated id starts a new batch, so that order decides between the
    two."""
    partitions = get_store().partitions
    open_batches: dict[Partition, dict[bytes, Item]] = {}
    single = {topic: partitions.single(topic) for topic in {item.template.topic for item in items}}
    for item in items:
        identity = item.message[0]
        partition = single[item.template.topic] or partitions.place(
            item.template.topic, identity, item.template.fixed
        )
        batch = open_batches.get(partition)
        if batch is None:
            batch = open_batches[partition] = {}
        elif identity in batch or len(batch) == BATCH:
            yield partition, list(batch.values())
            batch = open_batches[partition] = {}
        batch[identity] = item
    for partition, batch in open_batches.items():
        yield partition, list(batch.values())


def _begin(partition: Partition, batch: list[Item]) -> Answer:
    names: dict[bytes, str] = {}
    for template in {item.template for item in batch}:
        names |= template.names
    try:
        return get_store().begin_enqueue(partition, names, [item.message for item in batch])
    except OutcomeUnknown as error:
        raise _unknown(batch, error) from error


def _complete(answer: Answer, batch: list[Item]) -> list[Handle]:
    """Read the answer and complete the handles of a batch. Returns those that were duplicates."""
    short: NotReplicated | None = None
    try:
        now_us, words = answer()
    except NotReplicated as error:
        short, (now_us, words) = error, error.answer
    except OutcomeUnknown as error:
        raise _unknown(batch, error) from error
    now_ms = -(-now_us // 1000)
    for handle, message, _ in batch:
        when = message[2]
        due_ms = now_ms + int(when) if when[0] == "+" else int(when.rpartition(":")[2])
        handle.outcome, handle.due_ms = "stored", due_ms
    duplicates = [
        batch[index].handle for index, word in words.items() if _settle_word(batch[index], word)
    ]
    if short:
        _secure(
            [item for item in batch if item.handle.outcome != "kept" and not item.template.durable],
            short,
        )
    return duplicates


def _secure(stored: list[Item], error: NotReplicated) -> None:
    """Have the outbox answer, too, for what too few replicas have."""
    kept = [item for item in stored if _may_spill(item)]
    try:
        replicated.secure(kept)
    except (Error, SynchronousOnlyOperation) as failed:
        raise _unknown(stored, error) from failed
    if len(kept) < len(stored):
        raise _unknown(stored, error) from error


def _unknown(batch: list[Item], error: OutcomeUnknown) -> EnqueueUnknown:
    ids = [item.handle.id for item in batch]
    return EnqueueUnknown(f"{error} Enqueue again with using(id=...): that is safe.", ids=ids)


def _settle_word(item: Item, word: str) -> bool:
    """Complete the handle of a message that was not simply stored. Returns whether it is a
    duplicate to raise for."""
    handle, mode = item.handle, item.message[1]
    if item.template.durable and word not in _OUTCOMES:
        _tell_row(item, word)
        return False
    if word == "SAME" and item.template.may_exist:
        handle.due_ms = None  # that of the first time, which nobody told
        return False
    if word in ("SAME", "DUPLICATE"):
        handle.outcome, handle.due_ms = "kept", None
        return mode == "raise"
    handle.outcome = _OUTCOMES[word]
    return False


def _tell_row(item: Item, word: str) -> None:
    """What Redis said of a durable message, for its row. Without it the reconciler finds out."""
    try:
        if word in ("DUPLICATE", "OLDER"):  # another message has the key: the relay sees to it
            outbox.put_back([item])
        elif word.startswith("ADOPTED"):
            outbox.adopt(item, word)
    except Error as error:
        logger.warning(
            "the outbox row of message %s could not be brought up to date: %s",
            item.handle.id,
            error,
        )


_OUTCOMES = {"REPLACED": "replaced", "FOLLOWS": "follows"}


def named(key: str | None, identity: bytes) -> str:
    """The message in words."""
    return f"Message {key!r}" if key else f"Message {identity.hex()}"
