"""nack.lua: leased -> delayed, or -> dead."""

from __future__ import annotations

import math

import pytest

from django_delayq.core.message import Attempts, Priority
from django_delayq.store.client import BATCH
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    LATER,
    PARTITION,
    attempts,
    body_of,
    claim,
    claim_again,
    corrupt,
    counter,
    dump,
    end_leases,
    ends,
    enqueue_many,
    finished,
    follow,
    full,
    leased,
    live,
    make_due,
    waiting,
    wakeups,
)


def nack(
    store: RedisStore,
    lease: Lease,
    delay_ms: int | None = 5000,
    counts: bool = True,
    repeated: bool = False,
):  # type: ignore[no-untyped-def]
    return store.nack(
        PARTITION, [(lease, delay_ms, counts, b'{"reason":"test"}')], repeated=repeated
    )


def test_a_failed_message_waits_for_its_backoff(store: RedisStore) -> None:
    lease = claim(store)
    before = store.clock_ms()
    assert nack(store, lease, 5000) == []
    due = waiting(store)[lease.id]
    assert math.ceil(before) + 5000 <= due <= math.ceil(store.clock_ms()) + 5000
    assert (leased(store), ends(store), counter(store, "retried")) == (set(), [], 1)


def test_a_failed_message_is_not_claimed_before_its_backoff_is_over(store: RedisStore) -> None:
    lease = claim(store)
    nack(store, lease)
    claimed = store.claim(PARTITION, 1)
    assert (claimed.leases, claimed.next_due_ms) == ([], waiting(store)[lease.id])


def test_each_run_is_another_attempt(store: RedisStore) -> None:
    lease = claim(store)
    for attempt in (1, 2, 3):
        assert lease.attempts.attempt == attempt
        nack(store, lease)
        make_due(store, lease.id)
        lease = claim(store, lease.id)


def test_a_snooze_does_not_count_as_an_attempt(store: RedisStore) -> None:
    lease = claim(store)
    nack(store, lease, counts=False)
    history = b'{"reason":"test"}\n'
    assert attempts(store, lease.id) == Attempts(
        0, 0, lease.attempts.due_at_ms, lease.attempts.first_claimed_at_ms, lease.token, history
    )
    make_due(store, lease.id)
    assert claim(store, lease.id).attempts.attempt == 1


def test_a_retry_keeps_record_priority_and_crashes(store: RedisStore) -> None:
    lease = claim_again(store, claim(store, priority=Priority.LOW, body=b'["x"]'))
    nack(store, lease)
    assert list(dump(store)["low"]) == [lease.id]
    assert body_of(store, lease.id) == b'["x"]'
    assert attempts(store, lease.id).crashes == 1


def test_without_a_delay_the_message_is_dead(store: RedisStore) -> None:
    lease = claim(store)
    assert nack(store, lease, None) == []
    assert (live(store), leased(store), waiting(store), attempts(store, lease.id)) == (
        set(),
        set(),
        {},
        None,
    )
    (entry,) = finished(store)
    assert (entry["id"], entry["state"], entry["record"]) == (lease.id, b"dead", lease.record)
    assert (entry["attempts"], entry["detail"]) == (lease.entry, b'{"reason":"test"}')
    assert (counter(store, "dead"), counter(store, "retried")) == (1, 0)


@pytest.mark.parametrize("delay_ms", [0, None])
def test_a_stale_worker_cannot_nack(store: RedisStore, delay_ms: int | None) -> None:
    stale = claim(store)
    claim_again(store, stale)
    before = dump(store)
    assert nack(store, stale, delay_ms) == [stale]
    assert nack(store, stale, delay_ms, repeated=True) == [stale]
    assert dump(store) == before


def test_a_worker_whose_message_was_reclaimed_cannot_nack(store: RedisStore) -> None:
    stale = claim(store)
    end_leases(store)
    store.reclaim(PARTITION)
    before = dump(store)
    assert nack(store, stale, repeated=True) == [stale]
    assert dump(store) == before


