"""purge.lua: delayed -> cancelled, for whatever waits."""

from __future__ import annotations

from django_delayq.core.message import Priority
from django_delayq.store.client import BATCH
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    LATER,
    PARTITION,
    attempts,
    claim,
    corrupt,
    counter,
    dump,
    ends,
    enqueue,
    enqueue_many,
    finished,
    full,
    leased,
    live,
    waiting,
)


def test_whatever_waits_ends_as_cancelled(store: RedisStore) -> None:
    ids = {
        enqueue(store, priority=priority, when=when)
        for priority in Priority
        for when in ("1000", LATER)
    }
    while store.purge(PARTITION, reason="closing"):
        pass
    assert set(ends(store)) == {(i, "cancelled") for i in ids}
    assert {entry["detail"] for entry in finished(store)} == {b'{"reason": "closing"}'}
    assert (live(store), waiting(store), counter(store, "cancelled")) == (set(), {}, 6)


def test_running_messages_go_on(store: RedisStore) -> None:
    lease = claim(store)
    enqueue(store, when=LATER)
    assert [len(store.purge(PARTITION)) for _ in range(2)] == [1, 0]
    assert (leased(store), live(store)) == ({lease.id}, {lease.id})
    assert store.ack(PARTITION, [(lease, DETAIL)]) == []


def test_the_limit_holds(store: RedisStore) -> None:
    enqueue_many(store, 5)
    assert [len(store.purge(PARTITION, 2)) for _ in range(4)] == [2, 2, 1, 0]


def test_a_limit_of_zero_purges_nothing(store: RedisStore) -> None:
    enqueue(store)
    before = dump(store)
    assert len(store.purge(PARTITION, 0)) == 0
    assert dump(store) == before


def test_no_purge_takes_more_than_a_batch(store: RedisStore) -> None:
    enqueue_many(store, BATCH + 1)
    assert [len(store.purge(PARTITION, 10_000)) for _ in range(3)] == [BATCH, 1, 0]


def test_an_empty_partition_has_nothing_to_purge(store: RedisStore) -> None:
    before = dump(store)
    assert len(store.purge(PARTITION)) == 0
    assert dump(store) == before


def test_attempts_go_with_their_messages(store: RedisStore) -> None:
    lease = claim(store)
    store.nack(PARTITION, [(lease, 5000, True, DETAIL)])
    store.purge(PARTITION)
    assert attempts(store, lease.id) is None
    assert finished(store)[0]["attempts"] == lease.entry + DETAIL + b"\n"


def test_a_message_without_a_record_goes_too(store: RedisStore) -> None:
    message_id = enqueue(store)
    corrupt(store, message_id, None)
    assert len(store.purge(PARTITION)) == 1
    assert (ends(store), waiting(store)) == ([(message_id, "cancelled")], {})


def test_a_full_redis_takes_a_purge(store: RedisStore, server: Server) -> None:
    enqueue_many(store, 3)
    with full(server):
        assert len(store.purge(PARTITION)) == 3
    assert waiting(store) == {}
