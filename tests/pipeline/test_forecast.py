"""The forecast: what waits, and when it falls due."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone as django_timezone
from pyspark.testing import assertDataFrameEqual

from django_delayq import pause_topic
from django_delayq.models import Forecast, ForecastCount, OutboxMessage
from django_delayq.pipeline import forecast_frames
from django_delayq.pipeline.errors import Code, Refused
from django_delayq.pipeline.jobs import forecast as job
from django_delayq.pipeline.params import Params, Report
from django_delayq.store.redis import RedisStore
from django_delayq.times import from_ms
from tests.servers import Server
from tests.tasks import close_order, crowd, record

NOW = datetime(2026, 11, 20, 9, 30, 30, tzinfo=timezone.utc)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
DUE = "message_id string, topic string, partition int, due_at timestamp"
MINUTES = "topic string, at timestamp, messages bigint, overdue bigint"
SPANS = "unit string, at timestamp, topic string, messages bigint, overdue bigint"
durable = record.using(durable=True)


def at(text: str) -> datetime:
    """A time of the 20th, or of another day: 21 09:00."""
    day, _, clock = text.rpartition(" ")
    return datetime.fromisoformat(f"2026-11-{day or 20}T{clock}:00+00:00"[:25])


# The transforms


def due(spark: Any, *rows: tuple[str, datetime | None]) -> Any:
    return spark.createDataFrame([(str(n), topic, 0, when) for n, (topic, when) in enumerate(rows)], DUE)


def test_minutes_are_counted_by_topic_and_what_is_overdue_is_in_that_of_now(spark: Any):
    early = datetime(2026, 11, 19, tzinfo=timezone.utc)
    frame = due(spark, ("a", early), ("a", NOW), ("a", NOW + MINUTE / 3), ("b", NOW + MINUTE / 3), ("a", NOW + MINUTE))
    expected = [("a", at("09:30"), 3, 2), ("b", at("09:30"), 1, 0), ("a", at("09:31"), 1, 0)]
    assertDataFrameEqual(forecast_frames.due_minutes(frame, NOW), spark.createDataFrame(expected, MINUTES))


def test_a_due_time_that_is_missing_is_overdue(spark: Any):
    expected = [("a", at("09:30"), 1, 1)]
    found = forecast_frames.due_minutes(due(spark, ("a", None)), NOW)
    assertDataFrameEqual(found, spark.createDataFrame(expected, MINUTES))


def test_a_message_that_was_seen_twice_counts_once_when_it_is_due_first(spark: Any):
    rows = [
        ("1", "a", 0, NOW + HOUR),
        ("1", "a", 1, NOW + MINUTE),
        ("1", "a", 0, NOW + HOUR),
        ("1", "b", 0, NOW + HOUR),
    ]
    found = forecast_frames.due_minutes(spark.createDataFrame(rows, DUE), NOW)
    expected = [("a", at("09:31"), 1, 0), ("b", at("10:30"), 1, 0)]
    assertDataFrameEqual(found, spark.createDataFrame(expected, MINUTES))


def test_nothing_makes_no_spans(spark: Any):
    minutes = forecast_frames.due_minutes(due(spark), NOW)
    assertDataFrameEqual(minutes, spark.createDataFrame([], MINUTES))
    assertDataFrameEqual(forecast_frames.spans(minutes, NOW), spark.createDataFrame([], SPANS))
    assert forecast_frames.highest(minutes).collect() == []


def test_minutes_reach_a_day_hours_two_weeks_and_days_to_the_end(spark: Any):
    minutes = spark.createDataFrame(
        [
            ("a", at("09:30"), 5, 3),
            ("a", at("09:59"), 1, 0),
            ("b", at("21 09:29"), 2, 0),
            ("b", at("21 09:30"), 4, 0),
            ("b", datetime(2026, 12, 4, 8, 59, tzinfo=timezone.utc), 8, 0),
            ("b", datetime(2026, 12, 4, 9, 0, tzinfo=timezone.utc), 16, 0),
            ("b", datetime(2030, 1, 1, 23, 59, tzinfo=timezone.utc), 32, 0),
        ],
        MINUTES,
    )
    december = datetime(2026, 12, 4, tzinfo=timezone.utc)
    expected = [
        ("minute", at("09:30"), "a", 5, 3),
        ("minute", at("09:59"), "a", 1, 0),
        ("minute", at("21 09:29"), "b", 2, 0),
        ("hour", at("09:00"), "a", 6, 3),
        ("hour", at("21 09:00"), "b", 6, 0),
        ("hour", december + 8 * HOUR, "b", 8, 0),
        ("day", at("00:00"), "a", 6, 3),
        ("day", at("21 00:00"), "b", 6, 0),
        ("day", december, "b", 24, 0),
        ("day", datetime(2030, 1, 1, tzinfo=timezone.utc), "b", 32, 0),
    ]
    assertDataFrameEqual(forecast_frames.spans(minutes, NOW), spark.createDataFrame(expected, SPANS))


def test_rows_of_one_minute_from_two_sources_are_one_span(spark: Any):
    minutes = spark.createDataFrame([("a", at("09:30"), 5, 3), ("a", at("09:30"), 2, 1)], MINUTES)
    expected = [("minute", at("09:30")), ("hour", at("09:00")), ("day", at("00:00"))]
    rows = [(unit, when, "a", 7, 4) for unit, when in expected]
    assertDataFrameEqual(forecast_frames.spans(minutes, NOW), spark.createDataFrame(rows, SPANS))


def test_the_highest_minute_is_of_all_topics_and_of_what_is_to_come(spark: Any):
    minutes = spark.createDataFrame(
        [
            ("a", at("09:30"), 900, 899),
            ("a", at("10:00"), 3, 0),
            ("b", at("10:00"), 4, 0),
            ("a", at("11:00"), 6, 0),
            ("a", at("12:00"), 7, 0),
        ],
        MINUTES,
    )
    expected = spark.createDataFrame([(at("10:00"), 7)], "at timestamp, messages bigint")
    assertDataFrameEqual(forecast_frames.highest(minutes), expected)
    overdue = spark.createDataFrame([("a", at("09:30"), 5, 5)], MINUTES)
    assert forecast_frames.highest(overdue).collect() == []


# The job


@pytest.fixture
def forecast(spark: Any, parameters: Callable[..., Params]) -> Callable[..., Report]:
    """Runs the job."""

    def run(**rest: Any) -> Report:
        return job.run(spark, parameters(**rest), lambda line: None)

    return run


def whole_minute(delayq: RedisStore) -> datetime:
    """One that does not begin while we count."""
    return from_ms(delayq.clock_ms()).replace(second=0, microsecond=0) + 2 * MINUTE


def counts(unit: str) -> dict[tuple[str, datetime], int]:
    return {(row.topic, row.at): row.messages for row in ForecastCount.objects.filter(unit=unit)}


@pytest.mark.databases
def test_redis_and_outbox_are_counted_together(delayq: RedisStore, forecast: Callable[..., Report]):
    chance = random.Random(7)
    begin = whole_minute(delayq)
    expected = {unit: Counter[tuple[str, datetime]]() for unit in ("minute", "hour", "day")}
    reach = {"minute": timedelta(days=1), "hour": timedelta(days=14), "day": timedelta(days=9_999)}
    starts = {"minute": {}, "hour": {"minute": 0}, "day": {"minute": 0, "hour": 0}}
    for _ in range(150):
        when = (begin + chance.choice([HOUR, DAY, 20 * DAY, 400 * DAY]) * chance.random()).replace(microsecond=0)
        task: Any = chance.choice([record, durable, close_order, close_order.using(durable=True), crowd])
        topic = task.using(due_at=when).enqueue(1).topic
        for unit, zeros in starts.items():
            now = from_ms(delayq.clock_ms()).replace(second=0, microsecond=0, **zeros)
            if when < now + reach[unit]:
                expected[unit][topic, when.replace(second=0, **zeros)] += 1
    report = forecast()
    assert OutboxMessage.objects.filter(status="waiting").exists()
    assert report.code == Code.DONE
    assert (report.figures["waiting"], report.figures["overdue"], report.figures["written"]) == (150, 0, True)
    assert {unit: counts(unit) for unit in expected} == expected
    (kept,) = Forecast.objects.all()
    assert (kept.waiting, kept.overdue) == (150, 0)
    assert abs(kept.taken_at - django_timezone.now()) < timedelta(minutes=1)
    assert kept.peak == report.figures["peak"] >= 1


@pytest.mark.databases
def test_what_is_overdue_is_in_the_first_span_and_no_peak(delayq: RedisStore, forecast: Callable[..., Report]):
    past = datetime(2020, 1, 1, tzinfo=timezone.utc)
    record.using(due_at=past).enqueue_many([(n,) for n in range(3)])
    durable.using(delay=DAY).enqueue(1)
    OutboxMessage.objects.update(due_at_ms=5, status="waiting")
    report = forecast(job={"drain_rate": 2.0})
    (kept,) = Forecast.objects.all()
    taken = kept.taken_at
    assert (kept.waiting, kept.overdue, kept.peak, kept.peak_at) == (4, 4, 0, None)
    assert counts("minute") == {("default", taken.replace(second=0, microsecond=0)): 4}
    assert counts("day") == {("default", taken.replace(hour=0, minute=0, second=0, microsecond=0)): 4}
    assert report.figures["forecast"] == "4 are overdue: 2 s of work."


def test_the_peak_is_told_as_work(delayq: RedisStore, forecast: Callable[..., Report]):
    near, far = whole_minute(delayq), whole_minute(delayq) + 3 * DAY
    record.using(due_at=near).enqueue_many([(n,) for n in range(30)])
    close_order.using(due_at=near + timedelta(seconds=59)).enqueue_many([(n,) for n in range(31)])
    record.using(due_at=far).enqueue_many([(n,) for n in range(90)])
    report = forecast(job={"drain_rate": 10.0})
    assert report.figures["forecast"] == (
        f"In the next 24 hours, at {near:%Y-%m-%d %H:%M} UTC 61 fall due: 6.1 s of work. "
        f"Later, at {far:%Y-%m-%d %H:%M} UTC 90 fall due: 9 s of work."
    )
    (kept,) = Forecast.objects.all()
    assert (kept.peak_at, kept.peak, kept.drain_rate) == (far, 90, 10.0)
    assert (report.figures["peak"], report.figures["work_s"]) == (90, 9.0)
    assert report.problems == []


def test_the_drain_rate_is_the_highest_of_the_samples(delayq: RedisStore, forecast: Callable[..., Report]):
    for age, finished in ((240, 0), (180, 6_000), (120, 18_000), (60, 18_600)):
        topic = {"finished": finished, "waiting": 0, "lag": 0.0}
        at_ms = int(delayq.clock_ms()) - age * 1_000
        delayq.add_sample(json.dumps({"at_ms": at_ms, "topics": {"default": topic, "orders": topic}}))
    report = forecast()
    assert report.figures["drain_rate"] == pytest.approx(400, rel=0.02)  # 12,000 of each of two topics in a minute


def test_without_samples_no_work_is_told(delayq: RedisStore, forecast: Callable[..., Report]):
    when = whole_minute(delayq)
    record.using(due_at=when).enqueue(1)
    report = forecast()
    assert report.figures["forecast"] == f"In the next 24 hours, at {when:%Y-%m-%d %H:%M} UTC 1 fall due."
    assert (report.figures["drain_rate"], report.figures["work_s"]) == (None, None)
    assert "--drain-rate" in report.problems[0]
    assert Forecast.objects.get().drain_rate is None


def test_paused_topics_are_counted_and_named(delayq: RedisStore, forecast: Callable[..., Report]):
    close_order.using(delay=60).enqueue_many([(n,) for n in range(4)])
    record.using(delay=60).enqueue(1)
    pause_topic("orders", by="ann")
    report = forecast(job={"drain_rate": 1.0})
    assert report.figures["waiting"] == 5
    assert [problem.partition(" waiting")[0] for problem in report.problems] == ["Topic orders is paused: its 4"]


def test_topics_have_a_row_with_the_next_hours(delayq: RedisStore, forecast: Callable[..., Report]):
    now = from_ms(delayq.clock_ms())
    hour = now.replace(minute=0, second=0, microsecond=0)
    record.using(due_at=hour + 2 * HOUR).enqueue_many([(n,) for n in range(3)])
    record.using(due_at=hour + 8 * HOUR).enqueue(1)
    record.using(due_at=hour - HOUR).enqueue(1)
    close_order.using(due_at=hour + 7 * HOUR).enqueue(1)
    default, orders = forecast().rows
    hours = [f"{hour + n * HOUR:%H:%M}" for n in range(8)]
    assert list(default) == ["topic", "waiting", "overdue", *hours, "later"]
    assert list(default.values()) == ["default", 5, 1, 0, 0, 3, 0, 0, 0, 0, 0, 1]
    assert list(orders.values()) == ["orders", 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]


def test_a_newer_forecast_replaces_the_older(delayq: RedisStore, forecast: Callable[..., Report]):
    record.using(delay=60).enqueue(1)
    forecast()
    first = Forecast.objects.get().pk
    close_order.using(delay=60).enqueue(1)
    forecast()
    assert Forecast.objects.get().pk > first
    assert {topic for topic, _ in counts("day")} == {"default", "orders"}
    assert ForecastCount.objects.exclude(forecast=Forecast.objects.get()).count() == 0


def test_an_older_one_that_ends_later_does_not_remove_a_newer(delayq: RedisStore, forecast: Callable[..., Report]):
    newer = Forecast.objects.create(taken_at=django_timezone.now() + HOUR, waiting=1, overdue=0)
    forecast()
    assert Forecast.objects.order_by("-taken_at")[0] == newer


def test_an_empty_queue_has_a_forecast_too(delayq: RedisStore, forecast: Callable[..., Report]):
    report = forecast()
    assert (report.figures["waiting"], report.figures["forecast"], report.rows) == (0, "Nothing waits.", [])
    assert (Forecast.objects.get().waiting, ForecastCount.objects.count()) == (0, 0)


@pytest.mark.parametrize("limits", [{"dry_run": True}, {"topic": "orders"}])
def test_a_dry_run_and_one_topic_write_nothing(
    delayq: RedisStore, forecast: Callable[..., Report], limits: dict[str, Any]
):
    record.using(delay=60).enqueue(1)
    close_order.using(delay=60).enqueue(1)
    durable.using(delay=30 * DAY).enqueue(1)
    kept = Forecast.objects.create(taken_at=NOW, waiting=1, overdue=0)
    report = forecast(**limits)
    assert list(Forecast.objects.all()) == [kept]
    assert (report.figures["written"], report.figures["waiting"]) == (False, 1 if "topic" in limits else 3)


def test_a_write_that_fails_leaves_the_older_one(
    delayq: RedisStore, forecast: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
):
    record.using(delay=60).enqueue(1)
    kept = Forecast.objects.create(taken_at=NOW, waiting=1, overdue=0)

    def broken(*args: Any, **options: Any) -> None:
        raise OSError

    monkeypatch.setattr("django.db.models.query.QuerySet.bulk_create", broken)
    with pytest.raises(OSError):
        forecast()
    assert list(Forecast.objects.all()) == [kept]


def test_a_replica_may_be_read(delayq: RedisStore, forecast: Callable[..., Report], server: Server, tmp_path: Path):
    """Another database of the server stands for it: it has other messages."""
    other = tmp_path / "replica"
    other.write_text(re.sub("/0$", "/1", server.url))
    record.using(delay=60).enqueue_many([(n,) for n in range(3)])
    assert forecast().figures["waiting"] == 3
    assert forecast(job={"replica": f"file:{other}"}).figures["waiting"] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"since": "2026-11-20T00:00:00Z"},
        {"until": "2026-11-20T00:00:00Z"},
        {"job": {"drain_rate": 0}},
        {"job": {"x": 1}},
    ],
)
def test_what_it_does_not_take_is_refused(delayq: RedisStore, forecast: Callable[..., Report], wrong: dict[str, Any]):
    with pytest.raises(Refused):
        forecast(**wrong)


def test_the_report_is_json(delayq: RedisStore, forecast: Callable[..., Report]):
    record.using(delay=60).enqueue(1)
    assert json.loads(json.dumps(forecast().figures))["waiting"] == 1
