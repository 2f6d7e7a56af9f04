"""find.lua: what is live, without changing it."""

from __future__ import annotations

import pytest

from django_delayq.core.message import Priority, State
from django_delayq.store.client import BATCH
from django_delayq.store.store import RedisStore
from tests.store.factories import (
    DETAIL,
    LATER,
    PARTITION,
    claim,
    corrupt,
    dump,
    enqueue,
    enqueue_many,
    new_id,
    outgoing,
    waiting,
)


@pytest.mark.parametrize("priority", list(Priority))
@pytest.mark.parametrize(("when", "state"), [("5000", State.READY), (LATER, State.DELAYED)])
def test_a_waiting_message_is_found(
    store: RedisStore, priority: Priority, when: str, state: State
) -> None:
    message_id = enqueue(store, when=when, priority=priority)
    (found,) = store.queries.find(PARTITION, [message_id])
    assert (found.id, found.state, found.due_at_ms) == (
        message_id,
        state,
        waiting(store)[message_id],
    )
    assert (found.record, found.attempts) == (dump(store)["messages"][message_id], None)


def test_a_leased_message_is_found_with_its_attempts(store: RedisStore) -> None:
    lease = claim(store, when="5000")
    (found,) = store.queries.find(PARTITION, [lease.id])
    assert (found.state, found.due_at_ms, found.attempts.attempt) == (State.LEASED, 5000, 1)
    assert found.attempts.token == lease.token


def test_a_retry_is_found_with_its_attempts(store: RedisStore) -> None:
    lease = claim(store)
    store.nack(PARTITION, [(lease, 5000, True, DETAIL)])
    (found,) = store.queries.find(PARTITION, [lease.id])
    assert (found.state, found.attempts.attempt) == (State.DELAYED, 1)


def test_what_is_not_live_is_not_found(store: RedisStore) -> None:
    lease = claim(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    waits = enqueue(store)
    found = store.queries.find(PARTITION, [lease.id, waits, new_id()])
    assert [item and item.id for item in found] == [None, waits, None]


def test_a_full_batch_is_found_in_one_call(store: RedisStore) -> None:
    ids = enqueue_many(store, BATCH)
    assert [found.id for found in store.queries.find(PARTITION, ids)] == ids


def test_finding_changes_nothing(store: RedisStore) -> None:
    lease, waits = claim(store), enqueue(store)
    before = dump(store)
    store.queries.find(PARTITION, [lease.id, waits, new_id()])
    assert dump(store) == before


def test_a_damaged_record_is_found_as_it_is(store: RedisStore) -> None:
    message_id = enqueue(store, when="5000")
    corrupt(store, message_id, b"short")
    (found,) = store.queries.find(PARTITION, [message_id])
    assert (found.state, found.record) == (State.READY, b"short")


def test_the_instant_of_enqueue_is_to_the_microsecond(store: RedisStore) -> None:
    now_us, _ = store.enqueue(PARTITION, {}, [outgoing(message_id := new_id(), when="5")])
    (found,) = store.queries.find(PARTITION, [message_id])
    assert int.from_bytes(found.record[:8], "big") == now_us
