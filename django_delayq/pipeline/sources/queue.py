"""spark.read.format("delayq_queue"): what lies in Redis, as a data source of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...core.exceptions import ConfigurationError
from ...store.keys import Partition
from ...store.store import RedisStore
from .. import schemas
from ..params import Redis
from . import queue_rows
from .queue_rows import LANES, STRUCTURES, Structure

#: Structures with fewer elements are read together, up to so many elements in one Spark task: a
#: task has its cost.
SMALL = 50_000


def read_queue(
    spark: SparkSession, redis: Redis, topics: Sequence[str] = (), *, due_only: bool = False
) -> DataFrame:
    """What lies in Redis now, of these topics or of all: one row per id and place, as
    schemas.QUEUE; with `due_only` only the lanes, as schemas.DUE, three times as quickly.

    | place | a row for each | record | due_at |
    |-------------------|---------------------------------------------------|---------|----------------------------|
    | high, normal, |
    low | id in this lane                                   | or null | when it is due             |
    | leased | id in a lease | or null | when the lease ends |
    | follower | id that is enqueued anew when its run ends | its own | when that one is due |
    | finished | entry of the finished stream (an id may have two) | or null | when it ended |
    | done | durable life that ended and is not yet archived | null | null |
    | none | id with a record, or else with attempts, |
    that is in no lane and not leased | or null | null |

    So a healthy waiting message has one row. Of damage: an id in two lanes, or in a lane and
    leased, has a row for each; a place without a record has a null record, enqueued_at_us,
    task_code and durable; a record without a place is `none` with a record; attempts without both
    are `none` without one. An id with a place has no `none`. A record that is too short has no
    task_code, below 8 bytes no enqueued_at_us. `has_attempts` says whether the partition has
    attempts of the id; null for finished and done. `enqueued_at_us` of done is the stamp that is
    remembered.

    It is no instant: scans may give an element twice, and one that moves meanwhile twice or not at
    all. Count after dropDuplicates(["message_id"]), and take nothing for damage before a second
    look by id. No reply holds more than a page, and nothing is changed: `redis` may be a replica.
    Errors of Redis end the task, without a secret.
    """
    spark.dataSource.register(QueueSource)
    reader = spark.read.format(QueueSource.name()).option(
        "redis", msgspec.json.encode(redis).decode()
    )
    return (
        reader.option("topics", ",".join(topics)).option("due_only", str(due_only).lower()).load()
    )


class Part(InputPartition):
    """Structures that one task reads, one after the other."""

    def __init__(self, structures: Sequence[tuple[str, int, str]]) -> None:
        super().__init__(structures)
        self.structures = structures
        """Topic, partition and name of each: plain values, that an executor can unpickle."""


class QueueSource(DataSource):
    """Options: `redis` (JSON of params.Redis), `topics` (names with commas; none: all) and
    `due_only` (true, false). For the rows see read_queue()."""

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "delayq_queue"

    def schema(self) -> Any:
        """schemas.QUEUE or schemas.DUE."""
        return schemas.spark_schema(schemas.DUE if _due_only(self.options) else schemas.QUEUE)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For all columns."""
        return QueueReader(self.options)


class QueueReader(DataSourceReader):
    """Picklable: no connection before partitions() and read()."""

    def __init__(self, options: Any) -> None:
        if "redis" not in options:
            raise ConfigurationError("delayq_queue needs the option redis.")
        self._redis = str(options["redis"])
        self._topics = {name for name in str(options.get("topics", "")).split(",") if name}
        self._due_only = _due_only(options)

    def partitions(self) -> Sequence[InputPartition]:
        """The largest structures first, alone; small ones together. Empty ones too: they may fill
        meanwhile."""
        store = self._store()
        try:
            names = LANES if self._due_only else tuple(STRUCTURES)
            structures = queue_rows.all_of(self._partitions(store), names)
            sizes = dict(zip(structures, queue_rows.sizes(store, structures), strict=True))
        finally:
            store.close()
        return [Part([(*one.partition, one.name) for one in part]) for part in parted(sizes)] or [
            Part([])
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        assert isinstance(partition, Part)
        store = self._store()
        one_of = queue_rows.read_due if self._due_only else queue_rows.read
        try:
            for topic, number, name in partition.structures:
                yield from one_of(store, Structure(Partition(topic, number), name))
        finally:
            store.close()

    def _store(self) -> RedisStore:
        return RedisStore(None, msgspec.json.decode(self._redis, type=Redis).settings())

    def _partitions(self, store: RedisStore) -> list[Partition]:
        """Every one that a topic has had, and those of the settings, should Redis have lost its
        list."""
        set_up = [
            Partition(topic, number)
            for topic, options in store.client.settings.topics.items()
            for number in range(options.partitions)
        ]
        found = sorted({*store.topics.used_partitions(), *set_up})
        return [one for one in found if not self._topics or one.topic in self._topics]


def parted(sizes: dict[Structure, int]) -> list[list[Structure]]:
    """Parts of about equal work, those with the most elements first."""
    parts: list[list[Structure]] = []
    room = 0
    for structure, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if size > room or not parts:
            parts.append([])
            room = SMALL
        parts[-1].append(structure)
        room -= size
    return parts


def _due_only(options: Any) -> bool:
    return str(options.get("due_only", "false")).lower() == "true"
