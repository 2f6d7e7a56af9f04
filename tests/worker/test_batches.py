"""Batch tasks: many messages in one call, and each with an end of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction

from django_delayq import Batch, Reject, Retry, Snooze, delayed_task
from django_delayq.archive import archive_rows, exactly_once
from django_delayq.core.connections import note_connections
from django_delayq.store.keys import Partition
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from django_delayq.tasks import registry
from django_delayq.worker.batches.batch_executor import BatchExecutor, Gathered
from django_delayq.worker.batches.calls import MOST_ALONE, Calls
from django_delayq.worker.executor import Executor
from django_delayq.worker.outcome import Outcome, Result
from django_delayq.worker.shared import Shared
from django_delayq.worker.worker import Worker
from tests.app import batch_tasks
from tests.app.batch_tasks import (
    calls,
    count_many,
    gather,
    gather_async,
    gather_few,
    then,
)
from tests.app.models import Counter
from tests.app.tasks import record, seen
from tests.hands import rows, together
from tests.worker.conftest import Heard
from tests.worker.moving import LONG_AGO, eventually

Work = Callable[..., Worker]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    calls.clear()
    then.clear()
    yield
    then.clear()


def due(task: Any, *values: Any) -> list[Any]:
    return list(task.using(due_at=LONG_AGO).enqueue_many([(value,) for value in values]))


@pytest.fixture
def run(
    shared: Shared, executor: Executor, outcomes: list[Outcome]
) -> Callable[..., dict[int, Outcome]]:
    """Claims what is due of the task and runs it in one batch; the outcomes by argument."""

    def run_batch(task: Any, *values: Any) -> dict[Any, Outcome]:
        handles = due(task, *values)
        leases: list[Lease] = []
        while claimed := shared.store.claim(Partition(task.options.topic, 0), 500).leases:
            leases += claimed
        gathered = Gathered(task, 0.0)
        by_id = {lease.id: lease for lease in leases}
        gathered.leases = [by_id[handle.identity] for handle in handles]
        BatchExecutor(shared, executor, outcomes.extend).run(gathered)
        named = dict(zip([handle.identity for handle in handles], values, strict=True))
        return {named[outcome.lease.id]: outcome for outcome in outcomes}

    return run_batch


Run = Callable[..., dict[Any, Outcome]]


def test_one_call_gets_all_and_each_is_acked(run: Run) -> None:
    ended = run(gather, 1, 2, 3)
    assert calls == [[1, 2, 3]]
    assert [outcome.result for outcome in ended.values()] == [Result.ACKED] * 3


def test_message_shows_what_the_task_asks(run: Run) -> None:
    shown: list[Any] = []
    then.append(
        lambda messages: shown.extend(
            (m.args, m.kwargs, m.key, m.attempt, dict(m.headers), m.topic, m.lease_lost)
            for m in messages
        )
    )
    run(gather.using(key="k", headers={"tenant": "7"}), 1)
    assert shown == [((1,), {}, "k", 1, {"tenant": "7"}, "gathers", False)]


def test_function_decides_about_single_messages(run: Run) -> None:
    def decide(messages: Batch[Any]) -> None:
        messages[0].retry("not yet", delay=7)
        messages[1].snooze(60)
        messages[2].reject("no such order")

    then.append(decide)
    ended = run(gather, 1, 2, 3, 4)
    assert [outcome.result.name for outcome in ended.values()] == [
        "RETRIED", "SNOOZED", "DEAD", "ACKED",
    ]  # fmt: skip
    assert (ended[1].delay_ms, ended[1].error_message) == (7000, "not yet")
    assert ended[2].delay_ms == 60_000
    assert ended[3].reason == "no such order"


def test_message_whose_end_cannot_be_told_does_not_make_the_others_run_again(
    run: Run, declared: dict[str, Any]
) -> None:
    def ends_the_program(failures: int) -> float:
        raise SystemExit(f"after {failures}")

    @delayed_task(name="tests.ends", topic="gathers", batch=500, backoff=ends_the_program)
    def ends(messages: Batch[int]) -> None:
        messages[1].retry("not yet")

    ended = run(ends, 1, 2, 3)
    assert [outcome.result.name for outcome in ended.values()] == ["ACKED", "RETRIED", "ACKED"]
    assert ended[2].text == "SystemExit: after 1"


@pytest.mark.parametrize("where", [0, 249, 499])
def test_one_poison_of_500_is_found_by_halves(run: Run, where: int) -> None:
    def fail(messages: Batch[Any]) -> None:
        if any(message.args[0] == where for message in messages):
            raise ValueError(f"order {where} is broken")

    then.append(fail)
    ended = run(gather, *range(500))
    bad = ended.pop(where)
    assert bad.result is Result.RETRIED
    assert bad.error_message == f"order {where} is broken"
    assert {outcome.result for outcome in ended.values()} == {Result.ACKED}
    runs = [sum(value in call for call in calls) for value in range(500)]
    assert max(runs) <= 10
    assert sum(runs) <= 2 * (500 + 500)
    assert {outcome.lease.attempts.attempt for outcome in ended.values()} == {1}


def test_what_an_earlier_call_has_said_does_not_count(run: Run) -> None:
    def reject_and_fail(messages: Batch[Any]) -> None:
        if len(messages) > 1:
            messages[0].reject("of a call that failed")
            raise ValueError

    then.append(reject_and_fail)
    assert [outcome.result for outcome in run(gather, 1, 2).values()] == [Result.ACKED] * 2


def test_when_all_fail_most_are_not_called_alone(run: Run) -> None:
    def fail(messages: Batch[Any]) -> None:
        raise ConnectionError("the database is away")

    then.append(fail)
    ended = run(gather, *range(500))
    assert {outcome.result for outcome in ended.values()} == {Result.RETRIED}
    assert len(calls) < 40
    assert sum(len(call) == 1 for call in calls) <= MOST_ALONE + 1


@pytest.mark.parametrize(
    ("error", "result"), [(Snooze(60), Result.SNOOZED), (Retry("later"), Result.RETRIED)]
)
def test_what_a_task_raises_about_itself_is_about_all(
    run: Run, error: Exception, result: Result
) -> None:
    def stop(messages: Batch[Any]) -> None:
        messages[0].reject("known before")
        raise error

    then.append(stop)
    ended = run(gather, 1, 2, 3)
    assert [outcome.result for outcome in ended.values()] == [Result.DEAD, result, result]
    assert len(calls) == 1


def test_message_whose_lease_has_ended_is_not_called(run: Run, shared: Shared) -> None:
    def lose(messages: Batch[Any]) -> None:
        if len(messages) > 1:
            messages[0]._lease.lost = True
            raise ValueError

    then.append(lose)
    ended = run(gather, 1, 2)
    assert calls == [[1, 2], [2]]
    assert [outcome.result for outcome in ended.values()] == [Result.RELEASED, Result.ACKED]


def test_message_that_does_not_fit_does_not_stop_the_others(run: Run, shared: Shared) -> None:
    handles = due(gather, 0)
    shared.store.client.redis.hset(
        f"{shared.store.client.prefix}:{{gathers:0}}:messages",
        handles[0].identity,
        shared.store.client.redis.hget(
            f"{shared.store.client.prefix}:{{gathers:0}}:messages", handles[0].identity
        )[:-2],
    )
    (damaged,) = shared.store.claim(Partition("gathers", 0), 1).leases
    ended: list[Outcome] = []
    good = due(gather, 1)
    (lease,) = shared.store.claim(Partition("gathers", 0), 1).leases
    gathered = Gathered(gather, 0.0)
    gathered.leases = [damaged, lease]
    BatchExecutor(shared, Executor(shared, ended.append), ended.extend).run(gathered)
    assert [outcome.result for outcome in ended] == [Result.DEAD, Result.ACKED]
    assert [outcome.reason for outcome in ended] == ["undecodable", ""]
    assert good[0].identity == lease.id


def test_results_are_kept_per_message(run: Run) -> None:
    ended = run(gather_few, 1, 2)
    assert [outcome.lease.report.result for outcome in ended.values()] == [b"2", b"4"]  # type: ignore[union-attr]


@pytest.mark.django_db(transaction=True)
def test_call_that_leaves_a_block_open_has_failed_and_those_without_it_are_kept(
    run: Run, declared: dict[str, Any]
) -> None:
    """What it wrote is undone: none of its messages is done."""

    @delayed_task(name="leave_open", topic="gathers", batch=500, max_attempts=1)
    def leave_open(batch: Batch) -> None:
        if 3 in [message.args[0] for message in batch]:
            transaction.atomic().__enter__()
        for message in batch:
            Counter.objects.create(name=str(message.args[0]))

    ended: dict[Any, Outcome] = {}

    def work() -> None:
        note_connections()
        ended.update(run(leave_open, 1, 2, 3, 4))

    together(work)
    assert {value: outcome.result for value, outcome in ended.items()} == {
        1: Result.ACKED, 2: Result.ACKED, 3: Result.DEAD, 4: Result.ACKED,
    }  # fmt: skip
    assert sorted(Counter.objects.values_list("name", flat=True)) == ["1", "2", "4"]


def test_parts_are_halved_until_they_are_alone() -> None:
    parts: Calls[int] = Calls(range(4))
    assert list(parts.take()) == [0, 1, 2, 3]
    assert parts.split(range(4))
    assert list(parts.take()) == [0, 1]
    assert list(parts.take()) == [2, 3]
    assert not parts.split([2])
    assert not parts.take()


# A whole worker


def test_worker_fills_batches_and_lingers_for_the_rest(
    work: Work, delayq: RedisStore, heard: Heard
) -> None:
    due(gather, *range(1200))
    due(gather_few, *range(3))
    due(record, "beside them")
    worker = work()
    eventually(lambda: worker.settled[Result.ACKED] == 1204)
    assert sorted(value for call in calls for value in call) == sorted([*range(1200), 0, 1, 2])
    assert len(calls) <= 8
    assert seen == ["beside them"]
    assert len(heard["started"]) == len(heard["acked"]) == 1204
    assert not worker.shared.held


def test_lone_message_waits_for_its_linger_only(work: Work, delayq: RedisStore) -> None:
    worker = work()
    eventually(lambda: worker.ready)
    begun = time.monotonic()
    gather.enqueue(1)
    eventually(lambda: calls == [[1]])
    assert 0.04 < time.monotonic() - begun < 1


def test_coroutines_get_batches_too(work: Work, delayq: RedisStore) -> None:
    due(gather_async, *range(600))
    worker = work()
    eventually(lambda: worker.settled[Result.ACKED] == 600)
    assert sorted(value for call in calls for value in call) == list(range(600))


def test_coroutine_that_runs_too_long_is_cancelled(work: Work, delayq: RedisStore) -> None:
    due(gather_async, -1, 5)
    worker = work()
    eventually(lambda: worker.settled[Result.RETRIED] == 2, 10)
    assert sorted(calls[0]) == [-1, 5]


@pytest.fixture
def held() -> Iterator[Callable[[], list[Batch[Any]]]]:
    """Makes each call wait, until the test has called it: the batches that run."""
    begun: list[Batch[Any]] = []
    go_on = threading.Event()

    def wait(messages: Batch[Any]) -> None:
        begun.append(messages)
        go_on.wait(20)

    def release() -> list[Batch[Any]]:
        go_on.set()
        return begun

    then.append(wait)
    yield release
    go_on.set()


@pytest.mark.django_db(transaction=True)
def test_message_that_is_cancelled_while_its_batch_runs_is_not_acked(
    work: Work, delayq: RedisStore, heard: Heard, held: Callable[[], list[Batch[Any]]]
) -> None:
    handles = due(gather, *range(10))
    worker = work()
    eventually(lambda: calls)
    gather.cancel(id=handles[3].id, running=True)
    eventually(lambda: [event.id for event in heard["cancelled"]] == [handles[3].id])
    eventually(lambda: any(lease.lost for lease in worker.shared.held), 10)
    (batch,) = held()
    assert [message.args[0] for message in batch if message.lease_lost] == [3]
    eventually(lambda: not worker.shared.held)
    assert sorted(event.id for event in heard["acked"]) == sorted(
        handle.id for handle in handles if handle is not handles[3]
    )
    assert len(calls) == 1


def test_message_whose_lease_another_worker_took_in_the_middle_is_acked_by_that_one(
    work: Work, delayq: RedisStore, heard: Heard, held: Callable[[], list[Batch[Any]]]
) -> None:
    handles = due(gather, *range(5))
    worker = work()
    eventually(lambda: calls)
    stolen = next(lease for lease in worker.shared.held if lease.id == handles[2].identity)
    partition = Partition("gathers", 0)
    delayq.release(partition, [stolen])  # as if it had ended; then another worker claims it
    (lease,) = delayq.claim(partition, 1).leases
    held()
    eventually(lambda: not worker.shared.held)
    assert {event.id for event in heard["acked"]} == {h.id for h in handles} - {handles[2].id}
    assert not delayq.ack(partition, [(lease, b"{}")])  # of the other worker: nothing was lost


@pytest.mark.long
def test_batch_that_hangs_ends_with_its_max_runtime_and_stops_no_other(
    work: Work, delayq: RedisStore, declared: dict[str, Any]
) -> None:
    hangs, others = threading.Event(), []

    def run_batch(messages: Batch[Any]) -> None:
        numbers = [message.args[0] for message in messages]
        if -1 in numbers and messages[0].attempt == 1:
            hangs.wait(20)
        others.extend(numbers)

    task = delayed_task(
        name="hangs_in_batches", topic="gathers", batch=10, linger=0.02, ttr=1, max_runtime=1
    )(run_batch)
    try:
        due(task, -1, *range(9))
        worker = work()
        eventually(lambda: worker.shared.held)
        due(task, *range(10, 20))
        eventually(lambda: sorted(others[:10]) == [*range(10, 20)], 10)
        # The leases of the hung call end, and its messages run again.
        eventually(lambda: sorted(others) == [-1, *range(9), *range(10, 20)], 15)
    finally:
        hangs.set()


@pytest.mark.long
def test_limit_of_the_topic_holds_for_batches(
    work: Work, delayq: RedisStore, declared: dict[str, Any], settings: Any
) -> None:
    most: list[int] = []

    def run_batch(messages: Batch[Any]) -> None:
        most.append(len(messages))
        time.sleep(0.1)

    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"paced": {"concurrency": 4}}}
    task = delayed_task(name="paced_batches", topic="paced", batch=50, linger=0.01)(run_batch)
    due(task, *range(40))
    worker = work(topics=("paced",))
    eventually(lambda: worker.settled[Result.ACKED] == 40, 20)
    assert max(most) <= 4


def test_stop_gives_back_what_still_gathers(work: Work, delayq: RedisStore) -> None:
    due(gather_few, 1, 2)
    worker = work()
    eventually(lambda: len(worker.shared.held) == 2)
    worker.stop()
    assert worker.settled == {Result.RELEASED: 2}
    assert calls == []


def test_worker_without_batch_tasks_makes_no_gatherer(
    work: Work, delayq: RedisStore, declared: dict[str, Any]
) -> None:

    @delayed_task(name="alone", topic="no_batches")
    def alone(value: int) -> None:
        seen.append(value)

    alone.enqueue(1)
    worker = work(topics=("no_batches",))
    eventually(lambda: seen == [1])
    assert worker.dispatcher.gatherer is None


# Exactly once


@pytest.fixture
def run_once(shared: Shared) -> Callable[..., list[Outcome]]:
    """Runs what is claimed of count_many."""
    with_database = replace(shared, perform_once=exactly_once.perform)

    def run_batch(leases: list[Lease]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        gathered = Gathered(count_many, 0.0)
        gathered.leases = leases
        executor = Executor(with_database, outcomes.append)
        BatchExecutor(with_database, executor, outcomes.extend).run(gathered)
        return outcomes

    return run_batch


def claimed(shared: Shared, *names: str) -> list[Lease]:
    due(count_many, *names)
    return shared.store.claim(Partition("gathers-once", 0), 500).leases


def counters() -> dict[str, int]:
    return dict(batch_tasks.Counter.objects.values_list("name", "value"))


@pytest.mark.databases
@pytest.mark.django_db(transaction=True)
def test_effects_and_rows_commit_together(shared: Shared, run_once: Any) -> None:
    leases = claimed(shared, "a", "b")
    assert {outcome.result for outcome in run_once(leases)} == {Result.ACKED}
    assert counters() == {"a": 1, "b": 1}
    assert [row.state for row in rows()] == ["acked", "acked"]
    run_once(leases)  # as if nobody had acked them
    assert counters() == {"a": 1, "b": 1}
    assert len(calls) == 1


@pytest.mark.databases
@pytest.mark.django_db(transaction=True)
def test_half_that_fails_is_undone(shared: Shared, run_once: Any) -> None:
    def fail(messages: Batch[Any]) -> None:
        if any(message.args[0] == "bad" for message in messages):
            raise ValueError("bad")

    then.append(fail)
    outcomes = run_once(claimed(shared, "a", "b", "bad", "c"))
    assert sorted(outcome.result.name for outcome in outcomes) == ["ACKED"] * 3 + ["DEAD"]
    assert counters() == {"a": 1, "b": 1, "c": 1}
    assert len(rows()) == 3


@pytest.mark.databases
@pytest.mark.django_db(transaction=True)
def test_message_that_another_worker_has_committed_meanwhile_is_left_out(
    shared: Shared, run_once: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases, look = claimed(shared, "a", "b", "c"), archive_rows.without_row

    def look_before_the_other_worker(wanted: Sequence[Lease]) -> Sequence[Lease]:
        found = look(wanted)
        monkeypatch.setattr(archive_rows, "without_row", look)
        run_once(leases[:1])
        return found

    monkeypatch.setattr(archive_rows, "without_row", look_before_the_other_worker)
    assert {outcome.result for outcome in run_once(leases)} == {Result.ACKED}
    assert counters() == {"a": 1, "b": 1, "c": 1}
    assert [sorted(call) for call in calls] == [
        sorted([calls[0][0]]), ["a", "b", "c"], sorted({"a", "b", "c"} - {calls[0][0]}),
    ]  # fmt: skip
    assert len(rows()) == 3


def test_registry_knows_the_kind() -> None:
    assert registry.by_name[gather.name].definition.kind == "batch"


@pytest.mark.parametrize("raised", [Retry, Reject, SystemExit])
def test_an_error_of_the_call_tells_no_secret_of_any_message(
    run: Run, raised: Any, gather_cards: Any
) -> None:
    """It is the error of each of them."""

    def refuse(messages: Batch[Any]) -> None:
        raise raised("refused: " + ", ".join(message.args[0] for message in messages))

    then.append(refuse)
    ended = run(gather_cards, "4111-2222", "4111-3333", "4111-4444")
    assert len(ended) == 3
    for outcome in ended.values():
        text = f"{outcome.reason} {outcome.error_message} {outcome.traceback} {outcome.error}"
        assert "4111" not in text
        assert "refused: [redacted], [redacted], [redacted]" in text


def test_what_is_said_of_a_message_tells_no_secret_of_another(run: Run, gather_cards: Any) -> None:
    then.append(lambda messages: messages[0].reject(f"as {messages[1].args[0]}"))
    ended = run(gather_cards, "4111-2222", "4111-3333")
    assert ended["4111-2222"].reason == "as [redacted]"
    assert ended["4111-3333"].result is Result.ACKED
