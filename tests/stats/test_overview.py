"""The figures of the overview, compared with naive counts of Redis, the outbox and the archive."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone as django_timezone

from django_delayq import list_messages, topic_stats
from django_delayq.core.message import Priority, State
from django_delayq.models import ArchivedMessage, OutboxMessage
from django_delayq.stats import overview as figures
from django_delayq.stats import overview_sql
from django_delayq.stats.overview import Bucket
from django_delayq.store.keys import Partition
from tests.app.tasks import act, close_order, crowd, record
from tests.faults import scripts_run
from tests.hands import DAY, DEFAULT, Hands, lose_redis
from tests.stats.overview import archived, now, ran, topic
from tests.undeclared import leave

pytestmark = pytest.mark.databases

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
durable = record.using(durable=True)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is kept of another test."""
    figures.reader_of.cache_clear()
    yield
    figures.reader_of.cache_clear()


# Agreement with naive counts


def mixed_state(hands: Hands) -> None:
    """Something of everything, in three topics; far enough from whole minutes."""
    chance = random.Random(5)
    minute = (
        datetime.now(tz=timezone.utc).replace(second=0, microsecond=0) + 2 * MINUTE
    )  # not due while we count
    for number in range(120):
        within = timedelta(minutes=chance.choice([70, 1500])) * chance.random()
        at = (minute + within).replace(second=chance.randrange(1, 59), microsecond=500_000)
        task: Any = chance.choice([record, close_order, crowd])
        options: dict[str, Any] = {
            "due_at": at,
            "priority": chance.choice(list(Priority)),
            "durable": chance.random() < 0.5,
        }
        task.using(**options).enqueue(number)
    act.using(max_attempts=1).enqueue_many([("fail",)] * 6)
    act.enqueue_many([("return",)] * 4)
    hands.work(Partition("modes", 0))
    hands.archive()
    act.enqueue_many([("return",)] * 3)
    hands.work(Partition("modes", 0))  # ended, not yet archived
    dead = ArchivedMessage.objects.filter(state="dead").order_by("id")
    dead.filter(pk=dead[0].pk).update(replayed_at=django_timezone.now())
    dead.filter(pk=dead[1].pk).update(discarded_at=django_timezone.now())
    record.using(due_at=datetime(2020, 1, 1, tzinfo=timezone.utc)).enqueue_many(
        [(n,) for n in range(5)]
    )
    hands.store.claim(DEFAULT, 2)


def naive_dues(topics: list[str]) -> list[datetime]:
    """When all that waits is due, one by one."""
    waiting = [
        message.due_at for name in topics for message in list_messages(name, limit=500).messages
    ]
    rows = OutboxMessage.objects.filter(status="waiting").values_list("due_at_ms", flat=True)
    return waiting + [datetime.fromtimestamp(due_ms / 1000, tz=timezone.utc) for due_ms in rows]


def naive_bars(bars: list[Bucket], dues: list[datetime], width: timedelta) -> list[int]:
    """The same bars, one message at a time; the first also takes what is overdue."""
    begins = [bar.at for bar in bars if bar.at]
    lows = [datetime.min.replace(tzinfo=timezone.utc), *begins[1:]]
    return [
        sum(low <= due < at + width for due in dues) for low, at in zip(lows, begins, strict=True)
    ]


def naive_row(hands: Hands, name: str) -> dict[str, Any]:
    """What a topic's row should say."""
    messages = list_messages(name, limit=500).messages
    stats = topic_stats(name)
    states = Counter(message.state for message in messages)
    waiting = OutboxMessage.objects.filter(status="waiting", topic=name)
    left = {
        partition: count for partition, count in hands.left().items() if partition.topic == name
    }
    dead = ArchivedMessage.objects.filter(
        state="dead", topic=name, replayed_at=None, discarded_at=None
    )
    return {
        "delayed": states[State.DELAYED], "backlog": states[State.READY], "leased": stats.leased,
        "finished": sum(left.values()), "outbox": waiting.count(), "dead_letters": dead.count(),
        "next_due_at": min((message.due_at for message in messages), default=None), "counters": stats.counters,
    }  # fmt: skip


def test_every_figure_agrees_with_a_naive_count(hands: Hands) -> None:
    mixed_state(hands)
    overview = now()
    assert overview.problem == ""
    for name in ("default", "orders", "crowd", "modes"):
        row = topic(name, overview)
        expected = naive_row(hands, name)
        assert {field: getattr(row, field) for field in expected} == expected
        assert row.lag == pytest.approx(topic_stats(name).lag, abs=5)
    assert topic("default", overview).dead_letters == 0
    assert topic("modes", overview).dead_letters == 4
    assert sum(row.outbox for row in overview.topics) > 10


