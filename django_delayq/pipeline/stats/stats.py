"""Counts and histograms of past hours and days: from the lake, or the archive, into SQL."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple

from django.utils import timezone as django_timezone
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...core.times import epoch_us
from ...models import BatchState, LakeBatch, TaskDay, TopicHour
from ...stats.hourly import DAY, HOUR, MOST_ERRORS, Replacement
from ...stats.stats_service import SETTLE
from .. import schemas
from ..errors import Refused
from ..lake.lake import Commit, Lake
from ..lake.ledger import Ledger, stored_instant
from ..lake.reader import mapped_files
from ..lake.watermark import last_settled_id
from ..options import StatsOptions
from ..params import Params, Report, Tell
from ..session import configured
from ..sources.archive import finished_between, read_archive
from . import aggregates
from .write_back import (
    WriteBackResult,
    day_chunks,
    hour_chunks,
    with_empty_days,
    with_empty_hours,
    write_back,
)

#: Rows of TopicHour and TaskDay that one run writes.
MOST_GROUPS = 1_000_000
#: How rows of the archive go to Python: their columns are short. To measure each batch by its
#: bytes, row by row, takes Spark 2 us a row, as much as everything else.
_BATCHES = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}
#: Hours and days that a report names.
NAMED = 5


class Period(NamedTuple):
    """From `since` to before `until`; None: from the beginning."""

    since: datetime | None
    until: datetime

    def whole(self, length: timedelta) -> Period:
        """The hours, or days, that lie in it as a whole."""
        begin = (
            None
            if self.since is None
            else _floor(self.since + length - timedelta(microseconds=1), length)
        )
        return Period(begin, _floor(self.until, length))

    def has(self, at: datetime, length: timedelta) -> bool:
        """Whether the hour, or day, that begins then lies in it as a whole."""
        return at + length <= self.until and (self.since is None or at >= self.since)


class Input(NamedTuple):
    """What one run computes."""

    aggregates: DataFrame
    """As aggregates.aggregate_frame()."""
    span: Period
    counted: Mapping[int, int | None] = {}
    """Batches of the lake of which every hour and day is computed: id -> commit."""
    hours: Collection[datetime] = ()
    """Of the span, in which rows of the lake finished, also such that are not there any more."""


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Compute the hours and days with new rows, or those of `since` and `until`, or all, and
    replace what SQL says of them. Only hours and days that are over and settled. Raises Refused and
    LakeError."""
    begun = time.monotonic()
    options = params.options(StatsOptions)
    given = (
        _of_lake(spark, params, options, tell)
        if options.source == "lake"
        else _of_archive(spark, params, tell)
    )
    if given is None:
        return Report(job="stats", problems=["The lake is empty: run the export first."])
    written = _compute(given, params, options, tell)
    figures = {
        **_figures(written),
        "batches_counted": len(given.counted),
        "until": given.span.until.isoformat(),
    }
    return Report(
        job="stats",
        figures={**figures, "seconds": round(time.monotonic() - begun, 1)},
        rows=[
            {"topic": topic, **totals.line()} for topic, totals in sorted(written.topics.items())
        ],
        problems=_problems(written),
    )


# What is computed


def _of_lake(
    spark: SparkSession, params: Params, options: StatsOptions, tell: Tell
) -> Input | None:
    lake = Lake(params.lake)
    ledger = Ledger(lake)
    commits = ledger.check() if params.dry_run else ledger.catch_up()
    settled_at = max(
        (at for commit in commits if (at := stored_instant(commit.settled_at))), default=None
    )
    if settled_at is None:
        return None
    span = _span(params, settled_at)
    dirty = _dirty(ledger, commits)
    files = lake.files()
    if options.everything or params.since or params.until:
        known = {dt for commit in commits for dt in _dates(commit)}
    else:
        known = {dt for of_batch in dirty.values() for dt in of_batch}
    dates = {
        dt
        for dt in known
        if _begin(dt) < span.until and (span.since is None or _begin(dt) + DAY > span.since)
    }
    wanted = [file for file in files if file.dt in dates]
    tell(f"reading {sum(file.rows for file in wanted):,} rows of {len(dates):,} days")
    counted = {
        batch.pk: batch.seq
        for batch, of_batch in dirty.items()
        if all(dt in dates and span.has(_begin(dt), DAY) for dt in of_batch)
    }
    part = partial(aggregates.of_span, since=span.since, until=span.until)
    found = mapped_files(spark, lake, wanted, aggregates.READ, part, aggregates.AGGREGATES)
    return Input(aggregates.added_up(found), span, counted, _hours(commits, dates))


def _of_archive(spark: SparkSession, params: Params, tell: Tell) -> Input:
    highest = last_settled_id(0)
    tell(f"reading the archive up to id {highest:,}")
    frame = read_archive(spark, params.database, (0, highest), schemas.FIGURES.names)
    span = _span(params, datetime.now(tz=timezone.utc) - SETTLE)
    return Input(aggregates.aggregate_frame(finished_between(frame, *span)), span)


