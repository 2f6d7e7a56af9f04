"""Finding again by key and by id, also when the number of partitions has been raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_delayq import topic_stats
from django_delayq.client.handle import Handle
from django_delayq.core import exceptions
from django_delayq.core.conf import get_settings
from django_delayq.core.message import State
from django_delayq.store import get_store
from django_delayq.store.store import RedisStore
from tests.app.tasks import close_order, crowd, noop
from tests.sending import LONG_AGO, ack, claim, sent, with_transactions

pytestmark = with_transactions  # what Redis does not know is looked for in the outbox

# Finding again


@pytest.fixture(params=["key", "id"])
def live(
    request: pytest.FixtureRequest, delayq: RedisStore
) -> Iterator[tuple[Handle, dict[str, Any]]]:
    """A waiting message, and the way to name it."""
    handle = close_order.using(key="order:5", delay=60).enqueue(5)
    yield handle, {"key": "order:5"} if request.param == "key" else {"id": handle.id}


def test_cancel_takes_it_back(live: tuple[Handle, dict[str, Any]]) -> None:
    handle, name = live
    close_order.cancel(**name)
    assert handle.get() is None
    assert topic_stats("orders").counters["cancelled"] == 1


def test_second_cancel_says_that_it_is_not_live(live: tuple[Handle, dict[str, Any]]) -> None:
    close_order.cancel(**live[1])
    with pytest.raises(
        exceptions.MessageNotFound,
        match=r"not live in topic 'orders': never sent, finished or cancel",
    ):
        close_order.cancel(**live[1])


def test_cancel_while_it_runs_is_refused(live: tuple[Handle, dict[str, Any]]) -> None:
    close_order.reschedule(due_at=LONG_AGO, **live[1])
    lease = claim("orders")[0]
    with pytest.raises(
        exceptions.MessageRunning, match="a worker holds it, so it can no longer be cancelled"
    ):
        close_order.cancel(**live[1])
    ack(lease)


def test_reschedule_moves_it(live: tuple[Handle, dict[str, Any]]) -> None:
    handle, name = live
    due_at = datetime(2030, 1, 1, 12, 0, 0, 500, tzinfo=timezone.utc)
    assert close_order.reschedule(due_at=due_at, **name) == due_at.replace(microsecond=1000)
    message = handle.get()
    assert message is not None
    assert (message.due_at, message.args) == (due_at.replace(microsecond=1000), [5])
    moved = close_order.reschedule(delay=timedelta(hours=1), **name)
    assert moved - message.enqueued_at > timedelta(minutes=59)


def test_reschedule_while_it_runs_is_refused(live: tuple[Handle, dict[str, Any]]) -> None:
    close_order.reschedule(due_at=LONG_AGO, **live[1])
    lease = claim("orders")[0]
    with pytest.raises(exceptions.MessageRunning, match="can no longer be moved"):
        close_order.reschedule(delay=60, **live[1])
    assert live[0].get().state == State.LEASED  # type: ignore[union-attr]
    ack(lease)


@pytest.mark.parametrize("name", [{"key": "never"}, {"id": "01890000-0000-7000-8000-000000000000"}])
def test_unknown_message(delayq: RedisStore, name: dict[str, Any]) -> None:
    assert close_order.get(**name) is None
    with pytest.raises(exceptions.MessageNotFound, match="not live"):
        close_order.cancel(**name)
    with pytest.raises(exceptions.MessageNotFound, match="not live"):
        close_order.reschedule(delay=1, **name)


def test_handle_cancels_its_message(delayq: RedisStore) -> None:
    handle = noop.using(delay=60).enqueue()
    handle.cancel()
    assert handle.get() is None
    with pytest.raises(exceptions.MessageNotFound):
        handle.cancel()


def test_unknown_topic_is_refused_when_finding(delayq: RedisStore) -> None:
    with pytest.raises(exceptions.UnknownTopic):
        noop.using(topic="nowhere").cancel(key="k")


# Raising the number of partitions


def test_messages_from_before_are_still_there(split: Callable[[int], RedisStore]) -> None:
    crowd.using(delay=60).enqueue_many([(n,) for n in range(20)])
    split(4)
    crowd.using(delay=60).enqueue_many([(n,) for n in range(20, 60)])
    assert sorted(sent("crowd")) == list(range(60))
    assert topic_stats("crowd").delayed == 60
    assert len(get_store().partitions.all("crowd")) == 4


def test_messages_from_before_are_served(split: Callable[[int], RedisStore]) -> None:
    task = crowd.using(due_at=LONG_AGO)
    task.enqueue_many([(n,) for n in range(20)])
    split(4)
    task.enqueue_many([(n,) for n in range(20, 60)])
    leases = claim("crowd", 100)
    assert len(leases) == 60
    assert {lease.partition.number for lease in leases} == {0, 1, 2, 3}


def test_keys_from_before_are_found(split: Callable[[int], RedisStore]) -> None:
    keyed = [crowd.using(key=f"k{n}", delay=60) for n in range(20)]
    crowd.enqueue_many(task.prepare(n) for n, task in enumerate(keyed))
    split(4)
    assert [crowd.get(key=f"k{n}").args for n in range(20)] == [[n] for n in range(20)]  # type: ignore[union-attr]
    for n in range(10):
        crowd.reschedule(key=f"k{n}", delay=90)
        crowd.cancel(key=f"k{n}")
    assert topic_stats("crowd").delayed == 10


@pytest.mark.parametrize("mode", ["raise", "keep", "replace"])
def test_keys_from_before_are_not_stored_twice(
    split: Callable[[int], RedisStore], mode: Any
) -> None:
    keyed = [crowd.using(key=f"k{n}", delay=60, on_duplicate=mode) for n in range(20)]
    crowd.enqueue_many(task.prepare(0) for task in keyed)
    split(4)
    try:
        crowd.enqueue_many(task.prepare(1) for task in keyed)
    except exceptions.DuplicateMessage as error:
        assert mode == "raise"
        assert len(error.keys) == 20
    assert sent("crowd") == [int(mode == "replace")] * 20


def test_id_from_before_is_not_stored_twice(split: Callable[[int], RedisStore]) -> None:
    """An unknown enqueue that is repeated after a deploy with more partitions."""
    handles = crowd.using(delay=60).enqueue_many([(n,) for n in range(20)])
    split(4)
    crowd.enqueue_many(
        crowd.using(delay=60, id=handle.id).prepare(n) for n, handle in enumerate(handles)
    )
    assert topic_stats("crowd").delayed == 20


def test_process_with_the_old_number_finds_what_a_new_one_sends(
    split: Callable[[int], RedisStore],
) -> None:
    crowd.enqueue(0)
    new = split(4)
    crowd.using(delay=60).enqueue_many(
        crowd.using(key=f"k{n}", delay=60).prepare(n) for n in range(20)
    )
    old = split(1)
    assert old is not new
    assert get_settings().topics["crowd"].partitions == 1
    assert all(crowd.get(key=f"k{n}") for n in range(20))
