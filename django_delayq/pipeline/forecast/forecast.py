"""Counts when waiting messages fall due, in Redis and the outbox, for the overview page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from django.db import transaction
from django.db.models import Count, F, Q
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from ...core.conf import get_settings
from ...core.times import from_ms, in_words, stored
from ...models import Forecast, ForecastCount, OutboxMessage, OutboxStatus
from ...stats import overview
from ...store import get_store
from ...store.topic_state import pause_of
from ...store.workers import SAMPLES
from .. import schemas
from ..params import ForecastOptions, Params, Report, Secret, Tell
from ..sources.queue_source import read_queue
from . import forecast_frames

MINUTE_MS = 60_000
HOUR = timedelta(hours=1)
#: Hours with a column of their own in the report; this hour is the first.
HOURS = 8

#: Columns of the outbox: messages per minute and topic.
MINUTES = pa.schema(
    [
        ("topic", pa.string()),
        ("at", schemas.TIME),
        ("messages", pa.int64()),
        ("overdue", pa.int64()),
    ]
)


class DueCount(NamedTuple):
    """Messages of a topic that fall due in a minute, an hour or a day."""

    unit: str
    at: datetime
    topic: str
    messages: int
    overdue: int


class Outlook(NamedTuple):
    """The whole forecast."""

    now: datetime
    spans: Sequence[DueCount]
    peak_at: datetime | None
    """The minute to come in which most messages fall due."""
    peak: int
    drain_rate: float | None
    paused: Sequence[str]
    """Topics."""

    def by_topic(self, name: str) -> Counter[str]:
        """Sums of `messages` or `overdue` over all that waits."""
        sums = Counter[str]()
        for span in self.of("day"):
            sums[span.topic] += getattr(span, name)
        return sums

    def of(self, unit: str) -> list[DueCount]:
        """The spans of this length."""
        return [span for span in self.spans if span.unit == unit]


def run(spark: Any, params: Params, tell: Tell) -> Report:
    """Replace the forecast in SQL. Nothing is written for a dry run, nor for one topic: the page
    shows all of them.
    """
    outlook = _outlook(spark, params, params.options(ForecastOptions), tell)
    is_written = not (params.dry_run or params.topic)
    if is_written:
        tell("writing the forecast")
        taken_at = stored(outlook.now)
        with transaction.atomic(using=get_settings().database):
            forecast = Forecast.objects.create(
                taken_at=taken_at,
                waiting=outlook.by_topic("messages").total(),
                overdue=outlook.by_topic("overdue").total(),
                peak_at=stored(outlook.peak_at) if outlook.peak_at else None,
                peak=outlook.peak,
                drain_rate=outlook.drain_rate,
            )
            ForecastCount.objects.bulk_create(
                [
                    ForecastCount(
                        forecast=forecast,
                        unit=span.unit,
                        at=stored(span.at),
                        topic=span.topic,
                        messages=span.messages,
                    )
                    for span in outlook.spans
                ],
                batch_size=1_000,
            )
            Forecast.objects.filter(taken_at__lte=taken_at).exclude(pk=forecast.pk).delete()
    return _report(outlook, is_written)


def _outlook(spark: Any, params: Params, options: ForecastOptions, tell: Tell) -> Outlook:
    store = get_store()
    now_ms = int(store.clock_ms())
    now, redis = from_ms(now_ms), params.redis
    if options.replica:
        redis = msgspec.structs.replace(redis, url=Secret(options.replica))
    tell("reading what waits in Redis and in the outbox")
    queue = read_queue(spark, redis, [params.topic] if params.topic else [], due_only=True)
    in_redis = forecast_frames.due_minutes(queue, now)
    minutes = in_redis.union(_outbox(spark, params.topic, now_ms)).cache()
    try:
        spans = _collect(forecast_frames.spans(minutes, now), DueCount._fields)
        peak = _collect(forecast_frames.highest(minutes), ("at", "messages"))
    finally:
        minutes.unpersist()
    peak_at, count = peak[0] if peak else (None, 0)
    # Without a given rate: the most messages a second that finished between two samples of the last
    # day, a minute apart.
    rate = options.drain_rate or max(
        (
            sample.finished_per_second
            for sample in overview.rates(store.queries.snapshot((), (), SAMPLES).samples)
        ),
        default=0.0,
    )
    partitions = [
        partition
        for partition in store.topics.used_partitions()
        if params.topic in ("", partition.topic)
    ]
    paused = {
        partition.topic
        for partition, stats in zip(partitions, store.queries.all_stats(partitions), strict=True)
        if pause_of(stats.meta.get("paused"), now_ms)
    }
    return Outlook(
        now,
        [DueCount(*row) for row in spans],
        peak_at,
        count,
        rate or None,
        sorted(paused),
    )


def _outbox(spark: Any, topic: str, now_ms: int) -> DataFrame:
    """Messages that wait only in the outbox, counted by the database: its index holds all that this
    takes, and no record has to leave it. A message that the relay is just moving may be counted
    twice, or not at all."""
    of_topic = {"topic": topic} if topic else {}
    counted = (
        OutboxMessage.objects.filter(status=OutboxStatus.WAITING, **of_topic)
        .order_by()
        .values("topic", minute=F("due_at_ms") - F("due_at_ms") % MINUTE_MS)
        .annotate(messages=Count("id"), overdue=Count("id", filter=Q(due_at_ms__lte=now_ms)))
        .values_list("topic", "minute", "messages", "overdue")
    )
    this_minute = now_ms - now_ms % MINUTE_MS
    found = [
        (name, max(minute, this_minute) * 1000, *counts)
        for name, minute, *counts in counted.iterator()
    ]
    columns = zip(*found, strict=True) if found else [()] * len(MINUTES)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, MINUTES, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=MINUTES))


def _collect(frame: DataFrame, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Rows with aware instants: Spark would give naive ones of this machine's time zone."""
    rows = frame.withColumn("at", sql.unix_millis("at")).select(*columns).collect()
    return [
        tuple(from_ms(row[name]) if name == "at" else row[name] for name in columns) for row in rows
    ]


