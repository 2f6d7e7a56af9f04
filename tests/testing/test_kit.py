"""The queue under test, inside the transaction of a TestCase unless a test says otherwise."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import override_settings
from redis import Redis

from django_delayq import (
    DelayQError,
    DuplicateMessage,
    InvalidMessage,
    Retry,
    current_message,
    delayed_task,
    pause_topic,
)
from django_delayq.core.exceptions import InvalidDelay
from django_delayq.models import ArchivedMessage, OutboxMessage
from django_delayq.store import get_store, scripts
from django_delayq.store.for_tests import load_movable
from django_delayq.testing import QueueUnderTest
from django_delayq.testing.session_server import session_url
from tests.app import sql_tasks
from tests.app.models import Counter
from tests.app.tasks import act, close_order, look, noop, record, remind, seen
from tests.sending import Capture, Undo
from tests.store.test_scripts import NAMES

Task = Callable[..., Any]


@pytest.fixture
def redis(db: None) -> Iterator[Redis]:
    """A client of the server of the tests."""
    with Redis.from_url(session_url()) as client:
        yield client


@pytest.fixture
def declare(declared: dict[str, Any]) -> Task:
    """Declares a task for this test."""

    def declare(function: Callable[..., Any], **options: Any) -> Any:
        function.__qualname__ = function.__name__
        return delayed_task(**options)(function)

    return declare


# What was enqueued


def test_a_message_is_seen_before_its_transaction_commits(delay_queue: QueueUnderTest) -> None:
    close_order.using(key="order:7", delay=60).enqueue(7)
    message = delay_queue.assert_enqueued(close_order, args=[7], key="order:7", delay=60)
    assert [waiting.id for waiting in delay_queue.messages] == [message.id]
    assert message.due_at - delay_queue.now > timedelta(seconds=59)


def test_the_call_is_compared_as_the_task_takes_it(delay_queue: QueueUnderTest) -> None:
    close_order.enqueue(7, reason="late")
    delay_queue.assert_enqueued(close_order, kwargs={"reason": "late", "order_id": 7})
    delay_queue.assert_enqueued("tests.app.tasks.close_order", args=(7,), kwargs={"reason": "late"})
    delay_queue.refute_enqueued(close_order, args=[7])
    delay_queue.refute_enqueued(remind)


def test_arguments_are_compared_as_they_are_stored(delay_queue: QueueUnderTest) -> None:
    record.enqueue({"lines": (1, 2)})
    delay_queue.assert_enqueued(record, args=[{"lines": [1, 2]}])
    delay_queue.assert_enqueued(record, args=[{"lines": (1, 2)}])


def test_the_failure_shows_what_was_enqueued(delay_queue: QueueUnderTest) -> None:
    record.using(delay=5).enqueue("x")
    close_order.using(key="order:7", delay=1800).enqueue(7, reason="late")
    with pytest.raises(AssertionError) as failure:
        delay_queue.assert_enqueued(close_order, args=[8], key="order:8", delay=60)
    wanted, title, first, second = str(failure.value).splitlines()
    assert wanted == "Not enqueued: tests.app.tasks.close_order(8), key 'order:8', delay 1 min."
    assert title == "Enqueued are:"
    assert "tests.app.tasks.close_order(7, reason='late'), key 'order:7', delay 30 min" in first
    assert "tests.app.tasks.record('x'), delay 5 s, due in" in second


def test_the_failure_says_when_nothing_was_enqueued(delay_queue: QueueUnderTest) -> None:
    with pytest.raises(AssertionError, match="Nothing is enqueued"):
        delay_queue.assert_enqueued(record)


def test_what_must_not_be_there_is_shown_too(delay_queue: QueueUnderTest) -> None:
    record.enqueue("x")
    with pytest.raises(
        AssertionError, match=r"Enqueued: tests\.app\.tasks\.record\.\nEnqueued are"
    ):
        delay_queue.refute_enqueued(record)


def test_delays_and_due_times_may_differ_by_less_than_a_second(delay_queue: QueueUnderTest) -> None:
    due_at = datetime(2030, 1, 1, tzinfo=timezone.utc)
    record.using(due_at=due_at).enqueue("at")
    delay_queue.assert_enqueued(record, due_at=due_at + timedelta(milliseconds=900))
    delay_queue.refute_enqueued(record, due_at=due_at + timedelta(seconds=1))
    close_order.using(delay=timedelta(minutes=3)).enqueue(1)
    delay_queue.assert_enqueued(close_order, delay=180.5)
    delay_queue.refute_enqueued(close_order, delay=182)


def test_a_call_that_the_task_does_not_take_is_refused(delay_queue: QueueUnderTest) -> None:
    with pytest.raises(InvalidMessage, match="cannot be called so"):
        delay_queue.refute_enqueued(close_order, args=[1, 2, 3])
    with pytest.raises(InvalidMessage, match="No task is declared"):
        delay_queue.refute_enqueued("tests.app.tasks.close_ordre")
    with pytest.raises(InvalidMessage, match="time zone"):
        delay_queue.refute_enqueued(record, due_at=datetime(2030, 1, 1))


def test_code_sees_what_it_has_sent_as_outside_of_a_test(delay_queue: QueueUnderTest) -> None:
    handle = record.using(key="k", delay=60).enqueue("x")
    assert (handle.outcome, record.get(key="k") is not None) == ("stored", True)
    with transaction.atomic():
        handle = record.using(key="l", delay=60).enqueue("y")
        with transaction.atomic():
            record.cancel(key="k")
        assert (handle.due_at, record.get(key="l")) == (None, None)
        assert record.get(key="k") is not None
    message = record.get(key="l")
    assert message is not None and message.due_at == handle.due_at
    assert record.get(key="k") is None


def test_a_rollback_takes_the_message_back(delay_queue: QueueUnderTest) -> None:
    with suppress(Undo), transaction.atomic():
        record.enqueue("x")
        delay_queue.assert_enqueued(record)
        raise Undo
    delay_queue.refute_enqueued(record)


def test_a_cancel_in_an_open_block_counts_already(delay_queue: QueueUnderTest) -> None:
    record.using(key="k", delay=60).enqueue("x")
    delay_queue.assert_enqueued(record, key="k")
    with transaction.atomic():
        record.cancel(key="k")
        delay_queue.refute_enqueued(record)
        record.using(key="k", delay=60).enqueue("y")
        delay_queue.assert_enqueued(record, args=["y"])
    assert [message.args for message in delay_queue.messages] == [["y"]]


def test_a_move_of_what_was_seen_is_seen(delay_queue: QueueUnderTest) -> None:
    record.using(key="k", delay=60).enqueue("x")
    delay_queue.assert_enqueued(record, delay=60)
    record.reschedule(key="k", delay=600)
    delay_queue.assert_enqueued(record, delay=600)


def test_a_second_message_with_the_key_is_refused_as_ever(delay_queue: QueueUnderTest) -> None:
    record.using(key="k").enqueue("x")
    assert len(delay_queue.messages) == 1
    with pytest.raises(DuplicateMessage):
        record.using(key="k").enqueue("y")


def test_captured_callbacks_do_not_send_again_what_was_seen(
    delay_queue: QueueUnderTest, django_capture_on_commit_callbacks: Capture
) -> None:
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        record.enqueue("x")
        assert len(delay_queue.messages) == 1
        delay_queue.run_due()
    assert len(callbacks) == 2
    assert (delay_queue.messages, seen) == ([], ["x"])


def test_a_durable_message_is_seen_wherever_it_waits(delay_queue: QueueUnderTest) -> None:
    record.using(durable=True, delay=60).enqueue("near")
    record.using(durable=True, delay=timedelta(days=30)).enqueue("far")
    assert OutboxMessage.objects.filter(status="waiting").count() == 1
    assert [message.args for message in delay_queue.messages] == [["near"], ["far"]]


# Time


def test_time_moves_and_nobody_sleeps(delay_queue: QueueUnderTest) -> None:
    began = time.monotonic()
    record.using(delay=timedelta(days=300)).enqueue("x")
    delay_queue.travel(days=299, hours=23)
    assert delay_queue.run_due() == ()
    now = delay_queue.travel(hours=1)
    assert delay_queue.run_due().outcomes == ["acked"]
    assert seen == ["x"]
    assert time.monotonic() - began < 5
    assert abs(now - datetime.now(tz=timezone.utc) - timedelta(days=300)) < timedelta(seconds=5)


def test_what_was_enqueued_before_a_travel_counts_from_before(delay_queue: QueueUnderTest) -> None:
    record.using(delay=60).enqueue("before")
    delay_queue.travel(seconds=61)
    record.using(delay=60).enqueue("after")
    assert [run.args for run in delay_queue.run_due()] == [["before"]]


def test_a_travel_to_the_due_time_makes_it_due(delay_queue: QueueUnderTest) -> None:
    due_at = datetime.now(tz=timezone.utc) + timedelta(days=3)
    record.using(due_at=due_at).enqueue("x")
    assert delay_queue.travel_to(due_at) >= due_at
    assert len(delay_queue.run_due()) == 1


def test_time_moves_by_a_duration_too(delay_queue: QueueUnderTest) -> None:
    before = delay_queue.now
    delay_queue.travel(timedelta(minutes=1))
    delay_queue.travel(30, minutes=2)
    moved = (delay_queue.now - before).total_seconds()
    assert 210 <= moved < 240


def test_time_does_not_go_back(delay_queue: QueueUnderTest) -> None:
    with pytest.raises(InvalidDelay, match="zero or more"):
        delay_queue.travel(minutes=-1)
    with pytest.raises(InvalidDelay, match="forward only"):
        delay_queue.travel_to(datetime(2001, 1, 1, tzinfo=timezone.utc))


@pytest.mark.parametrize("name", NAMES)
def test_each_script_has_a_clock_that_moves_and_is_otherwise_the_real_one(name: str) -> None:
    real, movable = scripts.load(name), load_movable(name)
    lines = zip(real.text.splitlines(), movable.text.splitlines(), strict=True)
    assert len([pair for pair in lines if pair[0] != pair[1]]) == 1
    assert real.sha != movable.sha


def test_other_settings_in_a_test_leave_the_queue_and_its_time(delay_queue: QueueUnderTest) -> None:
    record.enqueue("x")
    delay_queue.travel(hours=5)
    now = delay_queue.now
    with override_settings(DELAYQ={"REDIS": "redis://127.0.0.1:1/0", "MAX_ATTEMPTS": 2}):
        assert get_store().client.settings.max_attempts == 2
        assert delay_queue.now >= now
        assert delay_queue.run_due().outcomes == ["acked"]


# What runs


def test_what_a_task_enqueues_runs_too_if_it_is_due(
    delay_queue: QueueUnderTest, declare: Task
) -> None:
    def follow() -> None:
        record.enqueue("next")
        record.using(delay=60).enqueue("later")
        transaction.on_commit(lambda: record.enqueue("from a hook") and None)

    declare(follow).enqueue()
    report = delay_queue.run_due()
    assert [run.task for run in report] == ["tests.testing.test_kit.follow", *[record.name] * 2]
    assert sorted(seen) == ["from a hook", "next"]  # in the same millisecond there is no order
    delay_queue.assert_enqueued(record, args=["later"], delay=60)


def test_the_first_due_runs_first_whatever_its_topic(delay_queue: QueueUnderTest) -> None:
    record.using(delay=2).enqueue("second")
    close_order.using(delay=1).enqueue(1)
    record.using(delay=3).enqueue("third")
    delay_queue.travel(seconds=3)
    delay_queue.run_due()
    assert seen == [(1, "unpaid"), "second", "third"]


def test_a_task_may_cancel_what_is_due_after_it(delay_queue: QueueUnderTest, declare: Task) -> None:
    task = declare(lambda: record.cancel(key="k") and None, name="canceller")
    task.enqueue()
    record.using(key="k", delay=1).enqueue("never")
    delay_queue.travel(seconds=2)
    assert delay_queue.run_due().outcomes == ["acked"]
    assert seen == []


def test_the_report_says_what_became_of_each_message(delay_queue: QueueUnderTest) -> None:
    for delay, mode in enumerate(("return", "fail", "snooze", "reject")):
        act.using(delay=delay).enqueue(mode)
    delay_queue.travel(seconds=4)
    report = delay_queue.run_due()
    assert report.outcomes == ["acked", "retried", "snoozed", "dead"]
    acked, retried, snoozed, dead = report
    assert (acked.task, acked.args, acked.attempt, acked.error) == (act.name, ["return"], 1, None)
    assert isinstance(retried.error, ValueError)
    assert (retried.delay, snoozed.delay) == (timedelta(seconds=7), timedelta(seconds=30))
    assert dead.reason == "no such order"
    assert report.failed == [retried, dead]
    assert "act('fail'): retried, again in 0:00:07 (ValueError: it failed)" in repr(report)
    assert report.of(noop) == ()


def test_a_failing_task_is_retried_until_it_is_dead(delay_queue: QueueUnderTest) -> None:
    act.enqueue("fail")
    outcomes = []
    for delay in (0, 7, 70):
        delay_queue.travel(seconds=delay)
        outcomes += delay_queue.run_due().outcomes
    assert outcomes == ["retried", "retried", "dead"]
    row = ArchivedMessage.objects.get()
    assert (row.state, row.attempts, row.error_message) == ("dead", 3, "it failed")
    assert "it failed" in row.traceback


def test_the_next_run_fails_as_a_test_wants_it(delay_queue: QueueUnderTest) -> None:
    delay_queue.fail_next(Retry(delay=5))
    delay_queue.fail_next(ConnectionError, task=close_order)
    record.enqueue("x")
    close_order.enqueue(1)
    assert sorted(delay_queue.run_due().outcomes) == ["retried", "retried"]
    assert seen == []
    delay_queue.travel(seconds=30)
    assert delay_queue.run_due().outcomes == ["acked", "acked"]


def test_an_error_is_raised_where_a_test_wants_it(delay_queue: QueueUnderTest) -> None:
    act.enqueue("fail")
    with pytest.raises(ValueError, match="it failed"):
        delay_queue.run_due(reraise=True)
    assert [message.attempt for message in delay_queue.messages] == [1]


def test_an_interrupt_ends_the_test_and_not_the_message(delay_queue: QueueUnderTest) -> None:
    act.enqueue("interrupt")
    with pytest.raises(KeyboardInterrupt):
        delay_queue.run_due()


def test_an_async_task_runs_on_the_connection_of_the_test(delay_queue: QueueUnderTest) -> None:
    remind.enqueue(7)
    assert delay_queue.run_due().outcomes == ["acked"]
    assert seen == [7]
    with pytest.raises(DelayQError):
        current_message()


def test_an_expired_message_does_not_run_and_is_reported(delay_queue: QueueUnderTest) -> None:
    record.using(delay=60, expires=60).enqueue("too late")
    delay_queue.travel(minutes=2)
    (run,) = delay_queue.run_due()
    assert (run.outcome, run.args, run.attempt, seen) == ("expired", ["too late"], 0, [])
    assert ArchivedMessage.objects.get().state == "expired"


def test_a_paused_topic_is_left_alone(delay_queue: QueueUnderTest) -> None:
    record.enqueue("x")
    pause_topic("default", until=delay_queue.now + timedelta(hours=1))
    assert delay_queue.run_due() == ()
    delay_queue.travel(hours=2)
    assert delay_queue.run_due().outcomes == ["acked"]


def test_a_task_that_enqueues_itself_for_ever_is_stopped(
    delay_queue: QueueUnderTest, declare: Task
) -> None:
    task: Any = declare(lambda: task.enqueue() and None, name="endless")
    task.enqueue()
    with pytest.raises(DelayQError, match=r"More than 20 messages have run\. Does a task"):
        delay_queue.run_due(limit=20)


def test_a_rate_holds_back_what_it_does_not_let_start(
    delay_queue: QueueUnderTest, declare: Task
) -> None:
    slow = declare(lambda: None, name="slow", topic="slow", rate="1/s")
    slow.enqueue_many([(), (), ()])
    assert delay_queue.run_due().outcomes == ["acked"]
    assert delay_queue.run_due().outcomes == []
    delay_queue.travel(seconds=1)
    assert delay_queue.run_due().outcomes == ["acked"]
    assert len(delay_queue.messages) == 1


def test_what_is_too_late_does_not_run_and_is_reported(
    delay_queue: QueueUnderTest, declare: Task
) -> None:
    brief = declare(lambda: None, name="brief", topic="brief", too_late=60)
    brief.enqueue()
    delay_queue.travel(minutes=2)
    assert delay_queue.run_due().outcomes == ["expired"]


def test_a_recurring_task_runs_at_each_tick_that_time_passes(
    delay_queue: QueueUnderTest, declare: Task
) -> None:
    ticks: list[Any] = []

    def nightly() -> None:
        ticks.append(current_message().tick)

    task = declare(nightly, name="nightly", cron="0 3 * * *", time_zone="UTC", topic="nights")
    first = delay_queue.recur(task)
    assert (first.hour, first.minute) == (3, 0)
    delay_queue.travel_to(first)
    assert delay_queue.run_due().of(task).outcomes == ["acked"]
    delay_queue.travel(days=2)
    assert delay_queue.run_due().of(task).outcomes == ["acked"] * 2
    assert sorted(ticks) == [first + timedelta(days=day) for day in range(3)]


def test_no_task_recurs_unless_a_test_says_so(delay_queue: QueueUnderTest, declare: Task) -> None:
    declare(lambda: None, name="often", every=60, topic="often")
    delay_queue.travel(days=1)
    assert delay_queue.messages == []


def test_a_task_that_recurs_too_often_is_refused(
    delay_queue: QueueUnderTest, declare: Task
) -> None:
    delay_queue.recur(declare(lambda: None, name="often", every=1, topic="often"))
    with pytest.raises(DelayQError, match="often has more than 10,000 ticks"):
        delay_queue.travel(days=1)
    with pytest.raises(InvalidMessage, match="noop is not a recurring task"):
        delay_queue.recur(noop)


def test_what_is_no_task_is_refused(delay_queue: QueueUnderTest) -> None:
    with pytest.raises(InvalidMessage, match="Is @delayed_task missing"):
        delay_queue.assert_enqueued(len)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="No task is declared under the name 'nobody'"):
        delay_queue.refute_enqueued("nobody")


def test_nothing_runs_inside_a_transaction_of_the_project(delay_queue: QueueUnderTest) -> None:
    with transaction.atomic(), pytest.raises(DelayQError, match="call it after the block"):
        delay_queue.run_due()


@pytest.mark.databases
def test_a_durable_message_runs_when_its_time_comes(delay_queue: QueueUnderTest) -> None:
    record.using(durable=True, delay=timedelta(days=30)).enqueue("far")
    delay_queue.travel(days=30)
    assert delay_queue.run_due().outcomes == ["acked"]
    assert not OutboxMessage.objects.exists()
    assert ArchivedMessage.objects.get().state == "acked"


@pytest.mark.databases
def test_an_exactly_once_task_runs_in_a_savepoint(delay_queue: QueueUnderTest) -> None:
    sql_tasks.count.enqueue()
    sql_tasks.hook.using(delay=1).enqueue()
    delay_queue.travel(seconds=1)
    assert delay_queue.run_due().outcomes == ["acked", "acked"]
    assert Counter.objects.get().value == 1
    assert seen == [True, "in the task", "after the commit"]
    assert ArchivedMessage.objects.count() == 2


def test_an_exactly_once_task_that_fails_leaves_nothing(delay_queue: QueueUnderTest) -> None:
    sql_tasks.then["fail"] = lambda: 1 / 0
    sql_tasks.count.enqueue(next_step="fail")
    assert delay_queue.run_due().outcomes == ["retried", "retried", "dead"]
    assert not Counter.objects.exists()


@pytest.mark.databases
def test_an_error_of_the_database_does_not_end_the_test(
    delay_queue: QueueUnderTest, declare: Task
) -> None:
    Counter.objects.create(name="runs")

    def twice() -> None:
        Counter.objects.create(name="runs")

    declare(twice, max_attempts=1).enqueue()
    (run,) = delay_queue.run_due()
    assert isinstance(run.error, IntegrityError)
    assert Counter.objects.count() == ArchivedMessage.objects.count() == 1


def test_a_task_knows_its_message(delay_queue: QueueUnderTest) -> None:
    look.using(key="k", headers={"tenant": "7"}).enqueue()
    delay_queue.run_due()
    (message,) = seen
    assert (message.key, message.attempt, message.headers) == ("k", 1, {"tenant": "7"})
    with pytest.raises(DelayQError):
        current_message()


def test_what_a_commit_hook_raises_is_an_error_of_the_task(
    delay_queue: QueueUnderTest, declare: Task
) -> None:
    def hooked() -> None:
        transaction.on_commit(lambda: 1 / 0)

    declare(hooked).enqueue()
    (run,) = delay_queue.run_due()
    assert isinstance(run.error, ZeroDivisionError)


# With transactions that commit


@pytest.mark.databases
def test_with_real_commits_it_is_the_same(
    transactional_db: None, delay_queue: QueueUnderTest
) -> None:
    with transaction.atomic():
        record.enqueue("x")
        delay_queue.assert_enqueued(record)
    act.using(durable=True).enqueue("fail")
    connection.ensure_connection()
    session = connection.connection
    assert sorted(delay_queue.run_due().outcomes) == ["acked", "retried"]
    assert connection.connection is session, "the test keeps its connection"
    assert seen == ["x"]
    with transaction.atomic(), pytest.raises(DelayQError, match="inside transaction"):
        delay_queue.run_due()


# The end


def test_keys_and_connections_are_gone_after_a_test(redis: Redis) -> None:
    keys, clients = redis.dbsize(), len(redis.client_list())
    with QueueUnderTest() as queue:
        record.enqueue("x")
        queue.run_due()
        queue.travel(hours=1)
        assert redis.dbsize() > keys
        assert len(redis.client_list()) > clients
    assert (redis.dbsize(), len(redis.client_list())) == (keys, clients)


def test_a_queue_in_a_queue_is_another_one(db: None) -> None:
    with QueueUnderTest() as outer:
        record.enqueue("x")
        assert len(outer.messages) == 1
        with QueueUnderTest() as inner:
            inner.travel(days=1)
            assert get_store() is inner.store
        assert get_store() is outer.store
        assert len(outer.messages) == 1


def test_an_isolated_task_runs_in_the_process_of_the_test(
    delay_queue: QueueUnderTest, declare: Task
) -> None:
    def apart() -> int:
        seen.append(os.getpid())
        Counter.objects.create(name="apart")
        current_message().extend(60)
        return 1

    seen.clear()
    declare(apart, isolate=True, memory_limit="64MiB", result=True).enqueue()
    assert delay_queue.run_due().outcomes == ["acked"]
    assert seen == [os.getpid()]
    assert Counter.objects.filter(name="apart").exists()
