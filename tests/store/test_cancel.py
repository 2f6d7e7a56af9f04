"""cancel.lua: delayed -> cancelled."""

from __future__ import annotations

import pytest

from django_delayq.message import Priority
from django_delayq.store.link import BATCH
from django_delayq.store.redis import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    LATER,
    PARTITION,
    PAST,
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
    waiting,
)


@pytest.mark.parametrize("when", [PAST, LATER])
@pytest.mark.parametrize("priority", list(Priority))
def test_a_waiting_message_is_cancelled(store: RedisStore, when: str, priority: Priority) -> None:
    message_id = enqueue(store, when=when, priority=priority)
    record = dump(store)["messages"][message_id]
    assert store.cancel(PARTITION, [message_id], "paid") == ["OK"]
    assert (live(store), waiting(store), store.claim(PARTITION, 1).leases) == (set(), {}, [])
    (entry,) = finished(store)
    assert (entry["state"], entry["detail"], entry["record"]) == (b"cancelled", b'{"reason": "paid"}', record)
    assert counter(store, "cancelled") == 1


def test_a_running_message_goes_on(store: RedisStore) -> None:
    lease = claim(store)
    before = dump(store)
    assert store.cancel(PARTITION, [lease.id]) == ["RUNNING"]
    assert dump(store) == before


def test_exactly_one_of_cancel_and_claim_wins(store: RedisStore) -> None:
    message_id = enqueue(store)
    assert store.cancel(PARTITION, [message_id]) == ["OK"]
    assert store.claim(PARTITION, 1).leases == []


def test_an_unknown_message_is_not_found(store: RedisStore) -> None:
    before = dump(store)
    assert store.cancel(PARTITION, [new_id()]) == ["NOT_FOUND"]
    assert dump(store) == before


def test_a_retry_is_cancelled_with_its_attempts(store: RedisStore) -> None:
    lease = claim(store)
    store.nack(PARTITION, [(lease, 5000, True, DETAIL)])
    assert store.cancel(PARTITION, [lease.id]) == ["OK"]
    assert attempts(store, lease.id) is None
    assert finished(store)[0]["attempts"] == lease.entry + DETAIL + b"\n"


def test_a_second_cancel_changes_nothing(store: RedisStore) -> None:
    message_id = enqueue(store)
    store.cancel(PARTITION, [message_id])
    before = dump(store)
    assert store.cancel(PARTITION, [message_id]) == ["NOT_FOUND"]
    assert store.cancel(PARTITION, [message_id, message_id]) == ["NOT_FOUND", "NOT_FOUND"]
    assert dump(store) == before


def test_an_id_given_twice_ends_once(store: RedisStore) -> None:
    message_id = enqueue(store)
    assert store.cancel(PARTITION, [message_id, message_id]) == ["OK", "NOT_FOUND"]
    assert ends(store) == [(message_id, "cancelled")]


def test_the_follower_of_a_running_message_is_taken_back(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id, b'["next"]')
    assert store.cancel(PARTITION, [lease.id]) == ["RUNNING"]
    assert (dump(store)["followers"], leased(store)) == ({}, {lease.id})
    (entry,) = finished(store)
    assert (entry["state"], entry["record"].endswith(b'["next"]'), entry["attempts"]) == (b"cancelled", True, b"")
    assert body_of(store, lease.id) == b"[1]"
    assert (counter(store, "cancelled"), counter(store, "enqueued")) == (1, 2)


def test_a_batch_answers_in_its_order(store: RedisStore) -> None:
    lease, waits = claim(store), enqueue(store, when=LATER)
    assert store.cancel(PARTITION, [new_id(), waits, lease.id]) == ["NOT_FOUND", "OK", "RUNNING"]


def test_a_full_batch_is_cancelled_in_one_call(store: RedisStore) -> None:
    ids = enqueue_many(store, BATCH, when=LATER)
    assert store.cancel(PARTITION, ids) == ["OK"] * BATCH
    assert (ends(store), live(store)) == ([(i, "cancelled") for i in ids], set())


def test_a_full_redis_takes_a_cancel(store: RedisStore, server: Server) -> None:
    message_id, lease = enqueue(store, when=LATER), claim(store)
    follow(store, lease.id)
    with full(server):
        assert store.cancel(PARTITION, [message_id, lease.id]) == ["OK", "RUNNING"]
    assert ends(store) == [(message_id, "cancelled"), (lease.id, "cancelled")]