# The report


def _report(outlook: Outlook, is_written: bool) -> Report:
    waiting, overdue = outlook.by_topic("messages"), outlook.by_topic("overdue").total()
    problems = [
        f"Topic {topic} is paused: its {waiting[topic]:,} waiting messages are counted, but none "
        "of them runs before an operator resumes it."
        for topic in outlook.paused
    ]
    if outlook.drain_rate is None:
        problems.append(
            "It is not known how quickly the workers drain the queue: there is no sample of a "
            "minute in which messages finished. Give --drain-rate."
        )
    return Report(
        job="forecast",
        figures={
            "taken_at": outlook.now.isoformat(timespec="milliseconds"),
            "waiting": waiting.total(),
            "overdue": overdue,
            "peak_at": outlook.peak_at.isoformat() if outlook.peak_at else None,
            "peak": outlook.peak,
            "drain_rate": outlook.drain_rate,
            "work_s": outlook.peak / outlook.drain_rate if outlook.drain_rate else None,
            "forecast": " ".join(_sentences(outlook, overdue)),
            "written": is_written,
        },
        rows=_table(outlook),
        problems=problems,
    )


def _sentences(outlook: Outlook, overdue: int) -> Iterator[str]:
    """For an operator on call: what is late, the worst minute of the next day, and the worst of
    all."""
    if not outlook.spans:
        yield "Nothing waits."
    if overdue:
        yield f"{overdue:,} are overdue{_work(overdue, outlook)}."
    minutes = Counter[datetime]()
    for span in outlook.of("minute"):
        minutes[span.at] += span.messages - span.overdue
    at, most = min(minutes.items(), key=lambda pair: (-pair[1], pair[0]), default=(outlook.now, 0))
    if most:
        work = _work(most, outlook)
        yield f"In the next 24 hours, at {at:%Y-%m-%d %H:%M} UTC {most:,} fall due{work}."
    if outlook.peak_at and (not most or outlook.peak_at != at):
        work = _work(outlook.peak, outlook)
        yield f"Later, at {outlook.peak_at:%Y-%m-%d %H:%M} UTC {outlook.peak:,} fall due{work}."


def _work(messages: int, outlook: Outlook) -> str:
    return f": {in_words(messages / outlook.drain_rate)} of work" if outlook.drain_rate else ""


def _table(outlook: Outlook) -> list[dict[str, Any]]:
    """A row for each topic: how many fall due in each of the next hours (UTC), without those that
    are overdue."""
    first = outlook.now.replace(minute=0, second=0, microsecond=0)
    hours = [first + HOUR * nth for nth in range(HOURS)]
    due = {(span.topic, span.at): span.messages - span.overdue for span in outlook.of("hour")}
    waiting, overdue = outlook.by_topic("messages"), outlook.by_topic("overdue")
    table = []
    for topic in sorted(waiting):
        counts = {f"{hour:%H:%M}": due.get((topic, hour), 0) for hour in hours}
        later = waiting[topic] - overdue[topic] - sum(counts.values())
        row = {"topic": topic, "waiting": waiting[topic], "overdue": overdue[topic]}
        table.append({**row, **counts, "later": later})
    return table
