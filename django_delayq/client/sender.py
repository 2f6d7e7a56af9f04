"""Stores built messages in Redis, in batches of one partition each. Messages that Redis cannot take
go to the outbox."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connections, transaction

from ..core import signals
from ..core.chunks import chunked_by_weight
from ..core.conf import get_settings
from ..core.exceptions import (
    ConfigurationError,
    DelayQError,
    DuplicateMessage,
    EnqueueUnknown,
    NotReplicated,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TooFewReplicas,
)
from ..core.signals import Event
from ..core.times import When
from ..models import OutboxMessage, OutboxStatus
from ..outbox import lookup, outbox
from ..store import get_store
from ..store.client import BATCH, BATCH_BYTES
from ..store.keys import Partition
from ..store.store import base_mode, replaces
from ..tasks.builder import Item
from ..tasks.task import Receipt

logger = logging.getLogger("delayq")

#: So many script calls of one bulk wait for their answers at the same time, each on a connection
#: of its own.
MOST_ON_ITS_WAY = 32
#: The relay leaves a row alone for so many milliseconds while we ask Redis whether the message is
#: still live.
GRACE_MS = 10_000

Answer = Callable[[], tuple[int, dict[int, str]]]


class Sender:
    """Stores chunks of items. While Redis takes one chunk the caller builds the next: 1.4 times the
    rate in bulk."""

    def __init__(self) -> None:
        self.duplicates: list[Receipt] = []
        """Messages to refuse in the end."""
        self.failed: list[tuple[DelayQError, list[Item]]] = []
        """The items that neither Redis nor the outbox has, and why."""
        self._on_its_way: dict[Partition, tuple[Answer, list[Item]]] = {}

    def store(self, items: list[Item]) -> None:
        """Send the items, one script call per partition and 500 of them, or BATCH_BYTES. Raises
        what went wrong with the chunk before."""
        if self._on_its_way:
            self.finish()
        items = _still_open(items)
        breaker = get_store().breaker
        if breaker.opened_in and breaker.open:
            items = self._spill(items, StoreUnavailable())
        elif breaker.after_outage:
            items = self._queue_behind(items)
        try:
            for partition, batch in _batches(items):
                if partition in self._on_its_way or len(self._on_its_way) == MOST_ON_ITS_WAY:
                    self.finish()  # a repeated id: the order counts; or each holds a connection
                self._on_its_way[partition] = _begin(partition, batch), batch
        except (StoreUnavailable, OutcomeUnknown) as error:
            self._fail(self.unaccounted(items), error)
        if self.failed:
            raise self.failed[0][0]

    def finish(self) -> None:
        """Wait for all answers. Raises the first error after all were read."""
        on_its_way, self._on_its_way = self._on_its_way, {}
        for answer, batch in on_its_way.values():
            try:
                self.duplicates += _complete(answer, batch)
            except DelayQError as error:
                self._fail(batch, error)
            else:
                if signals.enqueued.receivers:
                    stored = [item.receipt for item in batch if item.receipt.outcome != "kept"]
                    events = [Event(receipt.id, receipt.task, receipt.key) for receipt in stored]
                    signals.report(signals.enqueued, batch[0].template.topic, events)
        if self.failed:
            raise self.failed[0][0]

    def unaccounted(self, items: list[Item]) -> list[Item]:
        """The items that have no outcome, are not on their way and are not among the failed."""
        batches = [batch for _, batch in (*self._on_its_way.values(), *self.failed)]
        known = {id(item) for batch in batches for item in batch}
        return [item for item in items if not item.receipt.outcome and id(item) not in known]

    def give_up(self) -> None:
        """Read the answers that have not come yet, and complete their receipts. Raises nothing: the
        caller has an error to raise."""
        with suppress(DelayQError):
            self.finish()

    def _queue_behind(self, items: list[Item]) -> list[Item]:
        """After an outage: leave those items to the outbox whose keys have messages there that
        Redis does not know yet. Redis could not keep, replace or refuse them. Returns the other
        items."""
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

    def _fail(self, batch: list[Item], error: DelayQError) -> None:
        """Leave a batch to the outbox. What the outbox may not take, or cannot, has failed."""
        left = batch
        if isinstance(error, StoreUnavailable | OutcomeUnknown):
            try:
                left = self._spill(batch, error)
            except DelayQError as refused:  # the database failed too
                error = refused
        if left:
            self.failed.append((error, left))

    def _spill(self, items: list[Item], error: DelayQError) -> list[Item]:
        """Leave to the outbox the items that it may take. Returns the others.

        Raises `error` when the database fails, too: then nobody has the items.
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
    """Send the items of a committed transaction. A failure is told by receipt.outcome, a signal and
    the log: if a commit hook raised it, Django would drop the hooks of others."""
    sender = Sender()
    try:
        sender.store(items)
        sender.finish()
    except DelayQError as caught:
        sender.give_up()
        sender.failed.append((caught, sender.unaccounted(items)))
    for receipt in sender.duplicates:
        receipt.outcome = "duplicate"
    _report_refused(
        sender.duplicates, "duplicate", logging.WARNING, "another message with its key is live"
    )
    for error, left in sender.failed:
        unknown = isinstance(error, OutcomeUnknown)
        for item in left:
            # SQL has the row of a durable message, whatever happened here: the reconciler sends it.
            item.receipt.outcome = (
                "outbox" if item.template.durable else "unknown" if unknown else "failed"
            )
        lost = [item.receipt for item in left if not item.template.durable]
        _report_refused(lost, f"{type(error).__name__}: {error}", logging.ERROR, str(error))


