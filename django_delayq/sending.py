"""Stores built messages in Redis, in batches of one partition each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from . import signals
from .exceptions import DelayQError, DuplicateMessage, EnqueueUnknown, OutcomeUnknown
from .handle import Handle
from .outgoing import Item
from .signals import Event
from .store import get_store
from .store.keys import Partition
from .store.redis import BATCH

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

    def store(self, items: list[Item]) -> None:
        """Send the items, one script call per partition and 500. Raises what went wrong with the chunk before."""
        self.finish()
        for partition, batch in _batches(items):
            if partition in self._on_its_way:
                self.finish()  # a repeated id: the order counts
            self._on_its_way[partition] = _begin(partition, batch), batch

    def finish(self) -> None:
        """Wait for all answers. Raises the first error after all were read."""
        on_its_way, self._on_its_way = self._on_its_way, {}
        errors: list[DelayQError] = []
        for answer, batch in on_its_way.values():
            try:
                self.duplicates += _complete(answer, batch)
            except DelayQError as error:
                errors.append(error)
            else:
                _announce(batch)
        if errors:
            raise errors[0]


def store_items(items: list[Item]) -> None:
    """Send the items. Raises DuplicateMessage after all were sent."""
    with Sender() as sender:
        sender.store(items)
    refuse(sender.duplicates)


def store_one(item: Item) -> None:
    """Send one item. Raises DuplicateMessage."""
    batch = [item]
    partition = get_store().partitions.place(item.template.topic, item.message[0], item.template.fixed)
    duplicates = _complete(_begin(partition, batch), batch)
    _announce(batch)
    refuse(duplicates)


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
        handle.outcome, handle.due_ms = "stored", now_ms + int(when) if when[0] == "+" else int(when)
    return [batch[index].handle for index, word in words.items() if _settle_word(batch[index], word)]


def _unknown(batch: list[Item], error: OutcomeUnknown) -> EnqueueUnknown:
    ids = [item.handle.id for item in batch]
    return EnqueueUnknown(f"{error} Enqueue again with using(id=...): that is safe.", ids=ids)


def _settle_word(item: Item, word: str) -> bool:
    """Complete the handle of a message that was not simply stored. Returns whether it is a duplicate to raise for."""
    handle, mode = item.handle, item.message[1]
    if word == "SAME" and item.template.may_exist:
        handle.due_ms = None  # that of the first time, which nobody told
        return False
    if word in ("SAME", "DUPLICATE"):
        handle.outcome, handle.due_ms = "kept", None
        return mode == "raise"
    handle.outcome = _OUTCOMES[word]
    return False


_OUTCOMES = {"REPLACED": "replaced", "FOLLOWS": "follows"}


def named(key: str | None, identity: bytes) -> str:
    """The message in words."""
    return f"Message {key!r}" if key else f"Message {identity.hex()}"
