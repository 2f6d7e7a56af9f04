"""Writes the figures of hours and days to SQL, from the driver: each whole, in a transaction of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import groupby
from typing import Any, NamedTuple

from django.db import transaction

from ..archive import instant_of
from ..conf import get_settings
from ..figure_rows import Outcome, compare, replace
from ..histogram import decode, merged, percentile
from ..models import TaskDay, TopicHour
from ..statistics import encode_errors, utc

Rows = Iterable[Mapping[str, Any]]
"""Of transforms.topic_hours() or task_days(), in the order of their hours or days."""


class Chunk(NamedTuple):
    """The new figures of one hour or day, and the stored ones."""

    span: datetime | date
    old: Any
    rows: Sequence[Any]
    """Empty: nothing finished in it, as far as is known now."""


@dataclass
class Topic:
    """The figures of a topic in all hours that were computed."""

    messages: int = 0
    dead: int = 0
    lateness: dict[int, int] = field(default_factory=dict)
    lateness_max: float = float("-inf")
    run: dict[int, int] = field(default_factory=dict)
    run_max: float = float("-inf")

    def add(self, row: TopicHour) -> None:
        """One more hour."""
        self.messages += row.messages
        self.dead += row.dead
        self.lateness = merged((self.lateness, decode(row.lateness)))
        self.run = merged((self.run, decode(row.run)))
        self.lateness_max = max(self.lateness_max, _or_lowest(row.lateness_max))
        self.run_max = max(self.run_max, _or_lowest(row.run_max))

    def line(self) -> Mapping[str, Any]:
        """For a table: times in milliseconds, None when nothing ran."""
        late, ran = (self.lateness, self.lateness_max), (self.run, self.run_max)
        return {
            "messages": self.messages,
            "dead": self.dead,
            "late_p50_ms": _percentile(*late, 0.5),
            "late_p99_ms": _percentile(*late, 0.99),
            "run_p50_ms": _percentile(*ran, 0.5),
            "run_p99_ms": _percentile(*ran, 0.99),
        }


@dataclass
class Written:
    """What has become of the figures."""

    spans: Counter[type] = field(default_factory=Counter)
    """TopicHour -> hours that were computed, TaskDay -> days."""
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    """Of hours and days together."""
    kept: list[datetime | date] = field(default_factory=list)
    """Hours and days of which more was known than was computed."""
    topics: dict[str, Topic] = field(default_factory=dict)

    def note(self, chunk: Chunk, outcome: Outcome) -> None:
        """One more."""
        self.spans[chunk.old.model] += 1
        self.outcomes[outcome] += 1
        if outcome is Outcome.KEPT:
            self.kept.append(chunk.span)
        for row in chunk.rows:
            if isinstance(row, TopicHour):
                self.topics.setdefault(row.topic, Topic()).add(row)


def write_back(
    chunks: Iterable[Chunk], finish: Callable[[], object], *, fewer: bool = False, dry_run: bool = False
) -> Written:
    """Replace the stored figures by these where they differ: see figure_rows.replace(). `finish()` is called in the
    transaction of the last ones. `dry_run`: only say what would be done."""
    written = Written()
    last: Chunk | None = None
    put = compare if dry_run else replace
    for chunk in chunks:
        if last is not None:
            written.note(last, put(last.old, last.rows, fewer=fewer))
        last = chunk
    with transaction.atomic(using=get_settings().database):
        if last is not None:
            written.note(last, put(last.old, last.rows, fewer=fewer))
        if not dry_run:
            finish()
    return written


def hour_chunks(rows: Rows) -> Iterator[Chunk]:
    """Of transforms.topic_hours()."""
    for at, group in groupby(rows, key=lambda row: row["hour"]):
        hour = instant_of(at / 1000)
        new = [TopicHour(hour=hour, **_fields(row, "hour")) for row in group]
        yield Chunk(utc(hour), TopicHour.objects.filter(hour=hour), new)


def day_chunks(rows: Rows) -> Iterator[Chunk]:
    """Of transforms.task_days()."""
    for at, group in groupby(rows, key=lambda row: row["day"]):
        day = utc(instant_of(at / 1000)).date()
        new = [TaskDay(day=day, errors=_errors(row), **_fields(row, "day", "errors")) for row in group]
        yield Chunk(day, TaskDay.objects.filter(day=day), new)


def with_empty_hours(chunks: Iterable[Chunk], hours: Iterable[datetime]) -> Iterator[Chunk]:
    """Of these hours (UTC) those, too, of which there are no rows any more."""
    return _with_empty(chunks, hours, lambda at: TopicHour.objects.filter(hour=instant_of(at.timestamp() * 1000)))


def with_empty_days(chunks: Iterable[Chunk], days: Iterable[date]) -> Iterator[Chunk]:
    """The same of days."""
    return _with_empty(chunks, days, lambda day: TaskDay.objects.filter(day=day))


def _with_empty(chunks: Iterable[Chunk], spans: Iterable[Any], stored: Callable[[Any], Any]) -> Iterator[Chunk]:
    seen = set()
    for chunk in chunks:
        seen.add(chunk.span)
        yield chunk
    yield from (Chunk(span, stored(span), []) for span in sorted(set(spans) - seen))


def _fields(row: Mapping[str, Any], *others: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in others}


def _errors(row: Mapping[str, Any]) -> str:
    return encode_errors({cell["error"]: cell["n"] for cell in row["errors"] or ()})


def _or_lowest(value: float | None) -> float:
    return float("-inf") if value is None else value


def _percentile(counts: Mapping[int, int], highest: float, share: float) -> float | None:
    """The middle of a bucket may lie above the highest value in it."""
    value = percentile(counts, share)
    return None if value is None else min(value, highest)
