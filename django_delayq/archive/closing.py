"""Closes the outbox rows of durable messages that have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from django.db import connections

from ..models import OutboxMessage
from ..store.finished import Entry


def close(entries: Sequence[Entry], alias: str) -> Sequence[Entry]:
    """Remove the rows of durable messages that have ended, in the transaction that inserts their
    archive rows.

    Returns the entries whose rows another transaction has locked: waiting for it would hold up the
    archive of all.
    """
    lives = {(UUID(bytes=e.id), int.from_bytes(e.stamp, "big")): e for e in entries if e.stamp}
    rows, left = OutboxMessage.objects.using(alias), []
    skip_locked = connections[alias].features.has_select_for_update_skip_locked
    for ids in _chunks(sorted({message_id for message_id, _ in lives})):
        there = rows.filter(message_id__in=ids).order_by("id")
        # Locked, so that no other life of the same key takes the row before it is deleted; one that
        # has, stays.
        locked = there.select_for_update(skip_locked=skip_locked).values_list(
            "id", "message_id", "enqueued_at_us"
        )
        ended = {
            pk: (message_id, stamp)
            for pk, message_id, stamp in locked
            if (message_id, stamp) in lives
        }
        rows.filter(id__in=list(ended)).delete()
        left += [
            lives[life]
            for life in there.values_list("message_id", "enqueued_at_us")
            if life in lives
        ]
    return left


def _chunks(ids: Sequence[UUID], size: int = 500) -> Iterator[Sequence[UUID]]:
    return (ids[at : at + size] for at in range(0, len(ids), size))
