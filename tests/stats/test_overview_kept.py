"""The figures of the overview: who serves, how fast, for how long they are kept, and what is shown
of what is away."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from django_delayq import pause_topic
from django_delayq.core.exceptions import StoreUnavailable
from django_delayq.core.message import STAMP, new_id
from django_delayq.core.times import When
from django_delayq.models import OutboxMessage
from django_delayq.outbox.outbox import redis_now_ms
from django_delayq.stats import overview as figures
from django_delayq.stats import overview_sql
from django_delayq.store import get_store, keys, workers
from django_delayq.store.keys import Partition
from django_delayq.store.store import Outgoing, RedisStore
from django_delayq.worker.sampler import Sampler
from tests.app.tasks import record
from tests.database_faults import database_away, without_table
from tests.faults import scripts_run, unreachable
from tests.hands import DAY, DEFAULT, Hands, lose_redis, make_due, stored_record
from tests.stats.overview import archived, beat, now, ran, sample, topic

HOUR = timedelta(hours=1)
durable = record.using(durable=True)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is kept of another test."""
    figures.reader_of.cache_clear()
    yield
    figures.reader_of.cache_clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which the figures are kept for a moment."""
    clock = Clock()
    monkeypatch.setattr(figures, "time", clock)
    return clock


class Clock:
    """Stands until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


# Holding, serving


def test_pause_is_shown_until_it_ends_although_nobody_has_claimed_since(hands: Hands) -> None:
    pause_topic("default", by="ops", reason="SMTP", until=datetime.now(tz=timezone.utc) + HOUR)
    paused = topic("default").paused
    assert paused is not None and (paused.by, paused.reason) == ("ops", "SMTP")
    meta = keys.meta_key(hands.store.client.prefix, DEFAULT)
    note = json.loads(hands.store.client.command("HGET", meta, "paused"))
    ended = json.dumps(note | {"until": int(hands.store.clock_ms()) - 1})
    hands.store.client.command("HSET", meta, "paused", ended)
    assert topic("default").paused is None


@pytest.mark.parametrize(
    ("age", "topics", "quiet", "workers"),
    [(0, ["default"], False, 1), (20, ["orders", "default"], False, 1), (26, ["default"], False, 0),
     (0, ["orders"], False, 0), (0, ["default"], True, 0)],
    ids=["alive", "slow", "silent", "of another topic", "quiet"],
)  # fmt: skip
def test_topic_is_served_by_living_workers_that_claim(
    hands: Hands, age: float, topics: list[str], quiet: bool, workers: int
) -> None:
    beat(hands.store, age=age, topics=topics)
    if quiet:
        hands.store.workers.quiet("host:1:ab")
    row = topic("default")
    assert (row.workers, row.quiet_workers) == (workers, int(quiet))
    assert (row.without_worker, row.unserved) == (not workers, False)
    record.using(delay=60).enqueue(1)
    assert topic("default").unserved == (not workers)


def test_topic_that_is_paused_needs_no_worker(hands: Hands) -> None:
    durable.using(delay=DAY).enqueue(1)
    assert topic("default").unserved
    pause_topic("default")
    assert not topic("default").unserved


def test_workers_say_what_they_do(hands: Hands) -> None:
    beat(hands.store, "old", age=100)
    beat(
        hands.store, "b", host="web1", pid=7, version="1.2", concurrency=8, in_flight=3, started_ms=5_000,
        draining=True, settled={"acked": 9}, archiver={"rows": 4},
    )  # fmt: skip
    beat(hands.store, "a")
    hands.store.workers.quiet("a")
    listed = figures.worker_statuses()
    assert [(one.name, one.alive, one.quiet_requested) for one in listed] == [
        ("a", True, True), ("b", True, False), ("old", False, False),
    ]  # fmt: skip
    one = listed[1]
    assert (one.host, one.pid, one.version, one.concurrency, one.in_flight) == (
        "web1",
        7,
        "1.2",
        8,
        3,
    )
    assert (one.draining, one.rss_mb, dict(one.settled), one.services) == (
        True, 2.0, {"acked": 9}, {"archiver": {"rows": 4}},
    )  # fmt: skip
    assert one.started_at == datetime.fromtimestamp(5, tz=timezone.utc)
    assert list(now().workers) == list(listed)


