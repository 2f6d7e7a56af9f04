"""The transforms of a forecast: DataFrame in, DataFrame out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

#: How far the spans of each length reach, from the beginning of the span that `now` is in.
REACH: Mapping[str, timedelta | None] = {
    "minute": timedelta(hours=24),
    "hour": timedelta(days=14),
    "day": None,
}


def due_minutes(frame: DataFrame, now: datetime) -> DataFrame:
    """Messages per topic and minute (UTC), and how many of them are overdue. An overdue message
    counts in the minute of `now`.

    Takes schemas.DUE. A message that a scan has seen twice counts once, when it is due first.
    """
    # Grouped and not dropDuplicates(), which has to sort for a first topic.
    once = frame.groupBy("topic", "message_id").agg(F.min("due_at").alias("due_at"))
    due = F.coalesce("due_at", F.lit(now))
    at = F.date_trunc("minute", F.greatest(due, F.lit(now)))
    overdue = F.count(F.when(due <= F.lit(now), 1)).alias("overdue")
    return once.groupBy("topic", at.alias("at")).agg(F.count(F.lit(1)).alias("messages"), overdue)


def spans(minutes: DataFrame, now: datetime) -> DataFrame:
    """The minutes of REACH, and the hours and days (UTC) that they make: unit, at, topic, messages,
    overdue."""
    each = [
        F.struct(F.lit(unit).alias("unit"), F.date_trunc(unit, "at").alias("start"))
        for unit in REACH
    ]
    exploded = minutes.select(
        "topic", "messages", "overdue", F.explode(F.array(*each)).alias("span")
    )
    unit, start = F.col("span.unit"), F.col("span.start")
    within = F.lit(False)
    for name, reach in REACH.items():
        begins = F.date_trunc(name, F.lit(now))
        is_before = F.lit(True) if reach is None else start < begins + F.lit(reach)
        within = within | ((unit == name) & is_before)
    kept = exploded.where(within).groupBy(unit.alias("unit"), start.alias("at"), "topic")
    return kept.agg(F.sum("messages").alias("messages"), F.sum("overdue").alias("overdue"))


def highest(minutes: DataFrame) -> DataFrame:
    """The minute in which most messages of all topics will fall due, the first of several: at,
    messages. Overdue messages do not count. No row without any."""
    coming = F.sum(F.col("messages") - F.col("overdue")).alias("messages")
    return (
        minutes.groupBy("at")
        .agg(coming)
        .where("messages > 0")
        .orderBy(F.desc("messages"), "at")
        .limit(1)
    )
