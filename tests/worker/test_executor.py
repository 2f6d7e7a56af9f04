"""One message, one run, one outcome."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone, translation

import tests.app.tasks
from django_delayq import DelayQError, Retry, __version__, current_message, delayed_task
from django_delayq.core import connections, signals
from django_delayq.core.exceptions import RuntimeLimitExceeded, StoreUnavailable
from django_delayq.core.message import Attempts
from django_delayq.store import keys
from django_delayq.store.keys import Partition
from django_delayq.store.lease import Lease
from django_delayq.tasks import registry
from django_delayq.tasks.context import MessageFilter, running
from django_delayq.worker import executor as module
from django_delayq.worker.executor import Executor
from django_delayq.worker.outcome import Outcome, Result
from django_delayq.worker.shared import Shared
from tests.app.tasks import (
    act,
    act_async,
    close_order,
    look,
    look_async,
    noop,
    record,
    seen,
    wrongly_backed_off,
)
from tests.worker.conftest import Heard
from tests.worker.moving import LONG_AGO, pass_time, unformattable

Claim = Callable[..., Lease]
Run = Callable[[Lease], Outcome]
TABLE: list[tuple[str, Result, int | None, str]] = [
    ("return", Result.ACKED, None, ""),
    ("fail", Result.RETRIED, 7_000, "ValueError: it failed"),
    ("unworthy", Result.DEAD, None, "TypeError: a bug"),
    ("retry", Result.RETRIED, 7_000, "Retry: later"),
    ("retry-in", Result.RETRIED, 42_000, "Retry: "),
    (
        "retry-wrong",
        Result.DEAD,
        None,
        "Retry: ; and its delay failed: InvalidDelay: delay must be zero or more",
    ),
    ("snooze", Result.SNOOZED, 30_000, "Snooze: "),
    (
        "snooze-wrong",
        Result.DEAD,
        None,
        "and its delay failed: InvalidDelay: delay must be zero or more",
    ),
    ("reject", Result.DEAD, None, "no such order"),
    ("exit", Result.RETRIED, 7_000, "SystemExit: 3"),
    ("interrupt", Result.RETRIED, 7_000, "KeyboardInterrupt: "),
    ("mute", Result.RETRIED, 7_000, "Mute: its message cannot be shown"),
    ("surrogate", Result.RETRIED, 7_000, r"ValueError: half a character: \ud800"),
    ("cancelled", Result.RETRIED, 7_000, "CancelledError: "),
]


@pytest.fixture
def run(executor: Executor, outcomes: list[Outcome]) -> Run:
    """Runs a lease as the pool or the event loop would; gives its outcome."""

    def run_lease(lease: Lease) -> Outcome:
        task = registry.by_code.get(lease.record[19:23])
        if task is not None and task.definition.is_async:
            asyncio.run(executor.run_async(lease))
        else:
            left: list[Lease | None] = []
            thread = threading.Thread(
                target=lambda: (executor.run(lease), left.append(running.get()))
            )
            thread.start()
            thread.join(20)
            assert left == [None]
        assert outcomes[-1].lease is lease
        return outcomes.pop()

    return run_lease


def with_attempts(lease: Lease, attempt: int, crashes: int = 0) -> Lease:
    """As if it were a later run."""
    lease.entry = attempt.to_bytes(2, "big") + crashes.to_bytes(2, "big") + lease.entry[4:]
    return lease


# Every way to end


@pytest.mark.parametrize("task", [act, act_async], ids=["def", "async def"])
@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_outcome(
    claim: Claim, run: Run, task: Any, row: tuple[str, Result, int | None, str]
) -> None:
    mode, result, delay_ms, reason = row
    outcome = run(claim(task, mode))
    assert (outcome.result, outcome.delay_ms) == (result, delay_ms)
    assert outcome.text == reason or (len(reason) > 30 and reason in outcome.text)
    assert outcome.task is task


@pytest.mark.parametrize(("attempt", "delay_ms"), [(1, 7_000), (2, 70_000)])
def test_backoff_grows_with_the_failures(
    claim: Claim, run: Run, attempt: int, delay_ms: int
) -> None:
    assert run(with_attempts(claim(act, "fail"), attempt)).delay_ms == delay_ms


@pytest.mark.parametrize("mode", ["fail", "retry", "retry-in", "exit", "mute"])
def test_last_attempt_ends_dead(claim: Claim, run: Run, mode: str) -> None:
    outcome = run(with_attempts(claim(act, mode), 3))
    assert (outcome.result, outcome.delay_ms) == (Result.DEAD, None)


def test_snooze_is_no_attempt(claim: Claim, run: Run) -> None:
    assert run(with_attempts(claim(act, "snooze"), 3)).result is Result.SNOOZED


def test_crashes_are_no_failures(claim: Claim, run: Run) -> None:
    outcome = run(with_attempts(claim(act, "fail"), 4, crashes=2))
    assert (outcome.result, outcome.delay_ms) == (Result.RETRIED, 70_000)
    assert run(with_attempts(claim(act, "fail"), 5, crashes=2)).result is Result.DEAD


@pytest.mark.parametrize(("max_attempts", "result"), [(1, Result.DEAD), (2, Result.RETRIED)])
def test_max_attempts_of_one_message(
    claim: Claim, run: Run, max_attempts: int, result: Result
) -> None:
    assert run(claim(act.using(max_attempts=max_attempts), "fail")).result is result


def test_max_attempts_of_one_message_may_be_more(claim: Claim, run: Run) -> None:
    assert run(with_attempts(claim(act.using(max_attempts=9), "fail"), 8)).result is Result.RETRIED


def test_backoff_that_fails_ends_dead_and_says_both(claim: Claim, run: Run) -> None:
    outcome = run(claim(wrongly_backed_off))
    assert outcome.result is Result.DEAD
    assert outcome.text.startswith("ValueError: it failed; and its delay failed: ZeroDivisionError")


def test_failure_has_its_traceback(claim: Claim, run: Run) -> None:
    assert 'ValueError("it failed")' in run(claim(act, "fail")).traceback
    assert run(claim(act, "reject")).traceback == ""


@pytest.mark.parametrize(
    ("mode", "told"),
    [("fail", ValueError), ("retry", Retry), ("reject", None), ("snooze", None)],
)
def test_what_a_failed_attempt_raised_is_told_from_the_first_time_on(
    claim: Claim, run: Run, shared: Shared, mode: str, told: type[Exception] | None
) -> None:
    error = run(claim(act, mode)).event(shared.clock).error
    assert error is None if told is None else type(error) is told and error.__traceback__


def test_reason_and_traceback_are_bounded(claim: Claim, run: Run) -> None:
    outcome = run(claim(act, "long"))
    assert len(outcome.error_message) == module.MAX_REASON
    assert len(outcome.traceback) == module.MAX_TRACEBACK


@pytest.mark.parametrize("mode", ["surrogate", "mute", "long"])
def test_whatever_a_failure_says_can_be_stored(claim: Claim, run: Run, mode: str) -> None:
    outcome = run(claim(act, mode))
    assert (outcome.text + outcome.traceback).encode()


def test_own_log_lines_of_a_task_say_which_message_runs(
    claim: Claim, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(only := MessageFilter())
    try:
        logging.getLogger("project").warning("outside")
        lease = claim(look)
        run(lease)
    finally:
        caplog.handler.removeFilter(only)
    said = [
        (r.delayq_id, r.delayq_task, r.delayq_attempt)
        for r in caplog.records
        if r.name == "project"
    ]  # type: ignore[attr-defined]
    assert said == [("", "", ""), (lease.id.hex(), "tests.app.tasks.look", 1)]


# What cannot run


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this worker had older code."""
    monkeypatch.setattr(registry, "by_code", {})


