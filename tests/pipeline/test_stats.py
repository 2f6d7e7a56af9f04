"""The job that computes the figures of hours and days from the lake: the same as the service,
whole, and once."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq.archive.prune import prune
from django_delayq.core.job_report import Code, Report, ignore
from django_delayq.models import ArchivedMessage, LakeBatch, TaskDay, TopicHour
from django_delayq.pipeline.audit import audit
from django_delayq.pipeline.export import export
from django_delayq.pipeline.job_errors import LakeError, Refused, cause, code_of
from django_delayq.pipeline.jobs import Start, run_job
from django_delayq.pipeline.lake.files import LakeFile
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.stats import aggregates, stats
from django_delayq.stats import history
from django_delayq.stats.hourly import (
    DAY,
    HOUR,
    Replacement,
    compare_each,
    compute_day,
    compute_hour,
    day_of,
    hour_of,
    replace_each,
)
from django_delayq.stats.stats_service import StatsService
from tests.pipeline.rows import make_odd_rows, make_rows

MINUTE = timedelta(minutes=1)
#: Three days ago, at noon: over and settled, whenever the tests run.
NOON = datetime.now(tz=timezone.utc).replace(hour=12, minute=0, second=0, microsecond=0) - 3 * DAY
MIDNIGHT = NOON - 12 * HOUR
Run = Callable[..., Report]


@pytest.fixture
def export_now(spark: Any, parameters: Any) -> Run:
    """Runs the export; all that is in the archive is settled."""
    return lambda **options: export.run(spark, parameters(job={"settle": 0, **options}), ignore)


@pytest.fixture
def stats_now(spark: Any, parameters: Any) -> Run:
    """Runs the job: stats_now(since="...", everything=True)."""

    def run(**told: Any) -> Report:
        general = {
            name: told.pop(name)
            for name in ("since", "until", "topic", "dry_run", "lake")
            if name in told
        }
        return stats.run(spark, parameters(job=told, **general), ignore)

    return run


@pytest.fixture
def empty(parameters: Any) -> None:
    """Tables, before the first figure."""
    parameters()


def stored(model: Any, *others: str) -> list[dict[str, Any]]:
    """All rows in an order of their own, without what changes whenever they are computed."""
    names = [
        field.attname
        for field in model._meta.concrete_fields
        if field.attname not in ("id", *others)
    ]
    keys = ("hour", "topic") if model is TopicHour else ("day", "topic", "task")
    return list(model.objects.order_by(*keys).values(*names))


def all_stored() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return stored(TopicHour, "computed_at"), stored(TaskDay, "computed_at")


def with_times() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return stored(TopicHour), stored(TaskDay)


def forget() -> None:
    """As if nothing had been computed."""
    for model in (TopicHour, TaskDay):
        model.objects.all().delete()


def by_hour() -> dict[datetime, int]:
    """Messages."""
    return dict(TopicHour.objects.order_by("hour").values_list("hour", "messages"))


def by_day() -> dict[Any, int]:
    return dict(TaskDay.objects.order_by("day").values_list("day", "messages"))


def computed_by_the_service() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What statistics.py makes of the whole archive."""
    whens = list(ArchivedMessage.objects.values_list("finished_at", flat=True))
    for hour in {hour_of(when) for when in whens}:
        compute_hour(hour)
    for day in {day_of(when) for when in whens}:
        compute_day(day)
    found = all_stored()
    forget()
    return found


def make_every_kind() -> None:
    """Rows of every state, topic and error, with odd texts and values, over three days that are
    over."""
    chance = random.Random(9)
    make_odd_rows()  # of 1912, 1969, 2400, this year; their figures are as odd
    ArchivedMessage.objects.filter(finished_at__gt=NOON).update(finished_at=NOON - 2 * HOUR)
    for state, ran in (("acked", True), ("dead", True), ("cancelled", False), ("expired", False)):
        make_rows(
            120,
            state=state,
            topic=lambda n: ("orders", "mail", "webhooks")[n % 3],
            task=lambda n: ("shop.close", "shop.remind")[n % 2],
            attempts=lambda n, ran=ran: chance.choice([1, 1, 2, 7]) if ran else 0,
            lateness_ms=lambda n, ran=ran: (
                round(chance.lognormvariate(2, 3) - 2, 3) if ran else None
            ),
            run_ms=lambda n, ran=ran: (
                round(chance.lognormvariate(3, 2), 3) if ran and n % 10 else None
            ),
            error_class=lambda n, ran=ran: f"Error{chance.randrange(70)}" if ran and n % 4 else "",
            reason=lambda n: chance.choice(["", "poison", "Grüße 🦊"]),
            finished_at=lambda n: (
                MIDNIGHT + chance.randrange(48 * 3600) * timedelta(seconds=1, microseconds=1)
            ),
        )


