"""What operators did to one message or one topic. Only the newest records are read: the table
grows."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import F, Subquery

from ..core.times import epoch_us
from ..models import ArchivedMessage, BulkKind, BulkMessage, OperatorAction

#: How many records are read at most.
NEWEST = 1_000


def of_message(message_id: str) -> Sequence[OperatorAction]:
    """What was done to the message with this id (32 hexadecimal digits), the newest first."""
    return _newest(message_id=message_id)[:20]


def of_dead_letter(row: ArchivedMessage) -> Sequence[OperatorAction]:
    """Who has replayed or discarded this row of the archive, and why: on its own, or by a bulk
    operation that lists it."""
    kinds = [BulkKind.REPLAY, BulkKind.DISCARD]
    alone = OperatorAction.objects.filter(archived_id=row.pk, action__in=kinds)
    listed = BulkMessage.objects.filter(
        message_id=row.message_id, topic=row.topic, enqueued_at_us=epoch_us(row.enqueued_at),
        skipped="", operation__dry_run=False, operation__kind__in=kinds,
    )  # fmt: skip
    operations = list(listed.values_list("operation_id", flat=True)[:20])
    by_bulk = OperatorAction.objects.filter(bulk_operation__in=operations, action__in=kinds)
    found = {action.pk: action for action in (*alone.order_by("-pk")[:20], *by_bulk)}
    return [found[pk] for pk in sorted(found, reverse=True)]


def of_topic(topic: str) -> Sequence[OperatorAction]:
    """What was done to the topic as a whole, the newest first: paused, resumed, purged."""
    found = _newest(topic=topic, message_id=None)
    # For MariaDB and MySQL capital letters do not matter.
    return [action for action in found if action.topic == topic][:10]


def _newest(**fields: str | None) -> Sequence[OperatorAction]:
    every = OperatorAction.objects.all()
    newest = every.order_by("-pk").values(floor=F("pk") - NEWEST)[:1]
    return list(every.filter(**fields, pk__gt=Subquery(newest)).order_by("-pk")[:40])
