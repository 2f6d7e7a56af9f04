"""reschedule.lua: delayed -> delayed with another due time."""

from __future__ import annotations

import math

import pytest

from django_delayq.core.exceptions import MessageNotFound, MessageRunning, StoreError, StoreFull
from django_delayq.core.message import Priority, Record
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    LATER,
    PARTITION,
    STAMP,
    accepted,
    attempts,
    claim,
    corrupt,
    dump,
    enqueue,
    follow,
    full,
    new_id,
    outgoing,
    send,
    waiting,
    wakeups,
)


def expires_at(store: RedisStore, message_id: bytes) -> int:
    return Record.decode(dump(store)["messages"][message_id]).expires_at_ms


@pytest.mark.parametrize("priority", list(Priority))
def test_a_waiting_message_gets_another_instant(store: RedisStore, priority: Priority) -> None:
    message_id = enqueue(store, when=LATER, priority=priority)
    before = dump(store)
    assert store.reschedule_in(PARTITION, message_id, "7000") == 7000
    assert waiting(store) == {message_id: 7000}
    assert dump(store)["messages"] == before["messages"]


def test_a_delay_counts_from_now_rounded_up(store: RedisStore) -> None:
    message_id = enqueue(store)
    before = store.clock_ms()
    due = store.reschedule_in(PARTITION, message_id, "+5000")
    assert math.ceil(before) + 5000 <= due <= math.ceil(store.clock_ms()) + 5000
    assert waiting(store) == {message_id: due}


def test_a_durable_message_stays_the_same_life(store: RedisStore) -> None:
    message = accepted()
    send(store, message)
    assert store.reschedule_in(PARTITION, message[0], "7000") == 7000
    assert store.queries.durable_status(PARTITION, [(message[0], STAMP)]) == ["LIVE"]


def test_attempts_stay(store: RedisStore) -> None:
    lease = claim(store)
    store.nack(PARTITION, [(lease, 5000, True, DETAIL)])
    store.reschedule_in(PARTITION, lease.id, "7000")
    assert attempts(store, lease.id).attempt == 1


def test_an_unknown_message_is_not_found(store: RedisStore) -> None:
    with pytest.raises(MessageNotFound):
        store.reschedule_in(PARTITION, new_id(), "7000")


def test_a_running_message_cannot_be_moved(store: RedisStore) -> None:
    lease = claim(store)
    before = dump(store)
    with pytest.raises(MessageRunning):
        store.reschedule_in(PARTITION, lease.id, "7000")
    assert dump(store) == before


@pytest.mark.parametrize("expires", ["", "+5"])
def test_of_a_key_that_runs_the_follower_is_moved(store: RedisStore, expires: str) -> None:
    lease = claim(store)
    send(store, outgoing(lease.id, mode="replace", when="3000", expires=expires))
    assert store.reschedule_in(PARTITION, lease.id, "7000") == 7000
    raw = dump(store)["followers"][lease.id]
    assert (int.from_bytes(raw[:6], "big"), Record.decode(raw[6:]).expires_at_ms) == (
        7000,
        7005 if expires else 0,
    )
    store.ack(PARTITION, [(lease, DETAIL)])
    assert waiting(store) == {lease.id: 7000}


@pytest.mark.parametrize("runs", [False, True])
def test_a_move_that_is_told_late_leaves_what_came_later(store: RedisStore, runs: bool) -> None:
    message_id = claim(store).id if runs else enqueue(store, when=LATER)
    if runs:
        follow(store, message_id)
    before = dump(store)
    raw = before["followers"][message_id][6:] if runs else before["messages"][message_id]
    stamp = Record.decode(raw).enqueued_at_us
    with pytest.raises(MessageNotFound):
        store.reschedule_in(PARTITION, message_id, "7000", stamp - 1)
    assert dump(store) == before
    assert store.reschedule_in(PARTITION, message_id, "7000", stamp) == 7000


def test_a_second_reschedule_to_an_instant_changes_nothing(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER, expires="+5000")
    first = store.reschedule_in(PARTITION, message_id, "7000")
    before = dump(store)
    assert store.reschedule_in(PARTITION, message_id, "7000") == first
    assert dump(store) == before


def test_a_relative_expiry_moves_with_the_due_time(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER, expires="+5000")
    for when in ("2000000000000", "1900000000000", "+60000"):
        due = store.reschedule_in(PARTITION, message_id, when)
        assert expires_at(store, message_id) == due + 5000


def test_an_absolute_expiry_stays(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER, expires="3000000000000")
    store.reschedule_in(PARTITION, message_id, "2000000000000")
    assert expires_at(store, message_id) == 3_000_000_000_000


def test_a_message_without_expiry_gets_none(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER)
    store.reschedule_in(PARTITION, message_id, "7000")
    assert expires_at(store, message_id) == 0


def test_a_message_that_moves_sooner_wakes_the_workers(store: RedisStore) -> None:
    message_id = enqueue(store, when="5000")
    seen = []
    for when in ("6000", "5999", "4000"):
        store.reschedule_in(PARTITION, message_id, when)
        seen.append(wakeups(store))
    assert seen == [1, 2, 3]


def test_a_later_due_time_behind_another_head_wakes_nobody(store: RedisStore) -> None:
    enqueue(store, when="1000")
    message_id = enqueue(store, when="5000")
    for when in ("6000", "1000", "3000"):
        store.reschedule_in(PARTITION, message_id, when)
    assert wakeups(store) == 1


@pytest.mark.parametrize("raw", [b"", b"x" * 13, b"x" * 14, b"\xff" * 22])
def test_a_truncated_record_can_be_moved(store: RedisStore, raw: bytes) -> None:
    message_id = enqueue(store, when=LATER)
    corrupt(store, message_id, raw)
    if raw[14:15]:
        store.client.redis.zadd(
            f"{store.client.prefix}:{{orders:0}}:delayed:normal", {message_id: 1}
        )
    assert store.reschedule_in(PARTITION, message_id, "7000") == 7000
    assert dump(store)["messages"][message_id] == raw


def test_a_time_that_is_not_a_number_is_refused_before_anything_changes(store: RedisStore) -> None:
    message_id = enqueue(store, expires="+5000")
    before = dump(store)
    for when in ("soon", "+soon", ""):
        with pytest.raises(StoreError):
            store.reschedule_in(PARTITION, message_id, when)
    assert dump(store) == before


@pytest.mark.parametrize("expires", ["", "+5000"])
def test_a_full_redis_refuses_and_nothing_changes(
    store: RedisStore, server: Server, expires: str
) -> None:
    message_id = enqueue(store, when=LATER, expires=expires)
    before = dump(store)
    with full(server), pytest.raises(StoreFull):
        store.reschedule_in(PARTITION, message_id, "7000")
    assert dump(store) == before
