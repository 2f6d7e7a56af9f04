"""What the jobs compute: DataFrame in, DataFrame out. No reading, no writing, no session, and time
is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.functions import arrow_udf

from . import schemas
from .stats import aggregates
from .stats.aggregates import HOURS_AND_DAYS, KEYS, METRICS, READ, SUMS, Unit

#: As in statistics.py.
MOST_ERRORS = 50


def settled(
    frame: DataFrame, since: datetime | None, until: datetime | None, topic: str = ""
) -> DataFrame:
    """Rows that finished in [since, until), of a topic if it is given."""
    if since is not None:
        frame = frame.where(F.col("finished_at") >= F.lit(since))
    if until is not None:
        frame = frame.where(F.col("finished_at") < F.lit(until))
    return frame.where(F.col("topic") == topic) if topic else frame


def hashed(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """With a hash of these columns, in two halves, for signature(): apart from it, so that the pass
    in which rows are written computes it in compiled code."""
    whole = F.xxhash64(*columns)
    low = whole.bitwiseAND(F.lit(2**32 - 1))
    return frame.withColumns({"hash_high": F.shiftright(whole, 32), "hash_low": low})


def signature() -> list[Column]:
    """Of a hashed() frame: rows, sums of the halves of their hashes, and the first and last id and
    instant. Two sets of rows with equal ones are equal for all that can be told, in whatever order
    and files they lie."""
    return [
        F.count(F.lit(1)).alias("rows"),
        F.sum("hash_high").alias("high"),
        F.sum("hash_low").alias("low"),
        F.min("id").alias("lowest"),
        F.max("id").alias("highest"),
        F.date_format(F.min("finished_at"), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").alias("oldest"),
        F.date_format(F.max("finished_at"), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").alias("newest"),
    ]


def counted(frame: DataFrame, units: Sequence[Unit] = HOURS_AND_DAYS) -> DataFrame:
    """Rows of the archive -> what topic_hours() and task_days() are made of, in one pass over the
    rows."""
    part = partial(aggregates.cells, units=units)
    return added_up(frame.select(*READ).mapInArrow(part, schemas.spark_schema(aggregates.CELLS)))


def added_up(found: DataFrame) -> DataFrame:
    """Cells of parts of the rows -> those of all rows: one for each of their keys and errors."""
    sums = [F.sum(name).alias(name) for name in ("n", *SUMS)]
    highest = [F.max(f"{metric}_max").alias(f"{metric}_max") for metric in METRICS]
    merged = arrow_udf(aggregates.merged, "string")  # type: ignore[call-overload]  # told the kind, it warns
    histograms = [merged(F.collect_list(metric)).alias(metric) for metric in METRICS]
    return found.groupBy(*KEYS, "error").agg(*sums, *highest, *histograms)


def topic_hours(found: DataFrame) -> DataFrame:
    """Of counted(): one row per hour (UTC, its beginning in microseconds since 1970) and topic,
    with the columns of TopicHour; histograms are the JSON of histogram.encode(). Rows without
    finished_at are in no hour."""
    return figures(found, "hour").withColumnRenamed("at", "hour").drop("task")


def task_days(found: DataFrame) -> DataFrame:
    """Of counted(): one row per day (UTC, as the hour above), topic and task, with the columns of
    TaskDay; `errors` is an array of (error, n), the fifty most frequent, null when nothing died."""
    errors = _errors(found.where((F.col("unit") == "day") & F.col("error").isNotNull()))
    whole = figures(found, "day").join(errors, ["at", "topic", "task"], "left")
    return whole.withColumnRenamed("at", "day")


def figures(found: DataFrame, unit: str) -> DataFrame:
    """Of counted(): counts, sums and histograms per group."""
    exact = [name for name in SUMS if not name.startswith(METRICS)]
    sums = [_milliseconds(metric).alias(f"{metric}_sum") for metric in METRICS]
    highest = [f"{metric}_max" for metric in METRICS]
    of_unit = found.where((F.col("unit") == unit) & F.col("error").isNull())
    return of_unit.select("at", "topic", "task", *exact, *sums, *highest, *METRICS)


def _milliseconds(metric: str) -> Column:
    """The sum was made in integers: exact, in whatever order."""
    high, low = (F.col(f"{metric}_{half}").cast("decimal(20,0)") for half in ("high", "low"))
    total = high * F.lit(2**32).cast("decimal(10,0)") + low
    return F.coalesce((total / F.lit(1000)).cast("double"), F.lit(0.0))


def _errors(dead: DataFrame) -> DataFrame:
    """Reasons may be as many as messages: they are cut here, not where all figures come
    together."""
    keys = ("at", "topic", "task")
    order = Window.partitionBy(*keys).orderBy(F.desc("n"), F.asc("error"))
    frequent = dead.withColumn("place", F.row_number().over(order)).where(
        F.col("place") <= MOST_ERRORS
    )
    return frequent.groupBy(*keys).agg(F.collect_list(F.struct("error", "n")).alias("errors"))


def dates(frame: DataFrame) -> DataFrame:
    """With the UTC date by which the lake is divided."""
    return frame.withColumn("dt", F.date_format("finished_at", "yyyy-MM-dd"))
