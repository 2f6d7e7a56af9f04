"""What operators do, one by one: it happens, and it leaves one record."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from django_delayq.client import topics
from django_delayq.core.exceptions import DelayQError
from django_delayq.models import ArchivedMessage, BulkOperation, OperatorAction, OutboxMessage
from django_delayq.operators import operations
from tests.app.tasks import close_order, record, seen
from tests.bulk_hands import OPERATOR
from tests.hands import DAY, DEFAULT, ORDERS, Hands, make_due, messages_in, together
from tests.operators.test_replay import bodies, dead, origins

pytestmark = pytest.mark.databases

WORKER = "host:1:worker"


def check_record(
    action: str,
    selection: str = "",
    reason: str = "",
    *,
    topic: str = "",
    message_id: str | None = None,
) -> None:
    """The only one says this, and that it is over."""
    done = OperatorAction.objects.get()
    assert (done.action, done.operator, done.selection, done.reason) == (
        action,
        "olga",
        selection,
        reason,
    )
    assert (done.topic, done.message_id and done.message_id.hex) == (topic, message_id)
    assert done.count == 1
    assert done.finished_at is not None


@pytest.fixture
def worker(hands: Hands) -> None:
    """The heartbeat of one."""
    hands.store.workers.beat(WORKER, json.dumps({"beat_ms": hands.store.clock_ms()}))


# Topics


def test_a_paused_topic_is_held_and_says_by_whom(hands: Hands) -> None:
    close_order.enqueue(1)
    until = timezone.now() + timedelta(hours=1)
    operations.pause(OPERATOR, "orders", reason="the bank is down", until=until)
    paused = topics.topic_stats("orders").paused
    assert paused is not None
    assert (paused.by, paused.reason) == ("olga", "the bank is down")
    assert paused.until == pytest.approx(until, abs=timedelta(milliseconds=1))
    assert hands.work(ORDERS) == 0
    words = f"until {until.isoformat(' ', 'seconds')}"
    check_record("pause", words, "the bank is down", topic="orders")


def test_a_resume_of_a_topic_that_is_not_paused_leaves_no_record(hands: Hands) -> None:
    operations.resume(OPERATOR, "orders")
    assert not OperatorAction.objects.exists()


def test_a_resumed_topic_goes_on(hands: Hands) -> None:
    topics.pause_topic("orders")
    close_order.enqueue(1)
    operations.resume(OPERATOR, "orders", reason="it is back")
    assert hands.work(ORDERS) == 1
    check_record("resume", reason="it is back", topic="orders")


# Waiting messages


@pytest.mark.parametrize("durable", [False, True], ids=["Redis", "outbox"])
def test_a_cancelled_message_never_runs(durable: bool, hands: Hands) -> None:
    handle = record.using(delay=400 * DAY, durable=durable).enqueue(1)
    operations.cancel(OPERATOR, "default", handle.id, reason="a mistake")
    assert messages_in(hands.store) == set()
    assert [row.state for row in hands.archive()] == ["cancelled"]
    check_record("cancel", reason="a mistake", topic="default", message_id=handle.id)


@pytest.mark.parametrize("durable", [False, True], ids=["Redis", "outbox"])
def test_a_message_runs_now(durable: bool, hands: Hands) -> None:
    handle = record.using(delay=400 * DAY, durable=durable).enqueue(1)
    operations.run_now(OPERATOR, "default", handle.id)
    hands.relay()
    hands.work()
    assert seen == [1]
    check_record("run now", topic="default", message_id=handle.id)


@pytest.mark.parametrize("durable", [False, True], ids=["Redis", "outbox"])
def test_a_message_is_due_at_another_time(durable: bool, hands: Hands) -> None:
    handle = record.using(delay=DAY, durable=durable).enqueue(1)
    due = timezone.now().replace(microsecond=0) + timedelta(days=500)
    assert operations.reschedule(OPERATOR, "default", handle.id, due) == due
    message = handle.get()
    assert message is not None
    assert message.due_at == due
    words = f"to {due.isoformat(' ', 'seconds')}"
    check_record("reschedule", words, topic="default", message_id=handle.id)


@pytest.mark.parametrize("durable", [False, True], ids=["Redis", "outbox"])
def test_a_message_runs_with_its_new_arguments(durable: bool, hands: Hands) -> None:
    handle = close_order.using(delay=400 * DAY, durable=durable).enqueue(1)
    operations.edit(OPERATOR, "orders", handle.id, ([2], {"reason": "paid"}), reason="wrong order")
    check_record("edit", reason="wrong order", topic="orders", message_id=handle.id)
    operations.run_now(OPERATOR, "orders", handle.id)
    hands.relay()
    hands.work(ORDERS)
    assert seen == [(2, "paid")]


def test_a_message_is_scheduled(hands: Hands) -> None:
    handle = operations.schedule(
        OPERATOR, "tests.app.tasks.close_order", ([5], {"reason": "late"}), delay=0
    )
    hands.work(ORDERS)
    assert seen == [(5, "late")]
    words = "task tests.app.tasks.close_order"
    check_record("schedule", words, topic="orders", message_id=handle.id)


# Dead letters


def test_a_dead_letter_is_replayed(hands: Hands) -> None:
    (pk,) = dead()
    row = operations.replay_one(OPERATOR, pk, reason="it works again")
    assert (row.pk, row.replayed_by) == (pk, OutboxMessage.objects.get().message_id)
    assert origins() == [pk]
    action = OperatorAction.objects.get()
    assert (action.action, action.operator, action.reason, action.count) == (
        "replay",
        "olga",
        "it works again",
        1,
    )
    assert (action.archived_id, action.message_id, action.topic, action.selection) == (
        pk,
        row.message_id,
        "default",
        "task tests.app.tasks.record",
    )
    assert not BulkOperation.objects.exists()
    hands.relay()
    hands.work()
    assert seen == ["x"]


def test_a_dead_letter_is_replayed_with_other_arguments(hands: Hands) -> None:
    (pk,) = dead(task="tests.app.tasks.close_order", topic="orders", body='{"args":[],"kwargs":{}}')
    operations.replay_one(OPERATOR, pk, arguments=([7], {"reason": "edited"}))
    (body,) = bodies()
    assert (body.args, body.kwargs, body.replay_of) == ([7], {"reason": "edited"}, pk)
    action = OperatorAction.objects.get()
    assert action.selection == "task tests.app.tasks.close_order, with other arguments"
    assert (action.count, action.finished_at is None) == (1, False)


def test_a_dead_letter_is_discarded(hands: Hands) -> None:
    (pk,) = dead()
    operations.discard_one(OPERATOR, pk, reason="the order is gone")
    assert ArchivedMessage.objects.get().discarded_at is not None
    assert not OutboxMessage.objects.exists()
    action = OperatorAction.objects.get()
    assert (action.action, action.operator, action.reason, action.count) == (
        "discard", "olga", "the order is gone", 1,
    )  # fmt: skip


# Workers


def test_a_worker_is_told_to_be_quiet_and_to_go_on(hands: Hands, worker: None) -> None:
    operations.quiet(OPERATOR, WORKER, reason="deploy")
    assert hands.store.workers.is_quiet(WORKER)
    check_record("quiet", f"worker {WORKER}", "deploy")
    OperatorAction.objects.all().delete()
    operations.unquiet(OPERATOR, WORKER)
    assert not hands.store.workers.is_quiet(WORKER)
    check_record("unquiet", f"worker {WORKER}")


# Beside workers and other operators


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except DelayQError as error:
        return type(error).__name__
    return "done"


@pytest.mark.parametrize("number", range(5))
def test_a_message_that_is_cancelled_while_it_is_claimed_is_either(
    number: int, hands: Hands
) -> None:
    handle = record.using(delay=DAY).enqueue(1)
    make_due(handle)
    told, leases = together(
        lambda: outcome(lambda: operations.cancel(OPERATOR, "default", handle.id)),
        lambda: hands.store.claim(DEFAULT, 10).leases,
    )
    assert (told, len(leases)) in {("done", 0), ("MessageRunning", 1)}
    assert OperatorAction.objects.count() == (told == "done")


def test_a_message_that_ends_before_it_is_edited_keeps_its_arguments(hands: Hands) -> None:
    handle = record.enqueue(1)
    hands.work()
    for call in (
        lambda: operations.edit(OPERATOR, "default", handle.id, ([2], {})),
        lambda: operations.cancel(OPERATOR, "default", handle.id),
        lambda: operations.run_now(OPERATOR, "default", handle.id),
    ):
        assert outcome(call) == "MessageNotFound"
    assert seen == [1]
    assert not OperatorAction.objects.exists()


def test_of_two_who_replay_the_same_one_is_refused(hands: Hands) -> None:
    (pk,) = dead()
    told = together(*[lambda: outcome(lambda: operations.replay_one(OPERATOR, pk))] * 2)
    assert sorted(told) == ["InvalidMessage", "done"]
    assert origins() == [pk]
    assert OperatorAction.objects.get().count == 1


def test_of_two_who_replay_and_discard_the_same_one_is_refused(hands: Hands) -> None:
    (pk,) = dead()
    told = together(
        lambda: outcome(lambda: operations.replay_one(OPERATOR, pk)),
        lambda: outcome(lambda: operations.discard_one(OPERATOR, pk, reason="why")),
    )
    assert sorted(told) == ["InvalidMessage", "done"]
    row = ArchivedMessage.objects.get()
    assert (row.replayed_at is None) != (row.discarded_at is None)
    assert OperatorAction.objects.get().count == 1
