"""What the jobs compute: DataFrame in, DataFrame out. No reading, no writing, no session, and time is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

#: States of the archive.
STATES = ("acked", "dead", "cancelled", "expired")


def bucket(milliseconds: Column) -> Column:
    """The bucket of a value in milliseconds: histogram.bucket() as an expression, equal to it for every value."""
    n = F.floor(milliseconds * F.lit(1000.0) + F.lit(0.5)).cast("long")
    # log2 may be off by one next to a power of two: integers decide.
    guess = F.floor(F.log2(F.greatest(n, F.lit(1)).cast("double"))).cast("int")
    too_high = _power(guess) > n
    too_low = _power(guess + 1) <= n
    exponent = guess - too_high.cast("int") + too_low.cast("int") - F.lit(4)
    wide = F.lit(16) * exponent + _shifted(n, exponent)
    return F.when(n < 16, F.greatest(n, F.lit(0))).otherwise(wide).cast("int")


def _power(exponent: Column) -> Column:
    """2 to the exponent, as a long."""
    return F.call_function("shiftleft", F.lit(1).cast("long"), exponent)


def _shifted(n: Column, exponent: Column) -> Column:
    return F.call_function("shiftright", n, F.greatest(exponent, F.lit(0)))


def settled(frame: DataFrame, since: datetime | None, until: datetime | None, topic: str = "") -> DataFrame:
    """Rows that finished in [since, until), of a topic if it is given."""
    if since is not None:
        frame = frame.where(F.col("finished_at") >= F.lit(since))
    if until is not None:
        frame = frame.where(F.col("finished_at") < F.lit(until))
    return frame.where(F.col("topic") == topic) if topic else frame


def signature(columns: Sequence[str]) -> list[Column]:
    """Rows, a sum of hashes over these columns, and the first and last id and instant: two sets of rows with equal
    ones are equal for all that can be told, in whatever order and files they lie."""
    return [
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.xxhash64(*columns).cast("decimal(38,0)")).cast("string").alias("hash"),
        F.min("id").alias("lowest"),
        F.max("id").alias("highest"),
        F.date_format(F.min("finished_at"), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").alias("oldest"),
        F.date_format(F.max("finished_at"), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").alias("newest"),
    ]


def topic_hours(frame: DataFrame) -> DataFrame:
    """One row per hour (UTC) and topic: counts by state, attempts, and histograms of lateness and run time."""
    return _figures(frame.withColumn("hour", F.date_trunc("hour", "finished_at")), ("hour", "topic"))


def task_days(frame: DataFrame) -> DataFrame:
    """One row per day (UTC), topic and task: the same, and the classes of errors."""
    return _figures(frame.withColumn("day", F.to_date("finished_at")), ("day", "topic", "task"), errors=True)


def _figures(frame: DataFrame, keys: Sequence[str], *, errors: bool = False) -> DataFrame:
    """Exact counts beside the histograms. One pass: per group and bucket first, which is little, then per group."""
    counts = [F.count(F.when(F.col("state") == state, 1)).alias(state) for state in STATES]
    sums = [
        F.sum("attempts").alias("attempts"),
        F.count(F.when(F.col("attempts") > 1, 1)).alias("retried"),
        F.sum("lateness_ms").alias("lateness_sum"),
        F.max("lateness_ms").alias("lateness_max"),
        F.sum("run_ms").alias("run_sum"),
        F.max("run_ms").alias("run_max"),
    ]
    whole = frame.groupBy(*keys).agg(F.count(F.lit(1)).alias("messages"), *counts, *sums)
    for metric in ("lateness", "run"):
        whole = whole.join(_histograms(frame, keys, metric), list(keys), "left")
    return whole.join(_errors(frame, keys), list(keys), "left") if errors else whole


def _histograms(frame: DataFrame, keys: Sequence[str], metric: str) -> DataFrame:
    value = F.col(f"{metric}_ms")
    cells = (
        frame.where(value.isNotNull()).groupBy(*keys, bucket(value).alias("bucket")).agg(F.count(F.lit(1)).alias("n"))
    )
    pair = F.struct("bucket", "n")
    return cells.groupBy(*keys).agg(F.sort_array(F.collect_list(pair)).alias(metric))


def _errors(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    failed = frame.where(F.col("state") == "dead")
    named = F.when(F.col("error_class") != "", F.col("error_class")).otherwise(F.col("reason")).alias("error")
    cells = failed.groupBy(*keys, named).agg(F.count(F.lit(1)).alias("n"))
    return cells.groupBy(*keys).agg(F.sort_array(F.collect_list(F.struct("error", "n"))).alias("errors"))


def due(frame: DataFrame, now: datetime, unit: str) -> DataFrame:
    """Waiting messages per minute, hour or day (UTC) and topic: what is overdue counts in the unit of `now`."""
    at = F.greatest(F.col("due_at"), F.lit(now))
    return frame.groupBy("topic", F.date_trunc(unit, at).alias("at")).agg(F.count(F.lit(1)).alias("messages"))


def dates(frame: DataFrame) -> DataFrame:
    """With the UTC date by which the lake is divided."""
    return frame.withColumn("dt", F.date_format("finished_at", "yyyy-MM-dd"))


def first_of_each(frame: DataFrame, *names: str) -> DataFrame:
    """Each once: a snapshot may have seen a message twice."""
    return frame.dropDuplicates(list(names))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """A small result."""
    return [row.asDict(recursive=True) for row in frame.collect()]
