"""What the jobs compute: DataFrame in, DataFrame out. No reading, no writing, no session, and time is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

#: States of the archive.
STATES = ("acked", "dead", "cancelled", "expired")
#: As in histogram.py.
LARGEST = 2.0**60
#: As in statistics.py.
MOST_ERRORS = 50
#: Of an hour and a day, in microseconds.
HOUR, DAY = 3_600_000_000, 86_400_000_000


def microseconds(milliseconds: Column) -> Column:
    """In whole microseconds, as a long: histogram.microseconds() as an expression. Null of null and of NaN."""
    exact = milliseconds * F.lit(1000.0) + F.lit(0.5)
    # These two pass over nulls, and take NaN for the greatest of all numbers.
    within = F.least(F.greatest(exact, F.lit(-LARGEST)), F.lit(LARGEST))
    return F.when(milliseconds.isNotNull() & ~F.isnan(milliseconds), F.floor(within).cast("long"))


def bucket(milliseconds: Column) -> Column:
    """The bucket of a value in milliseconds: histogram.bucket() as an expression, equal to it for every double. Null of
    null and of NaN."""
    n = microseconds(milliseconds)
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
    """One row per hour (UTC, its beginning in microseconds since 1970) and topic: the columns of TopicHour, histograms
    as the JSON of histogram.encode(). Rows without finished_at are in no hour."""
    return figures(with_span(frame, "hour", HOUR), ("hour", "topic"))


def task_days(frame: DataFrame) -> DataFrame:
    """One row per day (UTC, as the hour above), topic and task: the columns of TaskDay; `errors` is an array of (error,
    n), the fifty most frequent, null when nothing died."""
    frame = with_span(frame, "day", DAY)
    keys = ("day", "topic", "task")
    return figures(frame, keys).join(_errors(frame, keys), list(keys), "left")


def with_span(frame: DataFrame, name: str, length: int) -> DataFrame:
    """With the beginning of its hour or day. Integers: no time zone of a session can shift them."""
    at = F.unix_micros("finished_at")
    return frame.withColumn(name, at - F.pmod(at, F.lit(length))).where(F.col(name).isNotNull())


def figures(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Counts, sums and histograms per group. What is infinite or no number is as what never ran."""
    frame = frame.withColumns({name: _finite(F.col(name)) for name in ("lateness_ms", "run_ms")})
    counts = [F.count_if(F.col("state") == state).alias(state) for state in STATES]
    whole = frame.groupBy(*keys).agg(
        F.count_if(F.col("state").isin(*STATES)).alias("messages"),
        *counts,
        F.coalesce(F.sum("attempts"), F.lit(0)).alias("attempts"),
        F.count_if(F.col("attempts") > 1).alias("retried"),
        *_sum_and_max("lateness"),
        *_sum_and_max("run"),
    )
    joined = whole.join(_histograms(frame, keys), list(keys), "left")
    return joined.withColumns({name: F.coalesce(name, F.lit("{}")) for name in ("lateness", "run")})


def _finite(value: Column) -> Column:
    return F.when(F.abs(value) < F.lit(float("inf")), value)


def _sum_and_max(metric: str) -> list[Column]:
    """The sum in integers: exact, in whatever order."""
    value = F.col(f"{metric}_ms")
    total = F.sum(microseconds(value).cast("decimal(20,0)")) / F.lit(1000)
    return [
        F.coalesce(total.cast("double"), F.lit(0.0)).alias(f"{metric}_sum"),
        F.max(value).alias(f"{metric}_max"),
    ]


def _histograms(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Both of each group. One pass over the rows; counts per group and bucket, which are few, are put together."""
    buckets = [bucket(F.col(f"{metric}_ms")).alias(metric) for metric in ("lateness", "run")]
    values = frame.select(*keys, *buckets).unpivot(list(keys), ["lateness", "run"], "metric", "bucket")
    cells = values.where(F.col("bucket").isNotNull()).groupBy(*keys, "metric", "bucket").agg(F.count("*").alias("n"))
    return cells.groupBy(*keys).agg(*(_json(metric).alias(metric) for metric in ("lateness", "run")))


def _json(metric: str) -> Column:
    """Of the cells of a group those of one metric, as histogram.encode() writes them."""
    pairs = F.sort_array(F.collect_list(F.when(F.col("metric") == metric, F.struct("bucket", "n"))))
    texts = F.transform(pairs, lambda pair: F.format_string('"%d":%d', pair["bucket"], pair["n"]))
    return F.concat(F.lit("{"), F.concat_ws(",", texts), F.lit("}"))


def _errors(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Dead letters by class of error, or by reason where there is none."""
    named = F.when(F.col("error_class") != "", F.col("error_class")).otherwise(F.coalesce("reason", F.lit("")))
    dead = frame.where(F.col("state") == "dead")
    cells = dead.groupBy(*keys, named.alias("error")).agg(F.count("*").alias("n"))
    # Reasons may be as many as messages: they are cut here, not where all figures come together.
    order = Window.partitionBy(*keys).orderBy(F.desc("n"), F.asc("error"))
    frequent = cells.withColumn("place", F.row_number().over(order)).where(F.col("place") <= MOST_ERRORS)
    return frequent.groupBy(*keys).agg(F.collect_list(F.struct("error", "n")).alias("errors"))


def dates(frame: DataFrame) -> DataFrame:
    """With the UTC date by which the lake is divided."""
    return frame.withColumn("dt", F.date_format("finished_at", "yyyy-MM-dd"))
