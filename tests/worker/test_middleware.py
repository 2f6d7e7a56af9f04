"""What surrounds each run: DELAYQ["MIDDLEWARE"], and the clean context that a run starts from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction
from django.utils import timezone, translation

from django_delayq import delayed_task
from django_delayq.archive import exactly_once
from django_delayq.core import signals
from django_delayq.core.exceptions import ConfigurationError
from django_delayq.models import ArchivedMessage
from django_delayq.store.lease import Lease
from django_delayq.worker.executor import Executor
from django_delayq.worker.outcome import Outcome, Result
from django_delayq.worker.shared import Shared
from tests.app.models import Counter
from tests.app.tasks import act, act_async, seen
from tests.worker.layers import built, noted, request_id
from tests.worker.moving import eventually

Claim = Callable[..., Lease]
WithLayers = Callable[..., Executor]
BOTH_KINDS = pytest.mark.parametrize("task", [act, act_async], ids=["def", "async def"])


@pytest.fixture(autouse=True)
def nothing_noted() -> Iterator[None]:
    noted.clear()
    built.clear()
    yield


@pytest.fixture
def with_layers(shared: Shared, outcomes: list[Outcome]) -> WithLayers:
    """Makes the executor of a process that has these middleware."""

    def make(*names: str, **changes: Any) -> Executor:
        paths = tuple(f"tests.worker.layers.{name}" for name in names)
        settings = replace(shared.settings, middleware=paths)
        return Executor(replace(shared, settings=settings, **changes), outcomes.append)

    return make


def run(executor: Executor, *leases: Lease, is_async: bool) -> None:
    """Run all on this thread, one after the other, or beside each other on one loop."""
    if not is_async:
        for lease in leases:
            executor.run(lease)
        return

    async def beside() -> None:
        await asyncio.gather(*(executor.run_async(lease) for lease in leases))

    asyncio.run(beside())


def is_async(task: Any) -> bool:
    return bool(task.definition.is_async)


@BOTH_KINDS
def test_the_first_middleware_is_the_outermost_and_each_kind_of_task_has_both_kinds(
    with_layers: WithLayers, claim: Claim, outcomes: list[Outcome], task: Any
) -> None:
    for names in (["sync_layer", "async_layer"], ["async_layer", "sync_layer"]):
        lease = claim(task)
        noted.clear()
        run(with_layers(*names), lease, is_async=is_async(task))
        words = [word.replace("_layer", "") for word in names]
        expected = [f"{words[0]} in", f"{words[1]} in", f"{words[1]} out", f"{words[0]} out"]
        assert [word for word, _ in noted] == expected
        assert {name for word, name in noted if word.endswith("in")} == {lease.id.hex()}
    assert [outcome.result for outcome in outcomes] == [Result.ACKED] * 2


@BOTH_KINDS
def test_they_are_built_once_per_process_and_not_per_message(
    with_layers: WithLayers, claim: Claim, task: Any
) -> None:
    executor = with_layers("sync_layer")
    run(executor, *(claim(task) for _ in range(3)), is_async=is_async(task))
    assert built == ["sync", "sync"]  # one chain for `def` tasks, one for `async def` tasks
    assert len(noted) == 6


def test_middleware_that_is_not_used_is_left_out(
    with_layers: WithLayers, claim: Claim, outcomes: list[Outcome]
) -> None:
    run(with_layers("unused", "sync_layer"), claim(act), is_async=False)
    assert [word for word, _ in noted] == ["sync in", "sync out"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", "it cannot be imported"),
        ("number", "is no class or function"),
        ("nothing", "it returned None"),
        ("forgets_to_say", "is async and does not say so"),
        ("Neither", "sync_capable or its async_capable"),
    ],
)
def test_what_is_no_middleware_is_refused_when_the_worker_starts(
    with_layers: WithLayers, name: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        with_layers(name)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_the_task_sees_what_a_middleware_has_set(
    with_layers: WithLayers, claim: Claim, declared: dict[str, Any], kind: str
) -> None:
    def call() -> None:
        seen.append((request_id.get(), translation.get_language()))

    async def call_async() -> None:
        call()
        await sync_to_async(call)()

    task = delayed_task(name="looks")(call if kind == "def" else call_async)
    lease = claim(task.using(headers={"request-id": "r-7", "language": "de"}))
    run(with_layers("both"), lease, is_async=is_async(task))
    assert set(seen) == {("r-7", "de")}


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_the_result_is_what_the_task_returned_whatever_a_middleware_returns(
    with_layers: WithLayers, claim: Claim, declared: dict[str, Any], kind: str
) -> None:
    def call() -> int:
        return 42

    async def call_async() -> int:
        return 42

    task = delayed_task(name="returns", result=True)(call if kind == "def" else call_async)
    lease = claim(task)
    run(with_layers("returns_nothing"), lease, is_async=is_async(task))
    assert lease.report is not None and lease.report.result == b"42"


# Errors


@BOTH_KINDS
@pytest.mark.parametrize("name", ["fails_before", "fails_after"])
def test_error_of_a_middleware_is_a_failed_attempt_that_is_tried_again(
    with_layers: WithLayers, claim: Claim, outcomes: list[Outcome], task: Any, name: str
) -> None:
    """Also when the task's own retry_for does not name it."""
    run(with_layers(name), claim(task), is_async=is_async(task))
    (outcome,) = outcomes
    assert (outcome.result, outcome.delay_ms) == (Result.RETRIED, 7_000)
    assert outcome.text.startswith("MiddlewareFailed: TenantAway: ")
    assert "in layer" in outcome.traceback