def _report_refused(receipts: Sequence[Receipt], reason: str, level: int, why: str) -> None:
    """Log and signal that a commit could not enqueue these messages."""
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
        f"{_names(duplicates)}: already live, or still in its window. Pass "
        'on_duplicate="keep" or "replace", or cancel it first.',
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
    found = closed + [(partition, [*batch.values()]) for partition, batch in batches.items()]
    return [(partition, part) for partition, batch in found for part in _by_size(batch)]


def _by_size(batch: list[Item]) -> list[list[Item]]:
    """Parts of at most BATCH_BYTES: a long script call holds up all others."""
    if sum(len(item.message.record) for item in batch) <= BATCH_BYTES:
        return [batch]
    weight = lambda item: len(item.message.record)  # noqa: E731
    return [[*part] for part in chunked_by_weight(batch, weight, BATCH_BYTES)]


def _begin(partition: Partition, batch: list[Item]) -> Answer:
    names = {item.template.code: item.template.name for item in batch}
    messages = [item.message for item in batch]
    try:
        return get_store().begin_enqueue(partition, names, messages)
    except OutcomeUnknown as error:
        raise _unknown(batch, error) from error


def _complete(answer: Answer, batch: list[Item]) -> list[Receipt]:
    """Read the answer and complete the receipts of a batch. Returns those of duplicates. Raises
    EnqueueUnknown when too few replicas have the messages, and the outbox does not keep them."""
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
    duplicates = [
        batch[index].receipt for index, word in words.items() if _is_refused(batch[index], word)
    ]
    if short:  # keep the messages that too few replicas have in the outbox, too
        stored = [
            item for item in batch if item.receipt.outcome != "kept" and not item.template.durable
        ]
        spilled = [item for item in stored if _may_spill(item)]
        try:
            if spilled:
                _spill_beside(spilled)
        except (Error, SynchronousOnlyOperation) as failed:
            raise _unknown(stored, short) from failed
        if len(spilled) < len(stored):
            raise _unknown(stored, short) from short
    return duplicates


