"""Lists the messages that wait only in the outbox: they are far from due, or Redis was away. The
pages are keyset pages, for millions of rows."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import QuerySet

from ..core.cursors import cursor_of, numbers_of
from ..core.message import Message, Page
from ..core.present import readable
from ..models import OutboxMessage, OutboxStatus
from ..store.client import BATCH
from .existing import check_existing
from .lookup import found_of

#: Waiting rows are counted up to here.
CAP = 10_000


def list_outbox(topic: str, *, cursor: str | None = None, limit: int = 100) -> Page:
    """One page of a topic's waiting rows by due time, at most 500. The cost grows neither with the
    rows nor the depth.

    Raises UnknownTopic, and InvalidMessage for a cursor that list_outbox() has not made.
    """
    rows = OutboxMessage.objects.filter(topic=check_existing(topic), status=OutboxStatus.WAITING)
    limit = max(1, min(limit, BATCH))
    page: list[OutboxMessage] = []
    if cursor is not None:
        due_ms, pk = numbers_of(cursor, 2**63, 2**63)
        # Two steps, because not every database uses an index for (due, id) > (x, y), and many are
        # due at midnight.
        page = list(rows.filter(due_at_ms=due_ms, pk__gt=pk).order_by("pk")[:limit])
        rows = rows.filter(due_at_ms__gt=due_ms)
    if len(page) < limit:
        page += rows.order_by("due_at_ms", "pk")[: limit - len(page)]
    last = page[-1] if len(page) == limit else None
    return Page(
        messages=[message_of(row) for row in page],
        cursor=cursor_of(last.due_at_ms, last.pk) if last else None,
    )


def waiting_rows(topic: str, topics: Collection[str] | None) -> QuerySet[OutboxMessage]:
    """The waiting rows of a topic, or of all of these (None: of every one), in the order of their
    ids."""
    rows = OutboxMessage.objects.filter(status=OutboxStatus.WAITING).order_by("pk")
    if topic:
        return rows.filter(topic=topic)
    return rows if topics is None else rows.filter(topic__in=topics)


def message_of(row: OutboxMessage) -> Message:
    """As people see it."""
    return readable(row.topic, row.task, found_of(row))


def count_outbox(topic: str) -> int:
    """How many rows of a topic wait, up to CAP."""
    return int(counted_rows(topic).count())


def counted_rows(topic: str) -> QuerySet[OutboxMessage]:
    """The waiting rows of a topic that are counted: CAP of them."""
    rows = OutboxMessage.objects.filter(topic=topic, status=OutboxStatus.WAITING)
    return rows.order_by()[:CAP]