# Both ways


@pytest.mark.long
@pytest.mark.databases
def test_the_lake_and_the_archive_give_the_service_s_figures_to_the_last_digit(
    export_now: Run, stats_now: Run, empty: None
) -> None:
    make_every_kind()
    wanted = computed_by_the_service()
    assert (len(wanted[0]), len(wanted[1])) > (100, 12)
    report = stats_now(source="archive")
    assert all_stored() == wanted
    assert (
        report.figures["rows"]
        == ArchivedMessage.objects.count()
        == sum(row["messages"] for row in wanted[1])
    )
    forget()
    export_now(batch=300)
    report = stats_now()
    assert (report.code, report.problems) == (Code.DONE, [])
    assert all_stored() == wanted


@pytest.mark.long
def test_without_use_tz_they_are_the_same(stats_now: Run, empty: None, settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kolkata"
    make_rows(60, finished_at=lambda n: NOON + n * 31 * MINUTE)
    wanted = computed_by_the_service()
    stats_now(source="archive")
    assert all_stored() == wanted


# Without Spark


@pytest.fixture
def stats_here(parameters: Any) -> Run:
    """Runs the job in this process alone, through the list of jobs."""

    def run(**told: Any) -> Report:
        general = {name: told.pop(name) for name in ("since", "until") if name in told}
        params = parameters(job={**told, "spark": False}, **general)
        return run_job("stats", params, Start(master="no session is started"), ignore)

    return run


@pytest.mark.databases
def test_without_spark_the_figures_are_the_same_to_the_last_digit(
    export_now: Run, stats_now: Run, stats_here: Run, empty: None
) -> None:
    make_every_kind()
    export_now(batch=70)
    with_spark = stats_now()
    wanted = all_stored()
    assert (len(wanted[0]), len(wanted[1])) > (100, 12)
    assert wanted == computed_by_the_service()
    forget()
    LakeBatch.objects.update(counted_at=None)
    report = stats_here()
    assert all_stored() == wanted
    changing = ("seconds", "days_copied_to_lake")
    assert [report.figures[name] for name in report.figures if name not in changing] == [
        with_spark.figures[name] for name in with_spark.figures if name not in changing
    ]
    assert report.rows == with_spark.rows
    assert stats_here().figures["hours"] == 0
    forget()
    stats_here(source="archive")
    assert all_stored() == wanted


@pytest.mark.long
def test_without_spark_a_period_and_damage_are_the_same(
    export_now: Run, stats_here: Run, lake: str
) -> None:
    make_rows(96, finished_at=lambda n: MIDNIGHT - DAY + n * 30 * MINUTE)
    export_now()
    stats_here(
        since=(MIDNIGHT - MINUTE).isoformat(), until=(MIDNIGHT + 2 * HOUR + MINUTE).isoformat()
    )
    assert (by_hour(), by_day()) == ({MIDNIGHT: 2, MIDNIGHT + HOUR: 2}, {})
    path = Path(Lake(lake).uris()[-1])
    path.unlink()
    with pytest.raises(LakeError, match=re.escape(str(path))):
        stats_here()


def test_without_spark_no_package_of_spark_is_needed() -> None:
    """In a process that has none."""
    code = """
import sys
for name in ("pyspark", "py4j", "pandas"):
    sys.modules[name] = None
import django; django.setup()
from django_delayq.pipeline.stats import stats
from django_delayq.pipeline import lineage, jobs
from django_delayq.pipeline.lake import lake_erasure
from django_delayq.management.verbs import pipeline, erase
"""
    done = subprocess.run(
        (sys.executable, "-c", code), capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")


# In the lake, too


def test_the_figures_are_in_the_lake_too(export_now: Run, stats_here: Run, lake: str) -> None:
    import polars

    make_rows(50, finished_at=lambda n: NOON - DAY + n * 50 * MINUTE)
    export_now()
    report = stats_here()
    hours = polars.read_delta(f"{lake}/_figures/topic_hours").sort("hour")
    assert dict(zip(hours["hour"], hours["messages"], strict=True)) == by_hour()
    days = polars.read_delta(f"{lake}/_figures/task_days").sort("dt")
    assert dict(zip(days["dt"], days["messages"], strict=True)) == by_day()
    assert report.figures["days_copied_to_lake"] == len({hour.date() for hour in by_hour()}) + len(
        by_day()
    )
    assert stats_here(everything=True).figures["days_copied_to_lake"] == 0


def test_what_was_written_to_sql_and_not_to_the_lake_is_copied_by_the_next_run(
    export_now: Run, stats_here: Run, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import polars

    make_rows(3, finished_at=lambda n: NOON + n * HOUR)
    export_now()

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as failing, pytest.raises(KeyboardInterrupt):
        failing.setattr(stats, "copy_figures", interrupt)
        stats_here()
    assert len(by_hour()) == 3
    assert LakeBatch.objects.get().counted_at is not None
    assert not Path(lake, "_figures").exists()
    report = stats_here()
    assert (report.figures["hours"], report.figures["days_copied_to_lake"]) == (0, 2)
    hours = polars.read_delta(f"{lake}/_figures/topic_hours").sort("hour")
    assert list(hours["hour"]) == list(by_hour())


# Once


@pytest.mark.long
@pytest.mark.databases
def test_running_it_twice_changes_nothing_not_even_when_it_was_computed(
    export_now: Run, stats_now: Run
) -> None:
    make_rows(50, finished_at=lambda n: NOON + n * 50 * MINUTE)
    export_now(batch=20)
    first = stats_now()
    assert (first.figures["replaced"], first.figures["batches_counted"]) == (44, 3)
    before = with_times()
    again = stats_now()
    assert (again.figures["hours"], again.figures["days"], again.figures["batches_counted"]) == (
        0,
        0,
        0,
    )
    everything = stats_now(everything=True)
    assert (everything.figures["same"], everything.figures["replaced"]) == (44, 0)
    assert with_times() == before


@pytest.mark.long
def test_batches_are_counted_with_the_last_figures_or_not_at_all(
    export_now: Run, stats_now: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rows(3, finished_at=lambda n: NOON + n * HOUR)
    export_now()

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as failing:
        failing.setattr(stats, "_mark_counted", interrupt)
        with pytest.raises(KeyboardInterrupt):
            stats_now()
    assert len(by_hour()) == 3
    assert by_day() == {}  # the last of all goes back with the mark
    assert LakeBatch.objects.get().counted_at is None
    assert stats_now().figures["batches_counted"] == 1
    assert by_day() == {NOON.date(): 3}


@pytest.mark.long
def test_a_batch_that_is_repaired_meanwhile_has_to_be_counted_again(
    export_now: Run, stats_now: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rows(3, finished_at=NOON)
    export_now()
    original = stats._mark_counted

    def repaired(counted: Any) -> None:
        LakeBatch.objects.update(version=7)
        original(counted)

    monkeypatch.setattr(stats, "_mark_counted", repaired)
    stats_now()
    assert LakeBatch.objects.get().counted_at is None


# Which hours and days


@pytest.mark.long
def test_only_days_with_new_rows_are_computed_and_those_from_all_their_rows(
    export_now: Run, stats_now: Run
) -> None:
    make_rows(4, finished_at=NOON)
    make_rows(5, finished_at=NOON - 10 * DAY)
    export_now()
    stats_now()
    make_rows(2, finished_at=NOON + MINUTE)
    make_rows(1, finished_at=NOON - DAY)
    export_now()
    report = stats_now()
    assert (report.figures["hours"], report.figures["days"], report.figures["rows"]) == (2, 2, 7)
    assert by_hour() == {NOON - 10 * DAY: 5, NOON - DAY: 1, NOON: 6}
    assert by_day() == {(NOON - 10 * DAY).date(): 5, (NOON - DAY).date(): 1, NOON.date(): 6}


@pytest.mark.long
def test_hours_and_days_that_go_on_wait(export_now: Run, stats_now: Run) -> None:
    now = datetime.now(tz=timezone.utc)
    make_rows(3, finished_at=now)
    make_rows(2, finished_at=NOON)
    export_now()
    report = stats_now()
    assert by_hour() == {NOON: 2}
    assert report.figures["batches_counted"] == 0
    assert report.figures["until"] == hour_of(now).isoformat()


@pytest.mark.long
def test_an_hour_that_is_over_is_computed_and_its_day_that_goes_on_is_not(
    export_now: Run,
    stats_now: Run,
    spark: Any,
    parameters: Any,
    lake: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_rows(3, finished_at=NOON)
    make_rows(2, finished_at=NOON + HOUR)
    monkeypatch.setattr(stats, "settled_at", lambda last: NOON + HOUR + 59 * MINUTE)
    export_now()
    assert stats_now().figures["batches_counted"] == 0
    assert (by_hour(), by_day()) == ({NOON: 3}, {})
    make_rows(1, finished_at=NOON + 2 * HOUR)
    monkeypatch.setattr(stats, "settled_at", lambda last: MIDNIGHT + DAY)
    export_now()
    assert stats_now().figures["batches_counted"] == 2
    assert (by_hour(), by_day()) == (
        {NOON: 3, NOON + HOUR: 2, NOON + 2 * HOUR: 1},
        {NOON.date(): 6},
    )


@pytest.mark.long
def test_a_period_is_of_the_whole_hours_and_days_in_it(export_now: Run, stats_now: Run) -> None:
    make_rows(96, finished_at=lambda n: MIDNIGHT - DAY + n * 30 * MINUTE)
    export_now()
    report = stats_now(
        since=(MIDNIGHT - MINUTE).isoformat(), until=(MIDNIGHT + 2 * HOUR + MINUTE).isoformat()
    )
    assert by_hour() == {MIDNIGHT: 2, MIDNIGHT + HOUR: 2}
    assert (by_day(), report.figures["batches_counted"]) == ({}, 0)
    stats_now(since=(MIDNIGHT - DAY).isoformat(), until=(MIDNIGHT + HOUR).isoformat())
    assert by_day() == {(MIDNIGHT - DAY).date(): 48}
    assert len(by_hour()) == 26
    report = stats_now(until=(MIDNIGHT + DAY).isoformat())
    assert (len(by_hour()), len(by_day()), report.figures["batches_counted"]) == (48, 2, 1)


@pytest.mark.long
def test_a_dry_run_says_what_would_change_and_changes_nothing(
    export_now: Run, stats_now: Run
) -> None:
    make_rows(4, finished_at=lambda n: NOON + n * HOUR)
    export_now()
    report = stats_now(dry_run=True)
    assert (report.figures["replaced"], report.figures["rows"]) == (5, 4)
    assert (by_hour(), by_day(), LakeBatch.objects.get().counted_at) == ({}, {}, None)


def test_the_report_has_a_line_for_each_topic(export_now: Run, stats_now: Run) -> None:
    make_rows(99, finished_at=lambda n: NOON + n * MINUTE, lateness_ms=8.0, run_ms=100.0)
    make_rows(1, finished_at=NOON, state="dead", lateness_ms=5000.0, run_ms=None)
    make_rows(1, finished_at=NOON, state="expired", topic="mail", lateness_ms=None, run_ms=None)
    export_now()
    mail, orders = stats_now().rows
    assert mail == {"topic": "mail", "messages": 1, "dead": 0, "late_p50_ms": None, "late_p99_ms": None,
                    "run_p50_ms": None, "run_p99_ms": None}  # fmt: skip
    assert (orders["messages"], orders["dead"], orders["run_p99_ms"]) == (100, 1, 100.0)
    assert orders["late_p50_ms"] == orders["late_p99_ms"] == pytest.approx(8, rel=0.032)


def test_rows_of_the_first_and_the_last_instants_stop_no_job(
    export_now: Run, stats_now: Run, spark: Any, parameters: Any
) -> None:
    first = datetime(1000, 1, 1, 1, tzinfo=timezone.utc)
    last = datetime.max.replace(tzinfo=timezone.utc)
    make_rows(4, finished_at=lambda n: (first, last)[n % 2])
    for _ in range(2):
        report = export_now(batch=1)
        assert (report.code, report.problems) == (Code.DONE, [])
    stats_now()
    assert (by_hour(), by_day()) == ({first: 2}, {first.date(): 2})
    assert audit.run(spark, parameters(job={"pause": 0}), ignore).code == Code.DONE
    assert audit.run(spark, parameters(since=NOON.isoformat(), job={"pause": 0}), ignore).code == 0


# How the lake is read


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_an_executor_cannot_read_is_named_in_a_sentence(
    export_now: Run, stats_now: Run, lake: str, gone: bool
) -> None:
    make_rows(9, finished_at=NOON)
    export_now()
    (path,) = map(Path, Lake(lake).uris())
    size = path.stat().st_size
    path.unlink()
    if not gone:
        path.write_bytes(b"\0" * size)
    with pytest.raises(Exception, match=re.escape(str(path))) as raised:
        stats_now()
    found = cause(raised.value)
    assert (type(found), code_of(found)) == (LakeError, Code.REFUSED)
    assert re.fullmatch(rf"{re.escape(str(path))} cannot be read: [^\n]+", str(found))
    assert (by_hour(), LakeBatch.objects.get().counted_at) == ({}, None)


def test_files_are_read_in_parts_with_about_as_many_rows_each_in_their_order() -> None:
    def parted(number: int, *rows: int) -> list[list[int]]:
        files = [
            LakeFile(f"{n}", NOON.date(), 1, count, 0, 0, 0, 0) for n, count in enumerate(rows)
        ]
        parts = aggregates._parted(files, number)
        return [[file.rows for file in part] for part in parts]

    assert parted(4, 10, 20, 0, 30, 31, 32) == [[10, 20, 0], [30], [31], [32]]
    assert parted(2, 1, 1_000) == [[1], [1_000]]
    assert parted(2, 0, 0) == [[0, 0], []]
    assert parted(0) == []


@pytest.mark.long
def test_figures_are_the_same_however_the_rows_lie_in_files(
    export_now: Run, stats_now: Run, empty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a few rows, which are read a few rows at a time, in parts and batches that cut
    hours."""
    make_every_kind()
    wanted = computed_by_the_service()
    export_now(batch=70)
    forget()
    for name, value in (("BATCH", 7), ("PARTS", 9)):
        monkeypatch.setattr(aggregates, name, value)
    stats_now()
    assert all_stored() == wanted


# What is refused


def test_an_empty_lake_is_no_failure(stats_now: Run) -> None:
    report = stats_now()
    assert (report.code, report.problems) == (
        Code.DONE,
        ["The lake is empty: run the export first."],
    )


@pytest.mark.long
def test_an_empty_archive_has_no_figures(stats_now: Run) -> None:
    report = stats_now(source="archive")
    assert (report.figures["hours"], report.figures["days"], list(report.rows)) == (0, 0, [])


# What was pruned


@pytest.fixture
def counted(export_now: Run, stats_now: Run) -> Iterator[None]:
    """Ten messages in an hour and ten in the next are in the lake and counted."""
    make_rows(
        20, finished_at=lambda n: NOON + (n // 10) * HOUR, lateness_ms=lambda n: 2.0 ** (n % 10)
    )
    export_now()
    stats_now()
    yield


@pytest.mark.long
def test_late_rows_make_their_hour_whole_from_the_lake_also_where_sql_is_pruned(
    counted: None, export_now: Run, stats_now: Run
) -> None:
    ArchivedMessage.objects.filter(finished_at__lt=NOON + HOUR).delete()
    make_rows(15, finished_at=NOON, lateness_ms=3.0)
    compute_hour(NOON)  # as the service does when it finds late rows
    compute_day(NOON.date())
    assert (by_hour()[NOON], by_day()[NOON.date()]) == (10, 20)
    export_now()
    assert stats_now().problems == []
    assert (by_hour()[NOON], by_day()[NOON.date()]) == (25, 35)


@pytest.mark.databases
def test_the_service_leaves_alone_what_pruned_messages_are_counted_in(empty: None) -> None:
    make_rows(10, finished_at=NOON)
    compute_hour(NOON)
    compute_day(NOON.date())
    prune(timedelta(hours=1), by="ops")
    make_rows(3, finished_at=NOON)
    before = all_stored()
    assert compute_hour(NOON) == 3
    assert compute_day(NOON.date()) == 3
    assert all_stored() == before


@pytest.mark.long
def test_a_lake_that_lacks_what_was_counted_does_not_replace_it(
    export_now: Run, stats_now: Run
) -> None:
    """The first export came after the first prune."""
    make_rows(10, finished_at=NOON)
    computed = compute_hour(NOON)
    ArchivedMessage.objects.filter(
        pk__in=list(ArchivedMessage.objects.values_list("pk", flat=True)[:4])
    ).delete()
    make_rows(2, finished_at=NOON + HOUR)
    export_now()
    report = stats_now()
    assert by_hour() == {NOON: computed, NOON + HOUR: 2}
    assert (report.figures["kept"], report.figures["batches_counted"]) == (1, 1)
    assert f"{NOON:%Y-%m-%d %H:%M}" in report.problems[0]
    assert (
        f"--fewer --since {NOON:%Y-%m-%d}T12:00:00Z --until {NOON:%Y-%m-%d}T13:00:00Z"
        in report.problems[0]
    )
    since, until = report.problems[0].rpartition("--since ")[2].split(" --until ")
    assert stats_now(fewer=True, since=since, until=until).problems == []
    assert by_hour() == {NOON: 6, NOON + HOUR: 2}


@pytest.mark.databases
def test_figures_are_replaced_when_all_that_was_counted_is_in_them(empty: None) -> None:
    make_rows(10, finished_at=NOON, lateness_ms=lambda n: 2.0**n)
    compute_hour(NOON)
    row = TopicHour.objects.get()
    assert compare_each(TopicHour, {row.hour: [row]}) == {row.hour: Replacement.SAME}
    make_rows(1, finished_at=NOON, topic="mail", state="dead")
    compute_hour(NOON)
    assert TopicHour.objects.count() == 2
    for fewer in ({"acked": 9}, {"retried": -1}, {"lateness": '{"111":2}'}, {"topic": "another"}):
        for name, value in fewer.items():
            row, mail = (TopicHour.objects.get(topic=topic) for topic in ("orders", "mail"))
            setattr(row, name, value)
            spans = {row.hour: [row, mail]}
            assert compare_each(TopicHour, spans) == {row.hour: Replacement.KEPT}
            assert compare_each(TopicHour, spans, fewer=True) == {row.hour: Replacement.REPLACED}


def test_the_service_finds_late_rows_of_a_pruned_hour_and_takes_nothing_away(
    delayq: Any, empty: None
) -> None:
    now = datetime.now(tz=timezone.utc)
    service = StatsService(delayq)
    make_rows(10, finished_at=now - 5 * HOUR)
    service._compute_due(now)
    ArchivedMessage.objects.all().delete()
    make_rows(1, finished_at=now - 5 * HOUR)
    service._compute_due(now)
    assert by_hour() == {hour_of(now - 5 * HOUR): 10}


def test_an_hour_that_stays_is_not_due_again(empty: None) -> None:
    make_rows(2, finished_at=NOON)
    compute_hour(NOON)
    long_ago = NOON - DAY
    TopicHour.objects.update(computed_at=long_ago)
    ArchivedMessage.objects.all().delete()
    compute_hour(NOON)
    assert TopicHour.objects.get().computed_at > long_ago


def test_old_figures_are_shown_where_the_archive_is_empty(
    counted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ArchivedMessage.objects.all().delete()
    days = history.history("7d")
    assert days.total.messages == 20
    assert {step.at: step.figures.messages for step in days.steps if step.figures.messages} == {
        MIDNIGHT: 20
    }
    assert [(task.topic, task.figures.messages) for task in days.tasks] == [("orders", 20)]

    class Calendar(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return (NOON + 90 * MINUTE).astimezone(tz)

    monkeypatch.setattr(history, "datetime", Calendar)
    hours = history.history("24h")
    assert [step.figures.messages for step in hours.steps[-2:]] == [10, 10]
    assert hours.total.late_max_ms == 512.0


@pytest.mark.parametrize(("most", "statements"), [(250, 2), (2, 2), (1, 4)])
def test_hours_are_written_in_transactions_of_few_statements(
    counted: None, stats_now: Run, monkeypatch: pytest.MonkeyPatch, most: int, statements: int
) -> None:
    monkeypatch.setattr(stats, "ROWS", most)
    TopicHour.objects.update(lateness="{}")
    with CaptureQueriesContext(connection) as queries:
        stats_now(everything=True)
    assert TopicHour.objects.filter(lateness="{}").count() == 0
    written = [one["sql"] for one in queries if one["sql"].startswith(("INSERT", "DELETE"))]
    assert len(written) == statements


@pytest.mark.databases
def test_what_another_process_counted_meanwhile_is_not_lost(empty: None) -> None:
    """The service has read an hour, then the pipeline writes it with more: it stays."""
    make_rows(10, finished_at=NOON)
    compute_hour(NOON)
    (row,) = TopicHour.objects.filter(hour=NOON)
    row.pk, row.messages, row.acked = None, 11, 11
    replace_each(TopicHour, {row.hour: [row]})
    compute_hour(NOON)
    assert by_hour()[NOON] == 11


def test_the_ledger_of_another_database_is_refused(
    counted: None, stats_now: Run, lake: str
) -> None:
    LakeBatch.objects.all().delete()
    with pytest.raises(Refused, match="another archive"):
        stats_now()
