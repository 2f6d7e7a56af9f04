"""shift.lua: delayed -> delayed with another due time, for messages that are as they were read."""

from __future__ import annotations

import pytest

from django_delayq.core.exceptions import StoreError, StoreFull
from django_delayq.core.message import Priority, Record
from django_delayq.store.queries import Life
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    PARTITION,
    attempts,
    claim,
    dump,
    enqueue,
    full,
    new_id,
    outgoing,
    send,
    waiting,
    wakeups,
)


def life(store: RedisStore, message_id: bytes) -> Life:
    record = Record.decode(dump(store)["messages"][message_id])
    return Life(message_id, record.enqueued_at_us)


def shift(store: RedisStore, message_id: bytes, due: int, to: int) -> str:
    return store.shift(PARTITION, [(life(store, message_id), due, to)])[0]


@pytest.mark.parametrize("priority", list(Priority))
def test_each_message_gets_its_own_due_time(store: RedisStore, priority: Priority) -> None:
    first, second = (enqueue(store, when=when, priority=priority) for when in ("5000", "6000"))
    moves = [(life(store, first), 5000, 9000), (life(store, second), 6000, 1000)]
    records = dump(store)["messages"]
    assert store.shift(PARTITION, moves) == ["OK", "OK"]
    assert waiting(store) == {first: 9000, second: 1000}
    assert dump(store)["messages"] == records


def test_twice_is_once(store: RedisStore) -> None:
    message_id = enqueue(store, when="5000", expires="+60")
    assert shift(store, message_id, 5000, 7000) == "OK"
    before = dump(store)
    assert shift(store, message_id, 5000, 7000) == "OK"
    assert dump(store) == before


def test_a_message_that_was_moved_since_is_left(store: RedisStore) -> None:
    message_id = enqueue(store, when="5000")
    store.reschedule_in(PARTITION, message_id, "5500")
    before = dump(store)
    assert shift(store, message_id, 5000, 7000) == "CHANGED"
    assert dump(store) == before


def test_another_life_of_the_key_is_left(store: RedisStore) -> None:
    message_id = enqueue(store, when="5000")
    old = life(store, message_id)
    store.cancel_in(PARTITION, [message_id])
    send(store, outgoing(message_id, when="5000"))
    before = dump(store)
    assert store.shift(PARTITION, [(old, 5000, 7000)]) == ["NOT_FOUND"]
    assert store.shift(PARTITION, [(Life(new_id(), 1), 5000, 7000)]) == ["NOT_FOUND"]
    assert dump(store) == before


def test_a_running_message_goes_on(store: RedisStore) -> None:
    lease = claim(store)
    before = dump(store)
    assert shift(store, lease.id, 5000, 7000) == "RUNNING"
    assert dump(store) == before


def test_an_expiry_that_counts_from_the_due_time_moves_with_it(store: RedisStore) -> None:
    relative, absolute = (enqueue(store, when="5000", expires=e) for e in ("+60", "8000"))
    for message_id in (relative, absolute):
        assert shift(store, message_id, 5000, 7000) == "OK"
    records = dump(store)["messages"]
    ends = [Record.decode(records[name]).expires_at_ms for name in (relative, absolute)]
    assert ends == [7060, 8000]


def test_attempts_stay(store: RedisStore) -> None:
    lease = claim(store)
    store.nack(PARTITION, [(lease, 60_000, True, DETAIL)])
    (due,) = waiting(store).values()
    assert shift(store, lease.id, int(due), 7000) == "OK"
    assert attempts(store, lease.id).attempt == 1


def test_an_earlier_head_wakes_the_workers(store: RedisStore) -> None:
    message_id = enqueue(store, when="5000")
    before = wakeups(store)
    assert shift(store, message_id, 5000, 4000) == "OK"
    assert wakeups(store) == before + 1


def test_500_at_once(store: RedisStore) -> None:
    ids = [enqueue(store, when="5000") for _ in range(500)]
    moves = [(life(store, message_id), 5000, 6000 + n) for n, message_id in enumerate(ids)]
    assert store.shift(PARTITION, moves) == ["OK"] * 500
    assert waiting(store) == {message_id: 6000 + n for n, message_id in enumerate(ids)}


def test_a_full_redis_changes_nothing(store: RedisStore, server: Server) -> None:
    message_id = enqueue(store, when="5000", expires="+60")
    before = dump(store)
    with full(server), pytest.raises((StoreFull, StoreError)):
        shift(store, message_id, 5000, 7000)
    assert dump(store) == before
