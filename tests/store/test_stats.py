"""stats.lua: counts of one instant."""

from __future__ import annotations

import time

from django_delayq.core.message import Priority
from django_delayq.store.store import RedisStore
from tests.store.factories import (
    DETAIL,
    LATER,
    PARTITION,
    dump,
    enqueue,
    enqueue_many,
    follow,
    waiting,
)


def test_an_empty_partition_counts_nothing(store: RedisStore) -> None:
    stats = store.queries.stats(PARTITION)
    assert stats[1:] == (0, 0, 0, 0, None, {}, 0, 0)


def test_the_counts_come_from_the_structures(store: RedisStore) -> None:
    for priority in Priority:
        enqueue(store, priority=priority, when="5000")
        enqueue(store, priority=priority, when=LATER)
    store.claim(PARTITION, 1)
    store.cancel_in(PARTITION, [next(iter(dump(store)["low"]))])
    stats = store.queries.stats(PARTITION)
    assert (stats.waiting, stats.ready, stats.leased, stats.finished) == (4, 1, 1, 1)


def test_the_next_due_time_is_the_head_of_all_lanes(store: RedisStore) -> None:
    enqueue(store, priority=Priority.HIGH, when="9000")
    enqueue(store, priority=Priority.LOW, when="8000")
    assert store.queries.stats(PARTITION).next_due_ms == 8000


def test_the_age_is_that_of_the_oldest_that_is_not_archived(store: RedisStore) -> None:
    clock = [store.clock_ms()]
    for _ in range(2):
        enqueue(store, when=LATER)
        store.cancel_in(PARTITION, [next(iter(dump(store)["normal"]))])
        clock.append(store.clock_ms())
        time.sleep(0.005)
    stats = store.queries.stats(PARTITION)
    # An entry has the millisecond in which it was written.
    assert clock[0] - 1 <= stats.now_ms - stats.unarchived_s * 1000 <= clock[1] + 1


def test_the_clock_is_that_of_redis(store: RedisStore) -> None:
    assert store.clock_ms() <= store.queries.stats(PARTITION).now_ms <= store.clock_ms()


def test_a_pause_is_seen_with_its_note(store: RedisStore) -> None:
    store.topics.pause(PARTITION.topic, '{"by": "käthe"}')
    assert store.queries.stats(PARTITION).meta["paused"] == '{"by": "käthe"}'
    store.topics.resume(PARTITION.topic)
    assert "paused" not in store.queries.stats(PARTITION).meta


def test_the_counters_balance_after_every_kind_of_end(store: RedisStore) -> None:
    enqueue_many(store, 10)
    acked, dead, retried, released, replaced, replaced_again, held = store.claim(
        PARTITION, 7
    ).leases
    for lease in (acked, replaced, replaced_again):
        follow(store, lease.id, when=LATER)
    store.ack(PARTITION, [(acked, DETAIL)])
    store.nack(
        PARTITION,
        [(dead, None, True, DETAIL), (retried, 5000, True, DETAIL), (replaced, 0, True, DETAIL)],
    )
    store.release(PARTITION, [released])
    store.cancel_in(PARTITION, [acked.id, replaced_again.id])
    enqueue(store, when="1000", expires="+1")
    store.claim(PARTITION, 1)
    store.purge(PARTITION, 2)
    stats = store.queries.stats(PARTITION)
    ended = sum(int(stats.meta.get(name, 0)) for name in ("acked", "dead", "cancelled", "expired"))
    assert ended == stats.finished
    assert int(stats.meta["enqueued"]) == stats.waiting + stats.leased + ended
    assert held.id in dump(store)["leased"]


def test_looking_changes_nothing(store: RedisStore) -> None:
    enqueue(store)
    before = dump(store)
    store.queries.stats(PARTITION)
    assert dump(store) == before
    assert len(waiting(store)) == 1
