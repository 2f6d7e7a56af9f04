"""put_off.lua: leased -> delayed after a wait, because the code of this worker cannot run the
message."""

from __future__ import annotations

import pytest

from django_delayq.core.message import Attempts, Priority
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
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
    follow,
    full,
    history,
    leased,
    make_due,
    waiting,
    wakeups,
)


def put_off(
    store: RedisStore, lease: Lease, delay_ms: int = 5_000, detail: bytes = DETAIL
) -> list[Lease]:
    return store.put_off(PARTITION, [(lease, delay_ms, detail)])


def meet_again(store: RedisStore, lease: Lease) -> Lease:
    """Its delay is over, and the next worker claims it."""
    make_due(store, lease.id)
    return claim(store, lease.id)


def since(store: RedisStore, lease: Lease) -> int:
    entry = attempts(store, lease.id)
    assert entry
    return entry.put_off_since_ms


def long_ago(store: RedisStore, lease: Lease) -> None:
    """As if the first meeting had been long ago."""
    raw = dump(store)["attempts"][lease.id]
    store.client.command(
        "HSET",
        f"{store.client.prefix}:{{{PARTITION}}}:attempts",
        lease.id,
        raw[:32] + b"\0\0\0\0\0\7" + raw[38:],
    )


def test_a_message_that_is_put_off_waits_in_its_lane(store: RedisStore) -> None:
    lease, before = claim(store, priority=Priority.LOW), store.clock_ms()
    assert put_off(store, lease) == []
    assert before + 5_000 <= dump(store)["low"][lease.id] <= store.clock_ms() + 5_001
    assert (leased(store), ends(store), counter(store, "retried")) == (set(), [], 0)


def test_it_loses_no_attempt_and_crashes_stay(store: RedisStore) -> None:
    lease = claim_again(store, claim(store))
    put_off(store, lease)
    again = meet_again(store, lease)
    assert (again.attempts.attempt, again.attempts.crashes, again.attempts.first_claimed_at_ms) == (
        2,
        1,
        lease.attempts.first_claimed_at_ms,
    )


def test_the_first_meeting_is_remembered_and_told_once(store: RedisStore) -> None:
    lease, before = claim(store), store.clock_ms()
    assert lease.attempts.put_off_since_ms == 0
    put_off(store, lease, detail=b'{"n":1}')
    assert before - 1 <= since(store, lease) <= store.clock_ms()
    long_ago(store, lease)
    again = meet_again(store, lease)
    assert again.attempts.put_off_since_ms == 7
    put_off(store, again, detail=b'{"n":2}')
    assert (since(store, lease), history(store, lease.id)) == (7, [b'{"n":1}'])


@pytest.mark.parametrize("counts", [True, False])
def test_a_run_puts_an_end_to_it(store: RedisStore, counts: bool) -> None:
    lease = claim(store)
    put_off(store, lease)
    store.nack(PARTITION, [(meet_again(store, lease), 0, counts, DETAIL)])
    assert (since(store, lease), len(history(store, lease.id))) == (0, 2)


def test_a_release_does_not_put_an_end_to_it(store: RedisStore) -> None:
    lease = claim(store)
    put_off(store, lease)
    long_ago(store, lease)
    store.release(PARTITION, [meet_again(store, lease)])
    assert since(store, lease) == 7


def test_the_archive_gets_the_whole_entry(store: RedisStore) -> None:
    lease = claim(store)
    put_off(store, lease)
    again = meet_again(store, lease)
    store.nack(PARTITION, [(again, None, False, b"{}")])
    found = store.client.redis.xrange(f"{store.client.prefix}:{{{PARTITION}}}:finished")
    assert Attempts.decode(found[0][1][b"attempts"]) == Attempts.decode(again.entry)


def test_others_hear_of_it(store: RedisStore) -> None:
    lease = claim(store)
    before = wakeups(store)
    put_off(store, lease)
    assert wakeups(store) == before + 1


def test_a_follower_takes_its_place(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id, b'["newer"]', when="9000")
    put_off(store, lease)
    assert (waiting(store), body_of(store, lease.id)) == ({lease.id: 9000}, b'["newer"]')
    assert attempts(store, lease.id) is None


def test_only_the_holder_puts_it_off(store: RedisStore) -> None:
    stale = claim(store)
    lease = claim_again(store, stale)
    before = dump(store)
    assert put_off(store, stale) == [stale]
    assert dump(store) == before
    assert put_off(store, lease) == []


def test_a_repeated_call_changes_nothing(store: RedisStore) -> None:
    lease = claim(store)
    put_off(store, lease)
    before = dump(store)
    assert store.put_off(PARTITION, [(lease, 5_000, DETAIL)], repeated=True) == []
    assert dump(store) == before


def test_one_whose_lease_has_ended_is_refused_after_the_reclaim(store: RedisStore) -> None:
    lease = claim(store)
    end_leases(store)
    store.reclaim(PARTITION)
    assert put_off(store, lease) == [lease]
    assert since(store, lease) == 0


def test_damaged_records_are_put_off_too(store: RedisStore) -> None:
    lease = claim(store)
    corrupt(store, lease.id, b"\1\2\3")
    assert put_off(store, lease) == []
    assert set(waiting(store)) == {lease.id}


def test_a_whole_batch_is_put_off(store: RedisStore) -> None:
    ids = enqueue_many(store, 500)
    leases = store.claim(PARTITION, 500).leases
    assert store.put_off(PARTITION, [(lease, 0, DETAIL) for lease in leases]) == []
    assert sorted(waiting(store)) == ids


def test_a_full_redis_takes_it(store: RedisStore, server: Server) -> None:
    lease = claim(store)
    with full(server):
        assert put_off(store, lease) == []
    assert leased(store) == set()
