"""The forecast of the overview page: when waiting messages fall due, in Redis and the outbox.

Redis and the database count for it, so it takes seconds whatever the size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Count, F, Q

from ..core.conf import get_settings
from ..core.job_report import Report, Tell
from ..core.times import from_ms, in_words, stored
from ..models import Forecast, ForecastCount, OutboxMessage, OutboxStatus
from ..store import get_store, structures
from ..store.due_minutes import MINUTE_MS, due_minutes
from ..store.store import RedisStore
from ..store.topic_state import pause_of
from ..store.workers import SAMPLES
from . import overview
from .due_counts import NEAR, DueCounts

HOUR = timedelta(hours=1)
#: Hours with a column of their own in the report; this hour is the first.
HOURS = 8
#: Topics with a line of their own in the report, those with the most messages.
LINES = 50
#: Rows of one INSERT.
ROWS = 1_000


class Outlook(NamedTuple):
    """The whole forecast."""

    now: datetime
    counts: DueCounts
    drain_rate: float | None
    paused: Sequence[str]
    """Topics."""


def take_forecast(
    source: RedisStore,
    topic: str = "",
    drain_rate: float | None = None,
    *,
    write: bool,
    tell: Tell,
) -> Report:
    """Replace the forecast in SQL, if it is to be written. That of one topic is not: the page shows
    all of them.

    `source`: where waiting messages are counted; it may be a replica. `drain_rate`: messages per
    second that the workers manage; else the most that finished between two samples of the last day,
    a minute apart.
    """
    outlook = _outlook(source, topic, drain_rate, tell)
    is_written = write and not topic
    counts = outlook.counts
    if is_written:
        tell("writing the forecast")
        taken_at = stored(outlook.now)
        peak_at, peak = counts.peak()
        with transaction.atomic(using=get_settings().database):
            forecast = Forecast.objects.create(
                taken_at=taken_at,
                waiting=counts.waiting.total(),
                overdue=counts.overdue.total(),
                peak_at=stored(peak_at) if peak_at else None,
                peak=peak,
                drain_rate=outlook.drain_rate,
            )
            ForecastCount.objects.bulk_create(counts.rows(forecast), batch_size=ROWS)
            Forecast.objects.filter(taken_at__lte=taken_at).exclude(pk=forecast.pk).delete()
    return _report(outlook, is_written)


def _outlook(source: RedisStore, topic: str, drain_rate: float | None, tell: Tell) -> Outlook:
    store = get_store()
    now_ms = int(store.clock_ms())
    counts = DueCounts(now_ms)
    partitions = structures.partitions_of(store, [topic] if topic else ())
    tell(f"counting what waits in {len(partitions):,} partitions and in the outbox")
    for minute in due_minutes(source, partitions, now_ms):
        counts.add(*minute)
    _count_outbox(counts, topic, now_ms)
    rate = drain_rate or max(
        (
            sample.finished_per_second
            for sample in overview.rates(store.queries.snapshot((), (), SAMPLES).samples)
        ),
        default=0.0,
    )
    paused = {
        partition.topic
        for partition, stats in zip(partitions, store.queries.all_stats(partitions), strict=True)
        if pause_of(stats.meta.get("paused"), now_ms)
    }
    return Outlook(from_ms(now_ms), counts, rate or None, sorted(paused))


def _count_outbox(counts: DueCounts, topic: str, now_ms: int) -> None:
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
    for name, minute, messages, overdue in counted.iterator():
        counts.add(name, max(minute, this_minute), messages, overdue)


# The report


def _report(outlook: Outlook, is_written: bool) -> Report:
    counts = outlook.counts
    peak_at, peak = counts.peak()
    problems = [
        f"Topic {topic} is paused: its {counts.waiting[topic]:,} waiting messages are counted, but "
        "none of them runs before an operator resumes it."
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
            "topics": len(counts.waiting),
            "waiting": counts.waiting.total(),
            "overdue": counts.overdue.total(),
            "peak_at": peak_at.isoformat() if peak_at else None,
            "peak": peak,
            "drain_rate": outlook.drain_rate,
            "work_s": peak / outlook.drain_rate if outlook.drain_rate else None,
            "forecast": " ".join(_sentences(outlook)),
            "written": is_written,
        },
        rows=_table(outlook),
        problems=problems,
    )


def _sentences(outlook: Outlook) -> Iterator[str]:
    """For an operator on call: what is late, the worst minute of the next day, and the worst of
    all."""
    counts = outlook.counts
    if not counts.waiting:
        yield "Nothing waits."
    if overdue := counts.overdue.total():
        yield f"{overdue:,} are overdue{_work(overdue, outlook)}."
    at, most = counts.peak(outlook.now + NEAR)
    if at:
        work = _work(most, outlook)
        yield f"In the next 24 hours, at {at:%Y-%m-%d %H:%M} UTC {most:,} fall due{work}."
    peak_at, peak = counts.peak()
    if peak_at and peak_at != at:
        work = _work(peak, outlook)
        yield f"Later, at {peak_at:%Y-%m-%d %H:%M} UTC {peak:,} fall due{work}."


def _work(messages: int, outlook: Outlook) -> str:
    return f": {in_words(messages / outlook.drain_rate)} of work" if outlook.drain_rate else ""


def _table(outlook: Outlook) -> list[dict[str, Any]]:
    """A row for each topic: how many fall due in each of the next hours (UTC), without those that
    are overdue. Of very many topics those with the most messages."""
    first = outlook.now.replace(minute=0, second=0, microsecond=0)
    hours = [first + HOUR * nth for nth in range(HOURS)]
    counts = outlook.counts
    chosen = sorted(counts.waiting, key=lambda topic: (-counts.waiting[topic], topic))[:LINES]
    table = []
    for topic in sorted(chosen):
        waiting, overdue = counts.waiting[topic], counts.overdue[topic]
        due = {f"{hour:%H:%M}": counts.due_in_hour(topic, hour) for hour in hours}
        later = waiting - overdue - sum(due.values())
        table.append(
            {"topic": topic, "waiting": waiting, "overdue": overdue, **due, "later": later}
        )
    return table
