"""Puts rows of the lake back into SQL, which has lost them: a dead letter as what is known to have
become of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone
from pyspark.sql import DataFrame, SparkSession
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

Item = TypeVar("Item")
#: Ids of one query.
SOME = 500


class Replay(NamedTuple):
    """What replays a dead letter."""

    message_id: UUID
    at: Any
    """When it was enqueued, as the models hold it."""


class PutBack:
    """Rows of one lake."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark, self._lake = spark, lake
        self._alias = get_settings().database

    def run(self, pks: Sequence[int]) -> set[int]:
        """Insert these rows with their ids, so that they stay the rows of the lake that they are.
        Returns which were.

        The lake does not know what was done about a dead letter. It is not open again, or somebody
        might replay it a second time: it is replayed by what SQL, the outbox or the lake know to
        replay it, and else it is discarded.
        """
        if not pks:
            return set()
        replays = self._replays(set(pks))
        files, done = self._lake.files(), set()
        for some in chunked(sorted(set(pks) - stored_ids(set(pks))), SOME):
            near = [
                one
                for one in files
                if not one.highest or (one.lowest <= some[-1] and one.highest >= some[0])
            ]
            frame = (
                read_files(self._spark, self._lake, near)
                .where(F.col("id").isin(some))
                .dropDuplicates(["id"])
            )
            done |= self._inserted(
                [_row(values, replays) for values in frame.toArrow().to_pylist()]
            )
        return done

    def _inserted(self, rows: Sequence[ArchivedMessage]) -> set[int]:
        """Past INSERT IGNORE, which on MariaDB swallows more than a row that is there."""
        objects = ArchivedMessage.objects.using(self._alias)
        try:
            with transaction.atomic(using=self._alias):
                objects.bulk_create(rows)
            return {row.pk for row in rows}
        except IntegrityError:  # some are there: one by one
            return {row.pk for row in rows if self._is_inserted(row)}

    def _is_inserted(self, row: ArchivedMessage) -> bool:
        try:
            with transaction.atomic(using=self._alias):
                row.save(force_insert=True, using=self._alias)
        except IntegrityError:
            return False
        return True

    def _replays(self, pks: Set[int]) -> dict[int, Replay]:
        """By their origins: what is in the lake, in SQL, and in the outbox."""
        lake = read_files(
            self._spark, self._lake, self._lake.files(), ["replay_of", "message_id", "enqueued_at"]
        )
        found = {pk: replay for pk, replay in _in_the_lake(lake) if pk in pks}
        archive = ArchivedMessage.objects.using(self._alias)
        for some in chunked(sorted(pks), SOME):
            for pk, *replay in archive.filter(replay_of__in=some).values_list(
                "replay_of", "message_id", "enqueued_at"
            ):
                found[pk] = Replay(*replay)
        for row in OutboxMessage.objects.using(self._alias).iterator(chunk_size=SOME):
            if (origin := _origin(row)) in pks:
                found[origin] = Replay(row.message_id, stored_ms(row.enqueued_at_us / 1000))
        return found


def _in_the_lake(lake: DataFrame) -> Iterator[tuple[int, Replay]]:
    replays = lake.where(F.col("replay_of").isNotNull()).withColumn(
        "at", F.unix_micros("enqueued_at")
    )
    for row in replays.toLocalIterator():
        yield row["replay_of"], Replay(UUID(hex=row["message_id"]), stored_ms(row["at"] / 1000))


def _origin(row: OutboxMessage) -> int:
    """Which dead letter it replays; 0: none."""
    try:
        record = Record.decode(record_of(row))
        return decode_body(record.flags, record.body).replay_of or 0
    except UndecodableMessage:
        return 0


def stored_ids(pks: Set[int]) -> set[int]:
    """Which of these ids SQL has."""
    rows = ArchivedMessage.objects.using(get_settings().database)
    return {
        pk
        for some in chunked(sorted(pks), SOME)
        for pk in rows.filter(pk__in=some).values_list("pk", flat=True)
    }


def _row(values: dict[str, Any], replays: dict[int, Replay]) -> ArchivedMessage:
    for name in ("enqueued_at", "due_at", "started_at", "finished_at"):
        values[name] = values[name] and stored(values[name])
    values["message_id"] = UUID(hex=values["message_id"])
    # Long ago: it is no new row, which others would wait for to be settled.
    row = ArchivedMessage(**values, archived_at=values["finished_at"])
    if row.state == Final.DEAD:
        if replay := replays.get(row.pk):
            row.replayed_by, row.replayed_at = replay.message_id, replay.at
        else:
            row.discarded_at = timezone.now()
    return row
