"""Closes the outbox rows of durable messages that have ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import UUID

from django.db import connections

from ..core.chunks import chunked
from ..core.conf import get_settings
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
        _delete(list(ended))
        left += [
            lives[life]
            for life in there.values_list("message_id", "enqueued_at_us")
            if life in lives
        ]
    return left


def _delete(pks: Sequence[int]) -> None:
    """Delete rows that this transaction has locked."""
    connection = connections[get_settings().database]
    if connection.vendor != "mysql" or not pks:
        OutboxMessage.objects.filter(id__in=pks).delete()
        return
    # By a list of ids, where these are a good part of the table, InnoDB reads it all and waits for
    # each row that another archiver has locked: a deadlock. By a join it goes to each row alone.
    table = connection.ops.quote_name(OutboxMessage._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE ended FROM JSON_TABLE(%s, '$[*]' COLUMNS (pk BIGINT PATH '$')) AS listed "
            f"STRAIGHT_JOIN {table} AS ended FORCE INDEX (PRIMARY) ON ended.id = listed.pk",
            [json.dumps(pks)],
        )
