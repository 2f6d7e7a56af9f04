"""Frames of messages: how they are arranged, summed and written by format("delayq")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type

from .. import schemas
from ..params import Redis
from ..session import parallelism
from ..sinks.loader import LoadSpec
from ..sinks.queue_sink import QueueSink
from ..source_options import encoded
from . import messages

#: Tasks of Spark for each core of the cluster, so that a core that is done early takes another.
TASKS = 2


def arrow_function(function: Callable[..., pa.Array], kind: T.DataType) -> Callable[..., Column]:
    """A function over arrays of Arrow as one over columns."""
    udf: Callable[[Callable[..., pa.Array], T.DataType], Callable[..., Column]] = vars(F)[
        "arrow_udf"
    ]  # not in stubs

    def over(*columns: pa.Array) -> pa.Array:
        return function(*columns)

    # Spark reads how many arrays it takes, and that these are arrays, from the annotations.
    over.__annotations__ = {"columns": pa.Array, "return": pa.Array}
    return udf(over, kind)


def id_column(owner: Column, key: Column) -> Column:
    """messages.ids()."""
    return arrow_function(messages.ids, T.BinaryType())(owner, key)


def with_hashes(frame: DataFrame) -> DataFrame:
    """With the column `hash`: see messages.hashes()."""
    columns = (F.col(name) for name in ("id", "due_ms", "expires", "header", "body"))
    return frame.withColumn("hash", arrow_function(messages.hashes, T.LongType())(*columns))


def placed(frame: DataFrame, counts: Mapping[str, int], splits: int) -> DataFrame:
    """With `partition`, `split` and `cell` by `topic` and `id`: see messages.cells()."""
    of = partial(messages.cells, counts=counts, splits=splits)
    place = arrow_function(of, from_arrow_type(messages.PLACES))(F.col("topic"), F.col("id"))
    placed_there = frame.withColumn("place", place)
    names = [field.name for field in messages.PLACES]
    return placed_there.withColumns({name: F.col(f"place.{name}") for name in names}).drop("place")


def arranged(frame: DataFrame, most: int) -> DataFrame:
    """Each cell in one piece and in the order of its ids. In at most `most` tasks of Spark."""
    return frame.repartition(tasks_of(frame, most), "cell").sortWithinPartitions("cell", "id")


def tasks_of(frame: DataFrame, most: int) -> int:
    """How many tasks write the frame: as the cluster has cores, and not as Redis has partitions,
    for each task has a connection of its own."""
    return max(1, min(most, TASKS * parallelism(frame.sparkSession)))


def summed() -> list[Column]:
    """For agg(): what LoadTotals needs of a frame that is with_hashes."""
    body = F.octet_length("body").cast("long")
    return [
        F.count(F.lit(1)).alias("rows"),
        F.coalesce(F.sum(body), F.lit(0)).alias("body_bytes"),
        F.coalesce(F.sum(F.col("hash").cast("decimal(38,0)")), F.lit(0))
        .cast("string")
        .alias("hash"),
    ]


def message_columns(frame: DataFrame) -> DataFrame:
    """Only the columns of a frame of messages, in their order."""
    fields = from_arrow_schema(schemas.MESSAGES)
    return frame.select(
        *[F.col(field.name).cast(field.dataType).alias(field.name) for field in fields]
    )


def write(frame: DataFrame, redis: Redis, spec: LoadSpec) -> None:
    """Write messages that are arranged()."""
    frame.sparkSession.dataSource.register(QueueSink)
    given = {"redis": encoded(redis), "load": encoded(spec)}
    frame.write.format(QueueSink.name()).options(**given).mode("append").save()


def share(frame: DataFrame, per_second: float | None, most: int) -> float | None:
    """The rate of each task of Spark. `most`: see arranged()."""
    if per_second is None:
        return None
    tasks = tasks_of(frame, most)
    # With dynamic allocation there may be more executors in a moment.
    spark = frame.sparkSession
    grows = str(spark.conf.get("spark.dynamicAllocation.enabled", "false")) == "true"
    return per_second / max(1, tasks if grows else min(tasks, parallelism(spark)))
