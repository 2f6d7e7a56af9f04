"""A worker calls tasks with values of the annotated types."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import pytest

from django_delayq import current_message, delayed_task
from django_delayq.core.message import task_code
from django_delayq.models import ArchivedMessage
from django_delayq.store.lease import Lease
from django_delayq.tasks import registry
from django_delayq.worker.executor import Executor
from django_delayq.worker.outcome import Outcome, Result
from tests.app import typed
from tests.app.typed import Address, Customer, Line, Order, called

AT = datetime(2026, 11, 20, 9, tzinfo=timezone.utc)
SOME_ID = UUID("0190a5f0-0000-7000-8000-000000000001")
ORDER = Order(SOME_ID, AT, [Line(SOME_ID, Decimal("9.90"), ["new"])])

Claim = Callable[..., Lease]


@dataclass
class Fragile:
    number: int
    broken: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.broken:
            raise ZeroDivisionError("division by zero")


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    called.clear()


@pytest.fixture
def run(executor: Executor, outcomes: list[Outcome]) -> Callable[[Lease], Outcome]:
    def run_lease(lease: Lease) -> Outcome:
        executor.run(lease)
        return outcomes.pop()

    return run_lease


def test_the_task_gets_values_of_its_types(claim: Claim, run: Any, declared: Any) -> None:
    task = delayed_task(name="tests.settle")(typed.settle)
    assert run(claim(task, ORDER, Decimal("1.50"), at=AT)).result is Result.ACKED
    assert called == [(ORDER, Decimal("1.50"), AT)]


def test_the_message_shows_their_json(claim: Claim, run: Any, declared: Any) -> None:
    @delayed_task(name="tests.shows")
    def shows(value: UUID) -> None:
        called.append((value, current_message().args))

    run(claim(shows, SOME_ID))
    assert called == [(SOME_ID, [str(SOME_ID)])]


def test_a_coroutine_gets_them_too(
    claim: Claim, executor: Executor, outcomes: list[Outcome], declared: Any
) -> None:
    task = delayed_task(name="tests.settle_async")(typed.settle_async)
    asyncio.run(executor.run_async(claim(task, ORDER)))
    assert (outcomes[0].result, called) == (Result.ACKED, [(ORDER, Decimal(0))])


def test_a_value_of_an_earlier_type_waits_for_other_code(
    claim: Claim, run: Any, declared: Any
) -> None:
    """As a message whose signature does not fit."""

    def before(value: str) -> None: ...

    def after(value: UUID) -> None:
        called.append((value,))

    lease = claim(delayed_task(name="tests.changed")(before), "order-5")
    del registry.by_name["tests.changed"], registry.by_code[task_code("tests.changed")]
    delayed_task(name="tests.changed")(after)
    outcome = run(lease)
    assert (outcome.result, outcome.delay_ms) == (Result.PUT_OFF, 5_000)
    assert outcome.reason.startswith(
        "bad_args: tests.changed, value: Invalid UUID. Its annotation is UUID. The record"
    )
    since = int(lease.attempts.first_claimed_at_ms - 660_000)
    entry = lease.entry[:32] + since.to_bytes(6, "big") + lease.entry[38:]
    old = Lease(lease.partition, lease.id, lease.record, entry, lease.claimed_at)
    outcome = run(old)
    assert (outcome.result, outcome.reason) == (Result.DEAD, "bad_args")
    assert outcome.error_message == "tests.changed, value: Invalid UUID. Its annotation is UUID."
    assert called == []


def test_a_validator_that_breaks_costs_its_message_only(
    claim: Claim, run: Any, declared: Any
) -> None:
    @delayed_task(name="tests.broken")
    def takes(value: Fragile) -> None: ...

    lease = claim(takes, Fragile(1))
    Fragile.broken = True
    try:
        outcome = run(lease)
    finally:
        Fragile.broken = False
    assert outcome.result is Result.PUT_OFF
    assert "tests.broken, value: division by zero. Its annotation" in outcome.reason


def test_typed_tasks_run_from_end_to_end(
    run_delayq: Any, declared: Any, transactional_db: None
) -> None:
    greet = delayed_task(name="tests.greet", topic="mail")(typed.greet)
    settle = delayed_task(name="tests.settle_soon", topic="orders", delay=0)(typed.settle)
    settle_async = delayed_task(name="tests.settle_async")(typed.settle_async)
    customer = Customer(id=SOME_ID, born=date(1990, 1, 2), level=3)
    address: Address = {"city": "Bonn", "since": date(2020, 1, 2)}

    greet.enqueue(customer, address=address)
    settle.using(durable=True).enqueue(ORDER, at=AT)
    settle_async.enqueue(ORDER, paid=Decimal("0.10"))
    run_delayq("--burst")

    assert sorted(called, key=str) == sorted(
        [(customer, address), (ORDER, Decimal(0), AT), (ORDER, Decimal("0.10"))], key=str
    )
    assert {row.state for row in ArchivedMessage.objects.all()} == {"acked"}
    assert ArchivedMessage.objects.count() == 3
    (row,) = ArchivedMessage.objects.filter(task="tests.greet")
    assert '"city":"Bonn"' in row.body
