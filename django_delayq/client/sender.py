"""Stores built messages in Redis, in batches of one partition each. What Redis cannot take goes to
the outbox."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
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
from ..tasks.task import Receipt
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
        self.duplicates: list[Receipt] = []
        """What is to be refused in the end."""
        self.failed: list[tuple[DelayQError, list[Item]]] = []
        """What neither Redis nor the outbox has, and why."""
        self._on_its_way: dict[Partition, tuple[Answer, list[Item]]] = {}

    def accept(self, items: list[Item]) -> list[Item]:
        """Write durable items into the outbox. Returns what is to be sent now, or at the commit."""
        to_send, refused = outbox.accept(items)
        self.duplicates += refused
        return to_send

    def store(self, items: list[Item]) -> None:
        """Send the items, one script call per partition and 500. Raises what went wrong with the
        chunk before."""
        if self._on_its_way:
            self.finish()
        items = _still_open(items)
        breaker = get_store().breaker
        if breaker.opened_in and breaker.open:
            items = self._spill(items, StoreUnavailable())
        elif breaker.after_outage:
            items = self._queue_behind(items)
        errors: list[DelayQError] = []
        try:
            for partition, batch in _batches(items):
                if partition in self._on_its_way or len(self._on_its_way) == MOST_ON_ITS_WAY:
                    self.finish()  # a repeated id: the order counts; or each holds a connection
                self._on_its_way[partition] = _begin(partition, batch), batch
        except (StoreUnavailable, OutcomeUnknown) as error:
            known = [batch for _, batch in self._on_its_way.values()]
            known += [batch for _, batch in self.failed]
            ids = {id(item) for batch in known for item in batch}
            left = [item for item in items if not item.receipt.outcome and id(item) not in ids]
            errors = self._failed(left, error)
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

    def give_up(self) -> None:
        """Read the answers that are still to come, and complete their receipts: the caller has an
        error to raise."""
        with suppress(DelayQError):
            self.finish()

    def _queue_behind(self, items: list[Item]) -> list[Item]:
        """After an outage: leave to the outbox what has the key of a message of which Redis has yet
        to hear, so that Redis could not keep, replace or refuse. Returns the other items."""
        try:
            behind = outbox.behind_others([item for item in items if _may_spill(item)])
            if not behind:
                return items
            self.duplicates += outbox.spill(behind, unknown=False)
        except (Error, SynchronousOnlyOperation, ConfigurationError) as error:
            logger.warning(
                "the outbox could not be asked for messages with the same keys: %s", error
            )
            return items
        return [item for item in items if not item.receipt.outcome]

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
        """Leave items to the outbox, as far as they may. Returns those that may not.

        Raises `error` when the database fails too: then nobody has them.
        """
        spilled = [item for item in items if _may_spill(item)]
        if not spilled:
            return items
        breaker = get_store().breaker
        is_first = not breaker.open and not isinstance(error, TooFewReplicas)
        if is_first:
            breaker.trip()
        try:
            self.duplicates += outbox.spill(spilled, unknown=isinstance(error, OutcomeUnknown))
        except (Error, SynchronousOnlyOperation, ConfigurationError) as failed:
            raise outbox_failed_too(error, failed) from failed
        if is_first:
            verb = "message waits" if len(spilled) == 1 else "messages wait"
            logger.warning(
                "%d %s in the outbox until Redis takes them: %s", len(spilled), verb, error
            )
        return [item for item in items if not _may_spill(item)]


def store_committed(items: list[Item]) -> None:
    """Send the items of a committed transaction. What goes wrong is in receipt.outcome, a signal
    and the log: an error that a commit hook raises makes Django drop the hooks of others."""
    sender = Sender()
    try:
        sender.store(items)
        sender.finish()
    except DelayQError as caught:
        sender.give_up()
        known = {id(item) for _, left in sender.failed for item in left}
        sender.failed.append(
            (caught, [item for item in items if not item.receipt.outcome and id(item) not in known])
        )
    for receipt in sender.duplicates:
        receipt.outcome = "duplicate"
    _report_refused(
        sender.duplicates, "duplicate", logging.WARNING, "another message with its key is live"
    )
    for error, left in sender.failed:
        unknown = isinstance(error, OutcomeUnknown)
        for item in left:
            # Of a durable one SQL has the row, whatever happened here: the reconciler sends it.
            item.receipt.outcome = (
                "outbox" if item.template.durable else "unknown" if unknown else "failed"
            )
        lost = [item.receipt for item in left if not item.template.durable]
        _report_refused(lost, f"{type(error).__name__}: {error}", logging.ERROR, str(error))


def _report_refused(receipts: Sequence[Receipt], reason: str, level: int, why: str) -> None:
    """A commit could not enqueue these."""
    if not receipts:
        return
    logger.log(level, "at the commit, %s not enqueued: %s", _names(receipts), why)
    for topic in dict.fromkeys(receipt.topic for receipt in receipts):
        events = [
            Event(receipt.id, receipt.task, receipt.key, reason=reason)
            for receipt in receipts
            if receipt.topic == topic
        ]
        signals.report(signals.refused, topic, events, action="enqueue")


def refuse(duplicates: Sequence[Receipt]) -> None:
    """Raise DuplicateMessage that names them."""
    raise DuplicateMessage(
        f'{_names(duplicates)}: already live. Pass on_duplicate="keep" or "replace", or cancel '
        "it first.",
        keys=[receipt.key or receipt.id for receipt in duplicates],
    )


def named(key: str | None, identity: bytes) -> str:
    """The message in words."""
    return f"Message {key!r}" if key else f"Message {identity.hex()}"


def _names(receipts: Sequence[Receipt]) -> str:
    names = ", ".join(named(receipt.key, receipt.identity) for receipt in receipts[:10])
    return f"{names} and {len(receipts) - 10:,} more" if len(receipts) > 10 else names


def outbox_failed_too(error: DelayQError, failed: Exception) -> DelayQError:
    """The same error, with why the outbox could not help."""
    why = str(failed).strip() or type(failed).__name__
    if isinstance(error, EnqueueUnknown):
        return EnqueueUnknown(f"{error} The outbox could not keep it either: {why}", ids=error.ids)
    return type(error)(f"{error} The outbox could not keep it either: {why}")


def _may_spill(item: Item) -> bool:
    """Whether the outbox may take what Redis could not.

    Inside a transaction (after_commit=False, or that of another database) a rollback would take it
    away again.
    """
    return item.template.durable or (
        item.template.spills and not connections[item.template.settings.database].in_atomic_block
    )


def _still_open(items: list[Item]) -> list[Item]:
    """outbox.still_open(). When the database does not answer, the durable ones are left to the
    reconciler."""
    for item in items:  # not any(): half the time for a lone message
        if item.template.durable:
            break
    else:
        return items
    try:
        return outbox.still_open(items)
    except Error as error:
        logger.warning(
            "the outbox could not be read, so the reconciler sends the durable messages: %s", error
        )
        return [item for item in items if not item.template.durable]


def _announce(items: Sequence[Item]) -> None:
    if not signals.enqueued.receivers:
        return
    stored = [item.receipt for item in items if item.receipt.outcome != "kept"]
    events = [Event(receipt.id, receipt.task, receipt.key) for receipt in stored]
    signals.report(signals.enqueued, items[0].template.topic, events)


def _batches(items: list[Item]) -> list[tuple[Partition, list[Item]]]:
    """Group by partition; a repeated id starts a new batch, so that order decides between the
    two."""
    partitions = get_store().partitions
    closed: list[tuple[Partition, list[Item]]] = []
    batches: dict[Partition, dict[bytes, Item]] = {}
    topic, single = "", None
    for item in items:
        template, identity = item.template, item.message.id
        if template.topic != topic:
            topic, single = template.topic, partitions.single(template.topic)
        partition = single or partitions.place(topic, identity, template.fixed)
        batch = batches.get(partition)
        if len(items) == 1:
            return [(partition, items)]
        if batch is None:
            batches[partition] = {identity: item}
        elif identity in batch or len(batch) == BATCH:
            closed.append((partition, [*batch.values()]))
            batches[partition] = {identity: item}
        else:
            batch[identity] = item
    return closed + [(partition, [*batch.values()]) for partition, batch in batches.items()]


def _begin(partition: Partition, batch: list[Item]) -> Answer:
    names: dict[bytes, str] = {}
    messages = []
    for _, message, template in batch:
        names[template.code] = template.name
        messages.append(message)
    try:
        return get_store().begin_enqueue(partition, names, messages)
    except OutcomeUnknown as error:
        raise _unknown(batch, error) from error


def _complete(answer: Answer, batch: list[Item]) -> list[Receipt]:
    """Read the answer and complete the receipts of a batch. Returns those that were duplicates."""
    short: NotReplicated | None = None
    try:
        now_us, words = answer()
    except NotReplicated as error:
        short, (now_us, words) = error, error.answer
    except OutcomeUnknown as error:
        raise _unknown(batch, error) from error
    now_ms = -(-now_us // 1000)
    for receipt, message, _ in batch:
        when = message.when
        receipt.outcome = "stored"
        receipt.due_ms = now_ms + when.ms if when.is_delay else when.ms
    duplicates: list[Receipt] = []
    for index, word in words.items():
        if _is_refused(batch[index], word):
            duplicates.append(batch[index].receipt)
    if short:
        _secure(
            [
                item
                for item in batch
                if item.receipt.outcome != "kept" and not item.template.durable
            ],
            short,
        )
    return duplicates


def _is_refused(item: Item, word: str) -> bool:
    """Complete the receipt of a message that was not simply stored. Returns whether it is a
    duplicate to raise for."""
    receipt, mode = item.receipt, item.message.mode
    if item.template.durable and word not in _OUTCOMES:
        _update_row(item, word)
        return False
    if word == "SAME" and item.template.may_exist:
        receipt.due_ms = None  # that of the first time, which nobody knows here
        return False
    if word in ("SAME", "DUPLICATE"):
        receipt.outcome, receipt.due_ms = "kept", None
        return mode == "raise"
    receipt.outcome = _OUTCOMES[word]
    return False


def _update_row(item: Item, word: str) -> None:
    """Write what Redis said of a durable message into its row. Without it the reconciler finds
    out."""
    try:
        if word in ("DUPLICATE", "OLDER"):  # another message has the key: the relay sees to it
            outbox.put_back([item])
        elif word.startswith("ADOPTED"):
            outbox.adopt(item, word)
    except Error as error:
        logger.warning(
            "the outbox row of message %s could not be brought up to date: %s",
            item.receipt.id,
            error,
        )


_OUTCOMES = {"REPLACED": "replaced", "FOLLOWS": "follows"}


def _secure(stored: list[Item], error: NotReplicated) -> None:
    """Keep in the outbox, too, what too few replicas have."""
    kept = [item for item in stored if _may_spill(item)]
    try:
        replicated.secure(kept)
    except (Error, SynchronousOnlyOperation) as failed:
        raise _unknown(stored, error) from failed
    if len(kept) < len(stored):
        raise _unknown(stored, error) from error


def _unknown(batch: list[Item], error: OutcomeUnknown) -> EnqueueUnknown:
    ids = [item.receipt.id for item in batch]
    return EnqueueUnknown(f"{error} Enqueue again with using(id=...): that is safe.", ids=ids)
