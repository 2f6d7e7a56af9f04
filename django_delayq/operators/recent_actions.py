"""What operators did to one message or one topic. Only the newest records are read: the table
grows."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import F, QuerySet, Subquery

from ..core.times import epoch_us
from ..models import ArchivedMessage, BulkKind, BulkMessage, OperatorAction

#: How many records are read at most.
NEWEST = 1_000


def of_message(message_id: str) -> Sequence[OperatorAction]:
    """What was done to the message with this id (32 hexadecimal digits), the newest first."""
    return list(_newest(message_id=message_id)[:20])


def of_dead_letter(row: ArchivedMessage) -> tuple[QuerySet[OperatorAction], ...]:
    """Who has replayed or discarded this row of the archive, and why: on its own, or by a bulk
    operation that lists it. Two queries, to be read together."""
    kinds = [BulkKind.REPLAY, BulkKind.DISCARD]
    alone = OperatorAction.objects.filter(archived_id=row.pk, action__in=kinds)
    listed = BulkMessage.objects.filter(
        message_id=row.message_id, topic=row.topic, enqueued_at_us=epoch_us(row.enqueued_at),
        skipped="", operation__dry_run=False, operation__kind__in=kinds,
    )  # fmt: skip
    operations = Subquery(listed.values("operation_id"))
    by_bulk = OperatorAction.objects.filter(bulk_operation__in=operations, action__in=kinds)
    return alone.order_by("-pk")[:20], by_bulk.order_by("-pk")[:20]


def of_topic(topic: str) -> QuerySet[OperatorAction]:
    """What was done to the topic as a whole, the newest first: paused, resumed, purged."""
    return _newest(topic=topic, message_id=None)[:10]


def _newest(**fields: str | None) -> QuerySet[OperatorAction]:
    every = OperatorAction.objects.all()
    newest = every.order_by("-pk").values(floor=F("pk") - NEWEST)[:1]
    return every.filter(**fields, pk__gt=Subquery(newest)).order_by("-pk")
