"""The figures of hours and days as Delta tables in the lake: what SQL has, read by other tools."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core.job_report import ignore
from django_delayq.core.times import stored, utc
from django_delayq.models import TaskDay, TopicHour
from django_delayq.pipeline.job_errors import LakeConflict, LakeError
from django_delayq.pipeline.lake import figure_tables
from django_delayq.pipeline.lake.figure_tables import copy_figures
from django_delayq.pipeline.lake.lake import FIGURE_TABLES, FigureTable, Lake
from django_delayq.pipeline.params import Storage
from django_delayq.stats.histogram import Times, decode, encode
from django_delayq.stats.hourly import DAY, HOUR, replace_each
from tests.pipeline.lakes import add
from tests.stats.histograms import histogram

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
TIMES = [0.5, 2.0, 2.0, 9_000.25]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def figures(messages: int = 4, times: list[float] = TIMES) -> dict[str, Any]:
    """Of messages, one of them dead."""
    ran = [time for time in times if time < 10]
    return {"messages": messages, "acked": messages - 1, "dead": 1, "cancelled": 0, "expired": 0,
            "attempts": messages + 2, "retried": 1, "lateness": encode(histogram(times)),
            "lateness_sum": sum(times), "lateness_max": max(times, default=None), "run": encode(histogram(ran)),
            "run_sum": sum(ran), "run_max": max(ran, default=None)}  # fmt: skip


def put_hours(
    *hours: datetime, topics: tuple[str, ...] = ("orders", "Mail"), **changed: Any
) -> None:
    """Into SQL, as the job and the service do it."""
    spans = {stored(hour): [TopicHour(hour=stored(hour), topic=topic, **figures(**changed)) for topic in topics]
             for hour in hours}  # fmt: skip
    replace_each(TopicHour, spans, fewer=True)


def put_days(*days: date, **changed: Any) -> None:
    spans = {day: [TaskDay(day=day, topic="orders", task=task, errors=json.dumps({"Grüße 🦊": 1}), **figures(**changed))
                   for task in ("shop.close", "shop.remind")] for day in days}  # fmt: skip
    replace_each(TaskDay, spans, fewer=True)


def copy(lake: Lake) -> int:
    return copy_figures(Lake(lake.storage), ignore)


def table(lake: Lake, number: int = 0) -> FigureTable:
    return FigureTable(lake, list(FIGURE_TABLES)[number])


def in_sql() -> list[tuple[Any, ...]]:
    """The hours with what a dashboard shows of them."""
    found = []
    for row in TopicHour.objects.all():
        late, ran = (
            Times.of(decode(row.lateness), row.lateness_max),
            Times.of(decode(row.run), row.run_max),
        )
        found.append((utc(row.hour), row.topic, row.messages, row.acked, row.dead, row.attempts, row.retried, late.p50,
                      late.p99, row.lateness_max, row.lateness_sum, ran.p99, row.run_sum, row.lateness,
                      utc(row.computed_at)))  # fmt: skip
    return sorted(found, key=lambda row: row[:2])


COLUMNS = ("hour", "topic", "messages", "acked", "dead", "attempts", "retried", "lateness_p50_ms", "lateness_p99_ms",
           "lateness_max_ms", "lateness_sum_ms", "run_p99_ms", "run_sum_ms", "lateness_histogram", "computed_at")  # fmt: skip


def by_polars(
    lake: Lake, name: str = "topic_hours", columns: tuple[str, ...] = COLUMNS
) -> list[tuple[Any, ...]]:
    import polars

    options = lake.storage.resolved() or None
    frame = polars.scan_delta(f"{lake.uri}/_figures/{name}", storage_options=options).select(
        columns
    )
    return sorted(frame.collect().rows(), key=lambda row: row[:2])


def is_equal(lake: Lake) -> bool:
    """Whether the lake has what SQL has."""
    hours = by_polars(lake) == in_sql()
    columns = ("dt", "task", "topic", "messages", "errors", "run_histogram")
    names = ("day", "task", "topic", "messages", "errors", "run")
    return hours and by_polars(lake, "task_days", columns) == sorted(
        TaskDay.objects.values_list(*names)
    )


@pytest.mark.parametrize("name", ["with a space", "#1", "100%", "Grüße 🦊", "a+b"])
def test_the_folder_of_the_lake_may_have_any_name(name: str, tmp_path: Path) -> None:
    put_hours(NOON)
    lake = Lake(tmp_path / name)
    assert (copy(lake), copy(lake)) == (1, 0)
    assert table(lake).read([NOON.date()]).num_rows == 2


def test_polars_and_duckdb_read_what_sql_has(lake: Lake) -> None:
    import duckdb
    from deltalake import DeltaTable

    put_hours(NOON, NOON + HOUR, NOON + 2 * DAY)
    put_hours(NOON - DAY, times=[])
    put_days(NOON.date(), (NOON + DAY).date())
    assert copy(lake) == 3 + 2
    assert is_equal(lake)
    files = DeltaTable(f"{lake.uri}/_figures/topic_hours").file_uris()
    query = "SELECT topic, count(*), sum(messages), max(lateness_p99_ms), sum(lateness_sum_ms) FROM read_parquet($files) GROUP BY 1 ORDER BY 1"
    late = Times.of(histogram(TIMES), max(TIMES)).p99
    assert duckdb.sql(query, params={"files": files}).fetchall() == [
        (topic, 4, 16, late, 3 * sum(TIMES)) for topic in ("Mail", "orders")
    ]


def test_a_second_copy_makes_no_commit(lake: Lake) -> None:
    put_hours(NOON, NOON + DAY)
    put_days(NOON.date())
    copy(lake)
    versions = [table(lake, number).version for number in range(2)]
    assert copy(lake) == 0
    assert [table(lake, number).version for number in range(2)] == versions == [1, 1]


def test_a_day_is_replaced_as_a_whole_in_one_commit_and_other_days_stay(lake: Lake) -> None:
    put_hours(NOON, NOON + HOUR, NOON + DAY)
    put_days(NOON.date())
    copy(lake)
    hours = table(lake)
    before, version = by_polars(lake), hours.version
    put_hours(NOON, topics=("mail",), messages=9)  # two topics are gone
    assert copy(lake) >= 1
    assert is_equal(lake)
    hours.refresh()
    assert hours.version == version + 1
    assert [row for row in by_polars(lake) if row[0] >= NOON + DAY] == before[-2:]


def test_without_figures_there_are_no_tables(lake: Lake) -> None:
    assert copy(lake) == 0
    assert not table(lake).exists


@pytest.mark.parametrize("committed", [False, True])
def test_a_copy_that_ends_at_its_commit_goes_on_with_the_next_one(
    lake: Lake, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_hours(*(NOON + n * DAY for n in range(4)))
    put_days(NOON.date())
    monkeypatch.setattr(figure_tables, "DAYS", 2)
    original, calls = FigureTable.replace, []

    def dying(self: FigureTable, *given: Any) -> None:
        calls.append(given)
        if len(calls) == 2 and not committed:
            raise KeyboardInterrupt
        original(self, *given)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as failing, pytest.raises(KeyboardInterrupt):
        failing.setattr(FigureTable, "replace", dying)
        copy(lake)
    assert len(by_polars(lake)) == (8 if committed else 4)
    assert not table(lake, 1).exists
    put_hours(NOON, messages=30)  # also what has changed since
    copy(lake)
    assert is_equal(lake)


def test_figures_that_were_committed_late_are_found(lake: Lake) -> None:
    """They were computed before those of the last copy, in a transaction that took its time."""
    put_hours(NOON)
    put_days(NOON.date())
    copy(lake)
    put_hours(NOON + DAY)
    before = utc(TopicHour.objects.earliest("computed_at").computed_at) - timedelta(minutes=50)
    TopicHour.objects.filter(hour=stored(NOON + DAY)).update(computed_at=stored(before))
    assert copy(lake) > 0
    assert is_equal(lake)


def test_of_two_at_once_one_begins_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    put_hours(NOON)
    put_days(NOON.date())
    copy(lake)
    put_hours(NOON, messages=7)
    stale = table(lake)
    original, once = FigureTable.replace, [True]

    def raced(self: FigureTable, *given: Any) -> None:
        if once:
            once.clear()
            put_hours(NOON, messages=8)
            copy(lake)
        original(self, *given)

    monkeypatch.setattr(FigureTable, "replace", raced)
    copy(lake)
    assert is_equal(lake)
    version = table(lake).version
    with pytest.raises(LakeConflict):
        stale.replace([NOON.date()], stale.read([NOON.date()]), 1)
    assert (table(lake).version, is_equal(lake)) == (version, True)


def test_a_store_that_fails_is_an_error_of_ours(lake: Lake) -> None:
    put_hours(NOON)
    copy(lake)
    put_hours(NOON, messages=7)
    (path,) = Path(lake.uri, "_figures", "topic_hours").glob("*.parquet")
    path.unlink()
    with pytest.raises(LakeError, match="topic_hours"):
        copy(lake)


def test_a_tidy_lake_puts_their_small_files_together_and_deletes_old_ones(lake: Lake) -> None:
    from deltalake import DeltaTable

    put_days(NOON.date())
    for number in range(6):
        put_hours(NOON + number * DAY)
        copy(lake)
    lake.tidy(0)
    assert is_equal(lake)
    folder = f"{lake.uri}/_figures/topic_hours"
    (uri,) = DeltaTable(folder).file_uris()
    assert list(map(str, Path(folder).glob("*.parquet"))) == [uri]


def test_a_vacuum_of_the_lake_leaves_them(lake: Lake) -> None:
    add(lake, 5)
    put_hours(NOON)
    put_days(NOON.date())
    copy(lake)
    lake.tidy(0)
    assert is_equal(lake)
    assert lake.uris() and not any("_figures" in uri for uri in lake.uris())


def test_the_last_hour_and_the_last_day_of_all_are_copied(lake: Lake) -> None:
    last = datetime(9999, 12, 31, 23, tzinfo=timezone.utc)
    put_hours(last, datetime(1912, 6, 23, 4, tzinfo=timezone.utc))
    put_days(last.date(), date(1912, 6, 23))
    copy(lake)
    assert is_equal(lake)


def test_without_use_tz_they_are_the_same(lake: Lake, settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kolkata"
    put_hours(NOON, NOON + 10 * HOUR, NOON + 11 * HOUR)
    put_days(NOON.date())
    copy(lake)
    assert is_equal(lake)
    assert [row[0] for row in by_polars(lake)][::2] == [NOON, NOON + 10 * HOUR, NOON + 11 * HOUR]


@pytest.mark.databases
def test_on_s3_it_is_the_same(bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from django_delayq.pipeline.params import Secret

    monkeypatch.setenv("KEY_OF_BUCKET", "secret")
    secrets = {"AWS_SECRET_ACCESS_KEY": Secret("env:KEY_OF_BUCKET")}
    lake = Lake(Storage("s3://shop/figures", bucket, secrets))
    put_hours(NOON, NOON + DAY)
    put_days(NOON.date())
    copy(lake)
    put_hours(NOON, messages=9)
    put_days(NOON.date(), messages=9)
    assert copy(lake) > 0
    assert is_equal(lake)
    assert copy(lake) == 0
