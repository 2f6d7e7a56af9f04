"""cancel_running.lua: leased -> cancelled."""

from __future__ import annotations

import pytest

from django_delayq.core.limits import LimitRule, TopicLimits
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    CODE,
    DETAIL,
    LATER,
    LIMIT,
    PARTITION,
    claim,
    claim_again,
    claim_durable,
    counter,
    dump,
    end_leases,
    ends,
    enqueue,
    finished,
    follow,
    full,
    leased,
    live,
    markers,
    new_id,
    outgoing,
    send,
    wakeups,
)


def test_a_running_message_ends_as_cancelled(store: RedisStore) -> None:
    lease = claim(store)
    assert store.cancel_running_in(PARTITION, lease.id, "why") == "OK"
    assert (live(store), leased(store), dump(store)["attempts"]) == (set(), set(), {})
    (entry,) = finished(store)
    assert (entry["state"], entry["detail"]) == (b"cancelled", b'{"reason": "why"}')
    assert entry["record"] == lease.record
    assert entry["attempts"].startswith(lease.entry[:32])
    assert entry["attempts"].endswith(b',"outcome":"cancelled"}\n')
    assert counter(store, "cancelled") == 1


def test_its_worker_is_refused_from_then_on(store: RedisStore) -> None:
    lease = claim(store)
    store.cancel_running_in(PARTITION, lease.id)
    before = dump(store)
    assert store.ack(PARTITION, [(lease, DETAIL)]) == [lease]
    assert store.nack(PARTITION, [(lease, 0, True, DETAIL)]) == [lease]
    assert store.nack(PARTITION, [(lease, None, True, DETAIL)]) == [lease]
    assert store.release(PARTITION, [lease]) == [lease]
    assert store.put_off(PARTITION, [(lease, 0, DETAIL)]) == [lease]
    end_leases(store)
    assert store.reclaim(PARTITION)[:2] == ([], [])
    assert dump(store) == before
    assert ends(store) == [(lease.id, "cancelled")]


def test_its_worker_learns_of_it_when_it_extends_the_lease(store: RedisStore) -> None:
    lease = claim(store)
    gone: set[Lease] = set()
    assert store.extend(PARTITION, [lease], gone) == []
    assert gone == set()
    store.cancel_running_in(PARTITION, lease.id)
    assert store.extend(PARTITION, [lease], gone) == []
    assert gone == {lease}


def test_a_second_cancel_changes_nothing(store: RedisStore) -> None:
    lease = claim(store)
    store.cancel_running_in(PARTITION, lease.id)
    before = dump(store)
    assert store.cancel_running_in(PARTITION, lease.id) == "NOT_FOUND"
    assert dump(store) == before


@pytest.mark.parametrize("retried", [False, True])
def test_what_waits_goes_on_waiting(store: RedisStore, retried: bool) -> None:
    """A run may have failed just before."""
    if retried:
        lease = claim(store)
        store.nack(PARTITION, [(lease, 5000, True, DETAIL)])
        message_id = lease.id
    else:
        message_id = enqueue(store, when=LATER)
    before = dump(store)
    assert store.cancel_running_in(PARTITION, message_id) == "WAITING"
    assert dump(store) == before


def test_what_was_acked_just_before_stays_acked(store: RedisStore) -> None:
    lease = claim(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    assert store.cancel_running_in(PARTITION, lease.id) == "NOT_FOUND"
    assert store.cancel_running_in(PARTITION, new_id()) == "NOT_FOUND"
    assert ends(store) == [(lease.id, "acked")]


def test_a_message_whose_worker_is_dead_is_cancelled_at_once(store: RedisStore) -> None:
    lease = claim(store)
    end_leases(store)
    assert store.cancel_running_in(PARTITION, lease.id) == "OK"
    assert store.reclaim(PARTITION)[:2] == ([], [])
    assert ends(store) == [(lease.id, "cancelled")]


def test_whoever_has_taken_it_over_is_refused_too(store: RedisStore) -> None:
    first = claim(store)
    second = claim_again(store, first)
    assert store.cancel_running_in(PARTITION, first.id) == "OK"
    assert store.ack(PARTITION, [(first, DETAIL)]) == [first]
    assert store.ack(PARTITION, [(second, DETAIL)]) == [second]


def test_its_follower_is_cancelled_too(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id)
    assert store.cancel_running_in(PARTITION, lease.id) == "OK"
    assert (live(store), dump(store)["followers"]) == (set(), {})
    assert ends(store) == [(lease.id, "cancelled")] * 2
    assert (counter(store, "cancelled"), counter(store, "enqueued")) == (2, 2)


def test_the_end_of_a_durable_message_is_remembered(store: RedisStore) -> None:
    lease = claim_durable(store)
    store.cancel_running_in(PARTITION, lease.id)
    assert list(markers(store)) == [lease.id]


def test_what_waits_for_its_limit_may_go(store: RedisStore) -> None:
    limits = TopicLimits(tasks={CODE: LimitRule(concurrency=1)})
    send(store, outgoing(limit=LIMIT), outgoing(limit=LIMIT))
    (lease,) = store.claim_limited(PARTITION, 5, None, limits).leases
    woken = wakeups(store)
    assert store.cancel_running_in(PARTITION, lease.id) == "OK"
    assert wakeups(store) > woken
    (other,) = store.claim_limited(PARTITION, 5, None, limits).leases
    assert other.id != lease.id


def test_a_full_redis_takes_it(store: RedisStore, server: Server) -> None:
    lease = claim(store)
    with full(server):
        assert store.cancel_running_in(PARTITION, lease.id) == "OK"
    assert ends(store) == [(lease.id, "cancelled")]


def test_by_topic_it_finds_the_partition_and_says_whether_something_ran(store: RedisStore) -> None:
    lease, waiting = claim(store), enqueue(store, when=LATER)
    assert store.cancel_running("orders", lease.id)
    assert not store.cancel_running("orders", lease.id)
    assert not store.cancel_running("orders", waiting)
