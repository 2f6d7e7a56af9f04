"""The job stats: counts and histograms of past hours and days, from the lake or the archive, into
SQL, and from there to tables in the lake.

aggregates.py computes them, on executors or in this process. The driver writes them, several hours
or days in one transaction, each of them as a whole.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from functools import partial
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import OperationalError, transaction
from django.utils import timezone as django_timezone

from ...core.conf import get_settings
from ...core.job_report import Report, Tell, ignore
from ...core.times import from_ms, stored, stored_ms, utc
from ...models import LakeBatch, TaskDay, TopicHour
from ...stats.hourly import (
    DAY,
    HOUR,
    MOST_ERRORS,
    Replacement,
    TopicTotals,
    beginning_of,
    compare_each,
    hour_of,
    replace_each,
    stored_as,
)
from ...stats.stats_service import SETTLE
from .. import schemas
from ..lake.figure_tables import copy_figures
from ..lake.lake import Lake
from ..lake.ledger import Ledger, settled_at
from ..lake.watermark import last_settled_id
from ..params import Params, StatsOptions
from ..sources.table_reader import read_rows
from . import aggregates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Hours and days that a report names.
NAMED = 5
#: How often a transaction is tried that the database ended.
TRIES = 5
#: Rows that one transaction writes. An hour or a day with more rows has its own transaction.
ROWS = 1_000


class Period(NamedTuple):
    """From `since` to before `until`; None: from the beginning."""

    since: datetime | None
    until: datetime

    def has(self, at: datetime, length: timedelta) -> bool:
        """Whether the hour, or day, that begins at this instant lies in it as a whole."""
        # No sum: there is no day after the last one of the year 9999.
        return at <= self.until - length and (self.since is None or at >= self.since)


class Input(NamedTuple):
    """What one run computes."""

    rows: Iterable[Mapping[str, Any]]
    """Those of aggregates.SPANS; all rows of an hour, or a day, follow each other."""
    span: Period
    counted: Mapping[int, int | None] = {}
    """Batches of the lake whose hours and days are all computed: id -> version."""
    lake: Lake | None = None
    """None: the archive is read."""


class Chunk(NamedTuple):
    """The new figures of one hour or day."""

    model: type[Any]
    at: datetime | date
    """As the model has it."""
    begin: datetime
    """Its first instant, UTC."""
    rows: Sequence[Any]
    """Empty: no known message finished in it."""


@dataclass
class WriteBackResult:
    """What became of the figures."""

    spans: Counter[type] = field(default_factory=Counter)
    """TopicHour -> hours that were computed, TaskDay -> days."""
    outcomes: Counter[Replacement] = field(default_factory=Counter)
    """Of hours and days together."""
    kept: list[tuple[datetime, datetime]] = field(default_factory=list)
    """The beginning and the end of hours and days for which SQL has more messages than were
    computed."""
    topics: dict[str, TopicTotals] = field(default_factory=dict)

    def note(self, chunk: Chunk, outcome: Replacement) -> None:
        """Add one hour or day."""
        self.spans[chunk.model] += 1
        self.outcomes[outcome] += 1
        if outcome is Replacement.KEPT:
            length = HOUR if chunk.model is TopicHour else DAY
            self.kept.append((chunk.begin, chunk.begin + length))
        for row in chunk.rows:
            if isinstance(row, TopicHour):
                self.topics.setdefault(row.topic, TopicTotals()).add(row)

    def problems(self) -> list[str]:
        """What a person should know about the hours and days that were kept."""
        if not self.kept:
            return []
        begins, ends = zip(*self.kept, strict=True)
        named = ", ".join(f"{begin:%Y-%m-%d %H:%M}" for begin in begins[:NAMED])
        more = ", ..." if len(self.kept) > NAMED else ""
        return [
            f"{len(self.kept):,} hours and days stay as they are ({named}{more}): SQL has figures "
            f"of messages that are not here, because they were pruned before, or have come since. "
            f"To replace them all the same: --fewer --since {min(begins):%Y-%m-%dT%H:%M:%SZ} "
            f"--until {max(ends):%Y-%m-%dT%H:%M:%SZ}"
        ]


def run(spark: SparkSession | None, params: Params, tell: Tell) -> Report:
    """Compute the hours and days with new rows, or those of `since` and `until`, or all, and
    replace the figures of them in SQL. Only hours and days that are over and settled are computed.
    Without a session, this process computes them. Then copy the figures to the lake, if that was
    read. Raises Refused and LakeError."""
    begun = time.monotonic()
    options = params.options(StatsOptions)
    if options.source == "lake":
        given = _of_lake(spark, params, options, tell)
    else:
        given = _of_archive(spark, params, tell)
    if given is None:
        return Report(job="stats", problems=["The lake is empty: run the export first."])
    finish = partial(_mark_counted, given.counted)
    written = write_back(
        _chunks(given), finish, fewer=options.fewer, dry_run=params.dry_run, tell=tell
    )
    copied = 0 if given.lake is None or params.dry_run else copy_figures(given.lake, tell)
    return Report(
        job="stats",
        figures={
            "hours": written.spans[TopicHour],
            "days": written.spans[TaskDay],
            "rows": sum(totals.messages for totals in written.topics.values()),
            **{outcome.value: written.outcomes[outcome] for outcome in Replacement},
            "batches_counted": len(given.counted),
            "days_copied_to_lake": copied,
            "until": given.span.until.isoformat(),
            "seconds": round(time.monotonic() - begun, 1),
        },
        rows=[
            {"topic": topic, **totals.line()} for topic, totals in sorted(written.topics.items())
        ],
        problems=written.problems(),
    )


# What is computed


def _of_archive(spark: SparkSession | None, params: Params, tell: Tell) -> Input:
    highest = last_settled_id(0)
    tell(f"reading the archive up to id {highest:,}")
    ids = (0, highest)
    span = _span(params, datetime.now(tz=timezone.utc) - SETTLE)
    if spark is None:
        read = read_rows(params.database, schemas.FIGURES, ids)
        return Input(
            aggregates.figures_of_aggregates(aggregates.aggregated(read, *span), MOST_ERRORS), span
        )
    from ..sources.archive_source import read_archive

    frame = read_archive(spark, params.database, ids, schemas.FIGURES.names)
    found = aggregates.aggregate_frame(frame, *span)
    return Input(aggregates.figures_by_spark(found, MOST_ERRORS), span)


def _of_lake(
    spark: SparkSession | None, params: Params, options: StatsOptions, tell: Tell
) -> Input | None:
    lake = Lake(params.lake)
    ledger = Ledger(lake)
    if params.dry_run:
        ledger.check()
    else:
        ledger.catch_up()
    files = lake.files()
    if not files:
        return None
    span = _span(params, settled_at(lake.last_id))
    # The batches with rows that have not been counted, and the dates on which these finished.
    uncounted = {
        batch: {file.dt for file in lake.files(ids=(batch.lo, batch.hi))}
        for batch in ledger.batches.filter(counted_at=None, version__isnull=False)
    }
    chosen = options.everything or params.since or params.until
    possible = {file.dt for file in files} if chosen else set[date]().union(*uncounted.values())
    dates = {
        dt
        for dt in possible
        if beginning_of(dt) < span.until and (span.since is None or dt >= span.since.date())
    }
    files = [file for file in files if file.dt in dates]
    tell(f"reading {sum(file.rows for file in files):,} rows of {len(dates):,} days")
    counted = {
        batch.pk: batch.version
        for batch, of_batch in uncounted.items()
        if all(dt in dates and span.has(beginning_of(dt), DAY) for dt in of_batch)
    }
    if spark is None:
        rows = aggregates.figures_of_files(lake.storage, files, *span, MOST_ERRORS)
    else:
        count = partial(aggregates.aggregated, since=span.since, until=span.until)
        found = aggregates.aggregate_files(spark, lake.storage, files, count)
        rows = aggregates.figures_by_spark(found, MOST_ERRORS)
    return Input(rows, span, counted, lake)


def _span(params: Params, settled_at: datetime) -> Period:
    """The hours that are over and settled, and lie as a whole between `since` and `until`."""
    since, until = params.period()
    now = datetime.now(tz=timezone.utc)
    if since is not None:
        since = hour_of(since + HOUR - timedelta(microseconds=1))
    return Period(since, hour_of(min(settled_at, now, until or settled_at)))


# Writing


def _chunks(given: Input) -> Iterator[Chunk]:
    """The hours, and the days that lie in the period as a whole."""
    for (unit, at), group in groupby(given.rows, key=lambda row: (row["unit"], row["at"])):
        if unit == "hour":
            hour = stored_ms(at / 1000)
            rows = [TopicHour(hour=hour, **_figures(row, "task", "errors")) for row in group]
            yield Chunk(TopicHour, stored(utc(hour)), utc(hour), rows)
        elif given.span.has(begin := from_ms(at / 1000), DAY):
            days = [TaskDay(day=begin.date(), **_figures(row)) for row in group]
            yield Chunk(TaskDay, begin.date(), begin, days)


def _figures(row: Mapping[str, Any], *without: str) -> Mapping[str, Any]:
    """The columns of aggregates.SPANS that the models have, too."""
    return {name: row[name] for name in row if name not in ("unit", "at", *without)}


def _mark_counted(counted: Mapping[int, int | None]) -> None:
    """Enter that the batches are counted, except batches that were repaired meanwhile."""
    now = django_timezone.now()
    for pk, version in counted.items():
        LakeBatch.objects.filter(pk=pk, version=version, counted_at=None).update(counted_at=now)


def write_back(
    chunks: Iterable[Chunk],
    finish: Callable[[], object],
    *,
    fewer: bool = False,
    dry_run: bool = False,
    tell: Tell = ignore,
) -> WriteBackResult:
    """Replace the stored figures by these where they differ, several in one transaction: see
    hourly.replace_each(). `finish()` is called in the last transaction. `dry_run`: only report what
    would be done."""
    written = WriteBackResult()
    for together, following in pairwise(chain(_transactions(chunks), [[]])):
        outcomes: Mapping[Any, Replacement] = {}
        if not dry_run:
            outcomes = _replace(together, fewer, bool if following else finish)
        elif together:
            outcomes = compare_each(together[0].model, _spans(together), fewer=fewer)
        for chunk in together:
            written.note(chunk, outcomes[chunk.at])
        if together:
            tell(f"computed up to {together[-1].begin:%Y-%m-%d %H:%M}")
    return written


def _replace(
    together: Sequence[Chunk], fewer: bool, end: Callable[[], object]
) -> Mapping[Any, Replacement]:
    """In one transaction that ends with `end()`. MariaDB locks rows that it only passes, and may
    roll this transaction back when another one waits for it: then it is tried again."""
    outcomes: Mapping[Any, Replacement] = {}
    for attempt in range(1, TRIES + 1):
        try:
            with transaction.atomic(using=get_settings().database):
                if together:
                    outcomes = replace_each(together[0].model, _spans(together), fewer=fewer)
                end()
                break
        except OperationalError:
            if attempt == TRIES:
                raise
    return outcomes


def _spans(together: Sequence[Chunk]) -> Mapping[Any, Sequence[Any]]:
    return {chunk.at: chunk.rows for chunk in together}


def _transactions(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """The chunks of one table whose rows are written together; one without any when there are none.
    They keep their order, so that two processes can wait for one another in one direction only."""
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
    yield together