def _is_refused(item: Item, word: str) -> bool:
    """Complete the receipt of a message that was not simply stored. Returns whether it is a
    duplicate to raise for."""
    receipt, mode = item.receipt, base_mode(item.message.mode)
    outcome, _, due_ms = word.partition(":")
    if outcome in _OUTCOMES:
        receipt.outcome = _OUTCOMES[outcome]
        if due_ms:
            _follow_choice(item, int(due_ms))
        return False
    if item.template.durable:
        # Write the word into the row. Where that fails, the reconciler finds out.
        try:
            if word in ("DUPLICATE", "OLDER"):  # another message has the key: left to the relay
                outbox.put_back([item])
            elif word.startswith("ADOPTED"):
                outbox.adopt(item, word)
        except Error as error:
            logger.warning(
                "the outbox row of message %s could not be brought up to date: %s",
                receipt.id,
                error,
            )
        return False
    if word == "REPEATED" or (word == "SAME" and item.template.may_exist):
        receipt.due_ms = None  # that of the first time, which nobody knows here
        return False
    receipt.outcome, receipt.due_ms = "kept", None
    return mode == "raise"


_OUTCOMES = {"REPLACED": "replaced", "FOLLOWS": "follows"}


def _follow_choice(item: Item, due_ms: int) -> None:
    """Redis has chosen between two due times: the receipt gets it, and the row of a durable
    message."""
    item.receipt.due_ms = due_ms
    if not item.template.durable:
        return
    topic, identity = item.address
    try:
        lookup.follow_move(topic, identity, due_ms, item.message.when.stamp_us)
    except Error as error:
        logger.warning(
            "the outbox row of message %s has another due time: %s", identity.hex(), error
        )


def _spill_beside(items: Sequence[Item]) -> None:
    """Make durable messages of items that Redis has stored, as far as they are still live: a
    message that has run meanwhile must not run again.

    When Redis does not say whether they are live, the relay sends them after GRACE_MS. Then a
    message may run twice, but none is lost.
    """
    logger.warning(
        "%d messages are kept in the outbox, too: too few replicas have them (WAIT_REPLICAS)",
        len(items),
    )
    due = [item.receipt.due_ms for item in items]
    # Their rows are due at the instant at which Redis has them due.
    dated = [
        item._replace(message=item.message._replace(when=When.at(due_ms or 0)))
        for item, due_ms in zip(items, due, strict=True)
    ]
    outbox.spill(dated, unknown=True, wait_ms=GRACE_MS)
    receipts = {item.message.id: item.receipt for item in items if item.receipt.outcome == "outbox"}
    for item, due_ms in zip(items, due, strict=True):
        item.receipt.due_ms = due_ms
    batches: dict[Partition, list[OutboxMessage]] = defaultdict(list)
    ids = [UUID(bytes=identity) for identity in receipts]
    for row in OutboxMessage.objects.filter(message_id__in=ids, status=OutboxStatus.WAITING):
        batches[outbox.place(row)].append(row)
    for partition, rows in batches.items():
        for row in _adopt(partition, rows):
            receipts[row.message_id.bytes].outcome = "stored"


def _adopt(partition: Partition, rows: Sequence[OutboxMessage]) -> Sequence[OutboxMessage]:
    """Let the rows answer for the messages that are live. Deletes the rows of messages that have
    ended meanwhile, and returns them."""
    # Mode "adopt": Redis stores nothing where the message is not live.
    copies = [outbox.stamped(row)._replace(mode="adopt") for row in rows]
    try:
        _, words = get_store().enqueue(partition, {}, copies)
    except StoreError as error:
        logger.warning(
            "Redis did not say whether %d of them are live, so they may run twice: %s",
            len(rows),
            error,
        )
        return []
    ended = []
    # Hundreds of statements of a bulk, and one commit.
    with transaction.atomic(using=get_settings().database):
        for index, row in enumerate(rows):
            word = words.get(index, "")
            life = OutboxMessage.objects.filter(pk=row.pk, enqueued_at_us=row.enqueued_at_us)
            if word.startswith("ADOPTED"):
                life.update(enqueued_at_us=outbox.adopted_stamp(word), status=OutboxStatus.SENT)
            elif word == "GONE" or (word == "DUPLICATE" and not replaces(row.on_duplicate)):
                life.delete()
                ended.append(row)
    return ended


def _unknown(batch: list[Item], error: OutcomeUnknown) -> EnqueueUnknown:
    ids = [item.receipt.id for item in batch]
    return EnqueueUnknown(f"{error} Enqueue again with using(id=...): that is safe.", ids=ids)
