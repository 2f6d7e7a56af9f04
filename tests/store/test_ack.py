"""ack.lua: leased -> acked."""

from __future__ import annotations

from django_delayq.core.message import Attempts
from django_delayq.store.client import BATCH
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    LATER,
    PARTITION,
    attempts,
    body_of,
    claim,
    claim_again,
    configure,
    corrupt,
    counter,
    dump,
    end_leases,
    ends,
    enqueue,
    enqueue_many,
    finished,
    follow,
    full,
    leased,
    live,
    waiting,
    wakeups,
)


def ack(store: RedisStore, *leases, repeated: bool = False):  # type: ignore[no-untyped-def]
    return store.ack(PARTITION, [(lease, b'{"took_ms":5}') for lease in leases], repeated=repeated)


def test_an_acked_message_is_gone_and_ends_in_the_stream(store: RedisStore) -> None:
    lease = claim(store)
    assert ack(store, lease) == []
    assert (live(store), leased(store), waiting(store), attempts(store, lease.id)) == (
        set(),
        set(),
        {},
        None,
    )
    assert ends(store) == [(lease.id, "acked")]
    assert counter(store, "acked") == 1


def test_the_stream_entry_is_the_row_to_come(store: RedisStore) -> None:
    before = store.clock_ms()
    lease = claim(store)
    ack(store, lease)
    (entry,) = finished(store)
    assert (entry["id"], entry["state"], entry["detail"]) == (lease.id, b"acked", b'{"took_ms":5}')
    assert (entry["record"], Attempts.decode(entry["attempts"]).attempt) == (lease.record, 1)
    assert int(before) <= int(entry["at"]) <= store.clock_ms()


def test_a_stale_worker_cannot_ack(store: RedisStore) -> None:
    stale = claim(store)
    claim_again(store, stale)
    before = dump(store)
    assert ack(store, stale) == [stale]
    assert stale.lost
    assert dump(store) == before


def test_a_worker_whose_message_was_reclaimed_cannot_ack(store: RedisStore) -> None:
    stale = claim(store)
    end_leases(store)
    store.reclaim(PARTITION)
    before = dump(store)
    assert ack(store, stale) == [stale]
    assert ack(store, stale, repeated=True) == [stale]
    assert dump(store) == before


def test_a_late_ack_counts_while_nobody_has_taken_the_message(store: RedisStore) -> None:
    lease = claim(store)
    end_leases(store)
    assert ack(store, lease) == []
    assert ends(store) == [(lease.id, "acked")]


def test_a_message_that_was_never_there_cannot_be_acked(store: RedisStore) -> None:
    lease = claim(store)
    corrupt(store, lease.id, None)
    ack(store, lease)
    before = dump(store)
    assert ack(store, lease) == [lease]
    assert dump(store) == before


def test_a_repeated_ack_changes_nothing_and_gives_the_first_answer(store: RedisStore) -> None:
    lease = claim(store)
    first = ack(store, lease)
    before = dump(store)
    assert ack(store, lease, repeated=True) == first == []
    assert not lease.lost
    assert dump(store) == before


def test_a_lease_given_twice_in_one_call_ends_once(store: RedisStore) -> None:
    lease = claim(store)
    assert ack(store, lease, lease, repeated=True) == []
    assert ends(store) == [(lease.id, "acked")]
    assert counter(store, "acked") == 1


def test_one_lost_lease_does_not_stop_the_others(store: RedisStore) -> None:
    stale = claim(store)
    current = claim_again(store, stale)
    enqueue_many(store, 2)
    others = store.claim(PARTITION, 2).leases
    assert ack(store, others[0], stale, others[1]) == [stale]
    assert [message_id for message_id, _ in ends(store)] == [others[0].id, others[1].id]
    assert leased(store) == {current.id}


def test_a_full_batch_is_acked_in_one_call(store: RedisStore) -> None:
    ids = enqueue_many(store, BATCH)
    assert ack(store, *store.claim(PARTITION, BATCH).leases) == []
    assert [message_id for message_id, _ in ends(store)] == ids
    assert (counter(store, "acked"), live(store)) == (BATCH, set())


def test_each_message_of_a_batch_keeps_its_own_detail(store: RedisStore) -> None:
    ids = enqueue_many(store, 3)
    leases = store.claim(PARTITION, 3).leases
    store.ack(PARTITION, [(lease, lease.id.hex().encode()) for lease in leases])
    assert [entry["detail"] for entry in finished(store)] == [i.hex().encode() for i in ids]


def test_the_follower_takes_the_place_of_the_acked_message(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id, b'["next"]', when="7000")
    ack(store, lease)
    assert waiting(store) == {lease.id: 7000}
    assert body_of(store, lease.id) == b'["next"]'
    assert (dump(store)["followers"], attempts(store, lease.id), counter(store, "enqueued")) == (
        {},
        None,
        2,
    )


def test_the_follower_wakes_the_workers(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id)
    before = wakeups(store)
    ack(store, lease)
    assert wakeups(store) == before + 1


def test_a_repeated_ack_leaves_the_follower_alone(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id, when=LATER)
    ack(store, lease)
    before = dump(store)
    assert ack(store, lease, repeated=True) == []
    assert dump(store) == before


def test_the_key_is_free_again_after_an_ack(store: RedisStore) -> None:
    lease = claim(store)
    ack(store, lease)
    enqueue(store, lease.id)
    assert claim(store, lease.id).attempts.attempt == 1


def test_the_stream_is_never_trimmed(store: RedisStore) -> None:
    enqueue_many(store, 3 * BATCH)
    batches = [store.claim(PARTITION, BATCH).leases for _ in range(3)]
    configure(store, finished_limit=100)
    for leases in batches:
        assert ack(store, *leases) == []
    assert len(finished(store)) == 3 * BATCH  # only what runs already: nothing more is claimed


def test_a_full_redis_takes_an_ack(store: RedisStore, server: Server) -> None:
    lease = claim(store)
    follow(store, lease.id)
    with full(server):
        assert ack(store, lease) == []
    assert ends(store) == [(lease.id, "acked")]
    assert set(waiting(store)) == {lease.id}


def test_an_empty_batch_is_nothing_to_do(store: RedisStore) -> None:
    assert store.ack(PARTITION, []) == store.nack(PARTITION, []) == []
    assert store.release(PARTITION, []) == store.extend(PARTITION, []) == []
