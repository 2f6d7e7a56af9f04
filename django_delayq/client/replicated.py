"""Messages that Redis has stored and too few replicas have: SQL answers for them from now on."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from django.db import transaction

from ..core.conf import get_settings
from ..core.exceptions import StoreError
from ..core.times import When
from ..models import OutboxMessage, OutboxStatus
from ..outbox import outbox
from ..store import get_store
from ..store.keys import Partition
from ..tasks.builder import Item

logger = logging.getLogger("delayq")

#: Milliseconds for which the relay leaves a row alone: until we know whether the message is live.
GRACE_MS = 10_000


def secure(items: Sequence[Item]) -> None:
    """Make durable messages of these, as far as they are still live: what has run meanwhile must
    not run again.

    When we cannot find out, the relay sends them in GRACE_MS: then one may run twice, and none is
    lost.
    """
    if not items:
        return
    logger.warning(
        "%d messages are kept in the outbox, too: too few replicas have them (WAIT_REPLICAS)",
        len(items),
    )
    due = [item.receipt.due_ms for item in items]
    outbox.spill([_with_instant(item) for item in items], unknown=True, wait_ms=GRACE_MS)
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
    """Let the rows answer for what is live. Returns those of messages that have ended meanwhile,
    and forgets them."""
    # Copies that are only to be adopted: nothing is stored where the message is not live.
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
            elif word == "GONE" or (word == "DUPLICATE" and row.on_duplicate != "replace"):
                life.delete()
                ended.append(row)
    return ended


def _with_instant(item: Item) -> Item:
    """The same item, due at the instant at which Redis has it due."""
    when = When.at(item.receipt.due_ms or 0)
    return item._replace(message=item.message._replace(when=when))
