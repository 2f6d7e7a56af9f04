"""Copies the figures of hours and days from SQL to two Delta tables in the lake, for BI and dbt:
days with figures that SQL has computed since the last copy, each as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
from django.db.models import Max, QuerySet

from ...core.chunks import chunked, chunked_by_weight
from ...core.job_report import Tell
from ...core.times import epoch_us, from_ms, stored, utc
from ...models import TaskDay, TopicHour
from ...stats.histogram import Times, decode
from ...stats.hourly import COUNTS, DAY, HISTOGRAMS, HOUR, beginning_of, day_of
from ..job_errors import LakeConflict
from .lake import FIGURE_TABLES, FigureTable, Lake

#: Figures may be computed so long before their transaction commits: these days are looked at again.
OVERLAP = timedelta(hours=1)
#: Rows of one commit, unless a day has more.
ROWS = 50_000
#: Most days of one commit.
DAYS = 31
#: Rows that are read at a time.
PAGE = 5_000
#: How often a day is tried when others commit at the same time.
TRIES = 10
_KEYS = ("dt", "hour", "topic", "task")


def copy_figures(lake: Lake, tell: Tell, *, create: bool = True) -> int:
    """Make the tables of the lake equal to SQL; without `create` those that are there. Returns how
    many days were replaced, of both together. Killed at any step, it has replaced a day as a whole
    or not at all, and the next one goes on.

    Raises LakeError, and LakeConflict when others commit again and again.
    """
    tables = [FigureTable(lake, name) for name in FIGURE_TABLES]
    return sum(_copy(table, tell) for table in tables if create or table.exists)


def _copy(table: FigureTable, tell: Tell) -> int:
    since = from_ms(table.computed_until / 1000) - OVERLAP
    rows = _all(table).filter(computed_at__gte=stored(since))
    newest = rows.aggregate(at=Max("computed_at"))["at"]
    if newest is None:
        return 0
    table.create()
    replaced = 0
    if table.name == "task_days":
        all_days = set(rows.order_by().values_list("day", flat=True).distinct())
    else:
        all_days = set(map(day_of, rows.order_by().values_list("hour", flat=True).distinct()))
    # A day with few rows takes its share, too.
    sizes = {day: max(ROWS // DAYS, _of_day(table, day).count()) for day in sorted(all_days)}
    groups = list(chunked_by_weight(sizes, sizes.__getitem__, ROWS))
    for number, days in enumerate(groups, 1):
        tell(f"copying {table.name} up to {days[-1]}", number, len(groups))
        # Only the last commit may say that all before it is there.
        until = epoch_us(utc(newest)) if number == len(groups) else None
        replaced += _replace(table, days, until)
    return replaced


def _replace(table: FigureTable, days: Sequence[date], until: int | None) -> int:
    """Returns how many days were replaced: none when the table is equal to SQL already."""
    order = [(name, "ascending") for name in _KEYS if name in table.schema.names]
    for attempt in range(1, TRIES + 1):
        batches = (batch for day in days for batch in _rows(table, day))
        rows = pa.Table.from_batches(batches, table.schema).sort_by(order)
        if rows.equals(table.read(days).sort_by(order)):
            break
        try:
            table.replace(days, rows, until)
            return len(days)
        except LakeConflict:
            if attempt == TRIES:
                raise
            table.refresh()
    return 0


def _rows(table: FigureTable, day: date) -> Iterator[pa.RecordBatch]:
    for page in chunked(_of_day(table, day).iterator(chunk_size=PAGE), PAGE):
        yield pa.RecordBatch.from_pylist(list(map(_row, page)), schema=table.schema)


def _row(row: Any) -> dict[str, Any]:
    """With the columns of both tables."""
    names = ("messages", *COUNTS, "topic", "task", "errors")
    columns = {name: getattr(row, name, None) for name in names}
    columns["computed_at"] = utc(row.computed_at)
    if isinstance(row, TopicHour):
        columns |= {"hour": utc(row.hour), "dt": day_of(row.hour)}
    else:
        columns["dt"] = row.day
    for metric in HISTOGRAMS:
        text, highest = getattr(row, metric), getattr(row, f"{metric}_max")
        times = Times.of(decode(text), highest)
        columns |= {
            f"{metric}_p50_ms": times.p50,
            f"{metric}_p99_ms": times.p99,
            f"{metric}_max_ms": highest,
            f"{metric}_sum_ms": getattr(row, f"{metric}_sum"),
            f"{metric}_histogram": text,
        }
    return columns


def _all(table: FigureTable) -> QuerySet[Any]:
    return TopicHour.objects.all() if table.name == "topic_hours" else TaskDay.objects.all()


def _of_day(table: FigureTable, day: date) -> QuerySet[Any]:
    if table.name == "task_days":
        return _all(table).filter(day=day)
    begin = beginning_of(day)
    # Up to the last hour: there is no day after the last one of the year 9999.
    return _all(table).filter(hour__gte=stored(begin), hour__lte=stored(begin + (DAY - HOUR)))
