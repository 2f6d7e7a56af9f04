"""reclaim.lua: leased and past its deadline -> delayed, or -> dead as poison."""

from __future__ import annotations

import pytest

from django_delayq.core.message import Attempts, Priority
from django_delayq.store import store as module
from django_delayq.store.client import BATCH
from django_delayq.store.store import CRASH_BACKOFF_MS, RedisStore
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


def crash(store: RedisStore) -> tuple[list[bytes], list[bytes]]:
    """All holders vanish."""
    end_leases(store)
    back, dead, _ = store.reclaim(PARTITION)
    return back, dead


def test_a_message_whose_holder_vanished_runs_again_at_once(store: RedisStore) -> None:
    lease = claim(store)
    assert crash(store) == ([lease.id], [])
    assert leased(store) == set()
    again = claim(store, lease.id)
    assert (again.attempts.attempt, again.attempts.crashes, again.attempts.first_claimed_at_ms) == (
        2,
        1,
        lease.attempts.first_claimed_at_ms,
    )
    assert again.token != lease.token
    assert counter(store, "reclaimed") == 1


def test_a_living_lease_is_left_alone(store: RedisStore) -> None:
    claim(store)
    before = dump(store)
    assert store.reclaim(PARTITION)[:2] == ([], [])
    assert dump(store) == before


def test_only_leases_past_their_deadline_are_taken(store: RedisStore) -> None:
    dead, alive = claim(store), claim(store)
    end_leases(store, dead.id)
    assert store.reclaim(PARTITION)[:2] == ([dead.id], [])
    assert leased(store) == {alive.id}


def test_a_lease_of_a_millisecond_is_over_after_it(store: RedisStore) -> None:
    lease = claim(store, ttr_ms=1)
    while not (answer := store.reclaim(PARTITION))[0]:
        assert store.clock_ms() < lease.attempts.first_claimed_at_ms + 1000
    assert answer[:2] == ([lease.id], [])


def test_a_message_returns_to_its_lane(store: RedisStore) -> None:
    lease = claim(store, priority=Priority.HIGH)
    crash(store)
    assert list(dump(store)["high"]) == [lease.id]


def test_the_token_is_wiped(store: RedisStore) -> None:
    lease = claim(store)
    crash(store)
    entry = attempts(store, lease.id)
    expected = Attempts(
        1, 1, lease.attempts.due_at_ms, lease.attempts.first_claimed_at_ms, bytes(16), entry.history
    )
    assert entry == expected


def test_each_further_crash_costs_more_wait(store: RedisStore) -> None:
    lease = claim(store)
    waits = []
    for _ in range(2):
        before = int(store.clock_ms())
        crash(store)
        waits.append(round((waiting(store)[lease.id] - before) / CRASH_BACKOFF_MS))
        make_due(store, lease.id)
        lease = claim(store, lease.id)
    assert waits == [0, 1]


def test_the_third_crash_is_poison(store: RedisStore) -> None:
    lease = claim_again(store, claim_again(store, claim(store)))
    assert crash(store) == ([], [lease.id])
    assert (live(store), leased(store), waiting(store), attempts(store, lease.id)) == (
        set(),
        set(),
        {},
        None,
    )
    (entry,) = finished(store)
    assert (entry["state"], entry["detail"], entry["record"]) == (
        b"dead",
        b'{"reason":"poison"}',
        lease.record,
    )
    assert (
        Attempts.decode(entry["attempts"]).attempt,
        Attempts.decode(entry["attempts"]).crashes,
    ) == (3, 3)
    assert (counter(store, "dead"), counter(store, "reclaimed")) == (1, 2)


def test_the_poison_limit_is_the_settings(store: RedisStore) -> None:
    store.client.settings = type(store.client.settings)(prefix=store.client.prefix, poison_limit=1)
    lease = claim(store)
    assert crash(store) == ([], [lease.id])


def test_failures_between_crashes_do_not_forgive_them(store: RedisStore) -> None:
    lease = claim_again(store, claim_again(store, claim(store)))
    store.nack(PARTITION, [(lease, 0, True, b"{}")])
    make_due(store, lease.id)
    claim(store, lease.id)
    assert crash(store) == ([], [lease.id])


def test_reclaiming_again_finds_nothing(store: RedisStore) -> None:
    claim(store)
    crash(store)
    before = dump(store)
    assert store.reclaim(PARTITION)[:2] == ([], [])
    assert dump(store) == before


def test_the_limit_holds_and_the_oldest_come_first(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    ids = enqueue_many(store, 5)
    store.claim(PARTITION, 5)
    for score, message_id in enumerate(ids):
        end_leases(store, message_id)
        store.client.redis.zadd(f"{store.client.prefix}:{{orders:0}}:leased", {message_id: score})
    assert [store.reclaim(PARTITION)[0] for _ in range(3)] == [ids[:2], ids[2:4], ids[4:]]


def test_no_reclaim_takes_more_than_a_batch(store: RedisStore) -> None:
    enqueue_many(store, BATCH + 1)
    while store.claim(PARTITION, BATCH).leases:
        pass
    end_leases(store)
    assert [len(store.reclaim(PARTITION)[0]) for _ in range(2)] == [BATCH, 1]
    assert len(waiting(store)) == BATCH + 1


def test_a_lease_without_a_record_is_dead(store: RedisStore) -> None:
    lease = claim(store)
    corrupt(store, lease.id, None)
    assert crash(store) == ([], [lease.id])
    assert (ends(store), finished(store)[0]["detail"]) == (
        [(lease.id, "dead")],
        b'{"reason":"body_missing"}',
    )


def test_a_lease_without_an_entry_runs_again(store: RedisStore) -> None:
    lease = claim(store)
    store.client.redis.hdel(f"{store.client.prefix}:{{orders:0}}:attempts", lease.id)
    assert crash(store) == ([lease.id], [])
    assert claim(store, lease.id).attempts.attempt == 1


@pytest.mark.parametrize("crashes", [1, 3])
def test_the_follower_takes_the_place_of_the_reclaimed_message(
    store: RedisStore, crashes: int
) -> None:
    lease = claim(store)
    for _ in range(crashes - 1):
        lease = claim_again(store, lease)
    follow(store, lease.id, b'["next"]', when="7000")
    crash(store)
    assert (waiting(store), body_of(store, lease.id)) == ({lease.id: 7000}, b'["next"]')
    assert (attempts(store, lease.id), dump(store)["followers"]) == (None, {})
    assert ends(store) == ([(lease.id, "dead")] if crashes == 3 else [])
    assert counter(store, "enqueued") == 1 + len(ends(store))


def test_a_reclaimed_message_wakes_the_workers(store: RedisStore) -> None:
    claim(store)
    before = wakeups(store)
    crash(store)
    assert wakeups(store) == before + 1


def test_the_next_deadline_says_when_to_look_again(store: RedisStore) -> None:
    assert store.queries.oldest_lease_ms(PARTITION) is None
    claim(store, ttr_ms=90_000)
    claim(store, ttr_ms=30_000)
    assert store.queries.oldest_lease_ms(PARTITION) == min(dump(store)["leased"].values())


def test_a_full_redis_takes_a_reclaim(store: RedisStore, server: Server) -> None:
    lease, replaced = claim(store), claim(store)
    follow(store, replaced.id, when=LATER)
    end_leases(store)
    with full(server):
        assert sorted(store.reclaim(PARTITION)[0]) == sorted([lease.id, replaced.id])
    assert set(waiting(store)) == {lease.id, replaced.id}