def test_the_bars_sum_up(hands: Hands) -> None:
    mixed_state(hands)
    overview, dues = now(), naive_dues(["default", "orders", "crowd", "modes"])
    for bars, width, count in ((overview.minutes, MINUTE, 60), (overview.hours, HOUR, 24)):
        assert len(bars) == count
        assert [bar.count for bar in bars] == naive_bars(list(bars), dues, width)
        begins = [bar.at for bar in bars if bar.at]
        assert [later - earlier for earlier, later in pairwise(begins)] == [width] * (count - 1)
        assert begins[0] <= overview.at < begins[0] + width
        assert sum(bar.count for bar in bars) == sum(due < begins[-1] + width for due in dues)


def test_bars_tell_the_topics_with_the_most_messages_apart(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MOST_STACKED", 2)
    for task, count in ((record, 5), (close_order, 1), (crowd, 3)):
        task.using(delay=2 * MINUTE).enqueue_many([(n,) for n in range(count)])
    durable.using(delay=90 * MINUTE).enqueue_many([(n,) for n in range(2)])
    overview = now()
    assert list(overview.stacked) == ["crowd", "default"]
    for bars, default in ((overview.minutes, 5), (overview.hours, 7)):
        assert [sum(bar.parts[nth] for bar in bars) for nth in range(3)] == [3, default, 1]
        assert all(sum(bar.parts) == bar.count for bar in bars)


def test_next_due_is_also_that_of_the_outbox(hands: Hands) -> None:
    due_at = datetime.now(tz=timezone.utc).replace(microsecond=0) + timedelta(days=3)
    durable.using(due_at=due_at).enqueue(1)
    overview = now()
    row = topic("default", overview)
    assert (row.next_due_at, row.first_due_at, overview.totals.next_due_at) == (
        None,
        due_at,
        due_at,
    )
    record.using(delay=3600).enqueue(2)
    row = topic("default")
    assert row.first_due_at == row.next_due_at < due_at


def test_partitions_of_a_topic_are_one_row(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 4}}}
    crowd.using(delay=3600).enqueue_many([(n,) for n in range(40)])
    overview = now()
    assert topic("crowd", overview).delayed == 40
    assert len([row for row in overview.topics if row.topic == "crowd"]) == 1


def test_topics_that_only_tasks_or_settings_declare_are_shown(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"new": {}}}
    row = topic("new")
    assert (row.delayed, row.backlog, row.outbox, row.next_due_at, row.per_second, row.lag) == (
        0,
        0,
        0,
        None,
        None,
        0,
    )
    assert topic("waits").delayed == 0


def test_topics_that_nobody_declares_any_more_are_shown(hands: Hands) -> None:
    leave("gone", 1)
    leave("far", 1, durable=True, delay=3 * DAY)
    hands.store.topics.register("empty", 2)
    shown = {row.topic: row.declared for row in now().topics}
    assert (shown["gone"], shown["far"], shown["default"]) == (False, False, True)
    assert "empty" not in shown, "nobody has to do anything about it"


@pytest.mark.long
def test_hundreds_of_topics_are_no_problem(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "TOPICS": {f"topic-{number}": {} for number in range(600)},
    }
    assert now().problem == ""


# Minutes and hours


@pytest.mark.parametrize(
    "zone", ["UTC", "Asia/Kolkata", "America/St_Johns", "Asia/Kathmandu", "Asia/Shanghai"]
)
def test_bars_begin_at_whole_minutes_and_hours_of_the_projects_clock(
    hands: Hands, settings: Any, zone: str
) -> None:
    settings.TIME_ZONE = zone
    overview = now()
    here = overview.at.astimezone(ZoneInfo(zone))
    minute, hour = overview.minutes[0], overview.hours[0]
    assert minute.at == here.replace(second=0, microsecond=0)
    assert hour.at == here.replace(minute=0, second=0, microsecond=0)


