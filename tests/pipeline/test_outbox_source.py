"""spark.read.format("delayq_outbox"): every row of the outbox once, as it is, from each kind of
database."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from django_delayq.core.message import new_ids
from django_delayq.models import OutboxMessage
from django_delayq.pipeline import schemas
from django_delayq.pipeline.params import Database, Params
from django_delayq.pipeline.source_options import encoded
from django_delayq.pipeline.sources import table_reader
from django_delayq.pipeline.sources.outbox_source import OutboxReader, read_outbox
from django_delayq.store.store import RedisStore
from tests.app.tasks import record
from tests.pipeline.rows import ODD

pytestmark = pytest.mark.databases

DUE_MS = (1_795_000_000_123, 0, -1, 4_102_444_800_000, 1_795_000_000_000)
RECORDS = (b"", b"\x00", bytes(range(256)), b"\\x41", b'"quoted",\n', os.urandom(64))
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def database(parameters: Callable[..., Params]) -> Database:
    """The database of this run."""
    return parameters().database


def put(count: int, **fields: Any) -> None:
    """Rows with every odd content that there may be."""
    OutboxMessage.objects.bulk_create(
        (
            OutboxMessage(
                **{
                    "message_id": UUID(bytes=identity),
                    "enqueued_at_us": 1_700_000_000_000_001 + number,
                    "topic": "orders",
                    "task": "tests.app.tasks.record",
                    "key": ODD[number % len(ODD)],
                    "on_duplicate": "raise",
                    "due_at_ms": DUE_MS[number % len(DUE_MS)],
                    "record": RECORDS[number % len(RECORDS)],
                    "status": ("waiting", "sent")[number % 2],
                    "relay_at_ms": 0,
                    **fields,
                }
            )
            for number, identity in enumerate(new_ids(count))
        ),
        batch_size=20 if "record" in fields else None,  # MariaDB's packets are of 16 MiB
    )


def as_django_reads() -> list[tuple[Any, ...]]:
    return [
        (
            row.message_id.hex, row.enqueued_at_us, row.topic, row.task, row.key,
            EPOCH + timedelta(milliseconds=row.due_at_ms), row.status, bytes(row.record),
        )
        for row in OutboxMessage.objects.order_by("id")
    ]  # fmt: skip


def test_every_odd_content_arrives_as_it_is(spark: Any, database: Database) -> None:
    put(46)
    frame = read_outbox(spark, database)
    assertSchemaEqual(frame.schema, from_arrow_schema(schemas.OUTBOX))
    assertDataFrameEqual(frame, spark.createDataFrame(as_django_reads(), frame.schema))


@pytest.mark.parametrize("reader", table_reader.READERS)
def test_each_reader_gives_the_same(reader: str, database: Database) -> None:
    put(46)
    options = {"database": msgspec.json.encode(database).decode(), "reader": reader}
    batches = OutboxReader(schemas.OUTBOX, options).read(InputPartition((0, 2**62)))
    found = pa.Table.from_batches(batches, schemas.OUTBOX)
    assert [tuple(row.values()) for row in found.to_pylist()] == as_django_reads()


def test_an_empty_outbox_has_no_rows_but_all_columns(spark: Any, database: Database) -> None:
    frame = read_outbox(spark, database)
    assert frame.columns == schemas.OUTBOX.names
    assert frame.count() == 0


def test_a_durable_message_is_there_as_redis_will_have_it(
    spark: Any, database: Database, delayq: RedisStore
) -> None:
    handle = record.using(durable=True, key="k", delay=3600).enqueue(1)
    (row,) = read_outbox(spark, database).collect()
    assert (row.message_id, row.key, row.status) == (handle.id, "k", "sent")
    assert row.due_at.timestamp() == pytest.approx(handle.due_at.timestamp(), abs=0.001)
    assert bytes(row.record) == bytes(OutboxMessage.objects.get().record)


def test_chosen_columns_come_alone_and_rows_in_parts(spark: Any, database: Database) -> None:
    put(5_000)
    schema = from_arrow_schema(schemas.chosen(schemas.OUTBOX, ["due_at", "topic"]))
    reader = spark.read.format("delayq_outbox").schema(schema)
    frame = reader.options(database=encoded(database)).load()
    assert frame.columns == ["due_at", "topic"]
    counts = frame.groupBy("topic", F.spark_partition_id()).count().collect()
    assert sum(row["count"] for row in counts) == 5_000
    assert len(counts) > 1


def test_big_records_make_small_batches(database: Database) -> None:
    put(300, record=b"x" * 200_000)
    schema = schemas.chosen(schemas.OUTBOX, ["topic", "record"])
    database = msgspec.structs.replace(database, table=database.outbox)
    batches = list(table_reader.read_rows(database, schema, (0, 2**62)))
    assert sum(batch.num_rows for batch in batches) == 300
    assert max(batch.nbytes for batch in batches) <= max(
        3 * table_reader.CHUNK, table_reader.FIRST * 200_100
    )


def test_a_database_without_its_outbox_named_is_refused(spark: Any, database: Database) -> None:
    without = msgspec.structs.replace(database, outbox="")
    with pytest.raises(Exception, match="does not say which table its `outbox` is"):
        read_outbox(spark, without).collect()
