"""enqueue_many with a key and a due time for each element: prepare(...).using(...)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from django_delayq.core import exceptions
from django_delayq.core.message import key_id
from django_delayq.store.store import RedisStore
from tests.app.tasks import close_order, record
from tests.faults import scripts_run, unreachable
from tests.sending import kept, sent, with_transactions

pytestmark = with_transactions
AT = timezone.now().replace(microsecond=0) + timedelta(minutes=20)


def test_each_has_its_own_key_and_due_time_and_all_leave_in_one_call(delayq: RedisStore) -> None:
    record.enqueue("warm")
    before = scripts_run(delayq)
    handles = record.enqueue_many(
        record.prepare(n).using(key=f"k{n}", due_at=AT + timedelta(seconds=n)) for n in range(500)
    )
    assert scripts_run(delayq) == before + 1
    for n in (0, 499):
        message = record.get(key=f"k{n}")
        assert message is not None
        assert (message.args, message.due_at, message.key, message.id) == (
            [n], AT + timedelta(seconds=n), f"k{n}", handles[n].id,
        )  # fmt: skip
        assert handles[n].due_at == message.due_at


def test_what_a_call_does_not_say_its_task_says(delayq: RedisStore) -> None:
    keyed = record.using(key="k", headers={"a": "b"}, due_at=AT)
    first, second, third = record.enqueue_many(
        [
            keyed.prepare(1).using(delay=60),
            keyed.prepare(2).using(key="other"),
            record.prepare(3).using(due_at=AT),
        ]
    )
    assert (first.key, second.key, third.key) == ("k", "other", None)
    assert first.due_at != AT
    assert (second.due_at, third.due_at) == (AT, AT)
    message = second.get()
    assert message is not None
    assert message.headers == {"a": "b"}


def test_all_kinds_of_elements_go_together(delayq: RedisStore) -> None:
    record.enqueue_many(
        [("a",), record.prepare("b").using(key="k"), close_order.prepare(5).using(delay=1)]
    )
    assert (sent(), sent("orders")) == (["a", "b"], [5])


def test_a_live_key_is_refused_and_the_others_are_sent(delayq: RedisStore) -> None:
    calls = [record.prepare(n).using(key=f"k{n % 3}", delay=60) for n in range(4)]
    with pytest.raises(exceptions.DuplicateMessage) as caught:
        record.enqueue_many(calls)
    assert (caught.value.keys, sent()) == (("k0",), [0, 1, 2])


@pytest.mark.parametrize("durable", [False, True])
def test_the_outbox_keeps_their_keys_and_due_times(delayq: RedisStore, durable: bool) -> None:
    task = record.using(on_duplicate="keep", durable=durable)
    with unreachable():
        handles = task.enqueue_many([task.prepare(n).using(key="k", due_at=AT) for n in range(2)])
    assert [handle.outcome for handle in handles] == ["outbox", "kept"]
    assert (kept(), handles[0].due_at) == ([key_id("default", "k").hex()], AT)


def test_an_id_of_another_key_is_refused(delayq: RedisStore) -> None:
    task = record.using(id=key_id("default", "k"))
    task.enqueue_many([task.prepare(1).using(key="k", delay=60)])
    with pytest.raises(exceptions.InvalidMessage, match="not that of the key"):
        task.enqueue_many([task.prepare(1).using(key="other")])


@pytest.mark.parametrize("wrong", [{"key": ""}, {"delay": 1, "due_at": AT}, {"delay": -1}])
def test_what_is_wrong_is_refused_where_it_is_given(wrong: dict[str, object]) -> None:
    with pytest.raises(exceptions.InvalidMessage):
        record.prepare(1).using(**wrong)  # type: ignore[arg-type]


def test_async_code_sends_many_too(delayq: RedisStore) -> None:
    handles = async_to_sync(record.aenqueue_many)([("a",), record.prepare("b").using(key="k")])
    assert [handle.key for handle in handles] == [None, "k"]
    assert sent() == ["a", "b"]
