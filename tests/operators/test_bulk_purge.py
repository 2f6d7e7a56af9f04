"""Purges that a worker runs: cancelled, killed, and beside producers."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import purge_topic
from django_delayq.client import topics
from django_delayq.models import OutboxMessage
from django_delayq.operators import bulk
from django_delayq.operators.bulk_run import BulkRun
from django_delayq.operators.bulk_runner import BulkRunner
from django_delayq.outbox import lookup
from tests.app.tasks import record
from tests.bulk_hands import OPERATOR, Killed, at, be_silent, die, order
from tests.hands import DAY, Hands, apart, messages_in

pytestmark = pytest.mark.databases


def test_a_cancelled_purge_tells_all_that_it_has_ended(hands: Hands, runner: BulkRunner) -> None:
    record.enqueue_many([record.using(delay=DAY).prepare(number) for number in range(1_200)])
    operation = order("purge")
    with at(BulkRun, "rest", lambda: apart(lambda: bulk.cancel(OPERATOR, operation.pk)), time=1):
        runner.run_once()
    operation.refresh_from_db()
    assert operation.action is not None
    left = len(messages_in(hands.store))
    assert (operation.status, operation.count, operation.action.count) == (
        "cancelled",
        1_200 - left,
        1_200 - left,
    )


def test_a_purge_goes_on_after_a_kill_and_ends_what_was_there(
    hands: Hands, runner: BulkRunner, other: BulkRunner
) -> None:
    record.enqueue_many([record.using(delay=DAY).prepare(number) for number in range(1_200)])
    operation = order("purge")
    with at(BulkRun, "rest", die, time=1), pytest.raises(Killed):
        runner.run_once()
    operation.refresh_from_db()
    assert (operation.status, operation.total, operation.count) == ("running", 1_200, 500)
    later = [
        handle.identity
        for handle in record.enqueue_many([record.using(delay=2 * DAY).prepare(1)] * 3)
    ]
    be_silent()
    other.run_once()
    operation.refresh_from_db()
    assert (operation.status, operation.count, messages_in(hands.store)) == (
        "done",
        1_200,
        set(later),
    )


def test_a_purge_ends_no_more_than_it_has_counted(hands: Hands, runner: BulkRunner) -> None:
    record.using(delay=DAY).enqueue(1)
    operation = order("purge")

    def enqueue_more() -> None:
        record.enqueue_many([record.using(delay=2 * DAY).prepare(number) for number in range(20)])

    with at(topics, "purge_batches", enqueue_more, time=1):
        runner.run_once()
    operation.refresh_from_db()
    assert (operation.total, operation.count) == (1, 1)
    assert len(messages_in(hands.store)) == 20


def test_a_purge_meets_what_the_relay_moves_meanwhile(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.using(durable=True, delay=DAY).enqueue_many((number,) for number in range(20))
    near = list(OutboxMessage.objects.order_by("pk").values_list("pk", flat=True)[:10])
    OutboxMessage.objects.filter(pk__in=near).update(relay_at_ms=0)
    purge, moved = lookup.purge, list[int]()

    def purge_beside_the_relay(*args: Any) -> Any:
        moved.append(hands.relay())
        return purge(*args)

    monkeypatch.setattr(lookup, "purge", purge_beside_the_relay)
    assert purge_topic("default") == 20
    assert (moved, messages_in(hands.store)) == ([10], set())
