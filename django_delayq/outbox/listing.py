"""Lists what waits only in the outbox: far from due, or Redis was away. Keyset pages, at millions
of rows."""

from __future__ import annotations

from ..core.cursors import cursor_of, numbers_of
from ..core.exceptions import UndecodableMessage
from ..core.message import Found, Message, Page, State
from ..core.present import bare, view
from ..models import OutboxMessage, OutboxStatus
from ..store import get_store
from ..store.client import BATCH
from .existing import check_existing
from .outbox import record_of

#: Waiting rows are counted up to here.
CAP = 10_000


def list_outbox(topic: str, *, cursor: str | None = None, limit: int = 100) -> Page:
    """One page of a topic's waiting rows by due time, at most 500. The cost grows neither with the
    rows nor the depth.

    Raises UnknownTopic, and InvalidMessage for a cursor that is not ours.
    """
    rows = OutboxMessage.objects.filter(topic=check_existing(topic), status=OutboxStatus.WAITING)
    limit = max(1, min(limit, BATCH))
    page: list[OutboxMessage] = []
    if cursor is not None:
        due_ms, pk = numbers_of(cursor, 2**63, 2**63)
        # Two steps, as no database goes into an index for (due, id) > (x, y) in all cases: many are
        # due at midnight.
        page = list(rows.filter(due_at_ms=due_ms, pk__gt=pk).order_by("pk")[:limit])
        rows = rows.filter(due_at_ms__gt=due_ms)
    if len(page) < limit:
        page += rows.order_by("due_at_ms", "pk")[: limit - len(page)]
    last = page[-1] if len(page) == limit else None
    return Page(
        messages=[_shown(row) for row in page],
        cursor=cursor_of(last.due_at_ms, last.pk) if last else None,
    )


def count_outbox(topic: str) -> int:
    """How many rows of a topic wait only there, up to CAP."""
    rows = OutboxMessage.objects.filter(topic=topic, status=OutboxStatus.WAITING).order_by()
    return int(rows[:CAP].count())


def _shown(row: OutboxMessage) -> Message:
    identity = row.message_id.bytes
    state = State("ready" if row.due_at_ms <= get_store().now_us() // 1000 else "delayed")
    try:
        return view(
            row.topic, row.task, state, Found(identity, state, row.due_at_ms, record_of(row), None)
        )
    except UndecodableMessage:
        return bare(row.topic, identity, row.task, state, row.due_at_ms)