def test_unknown_task_waits_for_a_worker_that_knows_it(
    claim: Claim, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = claim(noop)
    forget(monkeypatch)
    outcome = run(lease)
    assert (outcome.result, outcome.delay_ms, outcome.task_name) == (
        Result.PUT_OFF,
        5_000,
        noop.name,
    )
    what = (
        "No task of this name is declared here. The record: version 1; this worker: django-delayq"
    )
    assert outcome.reason.startswith(f"unknown_task: {what} {__version__}, records of version 1")


def claimed_long_ago(lease: Lease) -> Lease:
    """As if the message had been claimed for the first time eleven minutes ago."""
    since = lease.attempts.first_claimed_at_ms - 660_000
    return with_entry(lease, lease.entry[:10] + since.to_bytes(6, "big") + lease.entry[16:])


def put_off_for(lease: Lease, seconds: float) -> Lease:
    """As if a worker whose code cannot run it had met it so many seconds ago."""
    since = int(lease.attempts.first_claimed_at_ms - seconds * 1000)
    return with_entry(lease, lease.entry[:32] + since.to_bytes(6, "big") + lease.entry[38:])


def with_entry(lease: Lease, entry: bytes) -> Lease:
    """As if the partition had remembered this of the message."""
    return Lease(lease.partition, lease.id, lease.record, entry, lease.claimed_at)


def outdated(lease: Lease, how: str, monkeypatch: pytest.MonkeyPatch) -> Lease:
    """As if the message came from other code than this worker's."""
    if how == "unknown_task":
        forget(monkeypatch)
    elif how == "bad_args":
        lease.record = lease.record[:19] + close_order.definition.code + lease.record[23:]
    else:
        lease.record = lease.record[:14] + bytes([0x21]) + lease.record[15:]
    return lease


every_misfit = pytest.mark.parametrize("how", ["unknown_task", "bad_args", "undecodable"])


@every_misfit
def test_what_other_code_may_run_waits_from_the_first_meeting_on(
    claim: Claim, run: Run, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Whenever it was claimed first: a retry or a snoozed one may have been, long ago."""
    assert (
        run(outdated(claimed_long_ago(claim(noop, 1, 2, 3)), how, monkeypatch)).result
        is Result.PUT_OFF
    )
    assert seen == []


@every_misfit
def test_what_nobody_can_run_is_dead_when_the_grace_is_over(
    claim: Claim, run: Run, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    assert (
        run(outdated(put_off_for(claim(noop, 1, 2, 3), 590), how, monkeypatch)).result
        is Result.PUT_OFF
    )
    outcome = run(outdated(put_off_for(claim(noop, 1, 2, 3), 601), how, monkeypatch))
    assert (outcome.result, outcome.reason) == (Result.DEAD, how)


@pytest.mark.parametrize(
    ("seconds", "delay_ms"), [(0, 5_000), (40, 10_000), (300, 15_000), (595, 5_000)]
)
def test_a_message_that_is_put_off_is_met_less_and_less_often(
    claim: Claim, run: Run, monkeypatch: pytest.MonkeyPatch, seconds: float, delay_ms: int
) -> None:
    outcome = run(outdated(put_off_for(claim(noop), seconds), "unknown_task", monkeypatch))
    assert outcome.delay_ms == pytest.approx(delay_ms, abs=500)


def test_name_that_nobody_has_told_is_not_looked_up_for_ever(
    claim: Claim, run: Run, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [claim(noop), claim(noop)]
    forget(monkeypatch)
    with monkeypatch.context() as context:
        context.setattr(shared.store.queries, "task_name", mock.Mock(side_effect=StoreUnavailable))
        assert run(leases[0]).task_name == ""
    assert run(leases[0]).task_name == noop.name
    monkeypatch.setattr(
        shared.store.queries, "task_name", mock.Mock(side_effect=AssertionError("asked again"))
    )
    assert run(leases[1]).task_name == noop.name


def test_message_never_causes_an_import(
    claim: Claim, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = claim(noop)
    forget(monkeypatch)
    with mock.patch("builtins.__import__", wraps=__import__) as imports:
        assert run(lease).result is Result.PUT_OFF
    assert not [
        call.args[0] for call in imports.call_args_list if str(call.args[0]).startswith("tests")
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: b"",
        lambda record: record[:10],
        lambda record: record[:23],
        lambda record: record[:-1],
        lambda record: record[:23] + b"\x80\x04}.",
        lambda record: record[:23] + b'{"args":{}}',
        lambda record: record[:23] + b"5",
        lambda record: record[:14] + bytes([record[14] | 0b100]) + record[15:],
        lambda record: record[:14] + bytes([0x01]) + record[15:],
    ],
    ids=[
        "empty",
        "cut header",
        "no body",
        "cut body",
        "pickle",
        "wrong type",
        "number",
        "not compressed",
        "version 0",
    ],
)
def test_undecodable_message_is_dead_with_the_reason(
    claim: Claim, run: Run, damage: Callable[[bytes], bytes]
) -> None:
    lease = claim(record, "x")
    lease.record = damage(lease.record)
    outcome = run(lease)
    assert outcome.result is Result.DEAD
    assert outcome.reason == "undecodable"
    assert seen == []


def test_compressed_bomb_is_undecodable(claim: Claim, run: Run) -> None:
    import zlib

    lease = claim(record, "x")
    bomb = zlib.compress(b'["' + b"x" * 3_000_000 + b'"]', 9)
    lease.record = (
        lease.record[:14] + bytes([lease.record[14] | 0b100]) + lease.record[15:23] + bomb
    )
    assert "larger than 1048576" in run(lease).error_message


def test_arguments_that_no_longer_bind_are_dead_with_what_is_wrong(
    claim: Claim, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run(outdated(put_off_for(claim(noop, 1, 2, 3), 601), "bad_args", monkeypatch))
    assert outcome.result is Result.DEAD
    assert outcome.text.startswith("InvalidArguments: tests.app.tasks.close_order(order_id")
    assert seen == []


# Around the task


def test_task_gets_its_arguments(claim: Claim, run: Run) -> None:
    run(claim(close_order, 5, reason="stock"))
    assert seen == [(5, "stock")]


@pytest.mark.parametrize("task", [look, look_async], ids=["def", "async def"])
def test_task_sees_its_own_message(claim: Claim, run: Run, task: Any) -> None:
    lease = claim(task.using(key="k", headers={"trace": "t"}, priority="high"))
    run(with_attempts(lease, 2))
    for message in seen:
        assert (message.id, message.key, message.topic) == (lease.id.hex(), "k", "default")
        assert (message.task, message.state, message.attempt) == (task.name, "leased", 2)
        assert (message.due_at, dict(message.headers)) == (LONG_AGO, {"trace": "t"})
        assert message.enqueued_at > LONG_AGO
        assert not message.lease_lost
        lease.lost = True
        assert message.lease_lost
        lease.lost = False
        pass_time(lease, 61)  # nobody has extended it: it overran max_runtime, or Redis is away
        assert message.lease_lost
        pass_time(lease, -61)
    assert len(seen) in (1, 2)


@pytest.mark.parametrize("task", [look, look_async], ids=["def", "async def"])
def test_message_is_current_only_while_its_task_runs(claim: Claim, run: Run, task: Any) -> None:
    run(claim(task))
    with pytest.raises(DelayQError, match="only while a worker runs a task"):
        current_message()


def test_coroutines_beside_each_other_see_their_own_messages(
    claim: Claim, executor: Executor, outcomes: list[Outcome]
) -> None:
    leases = [claim(look_async.using(key=f"k{n}")) for n in range(5)]

    async def beside() -> None:
        await asyncio.gather(*(executor.run_async(lease) for lease in leases))

    asyncio.run(beside())
    assert sorted(message.key for message in seen) == sorted([f"k{n}" for n in range(5)] * 2)


@pytest.mark.parametrize("mode", ["return", "fail", "exit"])
def test_old_connections_are_closed_after_every_task(claim: Claim, run: Run, mode: str) -> None:
    with mock.patch.object(module, "renew_all", return_value=False) as renew:
        run(claim(act, mode))
    assert renew.call_count == 1


def test_database_that_cannot_be_closed_says_nothing_about_the_task(claim: Claim, run: Run) -> None:
    error = OSError("the database is gone")
    with mock.patch.object(connections, "connections", **{"all.side_effect": error}):
        outcome = run(claim(act))
    assert outcome.result is Result.ACKED


def run_beside(executor: Executor, leases: list[Lease], beside: Any) -> None:
    """Runs `async def` tasks on one loop, and then what is given."""

    async def main() -> None:
        await asyncio.gather(*(executor.run_async(lease) for lease in leases))
        await beside()

    asyncio.run(main())


def test_old_connections_of_coroutines_are_closed_on_the_thread_that_has_them(
    claim: Claim, executor: Executor
) -> None:
    threads: list[threading.Thread] = []

    async def same_thread() -> None:
        threads.append(await sync_to_async(threading.current_thread)())

    with mock.patch.object(
        connections, "close_old_connections", lambda: threads.append(threading.current_thread())
    ):
        run_beside(executor, [claim(act_async), claim(act_async)], same_thread)
    assert len(threads) == 2 and threads[0] is threads[1]


def test_coroutine_does_not_wait_for_the_query_of_another(
    claim: Claim, executor: Executor, outcomes: list[Outcome]
) -> None:
    """All share one thread for what is not async."""
    free = threading.Event()

    async def main() -> None:
        query = asyncio.ensure_future(sync_to_async(free.wait)(10))
        await asyncio.sleep(0)
        for _ in range(3):
            executor._connections_checked_at -= 10
            await asyncio.wait_for(executor.run_async(claim(act_async)), 5)
        free.set()
        await query

    asyncio.run(main())
    assert [outcome.result for outcome in outcomes] == [Result.ACKED] * 3


def test_what_a_task_activates_ends_with_it(
    claim: Claim, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next task of the thread must not be in its language, its time zone or its context."""
    name: ContextVar[str] = ContextVar("name", default="nobody")

    def activate() -> None:
        translation.activate("de")
        timezone.activate("Asia/Tokyo")
        name.set("somebody")

    def look() -> None:
        seen.append((translation.get_language(), timezone.get_current_timezone_name(), name.get()))

    before = (translation.get_language(), timezone.get_current_timezone_name(), "nobody")
    for mode in (activate, look):
        monkeypatch.setitem(tests.app.tasks._MODES, "return", mode)
        executor.run(claim(act))
    assert seen == [before]


# What has not run although the call returned


async def coroutine() -> None:
    seen.append("ran")


def generator() -> Any:
    seen.append("ran")
    yield


async def async_generator() -> Any:
    seen.append("ran")
    yield


@pytest.mark.parametrize("unrun", [coroutine, generator, async_generator])
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
@pytest.mark.filterwarnings("error")
def test_call_that_returns_what_would_still_have_to_run_has_failed(
    claim: Claim, run: Run, declared: dict[str, Any], unrun: Callable[[], Any], is_async: bool
) -> None:
    """A plain decorator over `async def` does that, for example. Nothing ran: it must not be
    acked."""

    def call() -> Any:
        return unrun()

    async def call_async() -> Any:
        return unrun()

    task = delayed_task(name="unrun", max_attempts=1)(call_async if is_async else call)
    outcome = run(claim(task))
    assert (seen, outcome.result) == ([], Result.DEAD)
    assert outcome.text.startswith("TypeError: Nothing has run: unrun returned a")


# When the worker itself fails


def test_failure_that_cannot_be_formatted_is_a_failure_like_others(
    claim: Claim, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_template() -> None:
        raise unformattable()

    monkeypatch.setitem(tests.app.tasks._MODES, "fail", compile_template)
    outcome = run(claim(act.using(max_attempts=1), "fail"))
    assert (outcome.result, outcome.error_class) == (Result.DEAD, "SyntaxError")
    assert outcome.traceback == "its traceback cannot be shown"


@pytest.mark.parametrize("task", [act, act_async], ids=["def", "async def"])
@pytest.mark.parametrize(("attempt", "result"), [(1, Result.RETRIED), (5, Result.DEAD)])
def test_bug_of_the_worker_is_an_attempt(
    claim: Claim, run: Run, executor: Executor, *, task: Any, attempt: int, result: Result
) -> None:
    """Whatever is wrong, the thread goes on and the message is not held for ever."""
    with mock.patch.object(executor, "classify", side_effect=unformattable()):
        outcome = run(with_attempts(claim(task), attempt))
    assert (outcome.result, outcome.error_class) == (result, "SyntaxError")


def test_bug_of_the_worker_tells_nothing_that_is_hidden(
    claim: Claim, run: Run, executor: Executor, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": "tests.test_secret_places.hide"}
    error = ValueError("4111-2222-zyx is refused")
    with mock.patch.object(executor, "classify", side_effect=error):
        outcome = run(claim(noop, 7, "4111-2222-zyx"))
    assert outcome.error_class == "ValueError"
    for text in (outcome.error_message, caplog.text):
        assert "is refused" in text and "4111" not in text


def test_places_where_a_killed_run_hung_are_told_whatever_is_hidden(
    claim: Claim, run: Run, executor: Executor, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": "tests.test_secret_places.hide"}
    error = RuntimeLimitExceeded("4111-2222-zyx took more than a second")
    error.stack = 'File "shop/tasks.py", line 7 in charge'
    monkeypatch.setattr(executor, "_perform", lambda lease, resolved: error)
    outcome = run(claim(noop, 7, "4111-2222-zyx"))
    assert outcome.traceback == error.stack
    assert "took more than a second" in outcome.error_message
    assert "4111" not in outcome.error_message


def test_receiver_that_ends_the_program_does_not_end_the_thread(claim: Claim, run: Run) -> None:
    def leave(**kwargs: Any) -> None:
        raise SystemExit(3)

    signals.started.connect(leave)
    try:
        outcome = run(claim(act))
    finally:
        signals.started.disconnect(leave)
    assert (outcome.result, outcome.error_class) == (Result.RETRIED, "SystemExit")


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "not extended"])
def test_message_whose_lease_has_ended_is_not_begun(claim: Claim, run: Run, lost: bool) -> None:
    lease = claim(record, 1)
    lease.lost = lost
    if not lost:
        pass_time(lease, 61)
    assert run(lease).result is Result.RELEASED
    assert seen == []


def test_times_are_measured(claim: Claim, run: Run, shared: Shared) -> None:
    lease = claim(act)
    outcome = run(lease)
    assert lease.claimed_at <= lease.started_at <= outcome.ended_at
    event = outcome.event(shared.clock)
    assert 0 <= event.run_ms < 5_000
    assert event.lateness_ms > 1e11


def test_started_is_sent_only_when_somebody_listens(claim: Claim, run: Run, heard: Heard) -> None:
    lease = claim(act.using(key="k"))
    run(lease)
    (event,) = heard["started"]
    assert (event.id, event.task, event.key, event.attempt) == (
        lease.id.hex(),
        "tests.app.tasks.act",
        "k",
        1,
    )


def test_what_cannot_run_is_not_started(claim: Claim, run: Run, heard: Heard) -> None:
    lease = claim(act)
    lease.record = b""
    run(lease)
    assert heard["started"] == []
    assert lease.started_at == 0


def test_attempts_of_the_store_and_of_the_lease_are_the_same(claim: Claim, shared: Shared) -> None:
    lease = claim(act)
    raw = shared.store.client.command(
        "HGET", keys.partition_keys(shared.store.client.prefix, Partition("modes", 0))[5], lease.id
    )
    entry = Attempts.decode(raw)
    assert (entry.attempt, entry.crashes, entry.due_at_ms) == (
        lease.attempts.attempt,
        lease.attempts.crashes,
        lease.attempts.due_at_ms,
    )
    assert (entry.first_claimed_at_ms, entry.token) == (
        lease.attempts.first_claimed_at_ms,
        lease.token,
    )