def test_workers_of_a_redis_that_is_away_are_an_error(hands: Hands) -> None:
    with unreachable(), pytest.raises(StoreUnavailable):
        figures.worker_statuses()


# Rates


def test_rate_needs_a_sample_that_is_old_enough(hands: Hands) -> None:
    sample(hands.store, 10, 0)
    assert topic("default").per_second is None


def test_rate_is_what_has_finished_since_the_newest_such_sample(hands: Hands) -> None:
    for age, finished in ((600, 0), (50, 4), (5, 7)):
        sample(hands.store, age, finished)
    record.enqueue_many([(n,) for n in range(10)])
    hands.work()
    assert topic("default").per_second == pytest.approx((10 - 4) / 50, rel=0.2)
    assert topic("orders").per_second is None


def test_no_rate_is_negative_after_redis_has_lost_its_counters(hands: Hands) -> None:
    record.enqueue_many([(n,) for n in range(10)])
    hands.work()
    Sampler(hands.store).run_once()
    lose_redis(hands.store)
    for age, finished in (
        (200, 10),
        (140, 0),
        (80, 5),
    ):  # the samples of before outlived it, as after a failover
        sample(hands.store, age, finished)
    record.enqueue(1)
    hands.work()
    overview = now()
    assert topic("default", overview).per_second == 0
    assert [point.finished_per_second for point in overview.samples] == [
        0,
        pytest.approx(5 / 60, rel=0.01),
    ]


def test_chart_has_rate_lag_and_waiting_of_all_topics(hands: Hands) -> None:
    for at_ms, finished, lag in ((1, 10, 0.0), (60_001, 40, 2.5), (120_001, 100, 0.0)):
        topics = {
            name: {"finished": finished, "waiting": 3, "lag": lag} for name in ("default", "orders")
        }
        hands.store.workers.add_sample(at_ms, topics)
    assert [(s.at_ms, s.finished_per_second, s.lag, s.waiting) for s in now().samples] == [
        (60_001, 1.0, 2.5, 6), (120_001, 2.0, 0.0, 6),
    ]  # fmt: skip


def test_chart_of_some_topics_holds_what_has_not_changed(hands: Hands) -> None:
    at_ms = int(hands.store.clock_ms()) // 60_000 * 60_000
    quiet = {"finished": 7, "waiting": 4, "lag": 0.0}
    for ago, finished in ((6, 0), (5, 0), (4, 60), (3, 60), (2, 60), (1, 120)):
        topics = {"default": {"finished": finished, "waiting": 1, "lag": ago / 2}, "orders": quiet}
        hands.store.workers.add_sample(at_ms - ago * 60_000, topics)
    figures.reader_of.cache_clear()
    found = figures.overview_of(["default", "orders"]).samples
    assert [(one.finished_per_second, one.waiting) for one in found[:5]] == [
        (0.0, 5), (1.0, 5), (0.0, 5), (0.0, 5), (1.0, 5),
    ]  # fmt: skip
    assert [one.lag for one in found[:2]] == [2.5, 2.0]
    key = keys.topic_samples_key(hands.store.client.prefix, "orders")
    assert hands.store.client.command("XLEN", key) == 1  # nothing happens in it: it costs nothing
    assert figures.overview_of(["orders"]).samples[0].waiting == 4


