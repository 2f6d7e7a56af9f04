"""Tasks that run in the transaction that says that they ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction

from django_delayq import delayed_task
from django_delayq.archive import exactly_once
from django_delayq.client.decorator import DelayedTask
from django_delayq.core.connections import note_connections
from django_delayq.models import ArchivedMessage
from django_delayq.store.lease import Lease
from django_delayq.worker.executor import NO_DATABASE_DELAY, Executor
from django_delayq.worker.outcome import Outcome, Result
from django_delayq.worker.shared import Shared
from tests.app.models import Counter
from tests.app.tasks import seen
from tests.hands import together

pytestmark = pytest.mark.django_db(transaction=True)
Claim = Callable[..., Lease]


@pytest.fixture
def once(declared: dict[str, Any]) -> DelayedTask[..., None]:
    @delayed_task(name="tests.once", exactly_once=True, max_attempts=1)
    def task(fails: bool = False) -> None:
        seen.append(transaction.get_connection().in_atomic_block)
        ArchivedMessage.objects.filter(topic="default").update(worker="seen by the task")
        if fails:
            raise ValueError("it failed")

    return task


@pytest.fixture
def run(shared: Shared, outcomes: list[Outcome]) -> Callable[[Lease], Outcome]:
    """Runs a message as a worker does that was started with a database."""
    executor = Executor(replace(shared, perform_once=exactly_once.perform), outcomes.append)

    def run(lease: Lease) -> Outcome:
        executor.run(lease)
        return outcomes[-1]

    return run


def test_it_runs_in_a_transaction_and_leaves_its_row(
    claim: Claim, run: Any, once: Any, shared: Shared
) -> None:
    lease = claim(once)
    assert run(lease).result is Result.ACKED
    row = ArchivedMessage.objects.get()
    assert seen == [True]
    assert (row.message_id.bytes, row.state, row.worker, row.task) == (
        lease.id,
        "acked",
        shared.name,
        "tests.once",
    )


def test_second_run_of_the_same_life_does_nothing_and_is_acked(
    claim: Claim, run: Any, once: Any
) -> None:
    lease = claim(once)
    assert [run(lease).result for _ in range(2)] == [Result.ACKED] * 2
    assert len(seen) == ArchivedMessage.objects.count() == 1


def test_failure_takes_back_what_it_wrote_and_leaves_no_row(
    claim: Claim, run: Any, once: Any, shared: Shared
) -> None:
    run(claim(once))
    outcome = run(claim(once, True))
    assert (outcome.result, outcome.text) == (Result.DEAD, "ValueError: it failed")
    assert [row.worker for row in ArchivedMessage.objects.all()] == [shared.name]


def test_worker_without_a_database_leaves_it_to_another(
    claim: Claim, executor: Executor, outcomes: list[Outcome], once: Any
) -> None:
    executor.run(claim(once))
    assert (outcomes[0].result, outcomes[0].delay_ms) == (Result.SNOOZED, NO_DATABASE_DELAY * 1000)
    assert seen == []


@pytest.mark.parametrize("exactly_once", [True, False])
def test_task_that_leaves_a_block_open_has_failed_and_leaves_nothing(
    claim: Claim, run: Any, declared: dict[str, Any], exactly_once: bool
) -> None:
    """It would be acked, and what it wrote never committed."""

    @delayed_task(name="tests.leaves_open", exactly_once=exactly_once, max_attempts=1)
    def leave_open() -> None:
        transaction.atomic().__enter__()
        Counter.objects.create(name="left open")

    ended: list[Outcome] = []

    def work() -> None:
        note_connections()
        ended.append(run(claim(leave_open)))
        assert not transaction.get_connection().in_atomic_block

    together(work)
    assert (ended[0].result, ended[0].error_class) == (
        Result.DEAD,
        "django_delayq.core.exceptions.TransactionLeftOpen",
    )
    assert not Counter.objects.exists() and not ArchivedMessage.objects.exists()


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_task_that_leaves_a_block_of_another_alias_open_leaves_nothing_either(
    claim: Claim, run: Any, declared: dict[str, Any]
) -> None:
    """The next run would find its row and do nothing."""

    @delayed_task(name="tests.leaves_other_open", exactly_once=True, max_attempts=2)
    def leave_open() -> None:
        Counter.objects.create(name="in the transaction of the row")
        transaction.atomic(using="other").__enter__()

    ended: list[Outcome] = []

    def work() -> None:
        note_connections()
        ended.append(run(claim(leave_open)))

    together(work)
    assert (ended[0].result, ended[0].error_class) == (
        Result.RETRIED,
        "django_delayq.core.exceptions.TransactionLeftOpen",
    )
    assert not Counter.objects.exists() and not ArchivedMessage.objects.exists()
