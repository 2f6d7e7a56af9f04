"""Messages whose keys are made from their arguments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.db import transaction

from django_delayq import DelayedTask, delayed_task, list_messages
from django_delayq.core.exceptions import DuplicateMessage, InvalidKey, InvalidMessage
from django_delayq.core.message import key_id
from django_delayq.models import OutboxMessage
from django_delayq.operators.replay import replay
from django_delayq.store.store import RedisStore
from tests.faults import scripts_run
from tests.operators.test_replay import dead
from tests.sending import with_transactions

pytestmark = with_transactions


@pytest.fixture
def close(declared: dict[str, Any], delayq: RedisStore) -> DelayedTask[..., Any]:
    @delayed_task(name="tests.close", topic="orders", delay=60, key="order:{order_id}")
    def close(order_id: int, reason: str = "unpaid") -> None: ...

    return close


def waiting() -> list[Any]:
    return sorted(
        (message.key or "", *message.args) for message in list_messages("orders").messages
    )


def test_a_message_has_the_key_that_its_arguments_make(close: Any) -> None:
    handle = close.enqueue(5)
    assert (handle.key, handle.identity) == ("order:5", key_id("orders", "order:5"))
    assert close.get(key=close.key_for(5)).args == [5]
    with pytest.raises(DuplicateMessage, match="order:5"):
        close.enqueue(5, "again")
    assert close.cancel(key=close.key_for(5))
    assert waiting() == []


def test_options_about_keys_count(close: Any) -> None:
    close.enqueue(5)
    assert close.using(on_duplicate="keep").enqueue(5, "kept").outcome == "kept"
    assert close.using(on_duplicate="replace").enqueue(5, "newer").outcome == "replaced"
    close.using(headers={"trace": "x"}).enqueue(6)
    assert waiting() == [("order:5", 5, "newer"), ("order:6", 6)]
    assert close.get(key="order:6").headers == {"trace": "x"}


def test_using_overrides_it(close: Any) -> None:
    assert close.using(key="other").enqueue(5).key == "other"
    assert close.using(key=None).enqueue(5).key is None
    assert waiting() == [("", 5), ("other", 5)]


def test_a_key_that_a_call_of_many_was_given_overrides_it(close: Any) -> None:
    calls = [close.prepare(1).using(key="own"), close.prepare(2).using(delay=5), close.prepare(3)]
    assert [handle.key for handle in close.enqueue_many(calls)] == ["own", "order:2", "order:3"]


def test_many_have_keys_of_their_own_in_one_batch(close: Any, delayq: RedisStore) -> None:
    close.enqueue(0)
    before = scripts_run(delayq)
    handles = close.enqueue_many([(number,) for number in range(1, 400)])
    assert scripts_run(delayq) == before + 1
    assert [handle.key for handle in handles] == [f"order:{number}" for number in range(1, 400)]
    with pytest.raises(DuplicateMessage) as caught:
        close.enqueue_many([(400,), (5,), close.prepare(6)])
    assert sorted(caught.value.keys) == ["order:5", "order:6"]
    assert close.get(key="order:400")


def test_inside_a_transaction_and_for_async_code(close: Any) -> None:
    with transaction.atomic():
        close.enqueue(5)
        with pytest.raises(DuplicateMessage):
            close.enqueue(5)
    asyncio.run(close.aenqueue(6))
    assert waiting() == [("order:5", 5), ("order:6", 6)]


def test_a_durable_one_has_it_in_the_outbox(close: Any) -> None:
    close.using(durable=True, delay=100_000).enqueue(5)
    assert OutboxMessage.objects.get().key == "order:5"
    with pytest.raises(DuplicateMessage):
        close.using(durable=True).enqueue(5)


def test_a_function_may_leave_a_message_without_a_key(declared: Any, delayq: RedisStore) -> None:
    @delayed_task(
        name="tests.some",
        topic="orders",
        delay=60,
        key=lambda number: f"n{number}" if number else None,
    )
    def numbered(number: int) -> None: ...

    handles = numbered.enqueue_many([(0,), (1,), (0,)])
    assert [handle.key for handle in handles] == [None, "n1", None]
    assert len({handle.id for handle in handles}) == 3


def test_an_id_has_to_be_that_of_the_key(close: Any) -> None:
    with pytest.raises(InvalidMessage, match="This id is not that of the key"):
        close.using(id="0190a5f0-0000-7000-8000-000000000001").enqueue(5)
    handle = close.enqueue(5)
    again = close.using(id=handle.id).enqueue(5)
    assert (again.outcome, waiting()) == ("stored", [("order:5", 5)])


def test_what_makes_no_key_is_refused_and_nothing_is_sent(declared: Any, close: Any) -> None:
    @delayed_task(name="tests.strict", topic="orders", key="{number}")
    def strict(number: int | None) -> None: ...

    with pytest.raises(InvalidKey, match="made of number, which is None"):
        strict.enqueue_many([(1,), (None,)])
    assert waiting() == []


def test_a_replay_keeps_the_key_of_its_row(close: Any) -> None:
    body = '{"args":[5],"kwargs":{}}'
    dead(task="tests.close", topic="orders", body=body, key="order:old")
    dead(task="tests.close", topic="orders", body=body)
    assert replay(state="dead").count == 2
    assert sorted(OutboxMessage.objects.values_list("key", flat=True)) == ["", "order:old"]
