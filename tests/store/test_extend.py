"""extend.lua: leased -> leased with a later deadline."""

from __future__ import annotations

from django_delayq.store.client import BATCH
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    PARTITION,
    claim,
    claim_again,
    dump,
    end_leases,
    enqueue_many,
    full,
    leased,
)


def test_an_extended_lease_ends_a_ttr_after_now(store: RedisStore) -> None:
    lease = claim(store, ttr_ms=30_000)
    end_leases(store)
    before = store.clock_ms()
    assert store.extend(PARTITION, [lease]) == []
    deadline = dump(store)["leased"][lease.id]
    assert int(before) + 30_000 <= deadline <= store.clock_ms() + 30_000


def test_an_extended_message_is_not_reclaimed(store: RedisStore) -> None:
    lease = claim(store)
    end_leases(store)
    store.extend(PARTITION, [lease])
    assert store.reclaim(PARTITION)[:2] == ([], [])


def test_extend_changes_nothing_but_the_deadline(store: RedisStore) -> None:
    lease = claim(store)
    before = dump(store)
    store.extend(PARTITION, [lease])
    after = dump(store)
    assert before.pop("leased").keys() == after.pop("leased").keys()
    assert after == before


def test_a_stale_worker_cannot_extend(store: RedisStore) -> None:
    stale = claim(store)
    claim_again(store, stale)
    before = dump(store)
    assert store.extend(PARTITION, [stale]) == [stale]
    assert stale.lost
    assert dump(store) == before


def test_a_reclaimed_lease_cannot_be_extended(store: RedisStore) -> None:
    stale = claim(store)
    end_leases(store)
    store.reclaim(PARTITION)
    before = dump(store)
    assert store.extend(PARTITION, [stale]) == [stale]
    assert dump(store) == before


def test_a_settled_lease_is_not_revived(store: RedisStore) -> None:
    acked, nacked = claim(store), claim(store)
    store.ack(PARTITION, [(acked, DETAIL)])
    store.nack(PARTITION, [(nacked, 5000, True, DETAIL)])
    before = dump(store)
    assert (
        store.extend(PARTITION, [acked, nacked]) == []
    )  # neither is lost: this worker settled them itself
    assert dump(store) == before


def test_a_repeated_extend_gives_the_same_answer(store: RedisStore) -> None:
    lease = claim(store)
    assert store.extend(PARTITION, [lease]) == store.extend(PARTITION, [lease]) == []
    assert leased(store) == {lease.id}


def test_a_full_batch_is_extended_in_one_call(store: RedisStore) -> None:
    ids = enqueue_many(store, BATCH)
    leases = store.claim(PARTITION, BATCH).leases
    end_leases(store)
    assert store.extend(PARTITION, leases) == []
    assert store.reclaim(PARTITION)[:2] == ([], [])
    assert leased(store) == set(ids)


def test_one_lost_lease_does_not_stop_the_others(store: RedisStore) -> None:
    stale = claim(store)
    claim_again(store, stale)
    other = claim(store)
    end_leases(store, other.id)
    assert store.extend(PARTITION, [stale, other]) == [stale]
    assert dump(store)["leased"][other.id] > store.clock_ms()


def test_a_full_redis_takes_an_extend(store: RedisStore, server: Server) -> None:
    lease = claim(store)
    end_leases(store)
    with full(server):
        assert store.extend(PARTITION, [lease]) == []
    assert dump(store)["leased"][lease.id] > store.clock_ms()
