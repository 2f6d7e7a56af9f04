"""Recurring tasks as people see them, and what pausing, resuming and running one now does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_delayq import current_message, delayed_task
from django_delayq.core.exceptions import InvalidMessage
from django_delayq.core.times import from_ms
from django_delayq.models import OperatorAction, OutboxMessage, RecurringTask
from django_delayq.operators import recurring
from django_delayq.operators.recurring import RecurringStatus
from django_delayq.outbox.ticker import Ticker, key_of
from django_delayq.store.for_tests import travel
from django_delayq.store.store import RedisStore
from tests.admin.world import Root
from tests.hands import Hands, rows

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True)]

NAME = "recurring.task"
ROOT = Root()
seen: list[Any] = []


@pytest.fixture
def declare(nothing_recurs: dict[str, Any]) -> Callable[..., Any]:
    """Declares the task of these tests; no other task is recurring."""
    seen.clear()

    def declare(**options: Any) -> Any:
        nothing_recurs.pop(NAME, None)
        return delayed_task(name=NAME, **options)(lambda: seen.append(current_message()))

    return declare


@pytest.fixture
def ticker(hands: Hands) -> Ticker:
    return Ticker(hands.store)


def status() -> RecurringStatus:
    (found,) = recurring.recurring_statuses()
    return found


def written() -> list[int]:
    due = OutboxMessage.objects.filter(task=NAME).order_by("due_at_ms")
    return list(due.values_list("due_at_ms", flat=True))


def test_a_task_shows_its_rule_and_its_next_ticks(
    declare: Callable[..., Any], ticker: Ticker, hands: Hands
) -> None:
    declare(cron="0 3 * * *", time_zone="Asia/Shanghai", missed="skip", topic="orders")
    before = status()
    assert before.silent, "no process has written ticks yet"
    ticker.run_once()
    shown = status()
    assert not shown.silent
    assert (shown.task, shown.topic, shown.missed) == (NAME, "orders", "skip")
    assert shown.rule == shown.declared == "0 3 * * * Asia/Shanghai"
    now = from_ms(hands.store.clock_ms())
    assert now < shown.next_ticks[0] <= now + timedelta(days=1)
    assert [tick.hour for tick in shown.next_ticks] == [19, 19, 19], "in UTC"
    assert shown.last is None


def test_the_last_run_is_shown_while_it_waits_runs_and_after_it_has_ended(
    declare: Callable[..., Any], ticker: Ticker, hands: Hands
) -> None:
    task = declare(every=3600)
    now_ms = int(hands.store.clock_ms())
    tick_ms = now_ms - now_ms % 3_600_000 + 3_600_000
    ticker.write_ticks(tick_ms - 3_000)
    hands.relay()
    RecurringTask.objects.update(last_tick_ms=tick_ms - 3_600_000)
    key = key_of(NAME, tick_ms - 3_600_000)
    handle = task.using(key=key).enqueue()
    last = status().last
    assert last is not None
    assert (last.message_id, last.tick) == (handle.id, from_ms(tick_ms - 3_600_000))
    assert last.state in ("delayed", "ready"), "a message is due one millisecond later"
    (lease,) = hands.claim()
    assert status().last.state == "leased"  # type: ignore[union-attr]
    hands.run(lease)
    hands.archive()
    last = status().last
    assert last is not None
    assert (last.state, last.row, last.attempt) == ("acked", rows()[0].pk, 1)


def test_of_a_quick_task_the_newest_tick_that_is_due_is_shown(
    declare: Callable[..., Any], ticker: Ticker, hands: Hands
) -> None:
    declare(every=1)
    ticker.write_ticks(int(hands.store.clock_ms()) - 3_000)
    last = status().last
    assert last is not None
    assert timedelta(0) <= from_ms(hands.store.clock_ms()) - last.tick < timedelta(seconds=2)
    assert RecurringTask.objects.get().last_tick_ms > hands.store.clock_ms()


def test_no_tick_of_a_pause_ever_runs(declare: Callable[..., Any], ticker: Ticker) -> None:
    declare(every=60, missed="all")
    ticker.write_ticks(0)
    recurring.pause_recurring(ROOT, NAME, reason="the mail server moves")
    for at_ms in range(60_000, 600_001, 20_000):
        ticker.write_ticks(at_ms)
    assert written() == []
    paused = status().paused
    assert paused is not None
    assert (paused.paused_by, paused.pause_reason) == ("root", "the mail server moves")
    assert status().next_ticks == []


def test_a_resumed_task_goes_on_with_its_next_tick(
    declare: Callable[..., Any], ticker: Ticker, hands: Hands
) -> None:
    declare(every=2, missed="all")
    recurring.pause_recurring(ROOT, NAME, reason="a test")
    ticker.write_ticks(int(hands.store.clock_ms()) - 600_000)
    ticker.run_once()
    assert written() == []
    recurring.resume_recurring(ROOT, NAME)
    now_ms = hands.store.clock_ms()
    ticker.run_once()
    assert status().paused is None
    assert len(written()) == 5
    assert now_ms - 100 < written()[0] <= now_ms + 2_100


def test_a_pause_that_ends_at_once_repeats_no_tick(
    declare: Callable[..., Any], ticker: Ticker
) -> None:
    declare(every=1)
    ticker.run_once()
    last_ms = written()[-1]
    recurring.pause_recurring(ROOT, NAME, reason="a test")
    recurring.resume_recurring(ROOT, NAME)
    assert RecurringTask.objects.get().upto_ms == last_ms
    OutboxMessage.objects.all().delete()  # as if they had ended
    ticker.write_ticks(last_ms)
    assert written()[0] == last_ms + 1_000


def test_run_now_is_a_message_beside_the_ticks(
    declare: Callable[..., Any], ticker: Ticker, hands: Hands
) -> None:
    declare(every=3600, delay=600)
    ticker.write_ticks(0)
    before = RecurringTask.objects.get().upto_ms
    handle = recurring.run_recurring_now(ROOT, NAME, reason="the report was wrong")
    hands.work()
    (message,) = seen
    assert message.id == handle.id
    assert abs(message.tick - message.due_at) < timedelta(seconds=1)
    assert RecurringTask.objects.get().upto_ms == before


def test_a_double_click_makes_one_message(
    declare: Callable[..., Any], hands: Hands, delayq: RedisStore
) -> None:
    declare(every=3600)
    for _ in range(2):
        handle = recurring.run_recurring_now(ROOT, NAME)
        with pytest.raises(InvalidMessage, match=f"a moment ago.*{handle.id}"):
            recurring.run_recurring_now(ROOT, NAME)  # it waits
        hands.work()
        hands.archive()
        with pytest.raises(InvalidMessage, match="a moment ago"):
            recurring.run_recurring_now(ROOT, NAME)  # it has run
        travel(delayq.client, 6_000)
    assert [message.id for message in seen] == [handle.id] * 2
    assert OperatorAction.objects.count() == 2


def test_actions_are_recorded(declare: Callable[..., Any], hands: Hands) -> None:
    declare(every=60)
    recurring.pause_recurring(ROOT, NAME, reason="a test")
    recurring.resume_recurring(ROOT, NAME, reason="it is over")
    handle = recurring.run_recurring_now(ROOT, NAME)
    done = [
        (action.action, action.operator, action.reason, action.selection, action.count)
        for action in OperatorAction.objects.order_by("pk")
    ]
    words = f"recurring task {NAME}"
    assert done == [
        ("pause", "root", "a test", words, 1),
        ("resume", "root", "it is over", words, 1),
        ("run now", "root", "", words, 1),
    ]
    newest = OperatorAction.objects.latest("pk")
    assert newest.message_id is not None
    assert newest.message_id.hex == handle.id


def test_what_cannot_be_done_is_refused_and_leaves_no_record(
    declare: Callable[..., Any], hands: Hands
) -> None:
    declare(every=60)
    with pytest.raises(InvalidMessage, match="Write a reason"):
        recurring.pause_recurring(ROOT, NAME, reason=" ")
    with pytest.raises(InvalidMessage, match="is not paused"):
        recurring.resume_recurring(ROOT, NAME)
    for call in (recurring.pause_recurring, recurring.run_recurring_now):
        with pytest.raises(InvalidMessage, match=f"'unknown'.*declares here: {NAME}"):
            call(ROOT, "unknown", reason="a test")
    assert not OperatorAction.objects.exists()


def test_a_task_that_no_code_declares_is_still_shown(
    declare: Callable[..., Any], ticker: Ticker, declared: dict[str, Any]
) -> None:
    declare(every=60)
    ticker.run_once()
    del declared[NAME]
    shown = status()
    assert (shown.rule, shown.declared, shown.topic) == ("every 60 s", "", "")


def test_the_rule_in_force_is_shown_beside_that_of_the_code_here(
    declare: Callable[..., Any], ticker: Ticker
) -> None:
    declare(every=60)
    ticker.run_once()
    declare(every=30)
    assert (status().rule, status().declared) == ("every 60 s", "every 30 s")


def test_tasks_without_an_archiver_are_named(declare: Callable[..., Any], ticker: Ticker) -> None:
    declare(every=60)
    assert recurring.silent_tasks() == [NAME]
    ticker.run_once()
    assert recurring.silent_tasks() == []
    RecurringTask.objects.update(upto_ms=1)
    assert recurring.silent_tasks() == [NAME]
    assert status().silent
