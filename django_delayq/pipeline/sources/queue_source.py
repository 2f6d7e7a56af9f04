"""spark.read.format("delayq_queue"): the content of Redis, as a data source of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ...core.message import HEADER_END, is_durable, stamp_us_of, task_code_of
from ...store import open_store, structures
from ...store.store import RedisStore
from ...store.structures import (
    HELD_MS,
    LAST_MS,
    STRUCTURES,
    Structure,
    place_rows,
)
from .. import schemas
from ..params import Redis
from ..source_options import encoded, read_option

#: Most elements that one Spark task reads of several structures. A larger structure has a task of
#: its own.
SMALL = 50_000


def read_queue(spark: SparkSession, redis: Redis, topics: Sequence[str] = ()) -> DataFrame:
    """The content of Redis now, of these topics or of all: one row per id and place, as
    schemas.QUEUE.

    | place             | a row for each                            | record  | due_at          |
    |-------------------|-------------------------------------------|---------|-----------------|
    | high, normal, low | id in this lane                           | or null | when it is due  |
    | leased            | id in a lease                             | or null | end of lease    |
    | follower          | id that is enqueued after its run         | its own | due time of it  |
    | finished          | entry of the finished stream, perhaps two | or null | when it ended   |
    | done              | durable life that ended, not yet archived | null    | null            |
    | none              | id with a record, or else with attempts,  | or null | null            |
    |                   | in no lane and not leased                 |         |                 |

    So a healthy waiting message has one row. A damaged one: an id in two lanes, or in a lane and
    leased, has a row for each; a place without a record has a null record, enqueued_at_us,
    task_code and durable; a record without a place is `none` with a record; attempts without both
    are `none` without a record. An id with a place has no `none`. A record that is too short has no
    task_code, and below 8 bytes no enqueued_at_us. `has_attempts` says whether the partition has
    attempts of the id; it is null for finished and done. `enqueued_at_us` of done is the stamp that
    Redis remembers.

    This is not one instant: scans may return an element twice, and an element that moves meanwhile
    twice or not at all. Count after dropDuplicates(["message_id"]), and check an id again before
    you call it damaged. No reply holds more than a page, and nothing is changed, so `redis` may be
    a replica. An error of Redis ends the task; its text holds no secret.
    """
    spark.dataSource.register(QueueSource)
    reader = spark.read.format(QueueSource.name()).options(redis=encoded(redis))
    return reader.options(topics=",".join(topics)).load()


class QueueSource(DataSource):
    """Options: `redis` (JSON of params.Redis), `topics` (names with commas; none: all). Its rows:
    see read_queue()."""

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "delayq_queue"

    def schema(self) -> Any:
        """All columns."""
        return from_arrow_schema(schemas.QUEUE)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For all columns."""
        return QueueReader(self.options)


class QueueReader(DataSourceReader):
    """It can be pickled: only partitions() and read() open a connection."""

    def __init__(self, options: Any) -> None:
        self._redis = read_option(options, "redis", Redis)
        self._topics = {name for name in str(options.get("topics", "")).split(",") if name}

    def partitions(self) -> Sequence[InputPartition]:
        """The largest structures first, alone; small ones together. Empty ones too: they may fill
        meanwhile."""
        with closing(self._store()) as store:
            partitions = structures.partitions_of(store, self._topics)
            chosen = structures.all_of(partitions, tuple(STRUCTURES))
            sizes = dict(zip(chosen, structures.sizes(store, chosen), strict=True))
        return [InputPartition(part) for part in parted(sizes) or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of the structures of a part, one after the other."""
        with closing(self._store()) as store:
            for structure in partition.value:
                yield from read_structure(store, structure)

    def _store(self) -> RedisStore:
        return open_store(self._redis.settings())


def parted(sizes: dict[Structure, int]) -> list[list[Structure]]:
    """Parts with about as much work each, those with the most elements first."""
    parts: list[list[Structure]] = []
    room = 0
    for structure, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if size > room or not parts:
            parts.append([])
            room = SMALL
        parts[-1].append(structure)
        room -= size
    return parts


# From Redis to Arrow


def read_structure(store: RedisStore, structure: Structure) -> Iterator[pa.RecordBatch]:
    """Its rows as schemas.QUEUE."""
    partition, name = structure
    place = "none" if name == "attempts" else name
    for rows in place_rows(store, structure):
        if not rows:
            continue
        records = [row.record for row in rows]
        codes = [
            task_code_of(record).hex() if record and len(record) >= HEADER_END else None
            for record in records
        ]
        # As the scripts see it: a record that is too short for the flag is not durable.
        durable = [
            bool(row.stamp) or (None if row.record is None else is_durable(row.record))
            for row in rows
        ]
        stamps = [stamp_us_of(row.stamp or row.record or b"") for row in rows]
        columns = [
            pa.array([row.id.hex() for row in rows], pa.string()),
            pa.repeat(partition.topic, len(rows)),
            pa.repeat(pa.scalar(partition.number, pa.int32()), len(rows)),
            pa.repeat(place, len(rows)),
            _times([row.due_ms for row in rows]),
            pa.array(stamps, pa.int64()),
            pa.array(codes, pa.string()),
            pa.array(durable, pa.bool_()),
            pa.array([row.has_attempts for row in rows], pa.bool_()),
            pa.array(records, pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schemas.QUEUE)


def _times(milliseconds: Sequence[float | None]) -> pa.Array:
    exact = np.array(milliseconds, float)  # None as NaN, which no score is
    exact = np.where((exact >= HELD_MS) & (exact < 2 * HELD_MS), exact - HELD_MS, exact)
    missing = np.isnan(exact)
    rounded = np.rint(np.where(missing, 0.0, np.clip(exact, 0.0, LAST_MS)) * 1000)
    return pa.array(rounded.astype(np.int64), mask=missing).cast(schemas.TIME)
