"""release.lua: leased -> delayed, the attempt given back."""

from __future__ import annotations

from django_delayq.core.message import Priority
from django_delayq.store.client import BATCH
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    PARTITION,
    PAST,
    attempts,
    body_of,
    claim,
    claim_again,
    corrupt,
    counter,
    dump,
    end_leases,
    ends,
    enqueue,
    enqueue_many,
    follow,
    full,
    leased,
    make_due,
    waiting,
    wakeups,
)


def test_a_released_message_waits_at_its_old_due_time(store: RedisStore) -> None:
    lease = claim(store, when="5000", priority=Priority.LOW)
    assert store.release(PARTITION, [lease]) == []
    assert dump(store)["low"] == {lease.id: 5000}
    assert (leased(store), ends(store), counter(store, "retried")) == (set(), [], 0)


def test_a_released_message_does_not_lose_its_turn(store: RedisStore) -> None:
    first, second = enqueue(store, when="1000"), enqueue(store, when="2000")
    (lease,) = store.claim(PARTITION, 1).leases
    store.release(PARTITION, [lease])
    assert [lease.id for lease in store.claim(PARTITION, 2).leases] == [first, second]


def test_a_released_message_may_be_put_off(store: RedisStore) -> None:
    """Each by a time of its own; one without a delay keeps its due time."""
    first, second = claim(store, when="5000"), claim(store, when="6000")
    before = store.clock_ms()
    assert store.release(PARTITION, [first, second], delays_ms=[1500, None]) == []
    due = waiting(store)
    assert before + 1500 <= due[first.id] <= store.clock_ms() + 1501
    assert due[second.id] == 6000
    assert attempts(store, first.id).attempt == 0


def test_the_attempt_is_given_back(store: RedisStore) -> None:
    lease = claim(store)
    store.release(PARTITION, [lease])
    assert claim(store, lease.id).attempts.attempt == 1


def test_earlier_attempts_and_crashes_stay(store: RedisStore) -> None:
    lease = claim_again(store, claim(store))
    assert (lease.attempts.attempt, lease.attempts.crashes) == (2, 1)
    store.release(PARTITION, [lease])
    again = claim(store, lease.id)
    assert (again.attempts.attempt, again.attempts.crashes, again.attempts.first_claimed_at_ms) == (
        2,
        1,
        lease.attempts.first_claimed_at_ms,
    )


def test_a_retry_is_released_to_the_due_time_of_the_retry(store: RedisStore) -> None:
    lease = claim(store, when="1000")
    store.nack(PARTITION, [(lease, 0, True, b"{}")])
    make_due(store, lease.id)
    store.release(PARTITION, [claim(store, lease.id)])
    assert waiting(store) == {lease.id: int(PAST)}


def test_a_stale_worker_cannot_release(store: RedisStore) -> None:
    stale = claim(store)
    claim_again(store, stale)
    before = dump(store)
    assert store.release(PARTITION, [stale]) == [stale]
    assert store.release(PARTITION, [stale], repeated=True) == [stale]
    assert dump(store) == before


def test_a_worker_whose_message_was_reclaimed_cannot_release(store: RedisStore) -> None:
    stale = claim(store)
    end_leases(store)
    store.reclaim(PARTITION)
    before = dump(store)
    assert store.release(PARTITION, [stale]) == [stale]
    assert dump(store) == before


def test_a_repeated_release_changes_nothing_and_gives_the_first_answer(store: RedisStore) -> None:
    lease = claim(store)
    first = store.release(PARTITION, [lease])
    before = dump(store)
    assert store.release(PARTITION, [lease], repeated=True) == first == []
    assert dump(store) == before
    assert store.release(PARTITION, [lease]) == [lease]


def test_a_full_batch_is_released_in_one_call(store: RedisStore) -> None:
    ids = enqueue_many(store, BATCH)
    assert store.release(PARTITION, store.claim(PARTITION, BATCH).leases) == []
    assert set(waiting(store)) == set(ids)
    assert leased(store) == set()


def test_one_lost_lease_does_not_stop_the_others(store: RedisStore) -> None:
    stale = claim(store)
    current = claim_again(store, stale)
    other = claim(store)
    assert store.release(PARTITION, [stale, other]) == [stale]
    assert (set(waiting(store)), leased(store)) == ({other.id}, {current.id})


def test_the_follower_takes_the_place_of_the_released_message(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id, b'["next"]', when="7000")
    store.release(PARTITION, [lease])
    assert (waiting(store), body_of(store, lease.id)) == ({lease.id: 7000}, b'["next"]')
    assert (attempts(store, lease.id), counter(store, "enqueued")) == (None, 1)


def test_a_message_whose_record_was_lost_is_released_and_buried_by_the_next_claim(
    store: RedisStore,
) -> None:
    lease = claim(store)
    corrupt(store, lease.id, None)
    assert store.release(PARTITION, [lease]) == []
    assert store.claim(PARTITION, 1).over == [lease.id]


def test_a_released_message_wakes_the_workers(store: RedisStore) -> None:
    lease = claim(store)
    before = wakeups(store)
    store.release(PARTITION, [lease])
    assert wakeups(store) == before + 1


def test_a_full_redis_takes_a_release(store: RedisStore, server: Server) -> None:
    lease = claim(store)
    with full(server):
        assert store.release(PARTITION, [lease]) == []
    assert set(waiting(store)) == {lease.id}
