"""DelayqBackend: the behaviours that Django's own tests of tasks ask of a backend, on Django 6 and
with the backport, and the options of ours that it adds."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from traceback import TracebackException
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from django_delayq import DuplicateMessage
from django_delayq.core.exceptions import MessageCancelled, MessageFailed
from django_delayq.integrations import tasks_api
from django_delayq.integrations.django_tasks import (
    DelayqBackend,
    DelayqTask,
    find_task,
    make_known,
    priority_of,
)
from django_delayq.integrations.tasks_api import (
    InvalidTask,
    Task,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from django_delayq.models import ArchivedMessage, OutboxMessage
from django_delayq.store import get_store
from django_delayq.store.keys import Partition
from django_delayq.tasks import registry
from django_delayq.testing import QueueUnderTest
from django_delayq.worker.executor import Executor
from django_delayq.worker.isolated.isolation import Isolation
from tests.hands import Hands, end_lease, lose_redis
from tests.integrations.conftest import BACKEND

pytestmark = pytest.mark.django_db(transaction=True)
with_options = pytest.mark.skipif(
    "kwargs" not in inspect.signature(task).parameters,
    reason="@task of Django 6.0 takes no options of backends",
)

Work = Callable[..., int]
LOGGER = "django.tasks" if tasks_api.Task.__module__.startswith("django.") else "django_tasks"
READY, RUNNING = TaskResultStatus("READY"), TaskResultStatus("RUNNING")
FAILED, SUCCESSFUL = TaskResultStatus("FAILED"), TaskResultStatus("SUCCESSFUL")
KINDS = ("noop", "noop_async")


def default_backend() -> Any:
    return task_backends["default"]


@pytest.fixture(autouse=True)
def project(sample: Any, hands: Hands) -> None:
    """Every test is in such a project."""


def mismatch() -> type[Exception]:
    """TaskResultMismatch of the library that is in use."""
    name = tasks_api.Task.__module__.rpartition(".")[0]
    kind: type[Exception] = import_string(f"{name}.exceptions.TaskResultMismatch")
    return kind


# Tasks


def test_backend_is_the_one_of_the_settings() -> None:
    backend = default_backend()
    assert type(backend) is DelayqBackend
    assert backend.alias == "default"
    assert backend.options == {}
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_decorator_makes_tasks_of_ours(sample: Any) -> None:
    for name in ("noop", "noop_async", "bare"):
        assert isinstance(getattr(sample, name), Task)
        assert isinstance(getattr(sample, name), DelayqTask)


def test_using_gives_a_copy(sample: Any) -> None:
    copy = sample.noop.using()
    assert copy == sample.noop
    assert copy is not sample.noop


def test_using_changes_the_copy_alone(sample: Any) -> None:
    now = timezone.now()
    assert sample.noop.using(priority=1).priority == 1
    assert sample.noop.using(queue_name="queue_1").queue_name == "queue_1"
    assert sample.noop.using(run_after=now).run_after == now
    noop = sample.noop
    assert (noop.priority, noop.queue_name, noop.run_after) == (0, "default", None)


def test_using_can_be_chained(sample: Any) -> None:
    now = timezone.now()
    later = sample.noop.using(run_after=now)
    urgent = later.using(priority=10)
    assert (urgent.priority, urgent.run_after) == (10, now)
    assert later.priority == 0


def test_using_an_unknown_backend_is_refused(sample: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="The connection 'unknown' doesn't exist"):
        sample.noop.using(backend="unknown")
    with pytest.raises(ImproperlyConfigured, match="Could not find backend"):
        sample.noop.using(backend="missing")


def test_naive_run_after_is_refused(sample: Any) -> None:
    with pytest.raises(InvalidTask, match="run_after must be an aware datetime"):
        sample.noop.using(run_after=datetime.now())


@pytest.mark.parametrize("priority", [-101, 101, 3.1])
def test_priority_out_of_range_is_refused(sample: Any, priority: float) -> None:
    with pytest.raises(InvalidTask, match="whole number between -100 and 100"):
        sample.noop.using(priority=priority)


@pytest.mark.parametrize("priority", [-100, 0, 100])
def test_priority_in_range_is_taken(sample: Any, priority: int) -> None:
    assert sample.noop.using(priority=priority).priority == priority


def test_unknown_queue_is_refused_unless_the_backend_takes_any(sample: Any) -> None:
    with pytest.raises(InvalidTask, match=r"Queue 'queue-2' is not valid for backend\."):
        sample.noop.using(queue_name="queue-2")
    assert sample.noop.using(queue_name="queue-2", backend="any").queue_name == "queue-2"


def test_task_can_be_called(sample: Any) -> None:
    assert sample.meaning_of_life.call() == 42
    assert asyncio.run(sample.meaning_of_life.acall()) == 42
    assert sample.meaning_async.call() == 42
    assert asyncio.run(sample.meaning_async.acall()) == 42


def test_only_functions_of_modules_are_tasks() -> None:
    for wrong in (any, test_only_functions_of_modules_are_tasks.__get__, lambda: None):
        with pytest.raises(InvalidTask, match="must be defined at a module level"):
            task()(wrong)


def test_task_knows_its_backend(sample: Any) -> None:
    assert sample.noop.get_backend() is default_backend()
    assert sample.noop.using(backend="any").get_backend() is task_backends["any"]


def test_names_and_paths(sample: Any) -> None:
    assert sample.noop.name == "noop"
    assert sample.noop_async.module_path == "tests.integrations.sample.noop_async"
    assert import_string(sample.noop.module_path) is sample.noop


def test_task_can_be_pickled(sample: Any) -> None:
    assert pickle.loads(pickle.dumps(sample.noop)) == sample.noop
    urgent = sample.noop.using(priority=5, key="k")
    assert pickle.loads(pickle.dumps(urgent)) == urgent


def test_result_can_be_pickled(sample: Any) -> None:
    result = sample.noop.enqueue()
    assert pickle.loads(pickle.dumps(result)) == result


def test_takes_context_needs_the_argument(sample: Any) -> None:
    with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
        task(takes_context=True)(sample.meaning_of_life.func)


def test_run_after_is_not_for_the_decorator(sample: Any) -> None:
    with pytest.raises(TypeError, match="run_after"):
        task(run_after=timezone.now())(sample.meaning_of_life.func)


def test_backend_without_coroutines_refuses_them(
    sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DelayqBackend, "supports_async_task", False)
    with pytest.raises(InvalidTask, match=r"(?i)does not support async tasks"):
        default_backend().validate_task(sample.noop_async)


def test_without_backends_nothing_is_enqueued(sample: Any, settings: Any) -> None:
    if LOGGER == "django_tasks":
        pytest.skip("the backport has a default backend")
    settings.TASKS = {}
    with pytest.raises(ImproperlyConfigured):
        sample.noop.enqueue()


# Enqueueing


@pytest.mark.parametrize("kind", KINDS)
def test_enqueue_returns_a_ready_result(sample: Any, kind: str) -> None:
    a_task = getattr(sample, kind)
    result = a_task.enqueue(1, two=3)
    assert result.status == READY
    assert not result.is_finished
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None,) * 3
    assert result.enqueued_at is not None
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    assert result.task == a_task
    assert (result.args, result.kwargs) == ([1], {"two": 3})
    assert (result.attempts, result.errors, result.backend) == (0, [], "default")
    assert 0 < len(result.id) < 64


@pytest.mark.parametrize("kind", KINDS)
def test_aenqueue_does_the_same(sample: Any, kind: str) -> None:
    a_task = getattr(sample, kind)
    result = asyncio.run(a_task.aenqueue(1, two=3))
    assert (result.status, result.task, result.args) == (READY, a_task, [1])
    assert default_backend().get_result(result.id) == result


def test_arguments_that_json_does_not_have_are_refused(sample: Any) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        sample.noop.enqueue(datetime.now())
    with pytest.raises(TypeError, match="Unsupported type"):
        asyncio.run(sample.noop.aenqueue(datetime.now()))


def test_arguments_become_json(sample: Any, work: Work) -> None:
    result = sample.note.enqueue((1, {"a": b"text"}))
    assert result.args == [[1, {"a": "text"}]]
    work()
    assert sample.seen == [[1, {"a": "text"}]]


def test_annotations_of_the_function_refuse_nothing(sample: Any, work: Work) -> None:
    result = sample.own_attempt.enqueue("1")
    work()
    result.refresh()
    assert result.errors[0].exception_class is AssertionError


def test_task_is_validated_again_when_it_is_enqueued(sample: Any, settings: Any) -> None:
    elsewhere = sample.noop.using(queue_name="queue_1")
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["queue-2"]}}
    with pytest.raises(InvalidTask, match="Queue 'queue_1' is not valid for backend"):
        elsewhere.enqueue()
    with pytest.raises(InvalidTask, match="Queue 'queue_1' is not valid for backend"):
        asyncio.run(elsewhere.aenqueue())


def test_enqueue_can_be_called_on_the_backend(sample: Any) -> None:
    result = default_backend().enqueue(sample.noop, (), {})
    assert default_backend().get_result(result.id) == result
    result = asyncio.run(default_backend().aenqueue(sample.noop, (), {}))
    assert asyncio.run(default_backend().aget_result(result.id)) == result


def test_task_of_another_backend_runs_here_too(sample: Any, settings: Any, work: Work) -> None:
    module = tasks_api.Task.__module__.rpartition(".")[0]
    settings.TASKS = {
        **settings.TASKS,
        "immediate": {"BACKEND": f"{module}.backends.immediate.ImmediateBackend", "QUEUES": []},
    }
    plain = task(backend="immediate")(sample.meaning_of_life.func)
    assert type(plain) is Task
    result = plain.using(backend="default").enqueue()
    work()
    result.refresh()
    assert result.return_value == 42
    del registry.by_name[plain.module_path]
    assert find_task(plain.module_path) is not None


# Transactions


def test_task_waits_for_the_commit_as_every_message_does(sample: Any, work: Work) -> None:
    with transaction.atomic():
        result = sample.noop.enqueue()
        assert result.enqueued_at is not None
        assert result.status == READY
        assert default_backend().get_result(result.id).status == READY
        assert work() == 0
    assert work() == 1


def test_rollback_takes_the_task_back(sample: Any, work: Work) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        result = sample.noop.enqueue()
        _ = 1 / 0
    assert work() == 0
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_task_does_not_wait_for_the_commit_where_options_say_so(sample: Any, work: Work) -> None:
    with transaction.atomic():
        result = sample.noop.using(backend="at-once").enqueue()
        assert result.enqueued_at is not None
        assert get_store().find("default", bytes.fromhex(result.id)) is not None
        sample.noop.using(after_commit=False).enqueue()
    assert work() == 2


# Results


def test_result_of_a_waiting_task_can_be_read(sample: Any) -> None:
    result = sample.noop.enqueue()
    assert sample.noop.get_result(result.id) == result
    assert asyncio.run(sample.noop.aget_result(result.id)) == result


def test_refresh_of_an_unchanged_result_changes_nothing(sample: Any) -> None:
    result = sample.noop.enqueue()
    before = dataclasses.asdict(result)
    result.refresh()
    assert dataclasses.asdict(result) == before
    asyncio.run(result.arefresh())
    assert dataclasses.asdict(result) == before


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_finished_task_has_all_facts(
    sample: Any, work: Work, hands: Hands, kind: str, archived: bool
) -> None:
    result = getattr(sample, kind).enqueue(1, two=3)
    assert work() == 1
    if archived:
        hands.archive()
        lose_redis(hands.store)
    result.refresh()
    assert result.status == SUCCESSFUL
    assert result.is_finished
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.started_at <= result.last_attempted_at <= result.finished_at
    assert result.return_value is None
    assert (result.args, result.kwargs) == ([1], {"two": 3})
    assert (result.attempts, result.worker_ids, result.errors) == (1, ["host:1:hands"], [])
    assert default_backend().get_result(result.id).task == getattr(sample, kind)


@pytest.mark.parametrize("kind", ["meaning_of_life", "meaning_async"])
def test_return_value_comes_back(sample: Any, work: Work, hands: Hands, kind: str) -> None:
    result = getattr(sample, kind).enqueue()
    work()
    asyncio.run(result.arefresh())
    assert result.return_value == 42
    hands.archive()
    lose_redis(hands.store)
    assert default_backend().get_result(result.id).return_value == 42


def test_return_value_becomes_json(sample: Any, work: Work) -> None:
    result = sample.echo.enqueue({"a": [1, None, 1.5, True]})
    work()
    result.refresh()
    assert result.return_value == {"a": [1, None, 1.5, True]}


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("fails", ValueError, "this task fails"),
        ("exits", SystemExit, "this task exits"),
        ("interrupts", KeyboardInterrupt, "this task interrupts"),
    ],
)
def test_exception_makes_the_task_fail(  # noqa: PLR0917
    sample: Any,
    work: Work,
    hands: Hands,
    caplog: pytest.LogCaptureFixture,
    name: str,
    kind: type[BaseException],
    message: str,
    archived: bool,
) -> None:
    result = getattr(sample, name).enqueue()
    with caplog.at_level(logging.ERROR, LOGGER):
        work()
    (record,) = [r for r in caplog.records if r.name == LOGGER]
    assert record.exc_info is not None
    assert message in str(record.exc_info[1])
    if archived:
        hands.archive()
    result.refresh()
    assert result.status == FAILED
    assert result.is_finished
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at is not None
    (error,) = result.errors
    assert error.exception_class is kind
    assert error.traceback.endswith(f"{kind.__name__}: {message}\n")
    assert (result.task, result.args, result.kwargs) == (getattr(sample, name), [], {})


def test_exception_in_an_exception_is_shown(sample: Any, work: Work) -> None:
    result = sample.fails_with_an_exception_in_an_exception.enqueue()
    work()
    result.refresh()
    assert result.status == FAILED
    assert result._return_value is None
    assert result.errors[0].exception_class is ValueError
    assert 'ValueError(ValueError("this task fails"))' in result.errors[0].traceback


def test_return_value_that_json_does_not_have_makes_the_task_fail(sample: Any, work: Work) -> None:
    result = sample.returns_a_function.enqueue()
    work()
    result.refresh()
    assert result.status == FAILED
    assert result.finished_at >= result.started_at
    assert result._return_value is None
    assert result.errors[0].exception_class is TypeError
    assert "Unsupported type" in result.errors[0].traceback


def test_error_that_names_no_exception_is_refused(sample: Any, work: Work) -> None:
    result = sample.fails.enqueue()
    work()
    result.refresh()
    object.__setattr__(result.errors[0], "exception_class_path", "subprocess.run")
    with pytest.raises(ValueError, match="does not reference a valid exception"):
        _ = result.errors[0].exception_class
    object.__setattr__(result.errors[0], "exception_class_path", "does.not.exist")
    with pytest.raises(ImportError):
        _ = result.errors[0].exception_class


@pytest.mark.parametrize("missing", ["123", "", "0" * 32, "x" * 32, "018f" + "0" * 28])
def test_result_that_does_not_exist_is_an_error(sample: Any, missing: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        sample.noop.get_result(missing)
    with pytest.raises(TaskResultDoesNotExist):
        asyncio.run(sample.noop.aget_result(missing))


def test_result_of_another_task_is_an_error(sample: Any) -> None:
    result = sample.noop_async.enqueue()
    with pytest.raises(mismatch(), match="Task does not match"):
        sample.noop.get_result(result.id)
    with pytest.raises(mismatch(), match="Task does not match"):
        asyncio.run(sample.noop.aget_result(result.id))


def test_result_of_a_message_that_is_no_task_of_django_does_not_exist(sample: Any) -> None:
    from tests.app.tasks import noop

    with pytest.raises(TaskResultDoesNotExist):
        default_backend().get_result(noop.enqueue().id)


def test_running_task_is_running(sample: Any, hands: Hands) -> None:
    result = sample.noop.enqueue()
    hands.claim()
    result.refresh()
    assert result.status == RUNNING
    assert result.attempts == 1
    assert result.started_at is not None
    assert result.last_attempted_at is not None


def test_cancelled_task_has_failed(sample: Any) -> None:
    result = sample.noop.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
    registry.by_name[sample.noop.module_path].cancel(id=result.id)  # type: ignore[attr-defined]
    result.refresh()
    assert result.status == FAILED
    assert result.errors[0].exception_class is MessageCancelled


def test_task_of_a_worker_that_was_killed_runs_again(sample: Any, hands: Hands, work: Work) -> None:
    result = sample.noop.enqueue()
    (lease,) = hands.claim()
    end_lease(hands.store, lease)
    result.refresh()
    assert result.status == READY
    work()
    result.refresh()
    assert result.status == SUCCESSFUL
    assert result.attempts == 2


def test_task_that_kills_its_workers_fails_in_the_end(sample: Any, hands: Hands) -> None:
    result = sample.noop.enqueue()
    for _ in range(3):
        # After its second crash the message waits a little.
        found = hands.store.find("default", bytes.fromhex(result.id))
        if found is not None and found.found.state != "leased":
            hands.store.client.command(
                "ZADD",
                f"{hands.store.client.prefix}:{{default:0}}:delayed:normal",
                1,
                found.found.id,
            )
        (lease,) = hands.claim()
        end_lease(hands.store, lease)
    result.refresh()
    assert result.status == FAILED
    assert result.errors[0].exception_class is MessageFailed
    assert result.errors[0].traceback == "poison"


# Context, queues, times


def test_context_has_the_result(sample: Any, work: Work) -> None:
    result = sample.own_id.enqueue()
    work()
    result.refresh()
    assert result.return_value == result.id


def test_context_counts_attempts(sample: Any, work: Work) -> None:
    result = sample.own_attempt.enqueue(1)
    work()
    result.refresh()
    assert result.status == SUCCESSFUL
    (running,) = sample.seen
    assert running.worker_ids == ["host:1:hands"]
    assert running.task == sample.own_attempt


def test_queue_is_a_topic(sample: Any, work: Work) -> None:
    result = sample.noop.using(queue_name="queue_1").enqueue()
    assert work("default") == 0
    assert work("queue_1") == 1
    result.refresh()
    assert result.status == SUCCESSFUL
    assert default_backend().get_result(result.id).task.queue_name == "queue_1"


def test_backend_that_takes_any_queue_makes_topics_of_them(sample: Any, work: Work) -> None:
    result = sample.noop.using(queue_name="queue-9", backend="any").enqueue()
    assert work("queue-9") == 1
    assert task_backends["any"].get_result(result.id).status == SUCCESSFUL


def test_delay_of_the_backend_counts_where_the_task_has_none(sample: Any, work: Work) -> None:
    result = sample.noop.using(backend="lazy").enqueue()
    assert abs((result.enqueued_at - timezone.now()).total_seconds()) < 60
    assert work() == 0
    sample.noop.using(backend="lazy", run_after=timezone.now()).enqueue()
    assert work() == 1


def test_queues_of_the_settings_are_topics(sample: Any) -> None:
    make_known()
    assert {"default", "queue_1"} <= registry.known_topics()


def test_run_after_delays_the_task(sample: Any, work: Work) -> None:
    at = (timezone.now() + timedelta(hours=1)).replace(microsecond=0)
    result = sample.noop.using(run_after=at).enqueue()
    assert work() == 0
    found = default_backend().get_result(result.id)
    assert found.task.run_after == at
    assert found.status == READY
    (_, message) = get_store().find("default", bytes.fromhex(result.id)) or (None, None)
    assert message is not None
    assert message.due_at_ms == at.timestamp() * 1000


def test_run_after_may_be_a_duration(sample: Any, work: Work) -> None:
    for later in (
        sample.noop.using(run_after=timedelta(minutes=30)),
        sample.noop.using(delay=1800),
    ):
        result = later.enqueue()
        assert work() == 0
        located = get_store().find("default", bytes.fromhex(result.id))
        assert located is not None
        wait_ms = located.found.due_at_ms - get_store().clock_ms()
        assert 1_790_000 < wait_ms <= 1_800_000


def test_run_after_in_the_past_is_now(sample: Any, work: Work) -> None:
    sample.noop.using(run_after=timezone.now() - timedelta(days=1)).enqueue()
    assert work() == 1


def test_newest_of_delay_and_run_after_counts(sample: Any) -> None:
    at = timezone.now()
    assert sample.noop.using(delay=5).using(run_after=at).delay is None
    assert sample.noop.using(run_after=at).using(delay=5).run_after is None


def test_higher_priority_runs_first(sample: Any, work: Work) -> None:
    for priority in (-50, 0, 50):
        sample.note.using(priority=priority).enqueue(priority)
    work()
    assert sample.seen == [50, 0, -50]


@pytest.mark.parametrize(
    ("priority", "lane"),
    [(-100, "LOW"), (-1, "LOW"), (0, "NORMAL"), (1, "HIGH"), (100, "HIGH")],
)
def test_priorities_are_three_lanes(priority: int, lane: str) -> None:
    assert priority_of(priority).name == lane


def test_priority_comes_back_with_the_result(sample: Any, work: Work) -> None:
    result = sample.noop.using(priority=7).enqueue()
    assert default_backend().get_result(result.id) == result
    work()
    assert default_backend().get_result(result.id).task.priority == 7


def test_result_knows_its_backend(sample: Any, work: Work) -> None:
    result = sample.noop.using(backend="patient").enqueue()
    work()
    assert task_backends["patient"].get_result(result.id).backend == "patient"
    assert default_backend().get_result(result.id).backend == "patient"


# Signals and logs


@pytest.fixture
def signals() -> Any:
    """(signal, sender, status, whether an exception is being handled) of all that is sent."""
    sent: list[tuple[str, Any, str, bool]] = []
    receivers = []
    for name, signal in (
        ("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished),
    ):  # fmt: skip

        def receive(sender: Any, task_result: Any, name: str = name, **kwargs: Any) -> None:
            failing = sys.exc_info()[0] is not None
            sent.append((name, sender, str(task_result.status), failing))

        signal.connect(receive)
        receivers.append((signal, receive))
    yield sent
    for signal, receive in receivers:
        signal.disconnect(receive)


def test_signals_come_from_the_class_of_the_backend(
    sample: Any, work: Work, signals: list[Any]
) -> None:
    sample.noop.enqueue()
    work()
    assert signals == [
        ("enqueued", DelayqBackend, "READY", False),
        ("started", DelayqBackend, "RUNNING", False),
        ("finished", DelayqBackend, "SUCCESSFUL", False),
    ]


def test_signal_of_a_failure_is_sent_while_it_is_handled(
    sample: Any, work: Work, signals: list[Any]
) -> None:
    sample.fails.enqueue()
    work()
    assert signals[-1] == ("finished", DelayqBackend, "FAILED", True)


def hide_all(topic: str, task: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return [], {}


def test_receivers_of_the_last_signal_do_not_see_what_is_hidden(
    sample: Any, work: Work, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": f"{__name__}.hide_all"}
    seen: list[str] = []

    def receive(sender: Any, task_result: Any, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        assert error is not None and type(error).__name__ == "LookupError"
        full = TracebackException.from_exception(error, capture_locals=True)
        seen.extend(["".join(full.format()), str(task_result.errors[-1].traceback)])

    task_finished.connect(receive)
    sample.refuses.enqueue("4111-2222-zyx")
    work()
    task_finished.disconnect(receive)
    assert len(seen) == 2
    for text in seen:
        assert "4111-2222-zyx" not in text
        assert "in refuses" in text and "is refused" in text
        assert "ValueError" in text, "causes are seen too"


def test_attempt_that_is_not_the_last_finishes_nothing(
    sample: Any, work: Work, signals: list[Any]
) -> None:
    sample.flaky.using(max_attempts=2).enqueue(1)
    work()
    assert [name for name, *_ in signals] == ["enqueued", "started"]


def test_logs_say_what_happens(sample: Any, work: Work, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, LOGGER):
        result = sample.noop.enqueue()
        work()
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(lines) == 3
    for line, words in zip(lines, ("enqueued", "state=RUNNING", "state=SUCCESSFUL"), strict=True):
        assert words in line
        assert result.id in line
        assert "None" not in line


# Retries and our other options


def test_failed_task_runs_once_unless_it_says_more(sample: Any, work: Work) -> None:
    result = sample.flaky.enqueue(1)
    work()
    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 1)


def test_retried_task_keeps_its_errors(sample: Any, work: Work, hands: Hands) -> None:
    result = sample.flaky.using(backend="patient", max_attempts=2).enqueue(1)
    work()
    make_due(hands, result.id)
    result.refresh()
    assert (result.status, result.attempts) == (READY, 1)
    assert result.errors[0].exception_class is ValueError
    assert "failure 1" in result.errors[0].traceback
    work()
    result.refresh()
    assert (result.status, result.attempts) == (SUCCESSFUL, 2)
    assert result.return_value == 2
    assert len(result.errors) == 1


def test_all_errors_of_a_failed_task_are_there(sample: Any, work: Work, hands: Hands) -> None:
    result = sample.flaky.using(max_attempts=2).enqueue(5)
    work()
    make_due(hands, result.id)
    work()
    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 2)
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert "Traceback" in result.errors[1].traceback


def make_due(hands: Hands, result_id: str) -> None:
    """As if its backoff were over."""
    hands.store.reschedule_in(Partition("default", 0), bytes.fromhex(result_id), "1000000000000")  # type: ignore[arg-type]


def test_options_of_the_backend_are_defaults(sample: Any) -> None:
    patient = task(backend="patient")(sample.noop.func)
    patient.enqueue()
    ours = registry.by_name[sample.noop.module_path]
    assert ours.options.backoff(1) == 0
    assert task_backends["patient"]._as_ours(patient).max_attempts == 3
    assert task_backends["patient"]._as_ours(patient).ttr_ms == 5000
    assert task_backends["patient"]._as_ours(patient.using(ttr=9)).ttr_ms == 9000


@with_options
def test_decorator_takes_our_options(sample: Any) -> None:
    mine = task(max_attempts=4, backoff=[7], key="k", retry_for=[ValueError])(sample.noop.func)
    ours = default_backend()._as_ours(mine)
    assert (ours.max_attempts, ours.options.backoff(1), ours.options.key) == (4, 7, "k")
    assert ours.options.retry_for == (ValueError,)


def test_options_of_the_task_are_not_for_using(sample: Any) -> None:
    with pytest.raises(InvalidTask, match="backoff is of the task: give it to @task"):
        sample.noop.using(backoff=[1])
    with pytest.raises(InvalidTask, match="nothing is no option"):
        sample.noop.using(nothing=1)


@pytest.mark.parametrize(
    "wrong",
    [{"ttr": 0}, {"max_attempts": 0}, {"key": ""}, {"durable": True, "after_commit": False}],
)
def test_wrong_options_make_an_invalid_task(sample: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises((InvalidTask, ValueError)):
        sample.noop.using(**wrong).enqueue()


def test_key_lets_one_live_message_be(sample: Any) -> None:
    keyed = sample.noop.using(key="order:1", delay=60)
    keyed.enqueue()
    with pytest.raises(DuplicateMessage):
        keyed.enqueue()


def test_durable_task_is_in_the_outbox(sample: Any, work: Work) -> None:
    with transaction.atomic():
        result = sample.meaning_of_life.using(durable=True).enqueue()
        assert OutboxMessage.objects.count() == 1
    result.refresh()
    assert result.status == READY
    work()
    result.refresh()
    assert result.return_value == 42


def test_headers_of_a_project_travel(sample: Any, work: Work) -> None:
    result = sample.headers.using(headers={"trace": "1"}, priority=3).enqueue()
    work()
    result.refresh()
    assert result.return_value == {"trace": "1", "django-priority": "3"}


# The worker's side, and checks


def test_worker_imports_the_task_that_a_message_names(
    sample: Any, work: Work, hands: Hands
) -> None:
    result = sample.note.enqueue("found")
    del registry.by_name[sample.note.module_path]
    registry.by_code.clear()
    (lease,) = hands.claim()
    hands.run(lease)
    assert sample.seen == ["found"]
    result.refresh()
    assert result.status == SUCCESSFUL


def test_coroutine_that_a_thread_finds_goes_back_to_the_queue(
    sample: Any, work: Work, hands: Hands
) -> None:
    result = sample.meaning_async.enqueue()
    del registry.by_name[sample.meaning_async.module_path]
    registry.by_code.clear()
    (lease,) = hands.claim()
    hands.run(lease)
    result.refresh()
    assert (result.status, result.attempts) == (READY, 0)
    work()
    result.refresh()
    assert result.return_value == 42


@pytest.mark.parametrize("name", ["os.getcwd", "no.such.module", "tests.app.tasks.noop"])
def test_worker_takes_nothing_but_tasks_of_django(sample: Any, name: str) -> None:
    assert find_task(name) is None


def test_run_delayq_runs_both_kinds(sample: Any, run_delayq: Callable[..., Any]) -> None:
    from tests.app.tasks import record, seen

    own = record.enqueue("ours")
    theirs = sample.echo.enqueue("django's")
    coroutine = sample.meaning_async.enqueue()
    run_delayq("--burst")
    assert own.wait(timeout=5) is None
    assert seen == ["ours"]
    for result, value in ((theirs, "django's"), (coroutine, 42)):
        result.refresh()
        assert result.return_value == value
    assert ArchivedMessage.objects.filter(task=sample.echo.module_path).exists()


def test_check_finds_nothing_wrong() -> None:
    assert list(default_backend().check()) == []
    assert list(task_backends["patient"].check()) == []


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"QUEUES": ["two words"]}, "two words"),
        ({"OPTIONS": {"retries": 3}}, "retries"),
        ({"OPTIONS": {"key": "k"}}, "key"),
        ({"OPTIONS": {"ttr": 0}}, "ttr"),
        ({"OPTIONS": {"backoff": "x"}}, "backoff"),
    ],
)
def test_check_names_what_is_wrong(params: dict[str, Any], words: str) -> None:
    (error,) = DelayqBackend("default", {"BACKEND": BACKEND, **params}).check()
    assert error.id == "delayq.E008"
    assert words in error.msg


def run_in(settings_module: str, code: str) -> str:
    """What the code writes in a process of a project with these settings."""
    done = subprocess.run(
        [sys.executable, "-c", f"import django, sys; django.setup()\n{code}"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": settings_module},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_project_without_tasks_imports_nothing_of_them() -> None:
    code = (
        "import django_delayq.client.enqueue\n"
        "print([m for m in sys.modules if 'django_tasks' in m or 'delayq.integrations' in m])"
    )
    assert run_in("tests.settings", code) == "[]"


def test_worker_of_a_project_knows_the_queues_before_any_task_is_imported() -> None:
    code = (
        "from django_delayq.tasks import registry\n"
        "print('only-in-the-settings' in registry.known_topics(), len(registry.finders))"
    )
    assert run_in("tests.integrations.settings", code) == "True 1"


# In a project's tests


def test_the_queue_under_test_takes_tasks_of_django(sample: Any, db: None) -> None:
    default_backend()  # the worker and the kit ask it for tasks that nobody has enqueued
    with QueueUnderTest() as queue:
        queue.refute_enqueued(sample.noop)
        result = sample.noop.enqueue(7)
        queue.assert_enqueued(sample.noop, args=[7])
        queue.fail_next(OSError, task=sample.bare)
        assert queue.run_due().of(sample.noop).outcomes == ["acked"]
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL
        sample.bare.enqueue()
        (run,) = queue.run_due().of(sample.bare)
        assert isinstance(run.error, OSError)


@with_options
def test_isolated_task_runs_in_a_child_process(
    sample: Any, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.integrations.settings")
    executor = Executor(hands.shared, hands.settler.put, isolate=Isolation)
    result = sample.apart.enqueue(7)
    for lease in hands.claim():
        executor.run(lease)
    executor.stop_children()
    hands.settler.run_once()
    result.refresh()
    pid, attempt, value = result.return_value
    assert (attempt, value) == (1, 7) and pid != os.getpid()


@with_options
def test_coroutine_cannot_be_isolated(sample: Any) -> None:
    with pytest.raises(InvalidTask, match="isolate"):
        task(isolate=True)(sample.noop_async.func)
