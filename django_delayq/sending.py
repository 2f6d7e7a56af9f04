"""Stores built messages in Redis, in batches of one partition each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connections

from . import outbox, signals
from .exceptions import DelayQError, DuplicateMessage, EnqueueUnknown, OutcomeUnknown, StoreUnavailable
from .handle import Handle
from .outgoing import Item
from .signals import Event
from .store import get_store
from .store.keys import Partition
from .store.link import BATCH

logger = logging.getLogger("delayq")

Answer = Callable[[], tuple[int, dict[int, str]]]


class Sender:
    """Stores chunks of items. While Redis takes one chunk the caller builds the next: 1.4 times the rate in bulk."""

    def __init__(self) -> None:
        self.duplicates: list[Handle] = []
        """What is to be refused in the end."""
        self._on_its_way: dict[Partition, tuple[Answer, list[Item]]] = {}

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.finish()
        else:
            # The answers must be read, and complete the handles; the error that is on its way is the one to tell.
            with suppress(DelayQError):
                self.finish()

    def accept(self, items: list[Item]) -> list[Item]:
        """Write the durable ones into the outbox. Returns what is to be sent now, or at the commit."""
        durable = [item for item in items if item.template.durable]
        if not durable:
            return items
        to_send, refused = outbox.accept(durable)
        self.duplicates += refused
        return [item for item in items if not item.template.durable] + to_send

    def store(self, items: list[Item]) -> None:
        """Send the items, one script call per partition and 500. Raises what went wrong with the chunk before."""
        self.finish()
        items = outbox.still_open(items)
        if get_store().breaker.open:
            items = self._spill(items, StoreUnavailable())
        try:
            for partition, batch in _batches(items):
                if partition in self._on_its_way:
                    self.finish()  # a repeated id: the order counts
                self._on_its_way[partition] = _begin(partition, batch), batch
        except (StoreUnavailable, OutcomeUnknown) as error:
            began = {id(item) for _, batch in self._on_its_way.values() for item in batch}
            if self._spill([item for item in items if not item.handle.outcome and id(item) not in began], error):
                raise

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
        if not isinstance(error, StoreUnavailable | OutcomeUnknown):
            return [error]
        try:
            return [error] if self._spill(batch, error) else []
        except DelayQError as refused:  # the database failed too
            return [refused]

    def _spill(self, items: list[Item], error: DelayQError) -> list[Item]:
        """Leave to the outbox what Redis could not take. Returns what may not be left there."""
        refused, left = _spill(items, error)
        self.duplicates += refused
        return left


def store_items(items: list[Item]) -> None:
    """Send the items. Raises DuplicateMessage after all were sent."""
    with Sender() as sender:
        sender.store(items)
    refuse(sender.duplicates)


def store_one(item: Item) -> None:
    """Send one item. Raises DuplicateMessage."""
    batch, store = [item], get_store()
    try:
        if store.breaker.open and _may_spill(item):
            raise StoreUnavailable
        partition = store.partitions.place(item.template.topic, item.message[0], item.template.fixed)
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

    Inside a transaction (after_commit=False, or that of another database) a rollback would take it away again.
    """
    return item.template.durable or (
        item.template.spills and not connections[item.template.settings.database].in_atomic_block
    )


def _spill(items: Sequence[Item], error: DelayQError) -> tuple[list[Handle], list[Item]]:
    """Leave items to the outbox, as far as they may. Returns the handles of duplicates, and the items that may not.

    Raises `error` when the database fails too: then nobody has them.
    """
    store = get_store()
    spilled = [item for item in items if _may_spill(item)]
    if spilled:
        if not store.breaker.open:
            logger.warning("%d messages wait in the outbox until Redis takes them: %s", len(spilled), error)
            store.breaker.trip()
        try:
            return outbox.spill(spilled), [item for item in items if not _may_spill(item)]
        except (Error, SynchronousOnlyOperation) as failed:
            raise error from failed
    return [], list(items)


def _announce(items: Sequence[Item]) -> None:
    if not signals.enqueued.receivers:
        return
    stored = [item.handle for item in items if item.handle.outcome != "kept"]
    events = [Event(handle.id, handle.task, handle.key) for handle in stored]
    signals.report(signals.enqueued, items[0].template.topic, events)


def refuse(duplicates: Sequence[Handle]) -> None:
    """Raise DuplicateMessage that names them, if there are any."""
    if duplicates:
        names = ", ".join(named(handle.key, handle.identity) for handle in duplicates[:10])
        raise DuplicateMessage(
            f'{names}: already live. Pass on_duplicate="keep" or "replace", or cancel it first.',
            keys=[handle.key or handle.id for handle in duplicates],
        )


def _batches(items: list[Item]) -> Iterator[tuple[Partition, list[Item]]]:
    """Group by partition; a repeated id starts a new batch, so that order decides between the two."""
    partitions = get_store().partitions
    open_batches: dict[Partition, dict[bytes, Item]] = {}
    single = {topic: partitions.single(topic) for topic in {item.template.topic for item in items}}
    for item in items:
        identity = item.message[0]
        partition = single[item.template.topic] or partitions.place(item.template.topic, identity, item.template.fixed)
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
    try:
        now_us, words = answer()
    except OutcomeUnknown as error:
        raise _unknown(batch, error) from error
    now_ms = -(-now_us // 1000)
    for handle, message, _ in batch:
        when = message[2]
        due_ms = now_ms + int(when) if when[0] == "+" else int(when.rpartition(":")[2])
        handle.outcome, handle.due_ms = "stored", due_ms
    return [batch[index].handle for index, word in words.items() if _settle_word(batch[index], word)]


def _unknown(batch: list[Item], error: OutcomeUnknown) -> EnqueueUnknown:
    ids = [item.handle.id for item in batch]
    return EnqueueUnknown(f"{error} Enqueue again with using(id=...): that is safe.", ids=ids)


def _settle_word(item: Item, word: str) -> bool:
    """Complete the handle of a message that was not simply stored. Returns whether it is a duplicate to raise for."""
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
            outbox.adopt(item.message[0], word)
    except Error as error:
        logger.warning("the outbox row of message %s could not be brought up to date: %s", item.handle.id, error)


_OUTCOMES = {"REPLACED": "replaced", "FOLLOWS": "follows"}


def named(key: str | None, identity: bytes) -> str:
    """The message in words."""
    return f"Message {key!r}" if key else f"Message {identity.hex()}"
