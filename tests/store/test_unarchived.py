"""A finished stream that nobody empties: claims pause at finished_limit, and go on when there is
room again."""

from __future__ import annotations

import pytest

from django_delayq.store.finished import FinishedStream
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    PARTITION,
    attempts,
    claim,
    configure,
    dump,
    end_leases,
    ends,
    enqueue,
    enqueue_many,
    full,
    wakeups,
)


@pytest.fixture
def stream(store: RedisStore) -> FinishedStream:
    """Reads what has ended; three entries are too many."""
    configure(store, finished_limit=3)
    return FinishedStream(store, PARTITION, "archiver")


def end(store: RedisStore, count: int) -> None:
    enqueue_many(store, count)
    store.ack(PARTITION, [(lease, DETAIL) for lease in store.claim(PARTITION, count).leases])


@pytest.mark.usefixtures("stream")
def test_below_the_limit_messages_are_claimed(store: RedisStore) -> None:
    end(store, 2)
    message_id = enqueue(store)
    claimed = store.claim(PARTITION, 1)
    assert [lease.id for lease in claimed.leases] == [message_id]
    assert (claimed.paused, claimed.unarchived) == (False, False)


@pytest.mark.usefixtures("stream")
def test_at_the_limit_nothing_is_claimed_and_nothing_expires(store: RedisStore) -> None:
    end(store, 3)
    enqueue(store)
    enqueue(store, when="1000", expires="+1")
    before = dump(store)
    claimed = store.claim(PARTITION, 10)
    assert (claimed.leases, claimed.over, claimed.next_due_ms) == ([], [], None)
    assert (claimed.paused, claimed.unarchived, claimed.wakeups) == (True, True, wakeups(store))
    assert dump(store) == before


@pytest.mark.usefixtures("stream")
def test_a_pause_by_hand_is_not_taken_for_a_full_stream(store: RedisStore) -> None:
    end(store, 3)
    store.topics.pause(PARTITION.topic, "{}")
    claimed = store.claim(PARTITION, 1)
    assert (claimed.paused, claimed.unarchived) == (True, False)


@pytest.mark.usefixtures("stream")
def test_whoever_runs_ends_all_the_same(store: RedisStore) -> None:
    enqueue_many(store, 6)
    acked, dead, retried, released, crashed, last = store.claim(PARTITION, 6).leases
    end_of = [(acked, DETAIL), (last, DETAIL)]
    store.ack(PARTITION, end_of)
    store.nack(PARTITION, [(dead, None, True, DETAIL)])
    assert store.claim(PARTITION, 1).unarchived
    store.nack(PARTITION, [(retried, 0, True, DETAIL)])
    store.release(PARTITION, [released])
    end_leases(store, crashed.id)
    store.reclaim(PARTITION)
    assert store.cancel_in(PARTITION, [released.id]) == ["OK"]
    assert len(ends(store)) == 4
    assert (attempts(store, retried.id).attempt, attempts(store, crashed.id).crashes) == (1, 1)


def test_the_claims_go_on_when_there_is_room(store: RedisStore, stream: FinishedStream) -> None:
    end(store, 3)
    message_id = enqueue(store)
    assert stream.remove(stream.read()[:1]) == 2
    assert claim(store, message_id).id == message_id


def test_room_wakes_the_dispatchers_once(store: RedisStore, stream: FinishedStream) -> None:
    enqueue_many(store, 4)
    store.ack(PARTITION, [(lease, DETAIL) for lease in store.claim(PARTITION, 4).leases])
    entries, before = stream.read(), wakeups(store)
    woken = []
    for entry in entries:
        stream.remove([entry])
        woken.append(wakeups(store) - before)
    assert woken == [0, 1, 1, 1]  # four, three, and with two entries there is room


def test_room_that_comes_with_a_batch_wakes_the_dispatchers(
    store: RedisStore, stream: FinishedStream
) -> None:
    end(store, 3)
    before = wakeups(store)
    assert stream.remove(stream.read()) == 0
    assert wakeups(store) == before + 1


def test_there_is_nothing_to_wake_for_below_the_limit(
    store: RedisStore, stream: FinishedStream
) -> None:
    end(store, 2)
    before = wakeups(store)
    stream.remove(stream.read())
    assert wakeups(store) == before


def test_a_full_redis_wakes_the_dispatchers(
    store: RedisStore, stream: FinishedStream, server: Server
) -> None:
    end(store, 3)
    entries, before = stream.read(), wakeups(store)
    with full(server):
        stream.remove(entries)
    assert wakeups(store) == before + 1


def test_a_sweep_counts_what_has_ended_in_every_way(store: RedisStore) -> None:
    enqueue_many(store, 2)
    acked, dead = store.claim(PARTITION, 2).leases
    store.ack(PARTITION, [(acked, DETAIL)])
    store.nack(PARTITION, [(dead, None, True, DETAIL)])
    store.cancel_in(PARTITION, [enqueue(store)])
    enqueue(store, when="1000", expires="+1")
    store.claim(PARTITION, 1)
    assert store.queries.counters([PARTITION]) == [(wakeups(store), 4, 4)]
    assert len(ends(store)) == 4