@BOTH_KINDS
def test_error_of_the_task_passes_unchanged(
    with_layers: WithLayers, claim: Claim, outcomes: list[Outcome], task: Any
) -> None:
    executor = with_layers("sync_layer", "async_layer")
    run(executor, claim(task, "unworthy"), is_async=is_async(task))
    run(executor, claim(task, "reject"), is_async=is_async(task))
    assert [(outcome.result, outcome.text) for outcome in outcomes] == [
        (Result.DEAD, "TypeError: a bug"),
        (Result.DEAD, "no such order"),
    ]


@BOTH_KINDS
def test_middleware_may_put_a_message_off(
    with_layers: WithLayers, claim: Claim, outcomes: list[Outcome], task: Any
) -> None:
    run(with_layers("puts_off"), claim(task), is_async=is_async(task))
    assert (outcomes[0].result, outcomes[0].delay_ms) == (Result.SNOOZED, 30_000)


def test_middleware_that_exits_does_not_end_the_thread(
    with_layers: WithLayers, claim: Claim, outcomes: list[Outcome]
) -> None:
    run(with_layers("exits"), claim(act), is_async=False)
    assert (outcomes[0].result, outcomes[0].error_class) == (Result.RETRIED, "SystemExit")


# Coroutines with a sync middleware


def test_sync_middleware_does_not_make_coroutines_wait_for_each_other(
    with_layers: WithLayers, claim: Claim, declared: dict[str, Any], outcomes: list[Outcome]
) -> None:
    arrived: list[int] = []

    @delayed_task(name="meets")
    async def meet() -> None:
        arrived.append(1)
        while len(arrived) < 4:
            await asyncio.sleep(0.001)
        await sync_to_async(arrived.append)(1)  # a thread is free for it

    leases = [claim(meet) for _ in range(4)]
    executor = with_layers("sync_layer")

    async def beside() -> None:
        runs = asyncio.gather(*(executor.run_async(lease) for lease in leases))
        await asyncio.wait_for(runs, 10)

    asyncio.run(beside())
    assert [outcome.result for outcome in outcomes] == [Result.ACKED] * 4
    assert len({thread for word, thread in noted if word == "sync out"}) >= 1


def test_coroutine_in_a_sync_middleware_can_be_cancelled(
    with_layers: WithLayers, claim: Claim, declared: dict[str, Any], outcomes: list[Outcome]
) -> None:
    @delayed_task(name="sleeps")
    async def sleep() -> None:
        seen.append("begun")
        try:
            await asyncio.sleep(20)
        finally:
            seen.append("ended")

    executor, lease = with_layers("sync_layer"), claim(sleep)

    async def cancel() -> None:
        task = asyncio.ensure_future(executor.run_async(lease))
        while not seen:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait_for(task, 10)

    asyncio.run(cancel())
    assert seen == ["begun", "ended"]
    assert (outcomes[0].result, outcomes[0].error_class) == (
        Result.RETRIED,
        "asyncio.exceptions.CancelledError",
    )