@pytest.mark.parametrize("delay_ms", [0, 5000, None])
@pytest.mark.parametrize("counts", [True, False])
def test_a_repeated_nack_changes_nothing(
    store: RedisStore, delay_ms: int | None, counts: bool
) -> None:
    lease = claim(store)
    first = nack(store, lease, delay_ms, counts)
    before = dump(store)
    assert nack(store, lease, delay_ms, counts, repeated=True) == first == []
    assert dump(store) == before
    assert nack(store, lease, delay_ms, counts) == [lease]


def test_a_mixed_batch_is_settled_in_one_call(store: RedisStore) -> None:
    enqueue_many(store, 3)
    retry, snooze, dead = store.claim(PARTITION, 3).leases
    lost = claim(store)
    claim_again(store, lost)
    settled = [
        (retry, 1000, True, b"1"),
        (lost, 0, True, b"2"),
        (snooze, 2000, False, b"3"),
        (dead, None, True, b"4"),
    ]
    assert store.nack(PARTITION, settled) == [lost]
    assert list(waiting(store)) == [retry.id, snooze.id]
    assert [attempts(store, lease.id).attempt for lease in (retry, snooze)] == [1, 0]
    assert [(entry["id"], entry["detail"]) for entry in finished(store)] == [(dead.id, b"4")]


@pytest.mark.parametrize("delay_ms", [5000, None])
def test_a_full_batch_is_settled_in_one_call(store: RedisStore, delay_ms: int | None) -> None:
    ids = enqueue_many(store, BATCH)
    leases = store.claim(PARTITION, BATCH).leases
    assert store.nack(PARTITION, [(lease, delay_ms, True, b"{}") for lease in leases]) == []
    gone = {message_id for message_id, _ in ends(store)}
    assert (gone if delay_ms is None else set(waiting(store))) == set(ids)


def test_twenty_thousand_retries_stay_in_order(store: RedisStore) -> None:
    ids = enqueue_many(store, 20_000)
    while leases := store.claim(PARTITION, BATCH).leases:
        assert store.nack(PARTITION, [(lease, 3_600_000, True, b"{}") for lease in leases]) == []
    assert set(waiting(store)) == set(ids)
    assert counter(store, "retried") == 20_000


def test_a_record_that_was_lost_during_the_run_does_not_hold_the_others_up(
    store: RedisStore,
) -> None:
    lease = claim(store)
    corrupt(store, lease.id, None)
    assert nack(store, lease, 0) == []
    make_due_again = waiting(store)[lease.id]
    assert make_due_again <= math.ceil(store.clock_ms())


@pytest.mark.parametrize("counts", [True, False])
def test_the_follower_takes_the_place_of_the_retry(store: RedisStore, counts: bool) -> None:
    lease = claim(store)
    follow(store, lease.id, b'["next"]', when="7000")
    assert nack(store, lease, 5000, counts) == []
    assert waiting(store) == {lease.id: 7000}
    assert body_of(store, lease.id) == b'["next"]'
    assert (attempts(store, lease.id), dump(store)["followers"], ends(store)) == (None, {}, [])
    assert counter(store, "enqueued") == 1


def test_the_follower_of_a_dead_message_runs(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id, b'["next"]', when="7000")
    nack(store, lease, None)
    assert (ends(store), waiting(store)) == ([(lease.id, "dead")], {lease.id: 7000})
    assert counter(store, "enqueued") == 2


def test_a_retry_that_is_due_sooner_wakes_the_workers(store: RedisStore) -> None:
    lease = claim(store)
    before = wakeups(store)
    nack(store, lease, 0)
    assert wakeups(store) == before + 1


@pytest.mark.parametrize(("delay_ms", "counts"), [(5000, True), (5000, False), (None, True)])
def test_a_full_redis_takes_a_nack(
    store: RedisStore, server: Server, delay_ms: int | None, counts: bool
) -> None:
    lease = claim(store)
    with full(server):
        assert nack(store, lease, delay_ms, counts) == []
    assert leased(store) == set()
    assert len(ends(store)) + len(waiting(store)) == 1


def test_a_full_redis_takes_the_nack_of_a_replaced_message(
    store: RedisStore, server: Server
) -> None:
    lease = claim(store)
    follow(store, lease.id, when=LATER)
    with full(server):
        assert nack(store, lease, None) == []
    assert set(waiting(store)) == {lease.id}
