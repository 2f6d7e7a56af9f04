"""Reads the figures of past hours and days, and the newest forecast: for the statistics page,
`delayq stats --history` and the overview."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any, TypeVar

from django.db.models import BigIntegerField, Exists, Model, Q, QuerySet, Sum
from django.db.models.functions import Cast

from ..core.conf import NAME
from ..core.times import local, stored, utc
from ..models import (
    BusiestTask,
    DayTotal,
    Final,
    Forecast,
    ForecastCount,
    ForecastUnit,
    HourTotal,
    TaskDay,
    TopicHour,
)
from ..models.hourly_rows import Figures
from ..models.one_statement import Query, read_together
from .histogram import Times, decode, merge_histograms
from .hourly import DAY, HOUR, beginning_of, hour_of, most_frequent

M = TypeVar("M", bound=Model)

#: The periods that one can ask for: their length and their step.
PERIODS: Mapping[str, tuple[timedelta, timedelta]] = {
    "24h": (timedelta(hours=24), HOUR),
    "7d": (timedelta(days=7), DAY),
    "30d": (timedelta(days=30), DAY),
    "90d": (timedelta(days=90), DAY),
}
#: Kinds of errors that are shown of a task.
ERRORS = 3
#: Tasks that are shown.
MOST_TASKS = 30
#: Days of a forecast that are shown, its own included.
FORECAST_DAYS = 14
#: An older forecast says little of what waits now.
FORECAST_OLD_AFTER = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class PeriodFigures:
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
class Step:
    """One hour or day, UTC."""

    at: datetime
    """Its beginning."""
    figures: PeriodFigures


@dataclass(frozen=True, kw_only=True)
class TaskHistory:
    """A task in a topic, over the whole period."""

    topic: str
    task: str
    figures: PeriodFigures
    errors: Sequence[tuple[str, int]]
    """The most frequent ones of its dead letters."""


@dataclass(frozen=True, kw_only=True)
class History:
    """What happened in a period."""

    step: timedelta
    steps: Sequence[Step]
    """The oldest first, also those in which nothing finished. The last one still goes on."""
    total: PeriodFigures
    tasks: Sequence[TaskHistory]
    """Of whole days that the period touches: the MOST_TASKS with the most messages, these first."""
    more_tasks: bool
    """Whether there are more."""
    beside: Sequence[Any] = ()
    """The answers to the queries that were asked beside."""


def history(
    period: str,
    topic: str = "",
    topics: Collection[str] | None = None,
    beside: Sequence[Query] = (),
) -> History:
    """The figures of a period that ends now, of one topic or of all. `period`: one of PERIODS.
    `topics`: only of these. `beside`: other queries, for the same statement.

    Two queries, whose rows do not become more with the topics, unless `topics` has many.
    """
    step = PERIODS[period][1]
    begins = period_begins(period, datetime.now(tz=timezone.utc))
    seen: dict[str, Any] = {} if topics is None else {"topic__in": topics}
    # Each of the days, which the index of days and topics finds one by one.
    days = {begin.date() for begin in begins}
    every_day = _of(TaskDay.objects.filter(day__in=days, **seen), topic)
    named = every_day.order_by().values_list("topic", "task").annotate(count=messages_of())
    kept = BusiestTask.objects.filter(period=period).values_list("topic", "task", "messages")
    if topic or seen:
        kept = kept.none()
    else:
        named = named.filter(~Exists(kept))
    summed_up, known, rows, *answers = read_together(
        named.order_by("-count", "topic", "task")[: MOST_TASKS + 1],
        kept,
        _rows_of_steps(step, begins, topic, topics),
        *beside,
    )
    most = summed_up or known
    by_step: dict[datetime, list[Any]] = defaultdict(list)
    for row in rows:
        at = hour_of(row.hour) if step == HOUR else beginning_of(row.day)
        by_step[at].append(row)
    pairs = {(of, task) for of, task, _ in sorted(most, key=lambda one: -one[2])[:MOST_TASKS]}
    return History(
        step=step,
        steps=[Step(at=begin, figures=figures_of(by_step[begin])) for begin in begins],
        total=figures_of(row for begin in begins for row in by_step[begin]),
        tasks=_tasks(every_day, pairs),
        more_tasks=len(most) > MOST_TASKS,
        beside=answers,
    )


def period_begins(period: str, now: datetime) -> list[datetime]:
    """When the hours, or days, of a period begin that ends now: the oldest first."""
    length, step = PERIODS[period]
    last = hour_of(now) if step == HOUR else hour_of(now).replace(hour=0)
    return [last - step * n for n in range(length // step - 1, -1, -1)]


def messages_of(rows: Q | None = None) -> Cast:
    """The sum of the messages of several rows, as a whole number: databases make a decimal of it.
    `rows`: only of these."""
    return Cast(Sum("messages", filter=rows), BigIntegerField())


def _rows_of_steps(
    step: timedelta, begins: Sequence[datetime], topic: str, topics: Collection[str] | None
) -> QuerySet[Any]:
    """The rows whose sums are the steps: for all topics one of each step."""
    seen: dict[str, Any] = {} if topics is None else {"topic__in": topics}
    # Each of them, and not all since the first one: MariaDB would pass all topics.
    when: dict[str, Any]
    if step == HOUR:
        when = {"hour__in": [stored(begin) for begin in begins]}
        every, of_topics = HourTotal.objects.filter(**when), TopicHour.objects.filter(**when)
    else:
        when = {"day__in": [begin.date() for begin in begins]}
        every, of_topics = DayTotal.objects.filter(**when), TaskDay.objects.filter(**when)
    return _of(of_topics.filter(**seen), topic) if topic or seen else every


def _tasks(every_day: QuerySet[TaskDay], pairs: Collection[tuple[str, str]]) -> list[TaskHistory]:
    """The figures of these pairs of a topic and a task."""
    if not pairs:
        return []
    topics, tasks = map(set, zip(*pairs, strict=True))
    by_task: dict[tuple[str, str], list[TaskDay]] = defaultdict(list)
    errors: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for day in every_day.filter(topic__in=topics, task__in=tasks).defer("computed_at"):
        if (day.topic, day.task) in pairs:
            by_task[day.topic, day.task].append(day)
            errors[day.topic, day.task].update(json.loads(day.errors or "{}"))
    found = [
        TaskHistory(
            topic=name,
            task=task,
            figures=figures_of(days),
            errors=list(most_frequent(errors[name, task], ERRORS).items()),
        )
        for (name, task), days in by_task.items()
    ]
    return sorted(found, key=lambda one: (-one.figures.messages, one.topic, one.task))


def figures_of(rows: Iterable[Figures]) -> PeriodFigures:
    """Of several rows together."""
    rows = list(rows)
    lateness, run = (
        Times.of(
            merge_histograms(decode(getattr(row, metric)) for row in rows),
            max(
                (highest for row in rows if (highest := getattr(row, f"{metric}_max")) is not None),
                default=None,
            ),
        )
        for metric in ("lateness", "run")
    )
    return PeriodFigures(
        messages=sum(row.messages for row in rows),
        states={state: sum(getattr(row, state) for row in rows) for state in Final.values},
        retried=sum(row.retried for row in rows),
        late_p50_ms=lateness.p50,
        late_p99_ms=lateness.p99,
        late_max_ms=lateness.highest,
        run_p50_ms=run.p50,
        run_p99_ms=run.p99,
        run_max_ms=run.highest,
    )


def _of(rows: QuerySet[M], topic: str) -> QuerySet[M]:
    """The rows of a topic, or of all. A text that cannot be the name of a topic has no rows: some
    databases refuse such a text."""
    if topic and not NAME.match(topic):
        return rows.none()
    return rows.filter(topic=topic) if topic else rows


# The newest forecast


@dataclass(frozen=True, kw_only=True)
class KeptForecast:
    """A forecast of the pipeline: what waited at one instant, and when it falls due."""

    taken_at: datetime
    waiting: int
    overdue: int
    peak_at: datetime | None
    """The minute to come in which most fall due."""
    peak: int
    drain_rate: float | None
    """Messages a second; None: not known."""
    hours: Sequence[tuple[datetime, int]]
    """Beginning and messages of each hour of the next FORECAST_DAYS in which some fall due. The
    first has also what was overdue."""

    @property
    def work(self) -> float | None:
        """Seconds that the messages of the peak take."""
        return self.peak / self.drain_rate if self.drain_rate else None

    def days(self) -> list[tuple[datetime, int]]:
        """Beginning and messages of each of the next FORECAST_DAYS of the current time zone."""
        begin = local(self.taken_at).replace(hour=0, minute=0, second=0, microsecond=0)
        # By the calendar: a day in which clocks change has 23 or 25 hours.
        begins = [begin + nth * DAY for nth in range(FORECAST_DAYS)]
        counts = Counter[date]()
        for at, messages in self.hours:
            counts[local(at).date()] += messages
        return [(at, counts[at.date()]) for at in begins]

    def later(self) -> int:
        """Messages that fall due after these days."""
        return self.waiting - sum(messages for _, messages in self.days())

    def is_old(self, now: datetime) -> bool:
        """Whether it says little of what waits now."""
        return now - self.taken_at > FORECAST_OLD_AFTER


def newest_forecast() -> KeptForecast | None:
    """The newest that the pipeline has written, or None. Two queries. Raises django.db.Error."""
    kept = Forecast.objects.order_by("-taken_at").first()
    if kept is None:
        return None
    taken_at = utc(kept.taken_at)
    rows = ForecastCount.objects.filter(forecast=kept, unit=ForecastUnit.HOUR, topic="")
    counts = {utc(at): messages for at, messages in rows.values_list("at", "messages")}
    return KeptForecast(
        taken_at=taken_at,
        waiting=kept.waiting,
        overdue=kept.overdue,
        peak_at=utc(kept.peak_at) if kept.peak_at else None,
        peak=kept.peak,
        drain_rate=kept.drain_rate,
        hours=sorted(counts.items()),
    )
