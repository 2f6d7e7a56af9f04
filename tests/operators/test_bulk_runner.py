"""Bulk operations survive kills at each step, and several runners run none of them twice."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
from django.db import connection
from django.utils import timezone

from django_delayq.archive.selection import Selection
from django_delayq.models import ArchivedMessage, BulkOperation, OutboxMessage
from django_delayq.operators import replayer
from django_delayq.operators.bulk_run import BulkRun
from django_delayq.operators.bulk_runner import BulkRunner
from django_delayq.operators.replay import discard, replay
from django_delayq.operators.replayer import Replayer
from django_delayq.operators.walk import Walk
from tests.bulk_hands import BATCH, Killed, at, be_silent, check_agreement, check_done, die, order
from tests.hands import apart, together
from tests.operators.test_replay import dead, origins

pytestmark = [pytest.mark.databases, pytest.mark.usefixtures("small_batches")]


# Kills

STEPS: dict[str, tuple[Any, str, bool, int]] = {
    "before it has counted": (Walk, "candidates", False, 1),
    "before the total is stored": (BulkRun, "counted", False, 1),
    "after the total is stored": (BulkRun, "counted", True, 1),
    "before the rows of the first batch are locked": (Walk, "lock", False, 1),
    "before the rows are locked": (Walk, "lock", False, 2),
    "before the messages are inserted": (Replayer, "_insert", False, 2),
    "after the messages are inserted": (Replayer, "_insert", True, 2),
    "after the origins are marked": (replayer, "mark_replayed", True, 2),
    "before it says how far it is": (BulkRun, "enter", False, 2),
    "before the commit": (BulkRun, "enter", True, 2),
    "after the commit": (BulkRun, "rest", False, 3),
    "after the last commit": (BulkRun, "rest", False, 5),
    "before it is closed": (BulkRun, "close", False, 1),
    "after it is closed": (BulkRun, "close", True, 1),
}


@pytest.mark.parametrize("step", STEPS)
def test_after_a_kill_another_worker_goes_on_and_each_is_replayed_once(
    step: str, runner: BulkRunner, other: BulkRunner
) -> None:
    owner, name, after, time = STEPS[step]
    pks = dead(3 * BATCH + 5)
    operation = order()
    with at(owner, name, die, after=after, time=time), pytest.raises(Killed):
        runner.run_once()
    check_agreement(operation)
    if step != "after it is closed":
        assert operation.status == "running"
        before = operation.count
        assert other.run_once() == other.interval, "its worker may be alive"
        check_agreement(operation)
        assert operation.count == before
        be_silent()
        other.run_once()
    check_done(operation, pks)


def test_a_discard_goes_on_after_a_kill(runner: BulkRunner, other: BulkRunner) -> None:
    pks = dead(3 * BATCH)
    operation = order("discard")
    with at(BulkRun, "enter", die, after=True), pytest.raises(Killed):
        runner.run_once()
    be_silent()
    other.run_once()
    check_agreement(operation)
    assert (operation.status, operation.count, operation.total) == ("done", len(pks), len(pks))
    assert ArchivedMessage.objects.filter(pk__in=pks, discarded_at=None).count() == 0


def test_it_agrees_with_itself_at_each_commit(runner: BulkRunner) -> None:
    pks = dead(3 * BATCH + 5)
    operation = order()
    counts: list[int] = []

    def look(*args: Any) -> None:
        check_agreement(operation)
        assert operation.total == len(pks)
        counts.append(operation.count)

    with mock.patch.object(BulkRun, "rest", look):
        runner.run_once()
    assert counts == [0, 10, 20, 30, 35]


def mixed() -> None:
    """Dead letters of which some cannot be replayed: the last one, and one in the middle of a
    batch, are among them."""
    dead(BATCH - 3)
    done = dead(2) + dead(1, task="gone.task") + dead(2 * BATCH) + dead(3)
    replay(pk__in=[done[0], *done[-3:]])
    discard(pk=done[1], reason="no")


MIXED_SKIPPED = {"already replayed": 4, "discarded": 1, "unknown task": 1}
#: Of MIXED: what is counted, and what is replayed.
MIXED_TOTAL, MIXED_COUNT = 28, 27


def mixed_end(operation: BulkOperation) -> tuple[Any, ...]:
    operation.refresh_from_db()
    return operation.status, operation.total, operation.count, json.loads(operation.skipped)


def test_what_was_skipped_is_told_by_reason(runner: BulkRunner) -> None:
    mixed()
    operation = order()
    runner.run_once()
    assert mixed_end(operation) == ("done", MIXED_TOTAL, MIXED_COUNT, MIXED_SKIPPED)


@pytest.mark.parametrize("step", [step for step in STEPS if step != "after it is closed"])
def test_what_was_skipped_is_told_once_after_a_kill(
    step: str, runner: BulkRunner, other: BulkRunner
) -> None:
    owner, name, after, time = STEPS[step]
    mixed()
    operation = order()
    with at(owner, name, die, after=after, time=min(time, 4)), pytest.raises(Killed):
        runner.run_once()
    be_silent()
    other.run_once()
    assert mixed_end(operation) == ("done", MIXED_TOTAL, MIXED_COUNT, MIXED_SKIPPED)


def test_a_rate_is_kept_after_a_kill(runner: BulkRunner, other: BulkRunner) -> None:
    dead(4 * BATCH)
    order(rate=2)
    with at(BulkRun, "rest", die, time=3), pytest.raises(Killed):
        runner.run_once()
    be_silent()
    other.run_once()
    due = sorted(OutboxMessage.objects.values_list("due_at_ms", flat=True))
    assert min(later - sooner for sooner, later in pairwise(due)) >= 499


# Several runners


def test_of_runners_that_begin_together_one_runs_an_operation(
    runner: BulkRunner, other: BulkRunner
) -> None:
    pks = dead(3 * BATCH)
    operation = order()
    together(runner.run_once, other.run_once)
    assert sorted([runner.ended, other.ended]) == [0, 1]
    check_done(operation, pks)


def test_a_runner_that_is_overtaken_at_taking_leaves_it(
    runner: BulkRunner, other: BulkRunner
) -> None:
    pks = dead(3 * BATCH)
    operation = order()
    overtaken: list[str] = []

    def overtake(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("UPDATE") and "bulkoperation" in sql and not overtaken:
            overtaken.append(sql)
            apart(other.run_once)
        return execute(sql, *rest)

    with connection.execute_wrapper(overtake):
        runner.run_once()
    assert (runner.ended, other.ended) == (0, 1)
    check_done(operation, pks)


def test_several_operations_are_shared(runner: BulkRunner, other: BulkRunner) -> None:
    first, second = dead(BATCH), dead(BATCH, topic="orders")
    operations = [order(), order(selection=Selection(topic="orders"))]
    with at(BulkRun, "rest", lambda: apart(other.run_once)):
        runner.run_once()
    assert [operation.status for operation in BulkOperation.objects.order_by("pk")] == [
        "done",
        "done",
    ]
    assert (runner.ended, other.ended) == (1, 1)
    assert origins() == first + second
    assert {operation.pk for operation in operations} == set(
        BulkOperation.objects.values_list("pk", flat=True)
    )


def test_one_that_wakes_up_after_another_has_taken_over_changes_nothing(
    runner: BulkRunner, other: BulkRunner
) -> None:
    pks = dead(3 * BATCH)
    operation = order()

    def sleep_too_long() -> None:
        be_silent()
        apart(other.run_once)

    with at(BulkRun, "rest", sleep_too_long):
        runner.run_once()
    assert (runner.ended, other.ended) == (0, 1)
    check_done(operation, pks)
    assert operation.worker == other.worker


def test_one_that_wakes_up_beside_another_leaves_the_rest_to_it(
    runner: BulkRunner, other: BulkRunner
) -> None:
    pks = dead(3 * BATCH)
    operation = order()

    def be_overtaken() -> None:
        BulkOperation.objects.update(worker=other.worker, alive_at=timezone.now())

    with at(BulkRun, "rest", be_overtaken):
        runner.run_once()
    check_agreement(operation)
    assert (operation.status, operation.count, operation.worker) == (
        "running",
        BATCH,
        other.worker,
    )
    other.run_once()
    check_done(operation, pks)


def test_a_batch_whose_operation_is_lost_at_its_end_is_undone(
    runner: BulkRunner, other: BulkRunner
) -> None:
    dead(3 * BATCH)
    operation = order()
    with at(
        replayer,
        "mark_replayed",
        lambda: BulkOperation.objects.update(worker=other.worker),
        after=True,
    ):
        runner.run_once()
    check_agreement(operation)
    assert (operation.count, len(origins())) == (BATCH, BATCH)
