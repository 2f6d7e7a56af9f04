"""cancel.lua: delayed -> cancelled."""

from __future__ import annotations

import pytest

from django_delayq.core.message import Priority, Record
from django_delayq.store.client import BATCH
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    LATER,
    PARTITION,
    PAST,
    accepted,
    attempts,
    body_of,
    claim,
    counter,
    dump,
    ends,
    enqueue,
    enqueue_many,
    finished,
    follow,
    full,
    leased,
    live,
    new_id,
    outgoing,
    send,
    stamped,
    waiting,
)


@pytest.mark.parametrize("when", [PAST, LATER])
@pytest.mark.parametrize("priority", list(Priority))
def test_a_waiting_message_is_cancelled(store: RedisStore, when: str, priority: Priority) -> None:
    message_id = enqueue(store, when=when, priority=priority)
    record = dump(store)["messages"][message_id]
    assert store.cancel_in(PARTITION, [message_id], "paid") == ["OK"]
    assert (live(store), waiting(store), store.claim(PARTITION, 1).leases) == (set(), {}, [])
    (entry,) = finished(store)
    assert (entry["state"], entry["detail"], entry["record"]) == (
        b"cancelled",
        b'{"reason": "paid"}',
        record,
    )
    assert counter(store, "cancelled") == 1


def test_a_running_message_goes_on(store: RedisStore) -> None:
    lease = claim(store)
    before = dump(store)
    assert store.cancel_in(PARTITION, [lease.id]) == ["RUNNING"]
    assert dump(store) == before


def test_exactly_one_of_cancel_and_claim_wins(store: RedisStore) -> None:
    message_id = enqueue(store)
    assert store.cancel_in(PARTITION, [message_id]) == ["OK"]
    assert store.claim(PARTITION, 1).leases == []


def test_an_unknown_message_is_not_found(store: RedisStore) -> None:
    before = dump(store)
    assert store.cancel_in(PARTITION, [new_id()]) == ["NOT_FOUND"]
    assert dump(store) == before


def test_a_retry_is_cancelled_with_its_attempts(store: RedisStore) -> None:
    lease = claim(store)
    store.nack(PARTITION, [(lease, 5000, True, DETAIL)])
    assert store.cancel_in(PARTITION, [lease.id]) == ["OK"]
    assert attempts(store, lease.id) is None
    assert finished(store)[0]["attempts"] == lease.entry + DETAIL + b"\n"


@pytest.mark.parametrize("runs", [False, True])
def test_a_cancel_that_is_told_late_leaves_what_came_later(store: RedisStore, runs: bool) -> None:
    message_id = claim(store).id if runs else enqueue(store, when=LATER)
    if runs:
        follow(store, message_id)
    before = dump(store)
    raw = before["followers"][message_id][6:] if runs else before["messages"][message_id]
    stamp = Record.decode(raw).enqueued_at_us
    assert store.cancel_in(PARTITION, [message_id], before_us=stamp - 1) == [
        "RUNNING" if runs else "NOT_FOUND"
    ]
    assert dump(store) == before
    store.cancel_in(PARTITION, [message_id], before_us=stamp)
    assert ends(store) == [(message_id, "cancelled")]


@pytest.mark.parametrize(
    "how", ["waits", "follows", "is purged", "is buried", "expires", "is replaced"]
)
def test_the_end_of_what_never_ran_tells_when_it_would_have(store: RedisStore, how: str) -> None:
    if how == "follows":
        message_id = claim(store).id
        send(store, outgoing(message_id, mode="replace", when="7000"))
    elif how == "is replaced":
        message_id = new_id()
        send(store, accepted(message_id, when="7000"))
        send(store, outgoing(message_id, mode="replace", when=LATER))
    else:
        message_id = enqueue(store, when="7000", expires="5" if how == "expires" else "")
    if how == "is purged":
        store.purge(PARTITION)
    elif how == "is buried":
        store.tombstone(PARTITION, new_id(), stamped(), due_ms=7000)
    elif how == "expires":
        store.claim(PARTITION, 1)
    elif how != "is replaced":
        store.cancel_in(PARTITION, [message_id])
    assert [entry["due"] for entry in finished(store)] == [b"7000"]


def test_a_second_cancel_changes_nothing(store: RedisStore) -> None:
    message_id = enqueue(store)
    store.cancel_in(PARTITION, [message_id])
    before = dump(store)
    assert store.cancel_in(PARTITION, [message_id]) == ["NOT_FOUND"]
    assert store.cancel_in(PARTITION, [message_id, message_id]) == ["NOT_FOUND", "NOT_FOUND"]
    assert dump(store) == before


def test_an_id_given_twice_ends_once(store: RedisStore) -> None:
    message_id = enqueue(store)
    assert store.cancel_in(PARTITION, [message_id, message_id]) == ["OK", "NOT_FOUND"]
    assert ends(store) == [(message_id, "cancelled")]


def test_the_follower_of_a_running_message_is_taken_back(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id, b'["next"]')
    assert store.cancel_in(PARTITION, [lease.id]) == ["RUNNING"]
    assert (dump(store)["followers"], leased(store)) == ({}, {lease.id})
    (entry,) = finished(store)
    assert (entry["state"], entry["record"].endswith(b'["next"]'), entry["attempts"]) == (
        b"cancelled",
        True,
        b"",
    )
    assert body_of(store, lease.id) == b"[1]"
    assert (counter(store, "cancelled"), counter(store, "enqueued")) == (1, 2)


def test_a_batch_answers_in_its_order(store: RedisStore) -> None:
    lease, waits = claim(store), enqueue(store, when=LATER)
    assert store.cancel_in(PARTITION, [new_id(), waits, lease.id]) == ["NOT_FOUND", "OK", "RUNNING"]


def test_a_full_batch_is_cancelled_in_one_call(store: RedisStore) -> None:
    ids = enqueue_many(store, BATCH, when=LATER)
    assert store.cancel_in(PARTITION, ids) == ["OK"] * BATCH
    assert (ends(store), live(store)) == ([(i, "cancelled") for i in ids], set())


def test_a_full_redis_takes_a_cancel(store: RedisStore, server: Server) -> None:
    message_id, lease = enqueue(store, when=LATER), claim(store)
    follow(store, lease.id)
    with full(server):
        assert store.cancel_in(PARTITION, [message_id, lease.id]) == ["OK", "RUNNING"]
    assert ends(store) == [(message_id, "cancelled"), (lease.id, "cancelled")]
