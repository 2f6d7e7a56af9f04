"""Arguments by their annotations on their way into Redis and the outbox: enqueued, edited and
replayed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest

from django_delayq import DelayedTask, delayed_task, list_messages
from django_delayq.client.changes import edit
from django_delayq.core.exceptions import InvalidArguments, InvalidMessage, UnserialisableArguments
from django_delayq.models import ArchivedMessage, OutboxMessage
from django_delayq.operators.replay import replay
from django_delayq.store.store import RedisStore
from django_delayq.tasks import builder
from tests.app import typed
from tests.app.tasks import close_order
from tests.app.typed import Order
from tests.hands import ORDERS, Hands
from tests.operators.test_replay import dead
from tests.sending import with_transactions

pytestmark = with_transactions

AT = datetime(2026, 11, 20, 9, tzinfo=timezone.utc)
SOME_ID = UUID("0190a5f0-0000-7000-8000-000000000001")
ORDER = Order(SOME_ID, AT, [])
ORDER_JSON = {
    "id": str(SOME_ID),
    "placed": "2026-11-20T09:00:00Z",
    "lines": [],
    "status": "open",
    "parent": None,
}


@pytest.fixture
def settle(declared: dict[str, Any], delayq: RedisStore) -> DelayedTask[..., Any]:
    return delayed_task(name="tests.settle", topic="orders", delay=60)(typed.settle)


def waiting() -> list[Any]:
    """Arguments of what waits."""
    return [(m.args, dict(m.kwargs)) for m in list_messages("orders").messages]


def test_typed_arguments_are_stored_as_json(settle: Any) -> None:
    settle.enqueue(ORDER, Decimal("9.90"), at=AT)
    assert waiting() == [([ORDER_JSON, "9.90"], {"at": "2026-11-20T09:00:00Z"})]


def test_durable_ones_too(settle: Any) -> None:
    settle.using(durable=True, delay=100_000).enqueue(ORDER)
    assert b'"placed":"2026-11-20T09:00:00Z"' in bytes(OutboxMessage.objects.get().record)


def test_async_code_enqueues_them(settle: Any) -> None:
    asyncio.run(settle.aenqueue(ORDER))
    assert waiting() == [([ORDER_JSON], {})]


def test_many_are_stored_as_json(settle: Any) -> None:
    settle.enqueue_many([(ORDER, Decimal(1)), {"order": ORDER}, settle.prepare(ORDER)])
    assert sorted(waiting(), key=str) == sorted(
        [([ORDER_JSON, "1"], {}), ([], {"order": ORDER_JSON}), ([ORDER_JSON], {})], key=str
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((5,), {}, r"tests\.settle, order: Expected `object`, got `int`\. Its annotation is Order"),
        ((ORDER, "much"), {}, r"tests\.settle, paid: Invalid decimal string"),
        ((ORDER,), {"at": "noon"}, r"tests\.settle, at: Invalid RFC3339 encoded datetime"),
        ((object(),), {}, r"tests\.settle, order: this value cannot be written as JSON"),
        ((ORDER, Decimal(1), 5), {}, "too many positional arguments"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_sent(
    settle: Any, args: Any, kwargs: Any, words: str
) -> None:
    with pytest.raises((InvalidArguments, UnserialisableArguments), match=words):
        settle.enqueue(*args, **kwargs)
    with pytest.raises((InvalidArguments, UnserialisableArguments), match=words):
        settle.enqueue_many([(ORDER,), settle.prepare(*args, **kwargs)])
    assert waiting() == []


def test_plain_annotations_are_checked_too(delayq: RedisStore) -> None:
    for _ in range(2):  # before and after the shape of a good call is known
        with pytest.raises(InvalidArguments, match="close_order, order_id: Expected `int`"):
            close_order.enqueue("5")  # type: ignore[arg-type]
        with pytest.raises(InvalidArguments, match="close_order, reason: Expected `str`"):
            close_order.enqueue(5, reason=7)  # type: ignore[arg-type]
        close_order.using(delay=60).enqueue(5, reason="unpaid")
    assert waiting() == [([5], {"reason": "unpaid"})] * 2


def test_what_a_value_holds_is_checked_each_time(delayq: RedisStore, declared: Any) -> None:
    @delayed_task(name="tests.holds", topic="orders")
    def holds(value: dict[str, Any], amount: float = 0) -> None: ...

    holds.using(delay=60).enqueue({"a": [1]}, 0.5)
    for args in [({"a": [UUID(int=0)]}, 0.5), ({1: 2}, 0.5), ({"a": 1}, float("nan"))]:
        with pytest.raises(UnserialisableArguments, match=r"tests\.holds, (value|amount): "):
            holds.enqueue(*args)  # type: ignore[arg-type]


def test_only_shapes_of_which_the_types_say_all_are_remembered(
    delayq: RedisStore, declared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @delayed_task(name="tests.plain", topic="orders")
    def plain(number: int, *, values: Any = None) -> None: ...

    @delayed_task(name="tests.bounded", topic="orders")
    def bounded(number: Annotated[int, msgspec.Meta(gt=0)], id: UUID) -> None: ...  # noqa: A002

    plain.enqueue_many([(1,), {"number": 1}, {"number": 2, "values": [1]}])
    bounded.enqueue(1, SOME_ID)
    assert plain.definition.fitting == {
        (int,): True,
        ("number", int): True,
        ("number", "values", int, list): False,
    }
    assert bounded.definition.fitting == {}
    monkeypatch.setattr(builder, "MOST_SHAPES", 3)
    plain.enqueue(1, values="x")
    assert len(plain.definition.fitting) == 3


def test_an_edit_is_checked_and_may_give_values_or_their_json(settle: Any) -> None:
    handle = settle.enqueue(ORDER)
    with pytest.raises(InvalidArguments, match=r"tests\.settle, paid: Invalid decimal"):
        edit("orders", handle.id, [ORDER_JSON, "much"], {})
    edit("orders", handle.id, [ORDER_JSON], {"paid": "2.50"})
    assert waiting() == [([ORDER_JSON], {"paid": "2.50"})]
    edit("orders", handle.id, [ORDER], {"paid": Decimal(3)})
    assert waiting() == [([ORDER_JSON], {"paid": "3"})]


def replayed() -> list[Any]:
    return list(OutboxMessage.objects.order_by("pk"))


def test_a_dead_letter_is_replayed_as_it_is_or_edited(settle: Any, hands: Hands) -> None:
    settle.using(delay=0).enqueue(ORDER, Decimal(1))
    (lease,) = hands.claim(ORDERS)
    lease.record = lease.record[:-1]  # damaged, and so dead
    hands.run(lease)
    (row,) = hands.archive()
    assert row.state == "dead"
    row.body = json.dumps({"args": [ORDER_JSON, "1"], "kwargs": {}}, separators=(",", ":"))
    row.save()

    edits: list[Callable[[ArchivedMessage], Any] | None] = [
        None,
        lambda row: ([ORDER, Decimal(7)], {}),
        lambda row: ([ORDER_JSON, "7"], {}),
    ]
    for change in edits:
        assert replay(pk=row.pk, edit=change, force=True).count == 1
    bodies = [bytes(found.record)[9:] for found in replayed()]
    assert [b'"1"' in body for body in bodies] == [True, False, False]
    with pytest.raises(InvalidMessage, match=r"refused\. tests\.settle, paid: Invalid decimal"):
        replay(pk=row.pk, edit=lambda row: ([ORDER, "x"], {}), force=True)


def test_a_dead_letter_that_no_longer_fits_is_skipped(settle: Any) -> None:
    dead(task="tests.settle", topic="orders", body='{"args":[5],"kwargs":{}}')
    assert replay(state="dead").skipped == {"arguments refused": 1}
