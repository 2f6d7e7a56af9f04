"""What a task writes is committed together with the row that says that it ran, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, OperationalError, connection

from django_delayq import Reject, Snooze
from django_delayq.models import OutboxMessage
from django_delayq.outbox.outbox import stamped
from django_delayq.store.keys import partition_keys
from tests.app.models import Counter
from tests.app.sql_tasks import call, count, hook, then
from tests.app.tasks import record, seen
from tests.database_faults import failing_commits
from tests.hands import DEFAULT, Hands, end_lease, make_due, only_row, rows, statuses, together

pytestmark = pytest.mark.databases


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    then.clear()
    yield
    then.clear()


def counted(name: str = "runs") -> int:
    return sum(Counter.objects.filter(name=name).values_list("value", flat=True))


def raises(error: BaseException) -> Any:
    def step() -> None:
        raise error

    return step


def test_the_effect_and_its_row_are_committed_before_the_ack(hands: Hands) -> None:
    handle = count.enqueue()
    (lease,) = hands.claim()
    hands.executor.run(lease)
    assert (counted(), only_row().state, only_row().message_id.hex) == (1, "acked", handle.id)
    assert handle.get() is not None
    hands.settler.run_once()
    assert handle.get() is None
    row = only_row()
    hands.archive()
    assert only_row().id == row.id


def test_its_row_tells_as_much_as_any_other(hands: Hands) -> None:
    count.using(key="k").enqueue("named")
    hands.work()
    row = only_row()
    assert (row.task, row.key, row.attempts, row.worker) == (
        "tests.app.sql_tasks.count",
        "k",
        1,
        "host:1:hands",
    )
    assert row.body == '{"args":["named"],"kwargs":{}}'
    assert row.run_ms is not None and row.run_ms > 0
    assert row.started_at is not None and row.started_at <= row.finished_at


def test_the_body_runs_in_a_transaction(hands: Hands) -> None:
    count.enqueue()
    hands.work()
    assert seen == [True]


def test_hooks_of_the_commit_run_after_it(hands: Hands) -> None:
    hook.enqueue()
    hands.work()
    assert seen == ["in the task", "after the commit"]


def test_what_it_enqueues_is_sent_with_its_commit(hands: Hands) -> None:
    then["send"] = lambda: record.enqueue("from the task")
    count.enqueue(next_step="send")
    hands.work()
    seen.clear()
    hands.work()
    assert seen == ["from the task"]


@pytest.mark.parametrize(
    "error", [ValueError("no"), IntegrityError("its own"), OperationalError("away")], ids=repr
)
def test_a_failure_leaves_nothing_and_is_tried_again(hands: Hands, error: Exception) -> None:
    then["fail"] = raises(error)
    handle = count.enqueue(next_step="fail")
    hands.work()
    assert (counted(), rows()) == (0, [])
    message = handle.get()
    assert message is not None and message.attempt == 1
    then.clear()
    make_due(handle)
    hands.work()
    hands.archive()
    assert (counted(), only_row().state, only_row().attempts) == (1, "acked", 2)


def test_an_integrity_error_of_the_tasks_own_rows_is_a_failure(hands: Hands) -> None:
    then["twice"] = lambda: Counter.objects.create(name="runs")
    handle = count.using(max_attempts=1).enqueue(next_step="twice")
    hands.work()
    hands.archive()
    row = only_row()
    assert (row.state, row.message_id.hex, counted()) == ("dead", handle.id, 0)
    assert row.error_class.endswith("IntegrityError")


@pytest.mark.parametrize(
    ("error", "state"), [(Reject("no"), "dead"), (Snooze(60), None)], ids=["reject", "snooze"]
)
def test_what_a_task_says_of_itself_leaves_nothing_either(
    hands: Hands, error: Exception, state: str | None
) -> None:
    then["say"] = raises(error)
    handle = count.enqueue(next_step="say")
    hands.work()
    hands.archive()
    assert counted() == 0
    assert (only_row().state if state else handle.get() is not None) == (state or True)


def test_a_commit_that_fails_is_a_failure(hands: Hands) -> None:
    handle = count.enqueue()
    (lease,) = hands.claim()
    with failing_commits(1) as failed:
        hands.run(lease)
    assert (failed, counted(), rows()) == ([1], 0, [])
    make_due(handle)
    hands.work()
    assert counted() == 1


@pytest.mark.parametrize("durable", [False, True])
def test_a_crash_after_the_commit_makes_no_second_run(hands: Hands, durable: bool) -> None:
    handle = count.using(durable=durable).enqueue()
    (lease,) = hands.claim()
    hands.executor.run(lease)  # and the worker is killed before it settles
    end_lease(hands.store, lease)
    make_due(handle)
    other = Hands(hands.store, "host:2:other")
    assert other.work() == 1
    assert (len(seen), counted(), handle.get()) == (1, 1, None)
    other.archive()
    assert (only_row().worker, statuses()) == ("host:1:hands", [])


def test_a_paused_worker_that_wakes_up_changes_nothing(hands: Hands) -> None:
    """It has begun, stands still, loses its lease; another one commits; then it goes on."""
    handle = count.enqueue(next_step="pause")
    other = Hands(hands.store, "host:2:other")
    (lease,) = hands.claim()
    (again,) = _stolen(hands, other, lease, handle)
    other.run(again)
    hands.run(lease)
    hands.archive()
    assert (counted(), only_row().worker) == (1, "host:2:other")


def _stolen(hands: Hands, other: Hands, lease: Any, handle: Any) -> list[Any]:
    end_lease(hands.store, lease)
    make_due(handle)
    return other.claim()


def test_two_runs_at_once_commit_once(hands: Hands) -> None:
    if not connection.features.has_select_for_update:
        pytest.skip("one writer at a time")
    handle = call.enqueue("meet")
    other = Hands(hands.store, "host:2:other")
    (lease,) = hands.claim()
    (again,) = _stolen(hands, other, lease, handle)
    barrier, names = threading.Barrier(2), iter(("left", "right"))

    def meet() -> None:
        barrier.wait(10)
        Counter.objects.create(
            name=next(names)
        )  # a row of its own: on the same one, the second would wait here

    then["meet"] = meet
    together(lambda: hands.run(lease), lambda: other.run(again))
    hands.archive()
    assert len(rows()) == 1
    assert Counter.objects.count() == 1
    assert handle.get() is None


def test_without_a_database_it_waits_for_a_worker_that_has_one(hands: Hands) -> None:
    handle = count.enqueue()
    hands.executor._shared = replace(hands.shared, perform_once=None)
    hands.work()
    message = handle.get()
    assert message is not None and message.attempt == 0
    assert seen == []


@pytest.mark.parametrize("archive", ["none", "dead"])
def test_it_runs_once_also_where_nothing_is_archived(
    hands: Hands, settings: Any, archive: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ARCHIVE": archive}
    handle = count.enqueue()
    (lease,) = hands.claim()
    hands.executor.run(lease)
    end_lease(hands.store, lease)
    make_due(handle)
    hands.work()
    assert (counted(), len(seen)) == (1, 1)


def test_the_next_message_of_a_key_runs_again(hands: Hands) -> None:
    for _ in range(3):
        count.using(key="k", durable=True).enqueue()
        hands.work()
    hands.archive()
    assert (counted(), len(rows())) == (3, 3)


def test_a_message_that_is_adopted_while_it_runs_is_one_life(hands: Hands) -> None:
    """Its enqueue had an unknown outcome, so it was spilled too, under another stamp; the relay
    comes second."""
    handle = count.enqueue()
    row = _spilled_twin(hands, handle)
    (lease,) = hands.claim()
    hands.executor.run(lease)
    hands.store.enqueue(DEFAULT, {}, [stamped(row)])
    end_lease(hands.store, lease)
    make_due(handle)
    hands.work()
    hands.archive()
    assert (counted(), len(rows())) == (1, 1)


def _spilled_twin(hands: Hands, handle: Any) -> Any:
    raw = hands.store.client.redis.hget(
        partition_keys(hands.store.client.prefix, DEFAULT)[4], handle.identity
    )
    return OutboxMessage(
        message_id=UUID(handle.id),
        enqueued_at_us=hands.store.now_us(),
        due_at_ms=1,
        on_duplicate="raise",
        record=bytes((raw[14] | 0x80,)) + raw[15:],
    )
