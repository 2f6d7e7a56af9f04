"""Closes the outbox rows of durable messages that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..core.chunks import chunked
from ..core.database import locked
from ..models import OutboxMessage
from ..store.entries import Entry


def close(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Remove the rows of durable messages that have ended, in the transaction that inserts their
    archive rows.

    Returns the entries whose rows another transaction has locked: waiting for it would hold up the
    archive of all.
    """
    lives = {(UUID(bytes=e.id), int.from_bytes(e.stamp, "big")): e for e in entries if e.stamp}
    rows, left = OutboxMessage.objects.all(), []
    for ids in chunked(sorted({message_id for message_id, _ in lives}), 500):
        there = rows.filter(message_id__in=ids).order_by("id")
        # Locked, so that no other life of the same key takes the row before it is deleted; one that
        # has, stays.
        held = locked(there).values_list("id", "message_id", "enqueued_at_us")
        ended = {
            pk: (message_id, stamp)
            for pk, message_id, stamp in held
            if (message_id, stamp) in lives
        }
        rows.filter(id__in=list(ended)).delete()
        left += [
            lives[life]
            for life in there.values_list("message_id", "enqueued_at_us")
            if life in lives
        ]
    return left