def _dirty(ledger: Ledger, commits: Sequence[Commit]) -> dict[LakeBatch, set[str]]:
    """Batches with rows that have not been counted, and the dates on which these finished."""
    by_seq = {commit.seq: commit for commit in commits}
    states = (BatchState.COMMITTED, BatchState.PRUNED)
    batches = ledger.batches.filter(counted_at=None, seq__isnull=False, state__in=states)
    return {batch: _dates(by_seq[batch.seq]) for batch in batches if batch.seq in by_seq}


def _dates(commit: Commit) -> set[str]:
    """UTC dates, YYYY-MM-DD."""
    return {hour[:10] for hour in commit.hours} | {file.dt for file in commit.files}


def _hours(commits: Sequence[Commit], dates: Collection[str]) -> set[datetime]:
    """Of these dates, in which rows of any commit finished."""
    texts = {hour for commit in commits for hour in commit.hours if hour[:10] in dates}
    return {datetime.fromisoformat(text.replace("Z", "+00:00")) for text in texts}


def _span(params: Params, settled_at: datetime) -> Period:
    since, until = params.period()
    now = datetime.now(tz=timezone.utc)
    return Period(since, min(settled_at, now, until or settled_at)).whole(HOUR)


def _begin(dt: str) -> datetime:
    return datetime.fromisoformat(dt).replace(tzinfo=timezone.utc)


def _floor(when: datetime, length: timedelta) -> datetime:
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    return epoch + (when - epoch) // length * length


# Computing and writing


def _compute(given: Input, params: Params, options: StatsOptions, tell: Tell) -> WriteBackResult:
    # Kept, so that the rows are read once: the cells are few.
    found = _whole(given.aggregates, given.span.whole(DAY)).persist()
    try:
        with configured(found.sparkSession, _BATCHES):
            number = found.where(F.col("error").isNull()).count()
        if number > MOST_GROUPS:
            raise Refused(
                f"There are {number:,} hours of topics and days of tasks to write, more than "
                f"{MOST_GROUPS:,}: do it in "
                "parts, with since and until."
            )
        tell(f"writing {number:,} rows")

        def chunks() -> Iterator[Any]:
            of_hours = hour_chunks(_ordered(aggregates.topic_hours(found), "hour", "topic"))
            yield from with_empty_hours(
                of_hours, [at for at in given.hours if given.span.has(at, HOUR)]
            )
            days = aggregates.task_days(found, MOST_ERRORS)
            of_days = day_chunks(_ordered(days, "day", "topic", "task"))
            begins = {_floor(at, DAY) for at in given.hours}
            yield from with_empty_days(
                of_days, [at.date() for at in begins if given.span.has(at, DAY)]
            )

        finish = _marking(given.counted)
        return write_back(chunks(), finish, fewer=options.fewer, dry_run=params.dry_run)
    finally:
        found.unpersist()


def _whole(found: DataFrame, span: Period) -> DataFrame:
    """Of the days those that lie in the span as a whole."""
    is_inside = F.col("at") < F.lit(epoch_us(span.until))
    if span.since is not None:
        is_inside &= F.col("at") >= F.lit(epoch_us(span.since))
    return found.where((F.col("unit") == "hour") | is_inside)


def _ordered(frame: DataFrame, *names: str) -> Iterator[dict[str, Any]]:
    """Partition after partition: the driver holds one of them at a time."""
    for row in frame.orderBy(*names).toLocalIterator():
        yield row.asDict(recursive=True)


def _marking(counted: Mapping[int, int | None]) -> Any:
    """Enters that the batches are counted: those that were not repaired meanwhile."""

    def mark() -> None:
        now = django_timezone.now()
        for pk, seq in counted.items():
            LakeBatch.objects.filter(pk=pk, seq=seq, counted_at=None).update(counted_at=now)

    return mark


# What is said


def _figures(written: WriteBackResult) -> dict[str, Any]:
    return {
        "hours": written.spans[TopicHour],
        "days": written.spans[TaskDay],
        "rows": sum(totals.messages for totals in written.topics.values()),
        **{outcome.value: written.outcomes[outcome] for outcome in Replacement},
    }


def _problems(written: WriteBackResult) -> list[str]:
    if not written.kept:
        return []
    named = ", ".join(f"{span:%Y-%m-%d %H:%M}" for span in written.kept[:NAMED])
    more = ", ..." if len(written.kept) > NAMED else ""
    begins = [_begin_of(span) for span in written.kept]
    ends = [
        _begin_of(span) + (HOUR if isinstance(span, datetime) else DAY) for span in written.kept
    ]
    return [
        f"{len(written.kept):,} hours and days stay as they are ({named}{more}): SQL has figures "
        f"of messages that are "
        "not here, because they were pruned before, or have come since. To replace them all the "
        "same: "
        f"--fewer --since {_text(min(begins))} --until {_text(max(ends))}"
    ]


def _begin_of(span: datetime | date) -> datetime:
    return (
        span
        if isinstance(span, datetime)
        else datetime(span.year, span.month, span.day, tzinfo=timezone.utc)
    )


def _text(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"
