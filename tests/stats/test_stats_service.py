"""The service that keeps the figures of hours and days: what it computes and when, and how little
it asks for.

Time stands until a test moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone as django_timezone

from django_delayq.core.exceptions import DatabaseUnavailable, StoreUnavailable
from django_delayq.management.sql_services import sql_services
from django_delayq.models import ArchivedMessage, TaskDay, TopicHour
from django_delayq.stats import hourly, stats_service
from django_delayq.stats.hourly import DAY, HOUR, hour_of
from django_delayq.stats.stats_service import StatsService
from django_delayq.store import keys
from django_delayq.store.store import RedisStore
from tests.app.tasks import record
from tests.database_faults import database_away, without_table
from tests.faults import unreachable
from tests.hands import Hands
from tests.stats.test_hourly import finish

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True)]

MINUTE = timedelta(minutes=1)
NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
#: At which the tests begin: in the middle of an hour.
BEGIN = NOON + 30 * MINUTE


class Clock:
    """The calendar and the seconds of time.monotonic(), which a test moves."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.now = BEGIN
        self._seconds = 1000.0

    def monotonic(self) -> float:
        return self._seconds

    def take(self, seconds: float) -> None:
        """Something takes so long."""
        self.now += timedelta(seconds=seconds)
        self._seconds += seconds

    def go_to(self, when: datetime) -> None:
        """Then, a turn of somebody's choice is due."""
        self.take((when - self.now).total_seconds())
        self._store.client.command("DEL", keys.lock_key(self._store.client.prefix, "statistics"))

    def pass_time(self, length: timedelta) -> None:
        """Later, when the next turn is due."""
        self.go_to(self.now + length)


