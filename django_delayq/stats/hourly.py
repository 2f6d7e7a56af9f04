"""Counts and histograms per hour and topic, and per day, topic and task: computed from the archive,
kept in SQL."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from typing import Any

from django.utils import timezone as django_timezone
from django.utils.timezone import get_default_timezone, is_naive, make_aware

from ..archive.archive_rows import instant_of
from ..models import ArchivedMessage, Final, TaskDay, TopicHour
from .figure_rows import Outcome, replace, replace_all
from .histogram import bucket, decode, encode, merged, microseconds, percentile

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
#: Rows that are read in one query.
PAGE = 10_000
#: Kinds of errors that a day of a task tells apart.
MOST_ERRORS = 50

_READ = ("topic", "task", "state", "attempts", "lateness_ms", "run_ms", "error_class", "reason")


class Sums:
    """Figures of some messages, one after the other."""

    __slots__ = ("attempts", "errors", "highest", "histograms", "retried", "states", "sums")

    def __init__(self) -> None:
        self.states = Counter[str]()
        self.attempts = self.retried = 0
        self.histograms: tuple[dict[int, int], dict[int, int]] = ({}, {})
        """Of lateness and of run times."""
        self.sums = [0, 0]
        """In whole microseconds: integers, so that their order does not matter, and Spark's are the
        same."""
        self.highest: list[float | None] = [None, None]
        self.errors = Counter[str]()

    def add(
        self, state: str, attempts: int, times: tuple[float | None, float | None], error: str
    ) -> None:
        """One message: lateness and run time are in milliseconds; None for one that never ran, as
        what is no number."""
        self.states[state] += 1
        self.attempts += attempts
        self.retried += attempts > 1
        for which, value in enumerate(times):
            if value is None or not math.isfinite(value):
                continue
            counts, at, highest = self.histograms[which], bucket(value), self.highest[which]
            counts[at] = counts.get(at, 0) + 1
            self.sums[which] += microseconds(value)
            self.highest[which] = value if highest is None else max(highest, value)
        if state == "dead":
            self.errors[error] += 1

    def fields(self) -> dict[str, Any]:
        """For a row of TopicHour or TaskDay."""
        counts = {state: self.states[state] for state in Final.values}
        lateness, run = self.histograms
        return {
            **counts,
            "messages": sum(counts.values()),
            "attempts": self.attempts,
            "retried": self.retried,
            "lateness": encode(lateness),
            "lateness_sum": self.sums[0] / 1000,
            "lateness_max": self.highest[0],
            "run": encode(run),
            "run_sum": self.sums[1] / 1000,
            "run_max": self.highest[1],
        }


def compute_hour(
    hour: datetime, pause: Callable[[], object] = bool, only_more: bool = False
) -> int:
    """Replace the figures of the hour (UTC) that begins then. Returns how many messages the archive
    has of it.

    `pause()` is called after each page of rows. `only_more`: figures that count what the archive
    has no more stay.
    """
    sums: dict[str, Sums] = {}
    for topic, _, *figures in _rows(hour, hour + HOUR, pause):
        _sums(sums, topic).add(*_message(*figures))
    when = instant_of(hour.timestamp() * 1000)
    rows = [
        TopicHour(hour=when, topic=topic, **one.fields()) for topic, one in sorted(sums.items())
    ]
    _store(TopicHour.objects.filter(hour=when), rows, only_more)
    return sum(row.messages for row in rows)


def compute_day(day: date, pause: Callable[[], object] = bool, only_more: bool = False) -> int:
    """Replace the figures of the day (UTC). Returns how many messages the archive has of it. As
    compute_hour()."""
    begin = datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
    sums: dict[tuple[str, str], Sums] = {}
    for topic, task, *figures in _rows(begin, begin + DAY, pause):
        _sums(sums, (topic, task)).add(*_message(*figures))
    rows = [
        TaskDay(day=day, topic=topic, task=task, errors=encode_errors(one.errors), **one.fields())
        for (topic, task), one in sorted(sums.items())
    ]
    _store(TaskDay.objects.filter(day=day), rows, only_more)
    return sum(row.messages for row in rows)


def hour_of(when: datetime) -> datetime:
    """The beginning of its hour, UTC, aware."""
    return utc(when).replace(minute=0, second=0, microsecond=0)


def day_of(when: datetime) -> date:
    """Its day, UTC."""
    return utc(when).date()


def utc(when: datetime) -> datetime:
    """Aware, in UTC. Naive ones, without USE_TZ, are in the project's time zone."""
    return (make_aware(when, get_default_timezone()) if is_naive(when) else when).astimezone(
        timezone.utc
    )


def late_percentile(rows: Iterable[Any], share: float, metric: str = "lateness") -> float | None:
    """Of several rows of TopicHour or TaskDay together: lateness or run, in milliseconds; None when
    nothing ran."""
    return percentile(merged(decode(getattr(row, metric)) for row in rows), share)


def error_counts(rows: Iterable[TaskDay]) -> Counter[str]:
    """Dead letters by error, of several days together."""
    counts = Counter[str]()
    for row in rows:
        counts.update(json.loads(row.errors or "{}"))
    return counts


def _sums(sums: dict[Any, Sums], key: Any) -> Sums:
    found = sums.get(key)
    if found is None:
        found = sums[key] = Sums()
    return found


def _message(
    state: str,
    attempts: int,
    lateness_ms: float | None,
    run_ms: float | None,
    error_class: str,
    reason: str,
) -> tuple[str, int, tuple[float | None, float | None], str]:
    return state, attempts, (lateness_ms, run_ms), error_class or reason


def encode_errors(counts: Mapping[str, int]) -> str:
    """The most frequent ones as JSON; of equally frequent ones those that come first by their
    names."""
    frequent = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_ERRORS]
    return json.dumps(dict(frequent), sort_keys=True)


def _rows(begin: datetime, end: datetime, pause: Callable[[], object]) -> Iterator[Sequence[Any]]:
    """What finished from then until then, along the index of finished_at, a page at a time."""
    first, last = (instant_of(one.timestamp() * 1000) for one in (begin, end))
    rows = ArchivedMessage.objects.filter(finished_at__gte=first, finished_at__lt=last).order_by(
        "finished_at", "pk"
    )
    columns = rows.values_list("finished_at", "pk", *_READ)
    page = list(columns[:PAGE])
    while page:
        yield from (row[2:] for row in page)
        pause()
        if len(page) < PAGE:
            return
        finished_at, pk = page[-1][:2]
        further = columns.filter(finished_at__gte=finished_at).exclude(
            finished_at=finished_at, pk__lte=pk
        )
        page = list(further[:PAGE])


def _store(old: Any, rows: Sequence[Any], only_more: bool) -> None:
    if not only_more:
        replace_all(old, rows)
    elif replace(old, rows) is not Outcome.REPLACED:
        old.update(computed_at=django_timezone.now())  # else they would be due for ever
