"""A topic's messages move to another one: wherever they are, whatever happens meanwhile, none is
lost or run twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from django_delayq import (
    InvalidMessage,
    StoreUnavailable,
    UnknownTopic,
    list_messages,
    move_topic,
    topic_stats,
)
from django_delayq.client import moving
from django_delayq.client.handle import Handle
from django_delayq.client.moving import Moved
from django_delayq.core.message import State, key_id
from django_delayq.models import OperatorAction, OutboxMessage
from django_delayq.store import get_store, keys
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from django_delayq.store.workers import Workers
from tests.app.tasks import record, seen
from tests.faults import unreachable
from tests.hands import DAY, Hands, lose_redis, messages_in, outbox, statuses
from tests.undeclared import declared, leave

pytestmark = pytest.mark.databases

JOBS = Partition("jobs", 0)
ORDERS = Partition("orders", 0)


def due_now(handle: Handle) -> None:
    get_store().reschedule_in(JOBS, handle.identity, "1000000000000")


# What moves


def test_what_waits_moves_as_it_is(hands: Hands) -> None:
    handles = leave("jobs", 1, 2, priority="high", headers={"a": "b"}, expires=60)
    before = list_messages("jobs").messages
    assert move_topic("jobs", "orders") == Moved(moved=2)
    after = list_messages("orders").messages
    assert [
        (m.id, m.due_at, m.enqueued_at, m.expires_at, m.priority, m.args, m.headers, m.task)
        for m in after
    ] == [
        (m.id, m.due_at, m.enqueued_at, m.expires_at, m.priority, m.args, m.headers, m.task)
        for m in before
    ]
    assert {m.id for m in after} == {handle.id for handle in handles}
    assert (topic_stats("jobs").delayed, messages_in(hands.store, JOBS)) == (0, set())


def test_what_is_moved_runs_once_and_is_archived_once(hands: Hands) -> None:
    for handle in leave("jobs", "plain") + leave("jobs", "durable", durable=True, key="k"):
        due_now(handle)
    assert move_topic("jobs", "orders") == Moved(moved=2)
    assert (hands.work(ORDERS), sorted(seen)) == (2, ["durable", "plain"])
    assert [(row.topic, row.state, row.task) for row in hands.archive()] == [
        ("orders", "acked", record.name)
    ] * 2
    assert (statuses(), hands.reconcile()) == ([], 0)


def test_attempts_move_too(hands: Hands) -> None:
    (handle,) = leave("jobs", 1)
    due_now(handle)
    (lease,) = hands.store.claim(JOBS, 1).leases
    hands.store.nack(JOBS, [(lease, 500_000, True, b'{"outcome":"retried"}')])
    move_topic("jobs", "orders")
    (message,) = list_messages("orders").messages
    assert (message.attempt, len(message.runs)) == (1, 1)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("delay", [60, 3 * DAY])
def test_a_key_moves_with_its_message(hands: Hands, durable: bool, delay: int) -> None:
    """3 days are beyond the horizon: a durable one is in the outbox only."""
    (handle,) = leave("jobs", 1, key="order:5", durable=durable, delay=delay)
    assert move_topic("jobs", "orders") == Moved(moved=1)
    message = record.using(topic="orders").get(key="order:5")
    assert message is not None
    assert (message.id, message.key, message.state) == (
        key_id("orders", "order:5").hex(),
        "order:5",
        State.DELAYED,
    )
    assert message.due_at == handle.due_at
    assert outbox() == ([("waiting" if delay > DAY else "sent", "order:5")] if durable else [])
    record.using(topic="orders").cancel(key="order:5")
    assert [(row.key, row.state, row.topic) for row in hands.archive()] == [
        ("order:5", "cancelled", "orders")
    ]
    assert statuses() == []


def test_what_waits_in_the_outbox_moves_and_is_sent_to_the_other_topic(hands: Hands) -> None:
    leave("jobs", 1, 2, durable=True, delay=3 * DAY)
    assert move_topic("jobs", "orders") == Moved(moved=2)
    OutboxMessage.objects.update(relay_at_ms=0)
    assert hands.relay() == 2
    assert len(messages_in(hands.store, ORDERS)) == 2


def test_what_redis_has_lost_moves_from_the_outbox(hands: Hands) -> None:
    leave("jobs", 1, durable=True, key="k")
    lose_redis(hands.store)
    assert move_topic("jobs", "orders") == Moved(moved=1)
    assert (hands.relay(), hands.reconcile()) == (1, 0)
    assert messages_in(hands.store, ORDERS) == {key_id("orders", "k")}


def test_all_partitions_are_emptied_and_all_of_the_other_topic_are_used(
    hands: Hands, settings: Any
) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "TOPICS": {"jobs": {"partitions": 3}, "crowd": {"partitions": 4}},
    }
    record.using(topic="jobs", delay=600).enqueue_many([(n,) for n in range(50)])
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 4}}}
    assert move_topic("jobs", "crowd") == Moved(moved=50)
    assert [bool(messages_in(hands.store, Partition("crowd", n))) for n in range(4)] == [True] * 4
    assert all(
        get_store().partitions.place("crowd", message_id, False).number == n
        for n in range(4)
        for message_id in messages_in(hands.store, Partition("crowd", n))
    )


@pytest.mark.long
def test_more_than_a_page_of_one_instant_moves(hands: Hands) -> None:
    leave("jobs", *range(1_100), delay=600)
    heard: list[int] = []
    assert moving.move_topic("jobs", "orders", lambda so_far: heard.append(so_far.moved)) == Moved(
        moved=1_100
    )
    assert heard == [0, 500, 1_000]


# What stays


def test_what_runs_stays_and_what_a_dead_worker_held_moves(hands: Hands) -> None:
    for handle in leave("jobs", 1, 2):
        due_now(handle)
    first, second = hands.store.claim(JOBS, 2).leases
    hands.store.client.command(
        "ZADD", keys.leased_key(hands.store.client.prefix, JOBS), "XX", 1, second.id
    )
    assert move_topic("jobs", "orders") == Moved(moved=1, running=1)
    assert messages_in(hands.store, JOBS) == {first.id}


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("delay", [60, 3 * DAY])
def test_a_key_that_is_live_in_the_other_topic_stays(
    hands: Hands, durable: bool, delay: int
) -> None:
    if delay > DAY and not durable:
        pytest.skip("the outbox has no row of it")
    kept = record.using(topic="orders", key="k", durable=durable, delay=delay).enqueue("there")
    leave("jobs", "here", key="k", durable=durable, delay=delay)
    assert move_topic("jobs", "orders") == Moved(taken=["k"])
    there, here = record.using(topic="orders").get(key="k"), list_messages("jobs").messages
    assert there is not None and (there.args, there.due_at) == (["there"], kept.due_at)
    assert [message.args for message in here] == ([["here"]] if delay < DAY else [])
    assert len(outbox()) == 2 * durable
    record.using(topic="orders").cancel(key="k")
    hands.archive()
    assert move_topic("jobs", "orders") == Moved(moved=1)


def test_a_record_that_nobody_can_read_stays(hands: Hands) -> None:
    (handle,) = leave("jobs", 1)
    hands.store.client.command(
        "HSET", keys.partition_keys(hands.store.client.prefix, JOBS)[4], handle.identity, b"\0" * 30
    )
    assert move_topic("jobs", "orders") == Moved(unreadable=1)
    assert messages_in(hands.store, JOBS) == {handle.identity}


def test_a_move_goes_to_a_declared_topic_and_from_one_that_there_is(hands: Hands) -> None:
    leave("jobs", 1)
    for topic, to, words in (
        ("jobs", "ordres", "'ordres'"),
        ("nowhere", "orders", "'nowhere' is not declared"),
    ):
        with pytest.raises(UnknownTopic, match=words):
            move_topic(topic, to)
    with pytest.raises(InvalidMessage, match="to another one"):
        move_topic("orders", "orders")


def test_a_topic_is_not_moved_inside_a_transaction_that_may_roll_back(hands: Hands) -> None:
    leave("jobs", 1, durable=True)
    with transaction.atomic(), pytest.raises(InvalidMessage, match="call this outside"):
        move_topic("jobs", "orders")
    assert move_topic("jobs", "orders") == Moved(moved=1)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_topic_moves_with_an_outbox_in_another_database(
    delayq: RedisStore, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "DATABASE": "other"}
    leave("jobs", 1, 2, durable=True, delay=3 * DAY)
    leave("jobs", 3, durable=True, key="k")
    assert move_topic("jobs", "orders") == Moved(moved=3)
    assert set(OutboxMessage.objects.using("other").values_list("topic", flat=True)) == {"orders"}


# Meanwhile


class Died(BaseException):
    """As kill -9."""


@pytest.fixture
def die(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, int], None]:
    """The process dies in the n-th call of a method; from then on it is as it was."""

    def arrange(where: Any, name: str, nth: int = 1) -> None:
        calls, real = [0], getattr(where, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == nth:
                raise Died
            return real(*args, **kwargs)

        monkeypatch.setattr(where, name, call)

    return arrange


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("step", ["_park", "_leave", "arrive"])
def test_a_move_that_died_goes_on_and_everything_runs_once(
    hands: Hands, die: Callable[..., None], step: str, key: str | None, durable: bool
) -> None:
    leave("jobs", 1, key=key, durable=durable, delay=0)
    with pytest.raises(Died), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workers, "release_lock", lambda self, name: None)
        die(moving, step)
        move_topic("jobs", "orders")
    with pytest.raises(InvalidMessage, match="died at it: try again in a minute"):
        move_topic("jobs", "orders")
    hands.store.workers.release_lock("move:jobs")
    assert hands.work(ORDERS) == 0, "it waits there, so that it is not in two places"
    hands.reconcile()
    done = move_topic("jobs", "orders")
    assert done == Moved(moved=0 if step == "arrive" else 1)
    if step == "arrive":
        (found,) = list_messages("orders").messages
        record.using(topic="orders").reschedule(id=found.id, delay=0)
    assert (hands.work(ORDERS), hands.work(JOBS), seen) == (1, 0, [1])
    assert [(row.topic, row.state, row.key) for row in hands.archive()] == [
        ("orders", "acked", key or "")
    ]
    assert (statuses(), messages_in(hands.store, JOBS), hands.reconcile()) == ([], set(), 0)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_move_that_died_before_its_commit_goes_on_and_the_message_runs_once(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """Redis has moved it and the outbox has not."""
    leave("jobs", 1, key=key, durable=True, delay=0)

    def carry_and_die(*args: Any, **kwargs: Any) -> None:
        assert carry(*args, **kwargs).word == "MOVED"
        raise Died

    carry = moving.carry
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(moving, "carry", carry_and_die)
        move_topic("jobs", "orders")
    assert OutboxMessage.objects.get().topic == "jobs"
    assert hands.reconcile() == 1, "it is sent again where the outbox has it"
    assert move_topic("jobs", "orders") == Moved(moved=1)
    assert (hands.work(ORDERS), hands.work(JOBS), seen) == (1, 0, [1])
    assert [(row.topic, row.state, row.key) for row in hands.archive()] == [
        ("orders", "acked", key or "")
    ]
    assert (statuses(), hands.reconcile()) == ([], 0)


@pytest.mark.parametrize("error", [StoreUnavailable, KeyboardInterrupt])
@pytest.mark.parametrize("durable", [False, True])
def test_what_was_moved_before_an_error_is_moved_and_the_rest_goes_on(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, durable: bool, error: type[BaseException]
) -> None:
    leave("jobs", *range(5), durable=durable, delay=0)
    carry, calls = moving.carry, []

    def fail_at_the_third(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise error
        return carry(*args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(moving, "carry", fail_at_the_third)
        move_topic("jobs", "orders")
    hands._next_millisecond()
    assert (topic_stats("orders").backlog, topic_stats("jobs").backlog) == (2, 3)
    assert OutboxMessage.objects.filter(topic="orders").count() == 2 * durable
    assert move_topic("jobs", "orders") == Moved(moved=3)
    assert (hands.work(ORDERS), sorted(seen)) == (5, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("what", ["claim", "cancel"])
def test_what_is_claimed_or_cancelled_at_the_very_moment_is_not_run_in_the_other_topic(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, what: str, key: str | None, durable: bool
) -> None:
    (handle,) = leave("jobs", 1, key=key, durable=durable, delay=0)
    leave_ = moving._leave

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        if what == "claim":
            assert len(hands.store.claim(JOBS, 1).leases) == 1
        else:
            assert hands.store.cancel_in(JOBS, [handle.identity]) == ["OK"]
        return leave_(*args, **kwargs)

    monkeypatch.setattr(moving, "_leave", meanwhile)
    assert move_topic("jobs", "orders") == Moved(running=1 if what == "claim" else 0)
    assert messages_in(hands.store, ORDERS) == set()
    rows_now = list(OutboxMessage.objects.values_list("topic", "message_id"))
    assert rows_now == ([("jobs", UUID(bytes=handle.identity))] if durable else [])
    if what == "cancel":
        assert [row.state for row in hands.archive()] == ["cancelled"]
        assert statuses() == []


def test_only_one_moves_a_topic_at_a_time(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    leave("jobs", *range(20))
    carry, answers = moving.carry, []

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        if not answers:
            with pytest.raises(
                InvalidMessage, match="Somebody moves the topic 'jobs' already"
            ) as caught:
                move_topic("jobs", "orders")
            answers.append(caught)
        return carry(*args, **kwargs)

    monkeypatch.setattr(moving, "carry", meanwhile)
    assert move_topic("jobs", "orders") == Moved(moved=20)
    assert move_topic("jobs", "orders") == Moved()


def test_a_worker_that_serves_the_old_topic_meanwhile_runs_nothing_twice(hands: Hands) -> None:
    with declared("jobs"):
        for handle in leave("jobs", *range(200), delay=0):
            assert handle
    stop = threading.Event()
    ran: list[bytes] = []

    def work() -> None:
        store = hands.store
        while not stop.is_set():
            for lease in store.claim(JOBS, 5).leases:
                ran.append(lease.id)
                store.ack(JOBS, [(lease, b"{}")])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        done = move_topic("jobs", "orders")
    finally:
        stop.set()
        thread.join(10)
    there = messages_in(hands.store, ORDERS)
    assert not there & set(ran)
    assert len(there) == done.moved
    assert len(there) + len(set(ran)) + len(messages_in(hands.store, JOBS)) == 200
    assert len(ran) == len(set(ran))


def test_redis_that_is_away_changes_nothing(hands: Hands) -> None:
    leave("jobs", 1, durable=True, delay=3 * DAY)
    with unreachable(), pytest.raises(StoreUnavailable):
        move_topic("jobs", "orders")
    assert OutboxMessage.objects.get().topic == "jobs"


@pytest.mark.parametrize("durable", [False, True])
def test_a_window_moves_with_its_message(hands: Hands, durable: bool) -> None:
    options: Any = {"key": "k", "on_duplicate": "keep", "window": 3600, "durable": durable}
    leave("jobs", "moved", **options)
    move_topic("jobs", "orders")
    there = record.using(topic="orders", **options)
    there.reschedule(key="k", delay=0)
    hands.work(ORDERS)
    assert seen == ["moved"]
    assert there.enqueue("refused").outcome == "kept"
    assert leave("jobs", "free again", **options)[0].outcome == "stored"


# The command


def test_the_command_moves_and_keeps_a_record(
    hands: Hands, capsys: pytest.CaptureFixture[str]
) -> None:
    leave("jobs", 1, 2)
    record.using(topic="orders", key="k", delay=60).enqueue("there")
    leave("jobs", "here", key="k")
    call_command("delayq", "move", "jobs", "--to", "orders", "--dry-run")
    assert (
        capsys.readouterr().out
        == "3 messages wait in Redis, 0 in the outbox; 0 run. Nothing was changed\n"
    )
    call_command("delayq", "move", "jobs", "--to", "orders", "--by", "ops", "--reason", "renamed")
    assert capsys.readouterr().out == "moved 2 messages; 1 stay, their keys are live there: k\n"
    (action,) = OperatorAction.objects.all()
    assert (action.action, action.operator, action.reason, action.count) == (
        "move",
        "ops",
        "renamed",
        2,
    )
    assert (action.topic, action.selection) == ("jobs", "to topic orders")
    assert action.finished_at is not None


@pytest.mark.parametrize(
    ("topic", "to"), [("nowhere", "orders"), ("jobs", "nowhere"), ("jobs", "jobs")]
)
def test_the_command_refuses_what_makes_no_sense(hands: Hands, topic: str, to: str) -> None:
    leave("jobs", 1)
    with pytest.raises(CommandError) as caught:
        call_command("delayq", "move", topic, "--to", to)
    assert caught.value.returncode == 2
    assert OperatorAction.objects.count() == 0