# With exactly_once


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["sync_layer", "fails_after"])
def test_exactly_once_commits_a_run_with_its_middleware_or_not_at_all(
    with_layers: WithLayers,
    claim: Claim,
    declared: dict[str, Any],
    outcomes: list[Outcome],
    name: str,
) -> None:
    @delayed_task(name="counts", exactly_once=True)
    def count() -> None:
        seen.append(transaction.get_connection().in_atomic_block)
        Counter.objects.create(name="ran")

    executor = with_layers(name, perform_once=exactly_once.perform)
    run(executor, claim(count), is_async=False)
    is_whole = name == "sync_layer"
    assert seen == [True]
    assert outcomes[0].result is (Result.ACKED if is_whole else Result.RETRIED)
    assert Counter.objects.count() == ArchivedMessage.objects.count() == is_whole


# Each run starts from a clean context


CLEAN = ("none", "en-us")


@pytest.mark.parametrize("layer", ["Leaves", "LeavesAsync"])
@BOTH_KINDS
def test_nothing_that_a_middleware_leaves_reaches_the_next_run(
    with_layers: WithLayers, claim: Claim, task: Any, layer: str
) -> None:
    run(with_layers(layer), *(claim(task) for _ in range(3)), is_async=is_async(task))
    assert noted == [CLEAN] * 3


@pytest.mark.django_db(transaction=True)
def test_nothing_that_an_exactly_once_task_leaves_reaches_the_next_run(
    with_layers: WithLayers, claim: Claim, declared: dict[str, Any]
) -> None:
    @delayed_task(name="leaves", exactly_once=True)
    def leave() -> None:
        translation.activate("de")

    executor = with_layers("Leaves", perform_once=exactly_once.perform)
    run(executor, *(claim(leave) for _ in range(2)), is_async=False)
    assert noted == [CLEAN] * 2


def test_nothing_that_a_receiver_of_started_leaves_reaches_the_next_run(
    with_layers: WithLayers, claim: Claim, declared: dict[str, Any]
) -> None:
    @delayed_task(name="looks")
    def look() -> None:
        seen.append(request_id.get())

    def receive(**kwargs: Any) -> None:
        seen.append(request_id.get())
        request_id.set("of the receiver")

    executor = with_layers()
    signals.started.connect(receive)
    try:
        run(executor, claim(look), claim(look), is_async=False)
    finally:
        signals.started.disconnect(receive)
    assert seen == ["none", "of the receiver"] * 2


@pytest.fixture
def leaving(declared: dict[str, Any]) -> dict[str, Any]:
    """Tasks of each kind that say what they find, and leave something behind. The thread that a
    coroutine borrows for blocking calls is asked too."""

    def find_and_leave() -> None:
        name = timezone.get_current_timezone_name()
        seen.append((request_id.get(), translation.get_language(), name))
        request_id.set("of another")
        translation.activate("de")
        timezone.activate("Asia/Tokyo")

    async def find_and_leave_async() -> None:
        find_and_leave()

    async def borrow() -> None:
        await sync_to_async(find_and_leave)()

    return {
        "threads": delayed_task(name="thread", topic="modes")(find_and_leave),
        "coroutines": delayed_task(name="coroutine", topic="modes")(find_and_leave_async),
        "borrowed threads": delayed_task(name="borrows", topic="modes")(borrow),
    }


@pytest.mark.parametrize("kind", ["threads", "coroutines", "borrowed threads"])
def test_a_worker_gives_each_run_a_clean_context(
    work: Callable[..., Any], leaving: dict[str, Any], kind: str
) -> None:
    worker = work(concurrency=1, topics=("modes",))
    for _ in range(3):
        leaving[kind].enqueue()
    eventually(lambda: worker.settled[Result.ACKED] == 3)
    assert set(seen) == {("none", "en-us", timezone.get_default_timezone_name())}
    assert len(seen) == 3


def test_a_coroutine_inherits_nothing_from_the_thread_that_feeds_the_loop(
    work: Callable[..., Any], leaving: dict[str, Any], claim: Claim
) -> None:
    worker = work(topics=("orders",))
    lease = claim(leaving["coroutines"])
    token = request_id.set("of the dispatcher")
    try:
        worker.event_loop.feed([lease])
    finally:
        request_id.reset(token)
    eventually(lambda: seen)
    assert seen[0][0] == "none"
