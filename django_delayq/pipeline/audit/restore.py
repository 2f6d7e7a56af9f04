"""Puts rows of the lake back into SQL, which has lost them. A dead letter comes back as replayed or
as discarded."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...core.chunks import chunked
from ...core.conf import get_settings
from ...core.exceptions import UndecodableMessage
from ...core.message import Record, decode_body
from ...core.times import stored, stored_ms
from ...models import ArchivedMessage, Final, OutboxMessage
from ...outbox.outbox import record_of
from ..lake.lake import Lake
from ..lake.reader import read_files

#: Ids of one query.
IDS = 500


class Replay(NamedTuple):
    """The message that replays a dead letter."""

    message_id: UUID
    at: Any
    """When it was enqueued, as the models hold it."""


def restore_rows(spark: SparkSession, lake: Lake, pks: Set[int]) -> set[int]:
    """Insert these rows of the lake with their ids, so that they stay the same rows. Returns the
    ids that were inserted.

    The lake does not know what was done about a dead letter. It does not come back as open, or an
    operator might replay it a second time: it is replayed by the message that replays it in SQL,
    the outbox or the lake, and without one it is discarded.
    """
    done: set[int] = set()
    if not pks:
        return done
    replays, files = _replays(spark, lake, pks), lake.files()
    for ids in chunked(sorted(pks - stored_ids(pks)), IDS):
        near = [file for file in files if file.may_have(ids[0] - 1, ids[-1])]
        frame = read_files(spark, lake, near).where(F.col("id").isin(ids))
        values = frame.dropDuplicates(["id"]).toArrow().to_pylist()
        rows = [_row(fields, replays) for fields in values]
        together = _are_inserted(rows)
        # Otherwise SQL has one of them by now: one by one.
        done |= {row.pk for row in rows if together or _are_inserted([row])}
    return done


def _are_inserted(rows: Sequence[ArchivedMessage]) -> bool:
    """Insert all of these rows or none. Not by INSERT IGNORE: on MariaDB it swallows more than a
    row that is there."""
    try:
        with transaction.atomic(using=get_settings().database):
            ArchivedMessage.objects.bulk_create(rows)
    except IntegrityError:
        return False
    return True


def _replays(spark: SparkSession, lake: Lake, pks: Set[int]) -> dict[int, Replay]:
    """The replays of these dead letters: in the lake, in SQL, and in the outbox."""
    found: dict[int, Replay] = {}
    columns = ["replay_of", "message_id", "enqueued_at"]
    replays = read_files(spark, lake, lake.files(), columns).where(F.col("replay_of").isNotNull())
    for row in replays.withColumn("at", F.unix_micros("enqueued_at")).toLocalIterator():
        if row["replay_of"] in pks:
            at = stored_ms(row["at"] / 1000)
            found[row["replay_of"]] = Replay(UUID(hex=row["message_id"]), at)
    for ids in chunked(sorted(pks), IDS):
        rows = ArchivedMessage.objects.filter(replay_of__in=ids).values_list(*columns)
        for pk, *replay in rows:
            found[pk] = Replay(*replay)
    for row in OutboxMessage.objects.iterator(chunk_size=IDS):
        with suppress(UndecodableMessage):
            record = Record.decode(record_of(row))
            origin = decode_body(record.flags, record.body, row.message_id.bytes).replay_of or 0
            if origin in pks:
                found[origin] = Replay(row.message_id, stored_ms(row.enqueued_at_us / 1000))
    return found


def stored_ids(pks: Set[int]) -> set[int]:
    """Those of these ids that SQL has."""
    return {
        pk
        for ids in chunked(sorted(pks), IDS)
        for pk in ArchivedMessage.objects.filter(pk__in=ids).values_list("pk", flat=True)
    }


def _row(values: dict[str, Any], replays: dict[int, Replay]) -> ArchivedMessage:
    for name in ("enqueued_at", "due_at", "started_at", "finished_at"):
        values[name] = values[name] and stored(values[name])
    values["message_id"] = UUID(hex=values["message_id"])
    # As long ago as it ended: readers that wait until new rows are settled need not wait for it.
    row = ArchivedMessage(**values, archived_at=values["finished_at"])
    if row.state == Final.DEAD:
        if replay := replays.get(row.pk):
            row.replayed_by, row.replayed_at = replay.message_id, replay.at
        else:
            row.discarded_at = timezone.now()
    return row