@pytest.mark.parametrize("use_tz", [True, False])
def test_hours_of_a_clock_with_a_half_hour(hands: Hands, settings: Any, use_tz: bool) -> None:
    """Both what is in Redis and what is in the outbox are counted in the hour of that clock."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Kolkata"
    hour = datetime.now(tz=ZoneInfo("Asia/Kolkata")).replace(minute=0, second=0, microsecond=0)
    ats = [hour + timedelta(hours=5, minutes=m) for m in (-1, 1, 29, 31, 59)] + [
        hour + timedelta(hours=6, minutes=1)
    ]
    for at in ats:
        record.using(due_at=at).enqueue("in Redis")
        durable.using(due_at=at).enqueue("in the outbox")
    assert OutboxMessage.objects.filter(status="waiting").count() == 6
    overview = now()
    assert {bar.at: bar.count for bar in overview.hours if bar.count} == {
        hour + 4 * HOUR: 2, hour + 5 * HOUR: 8, hour + 6 * HOUR: 2,
    }  # fmt: skip


def whole_minutes() -> list[datetime]:
    """Whole minutes that begin in the next hour, not the very next one."""
    minute = datetime.now(tz=timezone.utc).replace(second=0, microsecond=0)
    return [minute + n * MINUTE for n in range(3, 40)]


def test_what_the_outbox_sends_at_a_whole_minute_is_of_the_bar_that_begins_then(
    hands: Hands,
) -> None:
    ats = whole_minutes()
    for at in ats:
        durable.using(due_at=at).enqueue(1)
    OutboxMessage.objects.update(status="waiting")
    lose_redis(hands.store)
    assert {bar.at for bar in now().minutes if bar.count} == set(ats)


def test_what_is_due_at_a_whole_minute_is_of_the_bar_that_begins_then(hands: Hands) -> None:
    """Most of what people schedule is due at 09:00:00.000 or so."""
    ats = whole_minutes()
    for at in ats:
        record.using(due_at=at).enqueue(1)
    assert {bar.at for bar in now().minutes if bar.count} == set(ats)


def test_what_is_overdue_is_in_the_first_bars(hands: Hands) -> None:
    record.using(due_at=datetime(2020, 1, 1, tzinfo=timezone.utc)).enqueue(1)
    durable.using(delay=DAY).enqueue(2)
    OutboxMessage.objects.update(due_at_ms=5)
    overview = now()
    assert (overview.minutes[0].count, overview.hours[0].count) == (2, 2)


def test_what_is_beyond_the_last_bar_is_in_none(hands: Hands) -> None:
    record.using(delay=2 * DAY).enqueue(1)
    durable.using(delay=2 * DAY).enqueue(2)
    overview = now()
    assert sum(bar.count for bar in (*overview.minutes, *overview.hours)) == 0
    assert (topic("default", overview).delayed, topic("default", overview).outbox) == (1, 1)


# Lateness


def test_percentiles_are_of_the_nearest_rank(hands: Hands) -> None:
    ran(*random.Random(3).sample(range(1, 101), 100))
    row = topic("default")
    assert (row.late_p50_ms, row.late_p99_ms) == (50, 99)


@pytest.mark.parametrize(
    ("late", "expected"), [([], (None, None)), ([7.5], (7.5, 7.5)), ([9, 1], (1, 9))]
)
def test_percentiles_of_few_runs(
    hands: Hands, late: list[float], expected: tuple[float, float]
) -> None:
    ran(*late)
    row = topic("default")
    assert (row.late_p50_ms, row.late_p99_ms) == expected


def test_only_newest_acked_runs_of_the_topic_count(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview_sql, "RUNS", 3)
    ran(1_000_000, 1, 2, 3)
    ran(500, topic="orders")
    ran(600, state="dead")
    archived(state="acked", lateness_ms=None)
    overview = now()
    assert topic("default", overview).late_p99_ms == 3
    assert topic("orders", overview).late_p99_ms == 500
    assert sum(bar.count for bar in overview.lateness) == 4


def test_runs_of_more_than_a_day_ago_do_not_count(hands: Hands) -> None:
    ran(60_000, finished_at=django_timezone.now() - timedelta(hours=25))
    ran(5, finished_at=django_timezone.now() - timedelta(hours=23))
    overview = now()
    assert topic("default", overview).late_p99_ms == 5
    assert sum(bar.count for bar in overview.lateness) == 1


def test_histogram_counts_every_run_once(hands: Hands) -> None:
    ran(-0.5, 0, 1, 1.001, 2, 5, 5.1, 999, 1_000, 60_000, 60_001, 10_000_000)
    bars = now().lateness
    assert [bar.count for bar in bars] == [3, 2, 1, 1, 0, 0, 0, 0, 0, 2, 0, 1, 2]
    assert [bar.up_to_ms for bar in bars] == [*figures.LATENESS_MS, None]


# Bounds


def test_dead_letters_are_counted_up_to_a_cap(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview_sql, "DEAD_CAP", 3)
    old = django_timezone.now() - timedelta(days=1)
    archived(2, state="dead", topic="orders", finished_at=old)
    assert (now().dead_capped, topic("orders").dead_letters) == (False, 2)
    archived(3, state="dead")
    overview = now()
    assert overview.dead_capped
    assert (topic("default", overview).dead_letters, topic("orders", overview).dead_letters) == (
        3,
        0,
    )


def test_the_outbox_is_counted_up_to_a_cap(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_sql, "OUTBOX_CAP", 3)
    durable.using(delay=DAY).enqueue_many([(1,)] * 2)
    assert (now().outbox_capped, topic("default").outbox) == (False, 2)
    close_order.using(durable=True, delay=DAY / 2).enqueue_many([(1,)] * 3)
    overview = now()
    assert overview.outbox_capped
    assert (topic("default", overview).outbox, topic("orders", overview).outbox) == (0, 3)


def test_the_queries_are_few_and_the_scripts_do_not_grow_with_the_queue(hands: Hands) -> None:
    now()
    before = scripts_run(hands.store)
    now()
    few = scripts_run(hands.store) - before
    record.using(delay=60).enqueue_many([(n,) for n in range(2_000)])
    durable.using(delay=DAY).enqueue_many([(n,) for n in range(1_000)])
    before = scripts_run(hands.store)
    with CaptureQueriesContext(connection) as queries:
        now()
    assert scripts_run(hands.store) - before == few
    assert len([query for query in queries if query["sql"].lstrip().startswith("SELECT")]) == 6
