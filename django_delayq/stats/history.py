"""Reads the figures of past hours and days: for the statistics page and `delayq stats
--history`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from ..archive.archive_rows import instant_of
from ..core.conf import NAME
from ..models import Final, TaskDay, TopicHour
from .histogram import decode, merged, percentile
from .hourly import DAY, HOUR, error_counts, hour_of

#: What may be asked for: how far back, and in steps of what.
PERIODS: Mapping[str, tuple[timedelta, timedelta]] = {
    "24h": (timedelta(hours=24), HOUR),
    "7d": (timedelta(days=7), DAY),
    "30d": (timedelta(days=30), DAY),
    "90d": (timedelta(days=90), DAY),
}
#: Kinds of errors that are shown of a task.
ERRORS = 3


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Of some messages. Times are in milliseconds, None when none of them ran."""

    messages: int
    states: Mapping[str, int]
    """acked, dead, cancelled, expired."""
    retried: int
    """Messages that took more than one attempt."""
    late_p50_ms: float | None
    late_p99_ms: float | None
    late_max_ms: float | None
    run_p50_ms: float | None
    run_p99_ms: float | None
    run_max_ms: float | None

    @property
    def dead_share(self) -> float:
        """Dead letters among what ran, 0 to 1."""
        ran = self.states["acked"] + self.states["dead"]
        return self.states["dead"] / ran if ran else 0.0


@dataclass(frozen=True, kw_only=True)
class Span:
    """One hour or day, UTC."""

    at: datetime
    """Its beginning."""
    figures: Figures


@dataclass(frozen=True, kw_only=True)
class TaskHistory:
    """A task in a topic, over the whole period."""

    topic: str
    task: str
    figures: Figures
    errors: Sequence[tuple[str, int]]
    """The most frequent ones of its dead letters."""


@dataclass(frozen=True, kw_only=True)
class History:
    """What happened in a period."""

    step: timedelta
    spans: Sequence[Span]
    """The oldest first, also those in which nothing finished. The last one still goes on."""
    total: Figures
    tasks: Sequence[TaskHistory]
    """Of whole days that the period touches; those with the most messages first."""
    topics: Sequence[str]
    """All that have figures in the period."""


def history(period: str, topic: str = "") -> History:
    """The figures of a period that ends now, of one topic or of all. `period`: one of PERIODS."""
    length, step = PERIODS[period]
    now = datetime.now(tz=timezone.utc)
    last = hour_of(now) if step == HOUR else hour_of(now).replace(hour=0)
    begins = [last - step * n for n in range(length // step - 1, -1, -1)]
    days = _days(begins[0], topic)
    by_span: dict[datetime, list[Any]] = defaultdict(list)
    for row in _hours(begins[0], topic) if step == HOUR else days:
        by_span[_begin(row)].append(row)
    return History(
        step=step,
        spans=[Span(at=begin, figures=figures_of(by_span[begin])) for begin in begins],
        total=figures_of(row for begin in begins for row in by_span[begin]),
        tasks=_tasks(days),
        topics=sorted(
            set(TaskDay.objects.filter(day__gte=begins[0].date()).values_list("topic", flat=True))
        ),
    )


def figures_of(rows: Iterable[TopicHour | TaskDay]) -> Figures:
    """Of several rows together."""
    rows = list(rows)
    lateness, run = (
        merged(decode(getattr(row, name)) for row in rows) for name in ("lateness", "run")
    )
    states = {state: sum(getattr(row, state) for row in rows) for state in Final.values}
    late_max = max((row.lateness_max for row in rows if row.lateness_max is not None), default=None)
    run_max = max((row.run_max for row in rows if row.run_max is not None), default=None)
    return Figures(
        messages=sum(row.messages for row in rows),
        states=states,
        retried=sum(row.retried for row in rows),
        late_p50_ms=_within(percentile(lateness, 0.5), late_max),
        late_p99_ms=_within(percentile(lateness, 0.99), late_max),
        late_max_ms=late_max,
        run_p50_ms=_within(percentile(run, 0.5), run_max),
        run_p99_ms=_within(percentile(run, 0.99), run_max),
        run_max_ms=run_max,
    )


def _within(value: float | None, highest: float | None) -> float | None:
    """The middle of a bucket may lie above the highest value in it."""
    return value if value is None or highest is None else min(value, highest)


def _hours(begin: datetime, topic: str) -> list[TopicHour]:
    return _of(TopicHour.objects.filter(hour__gte=instant_of(begin.timestamp() * 1000)), topic)


def _days(begin: datetime, topic: str) -> list[TaskDay]:
    return _of(TaskDay.objects.filter(day__gte=begin.date()), topic)


def _of(rows: Any, topic: str) -> list[Any]:
    """What cannot name a topic has no figures, and some of it no database takes."""
    if topic and not NAME.match(topic):
        return []
    return list(rows.filter(topic=topic) if topic else rows)


def _begin(row: TopicHour | TaskDay) -> datetime:
    if isinstance(row, TopicHour):
        return hour_of(row.hour)
    return datetime(row.day.year, row.day.month, row.day.day, tzinfo=timezone.utc)


def _tasks(rows: Iterable[TaskDay]) -> list[TaskHistory]:
    groups: dict[tuple[str, str], list[TaskDay]] = defaultdict(list)
    for row in rows:
        groups[row.topic, row.task].append(row)
    found = [
        TaskHistory(
            topic=topic, task=task, figures=figures_of(group), errors=_frequent(error_counts(group))
        )
        for (topic, task), group in groups.items()
    ]
    return sorted(found, key=lambda one: (-one.figures.messages, one.topic, one.task))


def _frequent(errors: Counter[str]) -> list[tuple[str, int]]:
    return sorted(errors.items(), key=lambda pair: (-pair[1], pair[0]))[:ERRORS]