@pytest.fixture
def clock(delayq: RedisStore, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(delayq)

    class Calendar(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return clock.now.astimezone(tz)

    monkeypatch.setattr(stats_service, "datetime", Calendar)
    monkeypatch.setattr(stats_service, "time", clock)
    monkeypatch.setattr(django_timezone, "now", lambda: clock.now)
    return clock


@pytest.fixture
def service(delayq: RedisStore, clock: Clock) -> StatsService:
    return StatsService(delayq)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[datetime | date]:
    """Hours and days in the order of their computation; a test clears it."""
    spans: list[datetime | date] = []

    def noted(compute: Callable[..., int]) -> Callable[..., int]:
        def run(span: Any, *args: Any) -> int:
            spans.append(span)
            return compute(span, *args)

        return run

    monkeypatch.setattr(hourly, "compute_hour", noted(hourly.compute_hour))
    monkeypatch.setattr(hourly, "compute_day", noted(hourly.compute_day))
    return spans


def hours_of(spans: Sequence[datetime | date]) -> list[int]:
    """The hours of `computed`, counted from noon."""
    return [int((span - NOON) / HOUR) for span in spans if isinstance(span, datetime)]


def days_of(spans: Sequence[datetime | date]) -> list[int]:
    """The days of `computed`, by their number in November."""
    return [span.day for span in spans if not isinstance(span, datetime)]


def counted() -> dict[int, int]:
    """Messages by hour, counted from noon."""
    return {int((hour_of(row.hour) - NOON) / HOUR): row.messages for row in TopicHour.objects.all()}


# What is computed


def test_what_has_finished_is_counted_at_the_next_turn_and_what_follows_at_later_ones(
    service: StatsService, clock: Clock
) -> None:
    finish(BEGIN)
    assert service.run_once() == stats_service.INTERVAL
    assert counted() == {0: 1}
    assert [(row.day.day, row.messages) for row in TaskDay.objects.all()] == [(20, 1)]
    for number in (2, 3):
        finish(BEGIN + MINUTE)
        clock.pass_time(MINUTE)
        service.run_once()
        assert counted() == {0: number}


def test_nothing_is_computed_of_nothing(service: StatsService, computed: list[Any]) -> None:
    service.run_once()
    assert computed == []
    assert service.figures == {"computed": 0}


def test_it_says_how_much_it_has_computed(service: StatsService, clock: Clock) -> None:
    finish(BEGIN)
    finish(BEGIN - HOUR)
    service.run_once()
    assert service.figures == {"computed": 3}  # two hours and the day


def test_an_hour_is_computed_until_it_has_settled_and_never_again(
    service: StatsService, clock: Clock, computed: list[Any]
) -> None:
    finish(BEGIN)
    when = []
    for minute in (*range(50, 75), 119, 120, 125, 126, 180, 240):
        clock.go_to(NOON + minute * MINUTE)
        computed.clear()
        service.run_once()
        when += [minute] * len(hours_of(computed))
    assert when == list(range(50, 60 + int(stats_service.SETTLE / MINUTE) + 1))


def test_what_the_archiver_brings_a_moment_after_the_hour_is_in_it(
    service: StatsService, clock: Clock
) -> None:
    finish(NOON + 59 * MINUTE)
    clock.go_to(NOON + 59 * MINUTE)
    service.run_once()
    clock.go_to(NOON + 63 * MINUTE)
    finish(NOON + HOUR - MINUTE / 60)
    finish(NOON + 62 * MINUTE)
    service.run_once()
    assert counted() == {0: 2, 1: 1}


@pytest.mark.long
def test_a_day_is_computed_until_it_has_settled_and_never_again(
    service: StatsService, clock: Clock, computed: list[Any]
) -> None:
    finish(BEGIN)
    midnight = NOON + 12 * HOUR
    when = []
    for minute in (*range(-25, 15), 60, 125, 600):
        clock.go_to(midnight + minute * MINUTE)
        computed.clear()
        service.run_once()
        when += [minute] * len(days_of(computed))
    assert when == [-25, -15, -5, *range(int(stats_service.SETTLE / MINUTE) + 1)]


@pytest.mark.long
def test_the_present_day_is_computed_every_ten_minutes(
    service: StatsService, clock: Clock, computed: list[Any]
) -> None:
    finish(BEGIN)
    for _ in range(25):
        service.run_once()
        clock.pass_time(MINUTE)
    assert days_of(computed) == [20, 20, 20]
    assert len(hours_of(computed)) == 25


def test_missing_hours_of_two_days_are_made_up_for(
    service: StatsService, computed: list[Any]
) -> None:
    for hours in (1, 3, 47, 48, 100):
        finish(NOON - HOUR * hours)
    service.run_once()
    assert hours_of(computed) == [-47, -3, -1]  # the oldest first; none of those without messages
    assert counted() == {-47: 1, -3: 1, -1: 1}


def test_missing_days_are_made_up_for(service: StatsService, computed: list[Any]) -> None:
    for days in range(5):
        finish(BEGIN - DAY * days)
    service.run_once()
    assert days_of(computed) == [18, 19, 20]
    assert sorted(row.day.day for row in TaskDay.objects.all()) == [18, 19, 20]


def test_what_was_made_up_for_is_left_alone(
    service: StatsService, clock: Clock, computed: list[Any]
) -> None:
    finish(BEGIN - 3 * HOUR)
    finish(BEGIN - DAY)
    service.run_once()
    computed.clear()
    clock.pass_time(20 * MINUTE)
    service.run_once()
    assert (hours_of(computed), days_of(computed)) == ([], [20])


def test_a_new_process_computes_what_may_have_come_late(
    service: StatsService, delayq: RedisStore, clock: Clock, computed: list[Any]
) -> None:
    finish(BEGIN - 3 * HOUR)
    finish(BEGIN - DAY)
    finish(BEGIN - 3 * DAY)
    finish(BEGIN)
    service.run_once()
    computed.clear()
    clock.pass_time(MINUTE)
    StatsService(delayq).run_once()
    assert hours_of(computed) == [-24, -3, 0]


def test_without_use_tz_the_same_is_computed(
    service: StatsService,
    clock: Clock,
    computed: list[Any],
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kolkata"
    monkeypatch.setattr(django_timezone, "now", lambda: django_timezone.make_naive(clock.now))
    for when in (BEGIN, BEGIN - 3 * HOUR, BEGIN - DAY):
        finish(when)
    service.run_once()
    assert (hours_of(computed), days_of(computed)) == ([-24, -3, 0], [19, 20])
    computed.clear()
    clock.pass_time(20 * MINUTE)
    service.run_once()
    assert (hours_of(computed), days_of(computed)) == ([0], [20])


# Rows that come late


@pytest.fixture
def settled(service: StatsService, clock: Clock, computed: list[Any]) -> StatsService:
    """It has computed yesterday and this morning, which has settled."""
    for when in (BEGIN - DAY, BEGIN - 3 * HOUR, BEGIN - 2 * HOUR, BEGIN - HOUR):
        finish(when)
    service.run_once()
    clock.pass_time(MINUTE)
    computed.clear()
    return service


def test_rows_that_the_archiver_brings_hours_later_are_counted_once_more(
    settled: StatsService, clock: Clock, computed: list[Any]
) -> None:
    finish(BEGIN - 3 * HOUR, count=5)
    finish(BEGIN - DAY)
    settled.run_once()
    assert (hours_of(computed), days_of(computed)) == ([-24, -3], [19, 20])
    assert counted() == {-24: 2, -3: 6, -2: 1, -1: 1}
    assert {row.day.day: row.messages for row in TaskDay.objects.all()} == {19: 2, 20: 8}
    computed.clear()
    clock.pass_time(MINUTE)
    settled.run_once()
    assert computed == []


def test_rows_of_long_ago_are_counted_too(settled: StatsService, computed: list[Any]) -> None:
    finish(BEGIN - 10 * DAY)
    settled.run_once()
    assert (hours_of(computed), days_of(computed)) == ([-240], [10])


def test_rows_that_are_committed_after_newer_ones_were_seen_are_counted(
    settled: StatsService, clock: Clock, computed: list[Any]
) -> None:
    """Ids are drawn before the commit."""
    finish(BEGIN - 3 * HOUR)
    (late,) = ArchivedMessage.objects.order_by("-pk")[:1]
    ArchivedMessage.objects.filter(pk=late.pk).delete()
    finish(BEGIN - 2 * HOUR)
    settled.run_once()
    late.save(force_insert=True)
    computed.clear()
    for _ in range(5):
        clock.pass_time(MINUTE)
        settled.run_once()
    assert hours_of(computed) == [-3, -2], "once more, and once"
    assert counted()[-3] == 2


@pytest.mark.parametrize("minutes", [6, 35, 64])
def test_rows_of_the_hour_that_has_just_settled_are_late(
    minutes: int, service: StatsService, clock: Clock, computed: list[Any]
) -> None:
    finish(BEGIN)
    clock.go_to(NOON + 65 * MINUTE)
    service.run_once()
    computed.clear()
    clock.go_to(NOON + HOUR + minutes * MINUTE)
    finish(BEGIN)
    service.run_once()
    clock.go_to(NOON + 4 * HOUR)
    service.run_once()
    assert counted() == {0: 2}


def test_late_rows_are_not_forgotten_when_the_database_fails(
    settled: StatsService, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(BEGIN - 3 * HOUR)

    def fail(*args: Any) -> int:
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as failing:
        failing.setattr(hourly, "compute_hour", fail)
        with pytest.raises(DatabaseUnavailable):
            settled.run_once()
    clock.pass_time(MINUTE)
    settled.run_once()
    assert counted()[-3] == 2


def test_late_rows_that_come_while_no_process_looks_are_counted(
    settled: StatsService, delayq: RedisStore, clock: Clock
) -> None:
    """A deploy while the archiver catches up with an outage of the database."""
    finish(BEGIN - 3 * HOUR)
    for _ in range(3):
        StatsService(delayq).run_once()
        clock.pass_time(MINUTE)
    assert counted()[-3] == 2


def test_another_process_counts_late_rows_that_come_between_its_turns(
    settled: StatsService, delayq: RedisStore, clock: Clock
) -> None:
    other = StatsService(delayq)
    other.run_once()
    clock.pass_time(MINUTE)
    settled.run_once()
    finish(BEGIN - 3 * HOUR)
    clock.pass_time(MINUTE)
    other.run_once()
    assert counted()[-3] == 2


# One of all processes


def test_one_of_several_processes_computes(
    delayq: RedisStore, clock: Clock, computed: list[Any]
) -> None:
    finish(BEGIN)
    services = [StatsService(delayq) for _ in range(4)]
    assert services[0].run_once() == stats_service.INTERVAL
    with CaptureQueriesContext(connection) as queries:
        assert {service.run_once() for service in services} == {stats_service.INTERVAL}
    assert (len(queries), len(hours_of(computed)), [one.computed for one in services]) == (
        0,
        1,
        [2, 0, 0, 0],
    )
    clock.pass_time(MINUTE)
    for service in reversed(services):
        service.run_once()
    assert [one.computed for one in services] == [
        2,
        0,
        0,
        2,
    ]  # this one has not computed the day yet


def test_a_turn_ends_before_the_next_look(delayq: RedisStore, clock: Clock) -> None:
    assert delayq.workers.acquire_lock("statistics", 54_000)
    assert not delayq.workers.acquire_lock("statistics", 54_000)
    assert delayq.workers.acquire_lock("another", 1000)
    delayq.client.command("DEL", keys.lock_key(delayq.client.prefix, "statistics"))
    StatsService(delayq).run_once()
    left_ms = delayq.client.command("PTTL", keys.lock_key(delayq.client.prefix, "statistics"))
    assert 50_000 < left_ms <= 54_000 < stats_service.INTERVAL * 1000


def test_archivers_of_their_own_and_workers_have_one(hands: Hands) -> None:
    (alone,) = [
        service
        for service in sql_services(hands.store, "host:1:a")
        if isinstance(service, StatsService)
    ]
    assert not alone._tasks_run()
    worker: Any = SimpleNamespace(shared=hands.shared)
    (beside,) = [
        service
        for service in sql_services(hands.store, "host:1:a", worker)
        if isinstance(service, StatsService)
    ]
    record.using(delay=0).enqueue(1)
    assert not beside._tasks_run()
    hands.claim()
    assert beside._tasks_run()


# How little it takes


def taking(service: StatsService, clock: Clock, seconds: float, busy: bool = False) -> None:
    """Each page takes it so long; tasks run beside it, or not."""

    def tasks_run() -> bool:
        clock.take(seconds)
        return busy

    service._tasks_run = tasks_run


class Rests:
    """Instead of its sleeper."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def wake(self) -> None:
        pass


@pytest.fixture
def rests(service: StatsService) -> Rests:
    """How long it rests between pages."""
    rests = Rests()
    service.sleeper = rests  # type: ignore[assignment]
    return rests


def test_it_computes_for_two_per_cent_of_the_time(service: StatsService, clock: Clock) -> None:
    finish(BEGIN)  # a page of the hour, and one of the day
    taking(service, clock, 1.5)
    assert service.run_once() == pytest.approx(3.0 * 50)
    taking(service, clock, 0.5)
    clock.pass_time(MINUTE)
    assert service.run_once() == stats_service.INTERVAL


def test_it_rests_after_each_page_beside_tasks(
    service: StatsService, clock: Clock, rests: Rests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hourly, "PAGE", 2)
    finish(BEGIN, count=5)
    taking(service, clock, 0.5, busy=True)
    service.run_once()
    assert rests.seconds == [2.0] * 6  # three pages of the hour, three of the day
    assert counted() == {0: 5}


def test_it_does_not_rest_where_no_tasks_run(
    service: StatsService, clock: Clock, rests: Rests
) -> None:
    finish(BEGIN)
    taking(service, clock, 0.5)
    service.run_once()
    assert rests.seconds == []


def test_it_stops_within_a_page(
    service: StatsService, clock: Clock, rests: Rests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hourly, "PAGE", 2)
    finish(BEGIN)
    service.run_once()
    finish(BEGIN, count=9)
    clock.pass_time(MINUTE)
    pages: list[int] = []

    def stop() -> bool:
        pages.append(1)
        service.stop()
        return True

    service._tasks_run = stop
    assert service.run_once() == 0.0
    assert (len(pages), rests.seconds, counted(), service.computed) == (1, [], {0: 1}, 2)


def test_it_asks_little_when_there_is_nothing_new(
    service: StatsService, clock: Clock, computed: list[Any]
) -> None:
    for hours in range(1, 40):
        finish(BEGIN - HOUR * hours)
    service.run_once()
    computed.clear()
    clock.pass_time(MINUTE)
    with CaptureQueriesContext(connection) as queries:
        service.run_once()
    assert computed == []
    assert len(queries) < 20


# What is away


def test_it_goes_on_when_the_database_is_back(service: StatsService, clock: Clock) -> None:
    finish(BEGIN)
    with database_away(), pytest.raises(DatabaseUnavailable):
        service.run_once()
    clock.pass_time(MINUTE)
    service.run_once()
    assert counted() == {0: 1}


def test_it_goes_on_when_the_tables_are_there(service: StatsService, clock: Clock) -> None:
    finish(BEGIN)
    with without_table(TopicHour):
        with pytest.raises(DatabaseUnavailable, match=TopicHour._meta.db_table):
            service.run_once()
        assert connection.connection is None  # it may have been the connection that broke
    clock.pass_time(MINUTE)
    service.run_once()
    assert counted() == {0: 1}


def test_a_connection_that_has_lived_long_enough_is_replaced(
    service: StatsService, clock: Clock
) -> None:
    finish(BEGIN)
    old = connection.connection
    connection.close_at = 0  # CONN_MAX_AGE
    service.run_once()
    assert counted() == {0: 1}
    assert connection.connection is not old


def test_it_goes_on_when_redis_is_back(service: StatsService, clock: Clock) -> None:
    finish(BEGIN)
    with unreachable(), pytest.raises(StoreUnavailable):
        service.run_once()
    assert counted() == {}
    service.run_once()
    assert counted() == {0: 1}
