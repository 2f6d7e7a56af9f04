"""enqueue_one.lua: nothing -> delayed, for one message whose id is probably new."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from django_delayq.core.exceptions import StoreError, StoreFull
from django_delayq.core.message import Priority, task_code
from django_delayq.store.client import RedisClient
from django_delayq.store.store import Outgoing, RedisStore
from tests.servers import Server
from tests.store.factories import (
    FAR,
    LATER,
    PARTITION,
    PAST,
    TASKS,
    accepted,
    claim,
    counter,
    dump,
    enqueue,
    full,
    outgoing,
    send,
    waiting,
    wakeups,
)
from tests.store.records import stored


@pytest.fixture(autouse=True)
def first(store: RedisStore) -> Outgoing:
    """The partition knows the name of the task, which enqueue.lua alone tells it."""
    message = outgoing(when=FAR, priority=Priority.LOW)
    send(store, message)
    return message


@pytest.fixture
def called(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts that are called."""
    names: list[str] = []
    real = RedisClient.begin

    def spy(self: RedisClient, name: str, *args: Any) -> Any:
        names.append(name)
        return real(self, name, *args)

    monkeypatch.setattr(RedisClient, "begin", spy)
    return names


# When it is called


def test_a_lone_message_takes_the_short_script(store: RedisStore, called: list[str]) -> None:
    send(store, outgoing())
    assert called == ["enqueue_one"]


@pytest.mark.parametrize(
    "messages",
    [
        [outgoing(mode="keep")],
        [outgoing(mode="replace")],
        [accepted()],
        [outgoing(), outgoing()],
    ],
    ids=["keep", "replace", "from SQL", "two"],
)
def test_others_take_the_script_that_has_words(
    store: RedisStore, called: list[str], messages: list[Outgoing]
) -> None:
    send(store, *messages)
    assert called == ["enqueue"]


def test_so_does_one_whose_task_the_partition_does_not_know(
    store: RedisStore, called: list[str]
) -> None:
    name = "shop.other"
    store.enqueue(PARTITION, {task_code(name): name}, [outgoing()])
    assert called == ["enqueue"]
    assert store.queries.task_name(PARTITION, task_code(name)) == name


# What it stores


@pytest.mark.parametrize("expires", ["", "+5000", "1763632200123"])
@pytest.mark.parametrize("when", [PAST, FAR])
@pytest.mark.parametrize("priority", Priority)
def test_it_leaves_what_the_full_script_leaves(
    store: RedisStore, first: Outgoing, when: str, expires: str, priority: Priority
) -> None:
    twin = RedisStore(
        store.client.redis, replace(store.client.settings, prefix=f"{store.client.prefix}-twin")
    )
    send(twin, first)
    message = outgoing(when=when, expires=expires, priority=priority)
    assert send(store, message) == send(twin, message._replace(mode="keep")) == {}
    ours, theirs = dump(store), dump(twin)
    for content in (ours, theirs):
        content["messages"] = {i: record[8:] for i, record in content["messages"].items()}
    assert ours == theirs


def test_a_delay_counts_from_the_clock_of_redis_which_is_returned(store: RedisStore) -> None:
    message = outgoing(when="+1500", expires="+10")
    now_us, _ = store.enqueue(PARTITION, TASKS, [message])
    due = math.ceil(now_us / 1000) + 1500
    assert waiting(store)[message[0]] == due
    record = stored(store, message[0])
    assert (record.enqueued_at_us, record.expires_at_ms) == (now_us, due + 10)


@pytest.mark.parametrize(
    "when", ["inf", "nan", "+inf", "1e300", "281474976710656", "9000000000000.5"]
)
def test_a_due_time_that_would_be_cut_is_refused_before_anything_changes(
    store: RedisStore, when: str
) -> None:
    before = dump(store)
    with pytest.raises(StoreError):
        send(store, outgoing(when=when))
    assert dump(store) == before


@pytest.mark.parametrize("field", ["when", "expires"])
def test_a_time_that_is_not_a_number_is_refused_before_anything_changes(
    store: RedisStore, field: str
) -> None:
    before = dump(store)
    for text in ("soon", "+soon"):
        with pytest.raises(StoreError):
            send(store, outgoing(**{field: text}))
    assert dump(store) == before


def test_only_a_sooner_head_of_its_lane_wakes_the_workers(store: RedisStore) -> None:
    before, seen = wakeups(store), []
    for when in ("5000", "9000", "5000", "4999"):
        enqueue(store, when=when)
        seen.append(wakeups(store) - before)
    assert seen == [1, 1, 1, 2]


# An id that is live


@pytest.mark.parametrize(("body", "word"), [(b"[1]", "SAME"), (b"[2]", "DUPLICATE")])
def test_a_live_id_is_left_to_the_full_script(
    store: RedisStore, called: list[str], body: bytes, word: str
) -> None:
    for message_id in (enqueue(store, when=LATER), claim(store).id):
        before, called[:] = dump(store), []
        assert send(store, outgoing(message_id, body=body, when="5")) == {0: word}
        assert called == ["enqueue_one", "enqueue"]
        assert dump(store) == before


def test_a_repeat_is_stored_when_the_first_has_ended_meanwhile(store: RedisStore) -> None:
    message = outgoing(when=LATER)
    send(store, message)
    answer = store.begin_enqueue(PARTITION, TASKS, [message])
    store.cancel_in(PARTITION, [message[0]])
    assert answer()[1] == {}
    assert message[0] in waiting(store)


# Full


def test_a_full_redis_refuses_and_nothing_changes(store: RedisStore, server: Server) -> None:
    before = dump(store)
    with full(server), pytest.raises(StoreFull):
        send(store, outgoing())
    assert dump(store) == before


def test_a_full_redis_knows_what_is_live(store: RedisStore, server: Server) -> None:
    message = outgoing(when=LATER)
    send(store, message)
    count = counter(store, "enqueued")
    with full(server):
        assert send(store, message) == {0: "SAME"}
        assert send(store, outgoing(message[0], body=b"[2]")) == {0: "DUPLICATE"}
    assert counter(store, "enqueued") == count
