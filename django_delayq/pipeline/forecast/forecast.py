"""What waits, and when it falls due: from Redis and the outbox, for the overview page."""

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
from ...store.topic_stats import pause_of
from ...store.workers import SAMPLES
from .. import schemas
from ..params import ForecastOptions, Params, Report, Secret, Tell
from ..sources.queue_source import read_queue
from . import forecast_frames

MINUTE_MS = 60_000
HOUR = timedelta(hours=1)
#: Hours, that of now included, with a column of their own in the report.
HOURS = 8

#: Of the outbox: minutes of topics.
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
    """All of it."""

    now: datetime
    spans: Sequence[DueCount]
    peak_at: datetime | None
    """The minute to come in which most fall due."""
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
    """Replaces the forecast in SQL. Nothing is written for a dry run, nor for one topic: the page
    shows all of them.
    """
    options = params.options(ForecastOptions)
    found = _find(spark, params, options, tell)
    is_written = not (params.dry_run or params.topic)
    if is_written:
        tell("writing the forecast")
        _write(found)
    return _report(found, is_written)


def _find(spark: Any, params: Params, options: ForecastOptions, tell: Tell) -> Outlook:
    store = get_store()
    now_ms = int(store.clock_ms())
    now = from_ms(now_ms)
    redis = (
        msgspec.structs.replace(params.redis, url=Secret(options.replica))
        if options.replica
        else params.redis
    )
    tell("reading what waits in Redis and in the outbox")
    queue = read_queue(spark, redis, [params.topic] if params.topic else [], due_only=True)
    in_redis = forecast_frames.due_minutes(queue, now)
    minutes = in_redis.union(_outbox(spark, params.topic, now_ms)).cache()
    try:
        spans = _collect(
            forecast_frames.spans(minutes, now), "unit", "at", "topic", "messages", "overdue"
        )
        peak = _collect(forecast_frames.highest(minutes), "at", "messages")
    finally:
        minutes.unpersist()
    peak_at, count = peak[0] if peak else (None, 0)
    rate = options.drain_rate or _measured_rate()
    return Outlook(
        now, [DueCount(*row) for row in spans], peak_at, count, rate, _paused(params.topic, now_ms)
    )


def _outbox(spark: Any, topic: str, now_ms: int) -> DataFrame:
    """What waits only in the outbox, counted by the database: its index holds all that this takes,
    and no record has to leave it. What the relay is just moving may be counted twice, or not."""
    rows = OutboxMessage.objects.filter(
        status=OutboxStatus.WAITING, **({"topic": topic} if topic else {})
    ).order_by()
    counted = (
        rows.values("topic", minute=F("due_at_ms") - F("due_at_ms") % MINUTE_MS)
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
    frame: DataFrame = spark.createDataFrame(pa.Table.from_arrays(arrays, schema=MINUTES))
    return frame


def _collect(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Rows with aware instants: Spark would give naive ones of this machine's time zone."""
    rows = frame.withColumn("at", sql.unix_millis("at")).select(*columns).collect()
    return [
        tuple(from_ms(row[name]) if name == "at" else row[name] for name in columns) for row in rows
    ]


def _measured_rate() -> float | None:
    """The most messages a second that finished between two samples of the last day, a minute; None
    without any."""
    samples = overview.rates(get_store().queries.snapshot((), (), SAMPLES).samples)
    return max((sample.finished_per_second for sample in samples), default=0.0) or None


def _paused(topic: str, now_ms: int) -> list[str]:
    store = get_store()
    partitions = [
        partition for partition in store.topics.used_partitions() if topic in ("", partition.topic)
    ]
    found = zip(partitions, store.queries.all_stats(partitions), strict=True)
    return sorted(
        {
            partition.topic
            for partition, stats in found
            if pause_of(stats.meta.get("paused"), now_ms)
        }
    )


def _write(found: Outlook) -> None:
    """In place of the forecasts before it, in one transaction."""
    taken_at = stored(found.now)
    with transaction.atomic(using=get_settings().database):
        forecast = Forecast.objects.create(
            taken_at=taken_at,
            waiting=found.by_topic("messages").total(),
            overdue=found.by_topic("overdue").total(),
            peak_at=stored(found.peak_at) if found.peak_at else None,
            peak=found.peak,
            drain_rate=found.drain_rate,
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
                for span in found.spans
            ],
            batch_size=1_000,
        )
        Forecast.objects.filter(taken_at__lte=taken_at).exclude(pk=forecast.pk).delete()


# The report


def _report(found: Outlook, is_written: bool) -> Report:
    overdue = found.by_topic("overdue").total()
    return Report(
        job="forecast",
        figures={
            "taken_at": found.now.isoformat(timespec="milliseconds"),
            "waiting": found.by_topic("messages").total(),
            "overdue": overdue,
            "peak_at": found.peak_at.isoformat() if found.peak_at else None,
            "peak": found.peak,
            "drain_rate": found.drain_rate,
            "work_s": found.peak / found.drain_rate if found.drain_rate else None,
            "forecast": " ".join(_sentences(found, overdue)),
            "written": is_written,
        },
        rows=_table(found),
        problems=list(_problems(found)),
    )


def _sentences(found: Outlook, overdue: int) -> Iterator[str]:
    """What somebody on call wants to hear: what is late, the worst minute of the next day, and the
    worst of all."""
    if not found.spans:
        yield "Nothing waits."
    if overdue:
        yield f"{overdue:,} are overdue{_work(overdue, found)}."
    minutes = Counter[datetime]()
    for span in found.of("minute"):
        minutes[span.at] += span.messages - span.overdue
    at, most = min(minutes.items(), key=lambda pair: (-pair[1], pair[0]), default=(found.now, 0))
    if most:
        work = _work(most, found)
        yield f"In the next 24 hours, at {at:%Y-%m-%d %H:%M} UTC {most:,} fall due{work}."
    if found.peak_at and (not most or found.peak_at != at):
        work = _work(found.peak, found)
        yield f"Later, at {found.peak_at:%Y-%m-%d %H:%M} UTC {found.peak:,} fall due{work}."


def _work(messages: int, found: Outlook) -> str:
    return f": {in_words(messages / found.drain_rate)} of work" if found.drain_rate else ""


def _table(found: Outlook) -> list[dict[str, Any]]:
    """A row for each topic: what falls due in each of the next hours (UTC), without what is
    overdue."""
    first = found.now.replace(minute=0, second=0, microsecond=0)
    hours = [first + HOUR * nth for nth in range(HOURS)]
    due = {(span.topic, span.at): span.messages - span.overdue for span in found.of("hour")}
    waiting, overdue = found.by_topic("messages"), found.by_topic("overdue")
    table = []
    for topic in sorted(waiting):
        counts = {f"{hour:%H:%M}": due.get((topic, hour), 0) for hour in hours}
        later = waiting[topic] - overdue[topic] - sum(counts.values())
        row = {
            "topic": topic,
            "waiting": waiting[topic],
            "overdue": overdue[topic],
            **counts,
            "later": later,
        }
        table.append(row)
    return table


def _problems(found: Outlook) -> Iterator[str]:
    waiting = found.by_topic("messages")
    for topic in found.paused:
        yield (
            f"Topic {topic} is paused: its {waiting[topic]:,} waiting messages are counted, but "
            f"none of them is "
            "run before somebody resumes it."
        )
    if found.drain_rate is None:
        yield (
            "Nobody knows how quickly the workers drain the queue: there is no sample of a minute "
            "in which messages "
            "finished. Say it with --drain-rate."
        )
