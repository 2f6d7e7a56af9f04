"""Other arguments for a waiting message: what changes, what stays, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from django_delayq.client.changes import edit
from django_delayq.client.handle import Handle
from django_delayq.core import exceptions
from django_delayq.core.conf import get_settings
from django_delayq.core.message import DURABLE, HEADER_END, PACKED, Message, Record
from django_delayq.store import keys
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from django_delayq.tasks import registry
from tests.app.tasks import close_order, crowd, noop, record
from tests.sending import LONG_AGO, ack, claim, with_transactions

pytestmark = with_transactions  # what Redis does not know is looked for in the outbox

DEFAULT = Partition("default", 0)


def record_of(store: RedisStore, handle: Handle) -> Record:
    """As it lies in Redis."""
    (found,) = store.queries.find(Partition(handle.topic, 0), [handle.identity])
    assert found
    return Record.decode(found.record)


def live(handle: Handle) -> Message:
    message = handle.get()
    assert message is not None
    return message


def kept(message: Message) -> dict[str, Any]:
    """All of it but the arguments."""
    return {
        name: getattr(message, name)
        for name in message.__struct_fields__
        if name not in ("args", "kwargs")
    }


def test_arguments_are_others_and_everything_else_stays(delayq: RedisStore) -> None:
    options: dict[str, Any] = {
        "key": "order:5",
        "headers": {"trace": "x"},
        "priority": "high",
        "max_attempts": 9,
        "expires": 30,
    }
    handle = close_order.using(delay=60, ttr=90, **options).enqueue(5, reason="unpaid")
    before, raw = live(handle), record_of(delayq, handle)
    edit("orders", handle.id, [6], {"reason": "paid"})
    after = live(handle)
    assert (list(after.args), dict(after.kwargs)) == ([6], {"reason": "paid"})
    assert kept(after) == kept(before)
    edited = record_of(delayq, handle)
    assert (edited.enqueued_at_us, edited.expires_at_ms, edited.flags, edited.ttr_ms, edited.task_code) == (
        raw.enqueued_at_us, raw.expires_at_ms, raw.flags, raw.ttr_ms, raw.task_code,
    )  # fmt: skip


def test_what_names_a_replay_and_its_maximum_of_attempts_stays(delayq: RedisStore) -> None:
    handle = record.using(delay=60, max_attempts=9).enqueue(1)
    body = b'{"args":[1],"max_attempts":9,"replay_of":77}'
    raw = delayq.queries.find(DEFAULT, [handle.identity])[0].record  # type: ignore[union-attr]
    delayq.client.command(
        "HSET",
        keys.partition_keys(delayq.client.prefix, DEFAULT)[4],
        handle.identity,
        raw[:HEADER_END] + body,
    )
    edit("default", handle.id, [2], {})
    assert live(handle).replay_of == 77
    assert b'"max_attempts":9' in record_of(delayq, handle).body


def test_it_runs_with_the_new_arguments(delayq: RedisStore) -> None:
    handle = close_order.using(delay=60).enqueue(5)
    edit("orders", handle.id, [6], {})
    handle.reschedule(due_at=LONG_AGO)
    (lease,) = claim("orders")
    assert Record.decode(lease.record).body == b"[6]"
    ack(lease)


@pytest.mark.parametrize(
    "name", [lambda i: i.hex(), lambda i: UUID(bytes=i), bytes], ids=["hex", "uuid", "bytes"]
)
def test_every_form_of_an_id_will_do(delayq: RedisStore, name: Callable[[bytes], Any]) -> None:
    handle = record.using(delay=60).enqueue(1)
    edit("default", name(handle.identity), [2], {})
    assert live(handle).args == [2]


@pytest.mark.parametrize(
    ("before", "after"),
    [((1,), {"value": 2}), ((), {"value": 2}), ((1,), {}), ((), {})],
)
def test_arguments_by_place_and_by_name_take_each_others_place(
    delayq: RedisStore, before: tuple[int, ...], after: dict[str, int]
) -> None:
    handle = record.using(delay=60).enqueue(*before)
    edit("default", handle.id, [], after)
    assert (list(live(handle).args), dict(live(handle).kwargs)) == ([], after)
    edit("default", handle.id, [3], {})
    assert (list(live(handle).args), dict(live(handle).kwargs)) == ([3], {})
    assert record_of(delayq, handle).body == b"[3]"  # as short as one that was enqueued so


@pytest.mark.parametrize("headers", [{}, {"trace": "x"}], ids=["plain", "with headers"])
def test_a_body_is_compressed_and_unfolded_across_the_threshold(
    delayq: RedisStore, headers: dict[str, str]
) -> None:
    handle = record.using(delay=60, headers=headers).enqueue("short")
    threshold = get_settings().compress_above
    seen = []
    for value in ("x" * 2 * threshold, "y" * 3 * threshold, "short again"):
        edit("default", handle.id, [value], {})
        assert (live(handle).args, live(handle).headers) == ([value], headers)
        raw = record_of(delayq, handle)
        assert len(raw.body) < threshold
        seen.append(bool(raw.flags & PACKED))
    assert seen == [True, True, False]


def test_the_same_arguments_once_more_change_nothing(delayq: RedisStore) -> None:
    handle = record.using(delay=60).enqueue(1)
    for _ in range(2):
        edit("default", handle.id, [2], {})
        raw = record_of(delayq, handle)
    assert raw == record_of(delayq, handle)
    assert live(handle).args == [2]


def test_it_stays_at_its_place_when_the_topic_has_been_split(
    split: Callable[[int], RedisStore], delayq: RedisStore
) -> None:
    handles = crowd.using(delay=60).enqueue_many([(n,) for n in range(20)])
    split(4)
    for handle in handles:
        edit("crowd", handle.id, [99], {})
    assert {tuple(live(handle).args) for handle in handles} == {(99,)}


# Refused, with nothing changed


def refused(
    store: RedisStore, handle: Handle, error: type[Exception], match: str, *arguments: Any
) -> None:
    """The edit raises, and the message is as before."""
    before = store.client.redis.hgetall(
        keys.partition_keys(store.client.prefix, Partition(handle.topic, 0))[4]
    )
    with pytest.raises(error, match=match):
        edit(handle.topic, handle.id, *arguments)
    assert (
        store.client.redis.hgetall(
            keys.partition_keys(store.client.prefix, Partition(handle.topic, 0))[4]
        )
        == before
    )


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ([], {}),
        ([1, 2], {}),
        ([1], {"colour": "red"}),
        ([1], {"order_id": 2}),
        ([], {"reason": "x"}),
    ],
    ids=repr,
)
def test_arguments_that_the_task_does_not_take_are_refused(
    delayq: RedisStore, args: Any, kwargs: Any
) -> None:
    handle = close_order.using(delay=60).enqueue(5)
    refused(delayq, handle, exceptions.InvalidMessage, "close_order|argument", args, kwargs)


@pytest.mark.parametrize(
    "value",
    [{1, 2}, object(), float("nan"), b"x", {1: 2}, timedelta(1), "\ud800"],
    ids=lambda value: type(value).__name__,
)
def test_arguments_that_are_no_json_are_refused(delayq: RedisStore, value: Any) -> None:
    handle = noop.using(delay=60).enqueue(5)
    refused(delayq, handle, exceptions.UnserialisableArguments, "JSON|nested", [value], {})
    refused(delayq, handle, exceptions.UnserialisableArguments, "JSON|nested", [], {"value": value})


def test_arguments_that_are_too_large_are_refused(delayq: RedisStore) -> None:
    handle = noop.using(delay=60).enqueue(5)
    refused(delayq, handle, exceptions.BodyTooLarge, "the limit is", ["x" * 65_536], {})


def test_a_task_that_is_not_declared_here_is_refused(
    delayq: RedisStore, monkeypatch: pytest.MonkeyPatch, declared: dict[str, Any]
) -> None:

    handle = noop.using(delay=60).enqueue(5)
    monkeypatch.setattr(registry, "by_code", {})
    refused(delayq, handle, exceptions.InvalidMessage, "not declared here", [6], {})


def test_a_record_that_cannot_be_decoded_is_refused(delayq: RedisStore) -> None:
    handle = noop.using(delay=60).enqueue(5)
    delayq.client.command(
        "HSET", keys.partition_keys(delayq.client.prefix, DEFAULT)[4], handle.identity, b"x" * 40
    )
    refused(delayq, handle, exceptions.UndecodableMessage, "version", [6], {})


def test_a_running_message_is_refused(delayq: RedisStore) -> None:
    handle = close_order.using(due_at=LONG_AGO).enqueue(5)
    lease = claim("orders")[0]
    refused(
        delayq,
        handle,
        exceptions.MessageRunning,
        "a worker holds it, so it can no longer be edited",
        [6],
        {},
    )
    ack(lease)


@pytest.mark.parametrize("ended", [False, True])
def test_a_message_that_is_not_live_is_refused(delayq: RedisStore, ended: bool) -> None:
    handle = close_order.using(due_at=LONG_AGO).enqueue(5)
    if ended:
        ack(claim("orders")[0])
    else:
        handle.cancel()
    with pytest.raises(exceptions.MessageNotFound, match="is not live in topic 'orders'"):
        edit("orders", handle.id, [6], {})


def test_an_unknown_topic_and_a_wrong_id_are_refused(delayq: RedisStore) -> None:
    with pytest.raises(exceptions.UnknownTopic):
        edit("nowhere", "00" * 16, [], {})
    with pytest.raises(exceptions.InvalidMessage):
        edit("default", "not an id", [], {})


def test_somebody_who_is_quicker_is_not_overwritten(
    delayq: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = record.using(delay=60).enqueue(1)
    real = RedisStore.find_many

    def find_late(self: RedisStore, *args: Any) -> Any:
        found = real(self, *args)
        monkeypatch.setattr(RedisStore, "find_many", real)
        edit("default", handle.id, ["quicker"], {})
        return found

    monkeypatch.setattr(RedisStore, "find_many", find_late)
    with pytest.raises(exceptions.MessageChanged):
        edit("default", handle.id, ["slower"], {})
    assert live(handle).args == ["quicker"]


def test_a_message_that_is_not_durable_does_not_become_so(delayq: RedisStore) -> None:
    handle = record.using(delay=60).enqueue(1)
    edit("default", handle.id, [2], {})
    assert not record_of(delayq, handle).flags & DURABLE
