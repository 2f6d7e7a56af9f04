"""Brings outbox rows to Redis when they come near their due time, and at once when Redis could not
take them before."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

from ..core import signals
from ..core.chunks import chunked, chunked_by_weight
from ..core.conf import get_settings
from ..core.database import locked, reached, write_first
from ..core.exceptions import StoreError, StoreUnavailable
from ..core.message import task_code
from ..core.service import Service, Sleeper
from ..core.signals import Event
from ..models import OutboxMessage, OutboxStatus
from ..store import get_store
from ..store.client import BATCH, BATCH_BYTES
from ..store.keys import Partition
from ..store.store import RedisStore, base_mode, replaces
from . import lookup, outbox, postponed

#: Milliseconds after which it is tried again to send what waits for another message with the same
#: key to end.
GIVE_WAY_MS = 10_000
#: Seconds after which a failure has taken long: a server that does not answer, and not one that
#: refuses.
LONG = 0.5


class Relay(Service):
    """Sends waiting rows, by status and time: so the rows of a transaction that commits late, with
    small ids, are found as well."""

    name = "relay"
    interval = 1.0

    def __init__(self, store: RedisStore) -> None:
        super().__init__()
        self._store = store
        self._looked = False
        """Whether the last round found nothing more to send."""
        self.sent = 0

    @property
    def figures(self) -> dict[str, Any]:
        """Messages sent so far."""
        return {"sent": self.sent}

    @property
    def has_work(self) -> bool:
        """Whether a row may wait that Redis would take."""
        return not self._looked and not self._store.breaker.open

    def run_once(self) -> float:
        """Send one batch. Raises StoreUnavailable and DatabaseUnavailable: it is tried again."""
        if self._store.breaker.open:
            return min(self.interval, 0.1)
        with _noticing_outages(self._store):
            more = postponed.apply_all()
            found = _send_batch(self._store)
        self.sent += found
        self._looked = found < BATCH and not more
        return self.interval if self._looked else 0.0


def before_claims(seconds: float) -> None:
    """Tell Redis, before anything is claimed, of changes to messages that it may have: cancels,
    moves and replacements. Waits at most `seconds` for the changes that other processes are
    telling. Raises StoreError and DatabaseUnavailable.
    """
    store, until, pace = get_store(), time.monotonic() + seconds, Sleeper()
    with _noticing_outages(store):
        while outbox.unheard().exists() and time.monotonic() < until:
            if not postponed.apply_all() and not _send_batch(store, may_be_in_redis=True):
                pace.wait(0.02)


@contextmanager
def _noticing_outages(store: RedisStore) -> Iterator[None]:
    """Around what needs the database and Redis. After a failure of Redis the next try waits for no
    time limit."""
    try:
        with reached():
            yield
    except StoreError:
        store.breaker.trip()
        raise


def _send_batch(store: RedisStore, **only: Any) -> int:
    """Send waiting rows while they are locked: a caller that cancels one of them waits, and then
    finds the message in Redis. Returns how many."""
    connection = connections[get_settings().database]
    waiting = OutboxMessage.objects.filter(
        status=OutboxStatus.WAITING, relay_at_ms__lte=store.now_us() // 1000, **only
    )
    if not waiting.exists():
        return 0
    store.clock_ms()  # see postponed.apply_all()
    with transaction.atomic(using=connection.alias):
        write_first(connection, OutboxMessage)
        rows = list(locked(waiting).order_by("relay_at_ms")[:BATCH])
        errors = send(store, rows)
    if errors:
        raise errors[0]
    return len(rows)


def send(store: RedisStore, rows: Sequence[OutboxMessage]) -> Sequence[StoreError]:
    """Store the rows' messages in Redis and mark the rows as sent. Call it in a transaction that
    holds the rows.

    Returns the errors. The rows of a call with an error wait a little, so that they do not hold up
    others; Redis may have them when its answer was lost. After an error that took long nothing more
    is sent: a caller that cancels one of the rows waits as long as they are held.
    """
    batches: dict[Partition, list[OutboxMessage]] = defaultdict(list)
    for row in rows:
        batches[outbox.place(row)].append(row)
    sent: list[Any] = []
    errors: list[StoreError] = []
    began = time.monotonic()
    # One script call each: what one has stored is marked as sent, also when the next one fails.
    calls = [
        (partition, batch)
        for partition, together in batches.items()
        for batch in chunked_by_weight(together, lambda row: len(row.record), BATCH_BYTES)
    ]
    for partition, batch in calls:
        names = {task_code(row.task): row.task for row in batch}
        is_tried = not errors or time.monotonic() - began <= LONG
        try:
            if not is_tried:
                raise errors[0]
            for row in batch:
                if row.moved_to_ms and replaces(row.on_duplicate):
                    postponed.move_live(row)  # Redis chooses between that and the row's due time
            _, words = store.enqueue(partition, names, [outbox.stamped(row) for row in batch])
        except StoreError as error:  # of one cluster node, say: the other partitions go on
            errors.append(error)
            again_at_ms = store.now_us() // 1000 + outbox.AGAIN_MS
            left = OutboxMessage.objects.filter(pk__in=[row.pk for row in batch])
            left.update(relay_at_ms=again_at_ms)
            if is_tried and not isinstance(error, StoreUnavailable):
                left.update(may_be_in_redis=True)
            continue
        stored = [
            row for index, row in enumerate(batch) if not _give_way(row, words.get(index, ""))
        ]
        sent += [row.pk for row in stored]
        events = [Event(row.message_id.hex, row.task, row.key or None) for row in stored]
        signals.report(signals.enqueued, partition.topic, events)
    check_at_ms = store.now_us() // 1000 + outbox.patience_ms()
    OutboxMessage.objects.filter(pk__in=sent).update(
        status=OutboxStatus.SENT, relay_at_ms=check_at_ms
    )
    return errors


def send_again(store: RedisStore, lost: Sequence[OutboxMessage]) -> set[int]:
    """Send rows that Redis has lost, under their stamps. Rows that have changed since they were
    read, and rows that others hold, are left out. Returns the ids of the rows that were sent.
    Raises StoreError."""
    connection = connections[get_settings().database]
    # Whoever sends a row gives it another relay_at_ms.
    as_read = {(row.pk, row.enqueued_at_us, row.relay_at_ms) for row in lost}
    sent: set[int] = set()
    for batch in chunked(lost, BATCH):
        with transaction.atomic(using=connection.alias):
            write_first(connection, OutboxMessage)
            rows = OutboxMessage.objects.filter(
                pk__in=[row.pk for row in batch], status=OutboxStatus.SENT
            )
            found = [
                row
                for row in locked(rows)
                if (row.pk, row.enqueued_at_us, row.relay_at_ms) in as_read
            ]
            errors = send(store, found)
        if errors:
            raise errors[0]
        sent |= {row.pk for row in found}
    return sent


def _give_way(row: OutboxMessage, word: str) -> bool:
    """Act on the answer that another message has the same id. False: the row's message is in
    Redis."""
    if word == "DUPLICATE" and row.moved_to_ms:
        postponed.move_live(row)
    outcome, _, due_ms = word.partition(":")
    if due_ms and outcome in ("REPLACED", "FOLLOWS"):  # Redis has chosen between two due times
        lookup.follow_move(row.topic, row.message_id.bytes, int(due_ms), row.enqueued_at_us)
    elif outcome == "ADOPTED":
        OutboxMessage.objects.filter(pk=row.pk).update(enqueued_at_us=outbox.adopted_stamp(word))
    elif word == "OLDER" or (word == "DUPLICATE" and base_mode(row.on_duplicate) == "keep"):
        reason = "replaced" if word == "OLDER" else "duplicate"
        lookup.end([row], reason)
        event = Event(row.message_id.hex, row.task, row.key or None, reason=reason)
        signals.report(signals.cancelled, row.topic, [event])
    elif word == "DUPLICATE":  # it was accepted, so it is sent when the other has ended
        again_at_ms = get_store().now_us() // 1000 + GIVE_WAY_MS
        # Not save(), which would ask the routers of the project where to write.
        OutboxMessage.objects.filter(pk=row.pk).update(relay_at_ms=again_at_ms)
    return word in ("OLDER", "DUPLICATE")
