"""Writes the figures of hours and days to SQL, on the driver: several hours or days in one
transaction, each of them as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import groupby
from typing import Any, NamedTuple

from django.db import OperationalError, transaction

from ...core.conf import get_settings
from ...core.times import from_ms, stored, stored_ms, utc
from ...models import TaskDay, TopicHour
from ...stats.histogram import Times, decode
from ...stats.hourly import Replacement, compare_each, encode_errors, replace_each, stored_as

#: How often a transaction is tried that the database ended.
TRIES = 5
#: Rows that one transaction writes, but for those of the hour or day with which there are as many.
ROWS = 250

Outcomes = Mapping[Any, Replacement]


class Chunk(NamedTuple):
    """The new figures of one hour or day."""

    model: type[Any]
    at: datetime | date
    """As the model has it."""
    span: datetime | date
    """In UTC."""
    rows: Sequence[Any]
    """Empty: nothing finished in it, as far as is known now."""


@dataclass
class TopicTotals:
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
        _add(self.lateness, row.lateness)
        _add(self.run, row.run)
        self.lateness_max = max(self.lateness_max, _or_lowest(row.lateness_max))
        self.run_max = max(self.run_max, _or_lowest(row.run_max))

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


@dataclass
class WriteBackResult:
    """What has become of the figures."""

    spans: Counter[type] = field(default_factory=Counter)
    """TopicHour -> hours that were computed, TaskDay -> days."""
    outcomes: Counter[Replacement] = field(default_factory=Counter)
    """Of hours and days together."""
    kept: list[datetime | date] = field(default_factory=list)
    """Hours and days of which more was known than was computed."""
    topics: dict[str, TopicTotals] = field(default_factory=dict)

    def note(self, chunk: Chunk, outcome: Replacement) -> None:
        """One more."""
        self.spans[chunk.model] += 1
        self.outcomes[outcome] += 1
        if outcome is Replacement.KEPT:
            self.kept.append(chunk.span)
        for row in chunk.rows:
            if isinstance(row, TopicHour):
                self.topics.setdefault(row.topic, TopicTotals()).add(row)


def write_back(
    chunks: Iterable[Chunk],
    finish: Callable[[], object],
    *,
    fewer: bool = False,
    dry_run: bool = False,
) -> WriteBackResult:
    """Replace the stored figures by these where they differ, some in a transaction: see
    hourly.replace_each(). `finish()` is called in the transaction of the last ones. `dry_run`:
    only say what would be done."""
    written = WriteBackResult()

    def write(together: Sequence[Chunk], end: Callable[[], object] | None = None) -> None:
        if not dry_run:
            outcomes = _replaced(together, fewer, end)
        else:
            outcomes = (
                compare_each(together[0].model, _spans(together), fewer=fewer) if together else {}
            )
        for chunk in together:
            written.note(chunk, outcomes[chunk.at])

    last: Sequence[Chunk] = ()
    for together in _transactions(chunks):
        if last:
            write(last)
        last = together
    write(last, finish)
    return written


def _replaced(together: Sequence[Chunk], fewer: bool, end: Callable[[], object] | None) -> Outcomes:
    """In a transaction that ends with `end()`; MariaDB, which locks rows that it only passes, may
    end it instead, when another one waits for it."""
    for attempt in range(1, TRIES + 1):
        try:
            with transaction.atomic(using=get_settings().database):
                outcomes = (
                    replace_each(together[0].model, _spans(together), fewer=fewer)
                    if together
                    else {}
                )
                if end is not None:
                    end()
                break
        except OperationalError:
            if attempt == TRIES:
                raise
    return outcomes


def _spans(together: Sequence[Chunk]) -> Mapping[Any, Sequence[Any]]:
    return {chunk.at: chunk.rows for chunk in together}


def hour_chunks(rows: Iterable[Mapping[str, Any]]) -> Iterator[Chunk]:
    """Of the rows of aggregates.topic_hours(), in the order of their hours."""
    for at, group in groupby(rows, key=lambda row: row["hour"]):
        hour = stored_ms(at / 1000)
        yield _hour(utc(hour), [TopicHour(hour=hour, **_fields(row, "hour")) for row in group])


def day_chunks(rows: Iterable[Mapping[str, Any]]) -> Iterator[Chunk]:
    """Of the rows of aggregates.task_days(), in the order of their days."""
    for at, group in groupby(rows, key=lambda row: row["day"]):
        day = from_ms(at / 1000).date()
        yield _day(
            day,
            [
                TaskDay(day=day, errors=_errors(row), **_fields(row, "day", "errors"))
                for row in group
            ],
        )


def with_empty_hours(chunks: Iterable[Chunk], hours: Iterable[datetime]) -> Iterator[Chunk]:
    """Of these hours (UTC) those, too, of which there are no rows any more."""
    return _with_empty(chunks, hours, _hour)


def with_empty_days(chunks: Iterable[Chunk], days: Iterable[date]) -> Iterator[Chunk]:
    """The same of days."""
    return _with_empty(chunks, days, _day)


def _hour(hour: datetime, rows: Sequence[Any]) -> Chunk:
    return Chunk(TopicHour, stored(hour), hour, rows)


def _day(day: date, rows: Sequence[Any]) -> Chunk:
    return Chunk(TaskDay, day, day, rows)


def _with_empty(
    chunks: Iterable[Chunk], spans: Iterable[Any], chunk_of: Callable[[Any, Sequence[Any]], Chunk]
) -> Iterator[Chunk]:
    seen = set()
    for chunk in chunks:
        seen.add(chunk.span)
        yield chunk
    yield from (chunk_of(span, []) for span in sorted(set(spans) - seen))


def _transactions(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Chunks of one table whose rows go together, in their order, so that two processes wait for
    one another at most one way round."""
    together: list[Chunk] = []
    rows, places = 0, set[Any]()
    for chunk in chunks:
        place = stored_as(chunk.at)
        if together and (rows >= ROWS or chunk.model is not together[0].model or place in places):
            yield together
            together, rows, places = [], 0, set()
        together.append(chunk)
        places.add(place)
        rows += max(1, len(chunk.rows))
    if together:
        yield together


def _fields(row: Mapping[str, Any], *others: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in others}


def _errors(row: Mapping[str, Any]) -> str:
    return encode_errors({cell["error"]: cell["n"] for cell in row["errors"] or ()})


def _add(counts: dict[int, int], text: str) -> None:
    for bucket, count in decode(text).items():
        counts[bucket] = counts.get(bucket, 0) + count


def _or_lowest(value: float | None) -> float:
    return float("-inf") if value is None else value
