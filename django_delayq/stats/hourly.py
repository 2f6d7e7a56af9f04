"""Counts and histograms per hour and topic, and per day, topic and task: computed from the archive,
and stored in SQL. The pipeline computes the same from its lake, and stores it by replace_each()."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from enum import Enum
from typing import Any

from django.db import IntegrityError, NotSupportedError, connections, transaction
from django.db.models import QuerySet
from django.utils import timezone as django_timezone

from ..archive.selection import pages_by_time
from ..core.conf import get_settings
from ..core.database import can_copy, copy_models
from ..core.times import stored, utc
from ..models import ArchivedMessage, DayTotal, Final, HourTotal, TaskDay, TopicHour
from .histogram import Times, bucket, decode, encode, merge_histograms, microseconds

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
#: Rows that are read in one query.
PAGE = 10_000
#: Rows of one INSERT.
AT_ONCE = 1_000
#: Kinds of errors that a day of a task tells apart.
MOST_ERRORS = 50

#: These counts only grow when messages are added to an hour or a day.
COUNTS = (*Final.values, "attempts", "retried")
HISTOGRAMS = ("lateness", "run")

_READ = ("state", "attempts", "lateness_ms", "run_ms", "error_class", "reason")
#: The column with the hour, or the day, of a row.
_SPAN: Mapping[type[Any], str] = {
    TopicHour: "hour", HourTotal: "hour", TaskDay: "day", DayTotal: "day",
}  # fmt: skip
#: Where the sum of all rows of an hour, or a day, is kept.
_TOTALS: Mapping[type[Any], type[Any]] = {TopicHour: HourTotal, TaskDay: DayTotal}


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
        self,
        state: str,
        attempts: int,
        lateness_ms: float | None,
        run_ms: float | None,
        error: str,
    ) -> None:
        """Count a message. Lateness and run time are None when it never ran; NaN and infinity count
        as None."""
        self.states[state] += 1
        self.attempts += attempts
        self.retried += attempts > 1
        for which, value in enumerate((lateness_ms, run_ms)):
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


@dataclass
class TopicTotals:
    """The figures of a topic in several hours."""

    messages: int = 0
    dead: int = 0
    expired: int = 0
    retried: int = 0
    lateness: Counter[int] = field(default_factory=Counter)
    lateness_max: float = float("-inf")
    run: Counter[int] = field(default_factory=Counter)
    run_max: float = float("-inf")

    def add(self, row: TopicHour) -> None:
        """Add one hour."""
        self.messages += row.messages
        self.dead += row.dead
        self.expired += row.expired
        self.retried += row.retried
        self.lateness.update(decode(row.lateness))
        self.run.update(decode(row.run))
        if row.lateness_max is not None:
            self.lateness_max = max(self.lateness_max, row.lateness_max)
        if row.run_max is not None:
            self.run_max = max(self.run_max, row.run_max)

    def line(self) -> Mapping[str, Any]:
        """For a table: times in milliseconds, None when nothing ran."""
        late, ran = Times.of(self.lateness, self.lateness_max), Times.of(self.run, self.run_max)
        return {
            "messages": self.messages,
            "dead": self.dead,
            "late_p50_ms": late.p50,
            "late_p99_ms": late.p99,
            "run_p50_ms": ran.p50,
            "run_p99_ms": ran.p99,
        }


def compute_hour(hour: datetime, pause: Callable[[], object] = bool) -> int:
    """Store the figures of the hour (UTC) that begins then. Returns how many messages the archive
    has of it. Stored figures that count pruned messages stay.

    `pause()` is called after each page of rows.
    """
    at, sums = stored(hour), _sums_of(hour, hour + HOUR, ("topic",), pause)
    return _save(
        TopicHour,
        at,
        [TopicHour(hour=at, topic=topic, **sums[topic,].fields()) for (topic,) in sorted(sums)],
    )


def compute_day(day: date, pause: Callable[[], object] = bool) -> int:
    """Store the figures of the day (UTC). Otherwise as compute_hour()."""
    begin = beginning_of(day)
    sums = _sums_of(begin, begin + DAY, ("topic", "task"), pause)
    rows = [
        TaskDay(
            day=day,
            topic=topic,
            task=task,
            errors=encode_errors(sums[topic, task].errors),
            **sums[topic, task].fields(),
        )
        for topic, task in sorted(sums)
    ]
    return _save(TaskDay, day, rows)


def hour_of(when: datetime) -> datetime:
    """The beginning of its hour, UTC, aware."""
    return utc(when).replace(minute=0, second=0, microsecond=0)


def day_of(when: datetime) -> date:
    """Its day, UTC."""
    return utc(when).date()


def beginning_of(day: date) -> datetime:
    """Its first instant, UTC, aware."""
    return datetime(day.year, day.month, day.day, tzinfo=timezone.utc)


def encode_errors(counts: Mapping[str, int]) -> str:
    """The most frequent ones as JSON."""
    return json.dumps(most_frequent(counts, MOST_ERRORS), sort_keys=True)


def most_frequent(counts: Mapping[str, int], limit: int) -> dict[str, int]:
    """The highest counts; of equal ones those that come first by their names."""
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit])


def _sums_of(
    begin: datetime, end: datetime, names: Sequence[str], pause: Callable[[], object]
) -> dict[tuple[str, ...], Sums]:
    """The figures of the messages that finished in between, by the columns `names`."""
    sums: dict[tuple[str, ...], Sums] = defaultdict(Sums)
    rows = ArchivedMessage.objects.filter(
        finished_at__gte=stored(begin), finished_at__lt=stored(end)
    )
    for page in pages_by_time(rows, (*_READ, *names), PAGE):
        for _, _, state, attempts, late, ran, error, reason, *group in page:
            sums[tuple(group)].add(state, attempts, late, ran, error or reason)
        pause()
    return sums


def _save(model: type[Any], at: Any, rows: Sequence[Any]) -> int:
    if replace_each(model, {at: rows})[at] is not Replacement.REPLACED:
        # Otherwise these figures would be due for ever.
        for kept in (model, _TOTALS[model]):
            _rows_of(kept, [at]).update(computed_at=django_timezone.now())
    return sum(row.messages for row in rows)


# Replacing stored figures

Spans = Mapping[Any, Sequence[Any]]
"""Hour, or day -> its new rows; none: nothing finished in it."""


class Replacement(Enum):
    """What became of the new figures of an hour or a day."""

    REPLACED = "replaced"
    SAME = "same"
    """They equal the stored ones: nothing was written."""
    KEPT = "kept"
    """The stored ones count messages that the new figures do not: they stayed."""


def replace_each(model: type[Any], spans: Spans, *, fewer: bool = False) -> dict[Any, Replacement]:
    """Put the rows of these hours, or days, in the place of the stored ones. One transaction; each
    hour is replaced, or stays, by itself.

    The messages of an hour only become more. New figures that lack messages which were counted
    before come from an archive, or a lake, that was pruned: they are refused, unless `fewer`.

    Their totals are replaced with them. A total that is not the sum of the rows is mended: two
    processes that store an hour for the first time side by side may leave one.
    """
    with transaction.atomic(using=get_settings().database):
        outcomes = compare_each(model, spans, fewer=fewer)
        known = {span: spans[span] for span, o in outcomes.items() if o is not Replacement.KEPT}
        replaced = [span for span in known if outcomes[span] is Replacement.REPLACED]
        _replace(model, replaced, [row for span in replaced for row in spans[span]])
        totals = {span: _total_of(model, span, rows) for span, rows in known.items() if rows}
        stored_totals = {
            stored_as(getattr(row, _SPAN[model])): _figures(row)
            for row in _rows_of(_TOTALS[model], list(known))
        }
        wrong = [
            span
            for span in known
            if stored_totals.get(stored_as(span))
            != (_figures(totals[span]) if span in totals else None)
        ]
        _replace(_TOTALS[model], wrong, [totals[span] for span in wrong if span in totals])
    return outcomes


def _replace(model: type[Any], spans: Sequence[Any], rows: Sequence[Any]) -> None:
    if spans:
        _rows_of(model, spans).delete()
        _insert(model, rows)


def _total_of(model: type[Any], span: date, rows: Sequence[Any]) -> Any:
    """The sum of all rows of this hour, or day."""
    values: dict[str, Any] = {_SPAN[model]: span}
    for name in ("messages", *COUNTS):
        values[name] = sum(getattr(row, name) for row in rows)
    for metric in HISTOGRAMS:
        # The same in whatever order the rows are.
        values[f"{metric}_sum"] = math.fsum(getattr(row, f"{metric}_sum") for row in rows)
        values[metric] = encode(merge_histograms(decode(getattr(row, metric)) for row in rows))
        highest = (getattr(row, f"{metric}_max") for row in rows)
        values[f"{metric}_max"] = max((one for one in highest if one is not None), default=None)
    return _TOTALS[model](**values)


def _insert(model: type[Any], rows: Sequence[Any]) -> None:
    """Another process may have computed the same at the same moment, and MariaDB takes Orders and
    orders for one: a row that is there stays."""
    alias = get_settings().database
    if can_copy(rows, connections[alias]):
        with (
            suppress(IntegrityError, NotSupportedError),
            transaction.atomic(using=alias),
        ):
            copy_models(rows, connections[alias])
            return
    model._default_manager.bulk_create(rows, ignore_conflicts=True, batch_size=AT_ONCE)


def compare_each(model: type[Any], spans: Spans, *, fewer: bool = False) -> dict[Any, Replacement]:
    """What replace_each() would do, in the order of the spans. Inside a transaction it locks the
    stored rows."""
    old = _rows_of(model, list(spans))
    if transaction.get_connection(get_settings().database).in_atomic_block:
        list(old.select_for_update().order_by("pk").values_list("pk", flat=True))
    rows = defaultdict(list)
    for row in old.all():  # after the lock: another process may have replaced them
        rows[stored_as(getattr(row, _SPAN[model]))].append(row)
    return {span: _outcome(rows[stored_as(span)], new, fewer) for span, new in spans.items()}


def stored_as(span: date) -> Any:
    """An hour, or day, as the database has it: equal for two hours that are one there, when clocks
    are put back in the zone of its times."""
    if not isinstance(span, datetime):
        return span
    if span.tzinfo is not None:
        # Instants of several zones are unequal in the hour that comes twice (PEP 495).
        span = span.astimezone(timezone.utc)
    return connections[get_settings().database].ops.adapt_datetimefield_value(span)


def _rows_of(model: type[Any], spans: Sequence[Any]) -> QuerySet[Any]:
    return model._default_manager.filter(**{f"{_SPAN[model]}__in": spans})


def _outcome(old: Sequence[Any], rows: Sequence[Any], fewer: bool) -> Replacement:
    known, new = (
        {(row.topic, getattr(row, "task", "")): row for row in group} for group in (old, rows)
    )
    if known.keys() == new.keys() and all(
        _figures(known[key]) == _figures(new[key]) for key in new
    ):
        return Replacement.SAME
    is_whole = all(key in new and _counts_all(new[key], row) for key, row in known.items())
    return Replacement.REPLACED if fewer or is_whole else Replacement.KEPT


def _figures(row: Any) -> Mapping[str, Any]:
    return {
        field.attname: getattr(row, field.attname)
        for field in row._meta.concrete_fields
        if field.attname not in ("id", "hour", "day", "computed_at")
    }


def _counts_all(new: Any, old: Any) -> bool:
    """Whether the new figures count all that the stored ones count."""
    for name in HISTOGRAMS:
        counts = decode(getattr(new, name))
        if any(counts.get(at, 0) < count for at, count in decode(getattr(old, name)).items()):
            return False
    return all(getattr(new, name) >= getattr(old, name) for name in COUNTS)
