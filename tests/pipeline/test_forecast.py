"""The job: what waits, and when it falls due, in SQL and in the report."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone as django_timezone

from django_delayq import pause_topic
from django_delayq.core.job_report import Code, Report
from django_delayq.core.times import from_ms
from django_delayq.models import Forecast, ForecastCount, OutboxMessage
from django_delayq.pipeline import forecast as job
from django_delayq.pipeline import jobs
from django_delayq.pipeline.params import Params
from django_delayq.stats import outlook
from django_delayq.store import due_minutes, get_store, keys
from django_delayq.store.keys import Partition
from django_delayq.store.moving import mover
from django_delayq.store.store import RedisStore
from tests.app.tasks import close_order, crowd, record
from tests.servers import Server, launcher

NOW = datetime(2026, 11, 20, 9, 30, 30, tzinfo=timezone.utc)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
#: Which parts of a time are zero at the beginning of a span; how far each topic's and all topics'
#: spans reach.
SPANS: dict[str, tuple[dict[str, Any], timedelta, timedelta]] = {
    "minute": ({}, 0 * DAY, DAY),
    "hour": ({"minute": 0}, DAY, 14 * DAY),
    "day": ({"minute": 0, "hour": 0}, 14 * DAY, 9_999 * DAY),
}
durable = record.using(durable=True)
PARTITION = Partition("default", 0)


@pytest.fixture
def forecast(parameters: Callable[..., Params]) -> Callable[..., Report]:
    """Runs the job."""

    def run(**rest: Any) -> Report:
        return job.run(None, parameters(**rest), lambda line: None)

    return run


def whole_minute(delayq: RedisStore) -> datetime:
    """One that does not begin while we count."""
    return from_ms(delayq.clock_ms()).replace(second=0, microsecond=0) + 10 * MINUTE


def spans(
    enqueued: list[tuple[str, datetime]], unit: str, now: datetime
) -> Counter[tuple[str, datetime]]:
    """What counts() has to give, counted one by one."""
    zeros, near, far = SPANS[unit]
    minutes = [(topic, when.replace(second=0)) for topic, when in enqueued]
    found = Counter((topic, at.replace(**zeros)) for topic, at in minutes if at < now + near)
    found.update(("", at.replace(**zeros)) for _, at in minutes if at < now + far)
    return found


def counts(unit: str) -> dict[tuple[str, datetime], int]:
    return {(row.topic, row.at): row.messages for row in ForecastCount.objects.filter(unit=unit)}


@pytest.mark.long
@pytest.mark.databases
def test_redis_and_outbox_are_counted_together(delayq: RedisStore, forecast: Callable[..., Report]):
    chance = random.Random(7)
    begin, enqueued = whole_minute(delayq), []
    for _ in range(150):
        when = (begin + chance.choice([HOUR, DAY, 20 * DAY, 400 * DAY]) * chance.random()).replace(
            microsecond=0
        )
        task: Any = chance.choice(
            [record, durable, close_order, close_order.using(durable=True), crowd]
        )
        enqueued.append((task.using(due_at=when).enqueue(1).topic, when))
    assert OutboxMessage.objects.filter(status="waiting").exists()
    before_ms = delayq.clock_ms()
    report = forecast()
    (kept,) = Forecast.objects.all()
    assert from_ms(before_ms - 1) <= kept.taken_at <= from_ms(delayq.clock_ms())
    assert (report.code, report.figures["written"]) == (Code.DONE, True)
    assert (
        (report.figures["waiting"], report.figures["overdue"])
        == (kept.waiting, kept.overdue)
        == (150, 0)
    )
    assert {unit: counts(unit) for unit in SPANS} == {
        unit: spans(enqueued, unit, kept.taken_at) for unit in SPANS
    }
    by_minute = Counter(when.replace(second=0) for _, when in enqueued)
    assert (kept.peak, kept.peak_at) == min(
        ((messages, when) for when, messages in by_minute.items()),
        key=lambda one: (-one[0], one[1]),
    )


@pytest.mark.databases
def test_what_is_overdue_is_in_the_first_span_and_no_peak(
    delayq: RedisStore, forecast: Callable[..., Report]
):
    past = datetime(2020, 1, 1, tzinfo=timezone.utc)
    record.using(due_at=past).enqueue_many([(n,) for n in range(3)])
    durable.using(delay=DAY).enqueue(1)
    OutboxMessage.objects.update(due_at_ms=5, status="waiting")
    report = forecast(job={"drain_rate": 2.0})
    (kept,) = Forecast.objects.all()
    taken = kept.taken_at
    assert (kept.waiting, kept.overdue, kept.peak, kept.peak_at) == (4, 4, 0, None)
    assert counts("minute") == {("", taken.replace(second=0, microsecond=0)): 4}
    today = taken.replace(hour=0, minute=0, second=0, microsecond=0)
    assert counts("day") == {("default", today): 4, ("", today): 4}
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


def test_the_drain_rate_is_the_highest_of_the_samples(
    delayq: RedisStore, forecast: Callable[..., Report]
):
    for age, finished in ((240, 0), (180, 6_000), (120, 18_000), (60, 18_600)):
        topic = {"finished": finished, "waiting": 0, "lag": 0.0}
        at_ms = int(delayq.clock_ms()) - age * 1_000
        delayq.workers.add_sample(at_ms, {"default": topic, "orders": topic})
    report = forecast()
    assert report.figures["drain_rate"] == pytest.approx(
        400, rel=0.02
    )  # 12,000 of each of two topics in a minute


def test_without_samples_no_work_is_told(delayq: RedisStore, forecast: Callable[..., Report]):
    when = whole_minute(delayq)
    record.using(due_at=when).enqueue(1)
    report = forecast()
    assert (
        report.figures["forecast"]
        == f"In the next 24 hours, at {when:%Y-%m-%d %H:%M} UTC 1 fall due."
    )
    assert (report.figures["drain_rate"], report.figures["work_s"]) == (None, None)
    assert "--drain-rate" in report.problems[0]
    assert Forecast.objects.get().drain_rate is None


def test_paused_topics_are_counted_and_named(delayq: RedisStore, forecast: Callable[..., Report]):
    close_order.using(delay=60).enqueue_many([(n,) for n in range(4)])
    record.using(delay=60).enqueue(1)
    pause_topic("orders", by="ann")
    report = forecast(job={"drain_rate": 1.0})
    assert report.figures["waiting"] == 5
    assert [problem.partition(" waiting")[0] for problem in report.problems] == [
        "Topic orders is paused: its 4"
    ]


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
    assert {topic for topic, _ in counts("day")} == {"", "default", "orders"}
    assert ForecastCount.objects.exclude(forecast=Forecast.objects.get()).count() == 0


def test_an_older_one_that_ends_later_does_not_remove_a_newer(
    delayq: RedisStore, forecast: Callable[..., Report]
):
    newer = Forecast.objects.create(taken_at=django_timezone.now() + HOUR, waiting=1, overdue=0)
    forecast()
    assert Forecast.objects.order_by("-taken_at")[0] == newer


def test_an_empty_queue_has_a_forecast_too(delayq: RedisStore, forecast: Callable[..., Report]):
    report = forecast()
    assert (report.figures["waiting"], report.figures["forecast"], report.rows) == (
        0,
        "Nothing waits.",
        [],
    )
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
    assert (report.figures["written"], report.figures["waiting"]) == (
        False,
        1 if "topic" in limits else 3,
    )


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


@pytest.mark.long
def test_a_replica_may_be_read(
    delayq: RedisStore, forecast: Callable[..., Report], server: Server, tmp_path: Path
):
    """Another database of the server stands for it: it has other messages."""
    other = tmp_path / "replica"
    other.write_text(re.sub("/0$", "/1", server.url))
    record.using(delay=60).enqueue_many([(n,) for n in range(3)])
    assert forecast().figures["waiting"] == 3
    assert forecast(job={"replica": f"file:{other}"}).figures["waiting"] == 0


@pytest.mark.long
def test_a_store_that_has_moved_is_read_where_it_is_also_when_the_old_server_is_off(
    settings: Any,
    server: Server,
    prefix: str,
    parameters: Callable[..., Params],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(mover, "LATE_S", 0.0)
    with launcher(server.kind) as old:
        told = {"REDIS": old.url, "REDIS_NEXT": server.url, "PREFIX": prefix}
        settings.DELAYQ = {**settings.DELAYQ, **told}
        record.using(delay=60).enqueue_many([(n,) for n in range(3)])
        call_command("delayq", "move-store", stdout=StringIO(), stderr=StringIO())
    settings.DELAYQ = {**settings.DELAYQ}  # as in a new process
    report = job.run(None, parameters(), lambda line: None)
    assert report.figures["waiting"] == 3
    get_store().close()


def test_the_report_is_json(delayq: RedisStore, forecast: Callable[..., Report]):
    record.using(delay=60).enqueue(1)
    assert json.loads(json.dumps(forecast().figures))["waiting"] == 1


def test_of_very_many_topics_the_report_has_those_with_most(
    delayq: RedisStore, forecast: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outlook, "LINES", 2)
    for topic, count in (("orders", 1), ("crowd", 3), ("default", 2)):
        record.using(topic=topic, delay=60).enqueue_many([(n,) for n in range(count)])
    report = forecast()
    assert [row["topic"] for row in report.rows] == ["crowd", "default"]
    assert (report.figures["topics"], report.figures["waiting"]) == (3, 6)


def test_it_needs_no_java(
    delayq: RedisStore, parameters: Callable[..., Params], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    record.using(delay=60).enqueue(1)
    report = jobs.run_job("forecast", parameters(), jobs.Start(), bool)
    assert report.figures["waiting"] == 1


# Counting without reading


def put(store: RedisStore, dues: list[float], lane: str = "normal") -> None:
    key = keys.partition_keys(store.client.prefix, PARTITION)[("high", "normal", "low").index(lane)]
    store.client.redis.zadd(key, {f"{at:.3f}-{nth}".encode(): at for nth, at in enumerate(dues)})


def counted(store: RedisStore, now_ms: int) -> tuple[Counter[int], int]:
    """Messages by minute, and how many are overdue."""
    minutes, overdue = Counter[int](), 0
    for one in due_minutes.due_minutes(store, [PARTITION], now_ms):
        assert one.topic == "default"
        minutes[one.minute_ms] += one.messages
        overdue += one.overdue
    return minutes, overdue


@pytest.mark.parametrize("few", [1, 7, 10_000])
@pytest.mark.parametrize("parts", [2, 64])
def test_each_message_is_counted_once_in_its_minute(
    delayq: RedisStore, monkeypatch: pytest.MonkeyPatch, few: int, parts: int
):
    monkeypatch.setattr(due_minutes, "FEW", few)
    monkeypatch.setattr(due_minutes, "PARTS", parts)
    chance, now_ms = random.Random(3), 1_800_000_030_000
    dues = [now_ms + chance.choice([1e4, 1e6, 1e9, 3e11]) * chance.random() for _ in range(400)]
    dues += [now_ms + 90_000.0] * 300  # all at one instant
    dues += [now_ms, now_ms - 1, 0.0, -5.0]  # overdue
    dues += [now_ms + 1, now_ms + 29_999, now_ms + 29_999.75, now_ms + 30_000]
    held = [due_minutes.HELD_MS + at for at in dues[:50]]
    put(delayq, [*dues, *held])
    put(delayq, dues[:9], "high")
    put(delayq, [float("inf"), 9.9e14], "low")
    every = [*dues, *dues[:50], *dues[:9]]
    expected = Counter(max(int(at), now_ms) // 60_000 * 60_000 for at in every)
    expected[due_minutes.LAST_MS] += 2
    minutes, overdue = counted(delayq, now_ms)
    assert minutes == expected
    assert overdue == sum(at <= now_ms for at in every)


def test_very_many_messages_are_not_read(delayq: RedisStore):
    now_ms = 1_800_000_000_000
    put(delayq, [now_ms + 60_000.0 * (n % 100) + 5 for n in range(20_000)])
    asked: list[str] = []
    real = delayq.client.read_all

    def read_all(reads: Any) -> Any:
        asked.extend(read.name for read in reads)
        return real(reads)

    delayq.client.read_all = read_all  # type: ignore[method-assign]
    minutes, _ = counted(delayq, now_ms)
    assert sum(minutes.values()) == 20_000 and len(minutes) == 100
    assert len(asked) < 400