def test_with_many_topics_each_has_a_point_every_ten_minutes(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MOST_BY_MINUTE", 0)
    for minute in range(20):
        sample(hands.store, (40 - minute) * 60, minute)
    key = keys.topic_samples_key(hands.store.client.prefix, "default")
    assert hands.store.client.command("XLEN", key) == 2


def test_chart_has_a_day(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    assert figures.SAMPLES == 24 * 60
    monkeypatch.setattr(figures, "SAMPLES", 180)
    for number in range(300):
        sample(hands.store, (300 - number) * 60, number)
    points = now().samples
    assert len(points) == figures.SAMPLES - 1
    assert points[-1].at_ms > points[0].at_ms
    assert points[0].finished_per_second == pytest.approx(1 / 60, rel=0.01)


# Kept for a moment


def test_many_open_tabs_cost_one_read(hands: Hands, clock: Clock) -> None:
    first = figures.overview()
    before = scripts_run(hands.store)
    record.using(delay=60).enqueue(1)
    clock.pass_time(0.9)
    assert figures.overview() is first
    assert scripts_run(hands.store) - before == 1  # the enqueue
    clock.pass_time(0.2)
    assert topic("default", figures.overview()).delayed == 1


def test_what_is_kept_can_be_forgotten(hands: Hands, clock: Clock) -> None:
    assert topic("default", figures.overview()).delayed == 0
    record.using(delay=60).enqueue(1)
    figures.reader_of.cache_clear()
    assert topic("default", figures.overview()).delayed == 1


def test_topic_used_for_the_first_time_is_shown_soon(hands: Hands, clock: Clock) -> None:
    figures.overview()
    get_store().topics.register("gone", 1)  # in another process, that knows it
    message = Outgoing(
        new_id(), "raise", When.after(60_000), When(), stored_record(0, b"[]")[STAMP.size :]
    )
    get_store().enqueue(Partition("gone", 0), {}, [message])
    clock.pass_time(1.1)
    figures.overview()
    clock.pass_time(1.1)
    assert "gone" in {row.topic for row in figures.overview().topics}


def test_the_database_is_asked_less_often(hands: Hands, clock: Clock) -> None:
    figures.overview()
    archived(state="dead")
    clock.pass_time(4.9)
    with CaptureQueriesContext(connection) as queries:
        assert topic("default", figures.overview()).dead_letters == 0
    assert len(queries) == 0
    clock.pass_time(1.1)
    assert topic("default", figures.overview()).dead_letters == 1


@pytest.mark.long
def test_a_slow_database_is_asked_even_less_often(
    hands: Hands, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = overview_sql.read_database_figures, []

    def read_slowly(*args: Any) -> Any:
        asked.append(clock.now)
        clock.pass_time(2)
        return real(*args)

    monkeypatch.setattr(overview_sql, "read_database_figures", read_slowly)
    for _ in range(110):
        figures.overview()
        clock.pass_time(1)
    assert len(asked) == 2
    assert 60 <= asked[1] - asked[0] < 70


# Away


def test_redis_away_shows_the_last_known_values_and_why(hands: Hands, clock: Clock) -> None:
    record.using(delay=60).enqueue(1)
    known = figures.overview()
    clock.pass_time(1.1)
    with unreachable():
        shown = figures.overview()
        assert "Connection refused" in shown.problem
        assert "Nothing was changed" not in shown.problem  # that is about an enqueue
        assert shown.stale
        assert (shown.topics, shown.minutes, shown.at) == (known.topics, known.minutes, known.at)
        clock.pass_time(4.9)
        assert figures.overview() is shown
        clock.pass_time(0.2)
        assert figures.overview().problem
    record.using(delay=60).enqueue(2)
    clock.pass_time(5.1)
    back = figures.overview()
    assert (back.problem, back.stale, topic("default", back).delayed) == ("", False, 2)


def test_redis_away_from_the_start_shows_nothing_but_why(hands: Hands, clock: Clock) -> None:
    with unreachable():
        shown = figures.overview()
    assert (bool(shown.problem), list(shown.topics), list(shown.minutes), list(shown.workers)) == (
        True,
        [],
        [],
        [],
    )
    clock.pass_time(5.1)
    assert figures.overview().topics


def test_a_redis_that_is_back_empty_shows_nothing_that_was(hands: Hands) -> None:
    record.using(delay=60).enqueue(1)
    assert topic("default").delayed == 1
    lose_redis(hands.store)
    assert (topic("default").delayed, now().problem) == (0, "")


def test_database_away_shows_its_last_known_values_and_redis_as_it_is(
    hands: Hands, clock: Clock
) -> None:
    archived(2, state="dead")
    ran(5)
    figures.overview()
    record.using(delay=60).enqueue(1)
    clock.pass_time(6)
    with database_away():
        shown = figures.overview()
    assert shown.problem == "The database does not answer: OperationalError."
    assert not shown.stale
    row = topic("default", shown)
    assert (row.delayed, row.dead_letters, row.late_p50_ms) == (1, 2, 5)
    clock.pass_time(6)
    back = figures.overview()
    assert (back.problem, topic("default", back).dead_letters) == ("", 2)


def test_database_away_from_the_start_shows_redis(hands: Hands) -> None:
    make_due(record.using(delay=60).enqueue(1))
    with database_away():
        shown = now()
    row = topic("default", shown)
    assert (row.backlog, row.dead_letters, row.outbox, row.late_p50_ms, bool(shown.problem)) == (
        1,
        0,
        0,
        None,
        True,
    )
    assert sum(bar.count for bar in shown.minutes) == 1
    assert (shown.dead_capped, shown.outbox_capped, sum(bar.count for bar in shown.lateness)) == (
        False,
        False,
        0,
    )


def test_a_migration_that_is_missing_is_said(hands: Hands) -> None:
    with without_table(OutboxMessage):
        problem = now().problem
        assert "Run manage.py migrate." in problem
        assert (
            OutboxMessage._meta.db_table not in problem
        )  # nor a host or a user: everybody who may look reads it
    assert now().problem == ""


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_the_database_of_the_settings_is_asked(delayq: RedisStore, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "DATABASE": "other"}
    durable.using(delay=DAY).enqueue(1)
    archived(state="dead")
    row = topic("default")
    assert (row.outbox, row.dead_letters) == (1, 1)
    settings.DELAYQ = {**settings.DELAYQ, "DATABASE": "default"}
    assert (topic("default").outbox, topic("default").dead_letters) == (0, 0)


def test_another_store_is_read_by_another_reader(hands: Hands, settings: Any) -> None:
    record.using(delay=60).enqueue(1)
    assert topic("default", figures.overview()).delayed == 1
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": hands.store.client.prefix + "-other"}
    assert topic("default", figures.overview()).delayed == 0


def test_instants_are_by_the_clock_of_redis(hands: Hands) -> None:
    assert now().at.timestamp() * 1000 == pytest.approx(redis_now_ms(), abs=5_000)


# Many requests at once


@pytest.fixture
def slow_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Begins a request in another thread, whose queries do not answer before the test ends."""
    asked, answer, read = threading.Event(), threading.Event(), overview_sql.read_database_figures

    def wait(*args: Any) -> Any:
        asked.set()
        assert answer.wait(60)
        return read(*args)

    def ask() -> None:
        try:
            figures.overview()
        finally:
            connections.close_all()

    thread = threading.Thread(target=ask)

    def begin() -> None:
        monkeypatch.setattr(overview_sql, "read_database_figures", wait)
        thread.start()
        assert asked.wait(10)

    yield begin
    answer.set()
    thread.join(60)


def test_a_slow_query_holds_up_one_request_and_the_figures_of_redis_stay_new(
    hands: Hands, clock: Clock, slow_database: Callable[[], None]
) -> None:
    durable.using(delay=DAY).enqueue(1)
    assert kept_topic().outbox == 1
    clock.pass_time(100)
    slow_database()
    record.using(delay=60).enqueue(2)
    clock.pass_time(2)
    assert (kept_topic().outbox, kept_topic().delayed) == (
        1,
        1,
    )  # does not wait, and has what is kept


def kept_topic() -> figures.TopicOverview:
    return next(one for one in figures.overview().topics if one.topic == "default")


def test_who_comes_before_the_first_answer_of_the_database_is_told(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, slow_database: Callable[[], None]
) -> None:
    monkeypatch.setattr(figures, "FIRST_WAIT", 0.0)
    record.using(delay=60).enqueue(2)
    slow_database()
    shown = figures.overview()
    assert (shown.problem, [one.delayed for one in shown.topics if one.topic == "default"]) == (
        "The database has not answered yet.",
        [1],
    )


def test_a_frozen_redis_holds_up_one_request(
    hands: Hands, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = figures.overview()
    clock.pass_time(100)
    asked, answer = threading.Event(), threading.Event()

    def freeze(*args: Any) -> Any:
        asked.set()
        assert answer.wait(60)
        raise StoreUnavailable

    def ask() -> Any:
        try:
            return figures.overview()
        finally:
            connections.close_all()

    monkeypatch.setattr(get_store().queries, "snapshot", freeze)
    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(10)
    shown = figures.overview()
    assert (shown.at, shown.stale) == (known.at, False)
    answer.set()
    thread.join(60)
    assert figures.overview().stale
