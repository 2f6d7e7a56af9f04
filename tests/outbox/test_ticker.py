"""The ticker writes one message for each tick, whoever runs it, dies in it or deploys another
rule."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone as django_timezone

from django_delayq import current_message, delayed_task
from django_delayq.core.exceptions import DatabaseUnavailable
from django_delayq.management.sql_services import sql_services
from django_delayq.models import OutboxMessage, RecurringTask
from django_delayq.outbox import ticker as module
from django_delayq.outbox.ticker import AHEAD_MS, FORGET_MS, TAKE_OVER_MS, Ticker, key_of
from django_delayq.tasks import registry
from django_delayq.tasks.recurrence import MISSED_AFTER_MS
from tests.database_faults import database_away
from tests.hands import Hands, together

pytestmark = pytest.mark.databases

#: A midnight in UTC: all ticks of this module are told in seconds from here.
T0 = 1_800_000_000_000 - 1_800_000_000_000 % 86_400_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NAME = "recurring.task"

Declare = Callable[..., Any]
seen: list[Any] = []


@pytest.fixture
def declare(nothing_recurs: dict[str, Any]) -> Declare:
    """Declares the task of these tests as recurring, or once more with another rule: as the code of
    another deploy does."""
    seen.clear()

    def tick() -> None:
        seen.append(current_message())
        if fails.pop("next", False):
            raise ValueError("it failed")

    fails: dict[str, bool] = {}

    def declare(name: str = NAME, **options: Any) -> Any:
        nothing_recurs.pop(name, None)
        task: Any = delayed_task(name=name, **options)(tick)
        task.fails = fails
        return task

    return declare


@pytest.fixture
def ticker(hands: Hands) -> Ticker:
    return Ticker(hands.store)


def written(name: str = NAME) -> list[float]:
    """The ticks that have a message in the outbox, in seconds from T0."""
    rows = OutboxMessage.objects.filter(task=name).order_by("due_at_ms")
    return [(row.due_at_ms - T0) / SECOND for row in rows]


def go(ticker: Ticker, begin: float, end: float, step: float = 2.0) -> None:
    """Run the ticker every two seconds, from one second to another."""
    at = begin
    while at <= end:
        ticker.write_ticks(int(T0 + at * SECOND))
        at += step


@pytest.mark.long
def test_each_tick_has_one_message_that_is_written_before_it(
    declare: Declare, ticker: Ticker
) -> None:
    declare(every=60)
    go(ticker, 1, 50)
    assert written() == []
    go(ticker, 52, 56)
    assert written() == [60]
    go(ticker, 58, 300)
    assert written() == [60, 120, 180, 240, 300]
    assert ticker.figures == {"written": 5}


def test_the_message_of_a_tick_is_durable_due_at_the_tick_and_knows_it(
    declare: Declare, ticker: Ticker, hands: Hands
) -> None:
    task = declare(every=1, topic="default", max_attempts=3, backoff=[0], delay=3600)
    ticker.run_once()
    now_ms = hands.store.clock_ms()
    hands.relay()
    assert OutboxMessage.objects.count() >= 9
    first = OutboxMessage.objects.order_by("due_at_ms")[0]
    assert now_ms - 1_000 < first.due_at_ms <= now_ms + 1_000
    assert first.key == key_of(NAME, first.due_at_ms)
    while hands.store.clock_ms() <= first.due_at_ms:
        pass
    task.fails["next"] = True
    hands.work()
    hands.work()
    runs = [message for message in seen if message.key == first.key]
    at = datetime.fromtimestamp(first.due_at_ms / 1000, tz=timezone.utc)
    assert [(message.attempt, message.tick) for message in runs] == [(1, at), (2, at)]
    assert runs[0].due_at == at
    assert first.key in {row.key for row in hands.archive() if row.state == "acked"}


def test_a_message_that_code_enqueues_has_no_tick(declare: Declare, hands: Hands) -> None:
    declare(every=60).enqueue()
    hands.work()
    assert [message.tick for message in seen] == [None]


@pytest.mark.long
def test_a_failed_run_keeps_its_retries_and_the_next_tick_comes(
    declare: Declare, ticker: Ticker, hands: Hands
) -> None:
    task = declare(every=1, max_attempts=2, backoff=[3600])
    ticker.run_once()
    hands.relay()
    first, second = OutboxMessage.objects.order_by("due_at_ms")[:2]
    task.fails["next"] = True
    while hands.store.clock_ms() <= second.due_at_ms:
        pass
    hands.work()
    retried = task.get(key=first.key)
    assert retried is not None
    assert (retried.state, retried.attempt) == ("delayed", 1)
    assert second.key in {row.key for row in hands.archive() if row.state == "acked"}


def test_many_tickers_at_once_write_each_tick_once(declare: Declare, hands: Hands) -> None:
    declare(every=2)
    tickers = [Ticker(hands.store) for _ in range(4)]
    together(*(lambda one=one: go(one, 0, 40, 3) for one in tickers))
    upto = (RecurringTask.objects.get().upto_ms - T0) // SECOND
    assert upto > 40
    assert written() == [*range(2, upto + 1, 2)]
    assert sum(one.written for one in tickers) == len(written())


def test_a_task_of_which_no_message_can_be_made_does_not_stop_the_others(
    declare: Declare, ticker: Ticker, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 2}}}
    right, settings.DELAYQ = settings.DELAYQ, wrong
    declare("a.first", every=60, topic="crowd", rate="1/s")
    declare(every=60)
    go(ticker, 0, 118)
    assert (written("a.first"), written()) == ([], [60, 120])
    (line,) = [r.getMessage() for r in caplog.records if "a.first" in r.getMessage()]
    assert line.startswith("a.first: no message can be made of it")
    settings.DELAYQ = right
    go(ticker, 120, 178)
    assert written("a.first") == [60, 120, 180]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("where", ["insert_ticks", "key_of"])
def test_a_process_that_dies_in_between_loses_and_repeats_no_tick(
    where: str, declare: Declare, ticker: Ticker, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(every=5)
    go(ticker, 0, 6)
    real = getattr(module, where)

    def dying(*args: Any) -> Any:
        real(*args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, where, dying)
        before = written()
        with pytest.raises(Killed):
            go(ticker, 8, 20)
        assert written() == before
    go(ticker, 12, 22)
    assert written()[:5] == [5, 10, 15, 20, 25]
    assert len(written()) == len(set(written()))


def test_a_database_that_is_away_costs_a_moment(declare: Declare, ticker: Ticker) -> None:
    declare(every=5)
    go(ticker, 0, 4)
    with database_away(), pytest.raises(DatabaseUnavailable):
        go(ticker, 6, 6)
    go(ticker, 30, 30)
    assert written() == [5, 10, 15, 20, 25, 30, 35, 40]


def test_two_quick_looks_change_nothing(declare: Declare, ticker: Ticker) -> None:
    declare(every=60)
    go(ticker, 0, 0)
    with CaptureQueriesContext(connection) as queries:
        go(ticker, 1, 3, 1)
    looks = [query for query in queries if "recurringtask" in query["sql"]]
    assert len(looks) == 3, "one look each"


# Outages


@pytest.mark.parametrize(
    ("missed", "ticks"),
    [
        ("skip", [3600, 2 * DAY / SECOND + 7200]),
        ("once", [3600, 2 * DAY / SECOND + 3600, 2 * DAY / SECOND + 7200]),
        ("all", [3600 * hour for hour in range(1, 51)]),
    ],
)
def test_after_two_days_of_outage_the_policy_decides(
    missed: str,
    ticks: list[float],
    declare: Declare,
    hands: Hands,
    caplog: pytest.LogCaptureFixture,
) -> None:
    declare(every=timedelta(hours=1), missed=missed)
    go(Ticker(hands.store), 3_590, 3_602)
    assert written() == [3600]
    logging.getLogger("delayq").propagate = True
    go(Ticker(hands.store), 2 * DAY / SECOND + 5_400, 2 * DAY / SECOND + 7_200, 600)
    assert written() == ticks
    assert caplog.text.count("nobody wrote its ticks from") == 1


def test_a_clock_that_was_set_back_stops_nothing(declare: Declare, ticker: Ticker) -> None:
    declare(every=3600, missed="skip")
    go(ticker, 365 * 86_400, 365 * 86_400)
    go(ticker, 0, 7_200, 600)
    assert written() == [3_600, 7_200]


# Deploys


def test_another_rule_begins_where_the_old_one_has_ended(declare: Declare, ticker: Ticker) -> None:
    declare(every=60)
    go(ticker, 0, 110)
    declare(every=40)
    go(ticker, 112, 124)
    assert written() == [60, 120], "written by the old rule; its process may still live"
    go(ticker, 126, 162)
    assert written() == [60, 120, 160]
    assert RecurringTask.objects.get().rule == "every 40 s"


@pytest.mark.parametrize("first", ["old", "new"])
def test_an_old_worker_beside_a_new_one_does_not_fight(
    first: str, declare: Declare, ticker: Ticker
) -> None:
    rules = {"old": 60, "new": 45}
    both = [first, *({"old", "new"} - {first})]
    for at in range(0, 131, 2):  # they look in turn
        declare(every=rules[both[at // 2 % 2]])
        go(ticker, at, at)
    every, upto = rules[first], RecurringTask.objects.get().upto_ms
    end = (upto - T0) // SECOND
    assert end > 130
    assert written() == [*range(every, end + 1, every)]
    # The process whose rule was in force ends, the other one goes on.
    for at in range(134, 231, 4):
        declare(every=rules[both[1]])
        go(ticker, at, at)
    every = rules[both[1]]
    later = [tick for tick in range(every, 235, every) if tick > end]
    assert [tick for tick in written() if end < tick < 235] == later
    assert len(written()) == len(set(written()))


def test_a_changed_rule_after_an_outage_makes_up_for_the_ticks_that_it_would_have_had(
    declare: Declare, ticker: Ticker
) -> None:
    declare(cron="0 3 * * *", time_zone="UTC")
    go(ticker, 3_600, 3_602)
    declare(cron="0 4 * * *", time_zone="UTC")
    go(ticker, 15 * 3_600, 15 * 3_600)
    assert written() == [4 * 3_600]


def test_a_task_that_moves_to_a_later_hour_runs_once_that_day(
    declare: Declare, ticker: Ticker
) -> None:
    declare(cron="0 3 * * *", time_zone="Europe/Berlin")
    go(ticker, 7_180, 7_204)
    go(ticker, 15 * 3_600, 15 * 3_600 + 6)
    declare(cron="0 4 * * *", time_zone="Europe/Berlin")
    go(ticker, 15 * 3_600 + 8, 15 * 3_600 + 60)
    assert RecurringTask.objects.get().rule == "0 4 * * * Europe/Berlin"
    assert written() == [2 * 3_600], "03:00 in Berlin"


@pytest.mark.long
def test_a_removed_task_stops_and_a_new_one_begins_without_a_tick_of_the_past(
    declare: Declare, ticker: Ticker, declared: dict[str, Any]
) -> None:
    declare(every=60)
    declare("other.task", every=3600)
    go(ticker, 0, 70)
    task = declared.pop(NAME)
    go(ticker, 72, 300)
    assert written() == [60]
    go(ticker, FORGET_MS / SECOND, FORGET_MS / SECOND)
    assert RecurringTask.objects.filter(task=NAME).exists()
    go(ticker, FORGET_MS / SECOND + 100, FORGET_MS / SECOND + 100)
    assert not RecurringTask.objects.filter(task=NAME).exists()
    registry.register(task)
    go(ticker, FORGET_MS / SECOND + 130, FORGET_MS / SECOND + 180)
    assert written() == [60, FORGET_MS / SECOND + 180]


def test_a_paused_task_that_was_removed_is_still_paused_when_it_comes_back(
    declare: Declare, ticker: Ticker, declared: dict[str, Any]
) -> None:
    declare(every=60)
    declare("other.task", every=3600)
    go(ticker, 0, 0)
    RecurringTask.objects.filter(task=NAME).update(paused_at=django_timezone.now())
    declared.pop(NAME)
    go(ticker, 3 * FORGET_MS / SECOND, 3 * FORGET_MS / SECOND)
    assert RecurringTask.objects.filter(task=NAME).exists()


def test_the_lengths_fit_each_other() -> None:
    assert 2 * Ticker.interval * SECOND < AHEAD_MS / 2, "a round may fail"
    assert AHEAD_MS + TAKE_OVER_MS < MISSED_AFTER_MS, "a new rule misses no tick"


# What others pay


@pytest.mark.usefixtures("nothing_recurs")
def test_without_recurring_tasks_there_is_no_ticker(hands: Hands) -> None:
    names = [service.name for service in sql_services(hands.store, "host:1:name")]
    assert "ticker" not in names
    assert "relay" in names


def test_with_one_there_is_a_ticker(hands: Hands, declare: Declare) -> None:
    declare(every=60)
    assert "ticker" in [service.name for service in sql_services(hands.store, "host:1:name")]
