"""enqueue.lua for messages that SQL has accepted at a stamp: sent as often as you like, stored
once."""

from __future__ import annotations

import pytest

from django_delayq.core.exceptions import StoreError, StoreFull
from django_delayq.core.message import DURABLE, Priority
from django_delayq.store.finished import FinishedStream
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DAY_MS,
    DETAIL,
    FAR,
    LATER,
    PARTITION,
    STAMP,
    accepted,
    claim,
    claim_durable,
    counter,
    dump,
    end_leases,
    enqueue,
    full,
    markers,
    new_id,
    outgoing,
    send,
    waiting,
)
from tests.store.records import NEWER, state, stored


def test_a_missing_message_is_stored_with_its_stamp_and_due_time(store: RedisStore) -> None:
    message = accepted(when="7000", body=b'["x"]', expires="8000")
    assert send(store, message) == {}
    record = stored(store, message[0])
    assert (
        record.enqueued_at_us,
        bool(record.flags & DURABLE),
        record.body,
        record.expires_at_ms,
    ) == (
        STAMP,
        True,
        b'["x"]',
        8000,
    )
    assert waiting(store) == {message[0]: 7000}
    assert (markers(store), counter(store, "enqueued")) == ({}, 1)


def test_a_relative_expiry_counts_from_its_own_due_time(store: RedisStore) -> None:
    message = accepted(when=FAR, expires="+5")
    send(store, message)
    assert stored(store, message[0]).expires_at_ms == int(FAR) + 5


@pytest.mark.parametrize("when", ["@", "@5", "@:5", "@5:", "@x:5", "@5:x", "@5:+7", "@-5:7"])
def test_a_stamp_that_is_not_one_is_refused_before_anything_changes(
    store: RedisStore, when: str
) -> None:
    before = dump(store)
    with pytest.raises(StoreError, match="not a stamp"):
        send(store, outgoing(), outgoing(when=when, flags=DURABLE))
    assert dump(store) == before


# The same life again


@pytest.mark.parametrize("mode", ["raise", "keep", "replace"])
@pytest.mark.parametrize("place", ["waits", "runs", "retry", "lease over"])
def test_a_life_that_goes_on_is_the_same(store: RedisStore, mode: str, place: str) -> None:
    message = accepted(mode=mode)
    send(store, message)
    if place != "waits":
        lease = claim(store, message[0])
        if place == "retry":
            store.nack(PARTITION, [(lease, DAY_MS, True, DETAIL)])
        elif place == "lease over":
            end_leases(store)
    before = state(store)
    assert send(store, message) == {0: "SAME"}
    assert state(store) == before


def test_a_moved_message_is_the_same_and_keeps_its_place(store: RedisStore) -> None:
    message = accepted(mode="replace")
    send(store, message)
    store.reschedule_in(PARTITION, message[0], LATER)
    before = state(store)
    assert send(store, message) == {0: "SAME"}
    assert state(store) == before


def test_a_life_that_follows_a_run_is_the_same(store: RedisStore) -> None:
    lease = claim_durable(store)
    message = accepted(lease.id, mode="replace", stamp=NEWER, when="5000")
    assert send(store, message) == {0: "FOLLOWS"}
    before = state(store)
    assert send(store, message) == {0: "SAME"}
    assert send(store, accepted(lease.id, mode="replace")) == {
        0: "SAME"
    }  # nor is the run replaced by itself
    assert state(store) == before


@pytest.mark.parametrize("mode", ["raise", "keep", "replace"])
@pytest.mark.parametrize("beside", [None, "waits", "runs"])
def test_a_life_that_has_ended_is_done_until_it_is_archived(
    store: RedisStore, mode: str, beside: str | None
) -> None:
    message = accepted(mode=mode)
    send(store, message)
    store.ack(PARTITION, [(claim(store, message[0]), DETAIL)])
    if beside:
        enqueue(store, message[0], body=b'["another life"]')
    if beside == "runs":
        store.claim(PARTITION, 1)
    before = state(store)
    assert send(store, message) == {0: "DONE"}
    assert state(store) == before


def test_what_is_archived_is_known_to_sql_alone(store: RedisStore) -> None:
    message = accepted()
    send(store, message)
    store.ack(PARTITION, [(claim(store, message[0]), DETAIL)])
    stream = FinishedStream(store, PARTITION, "archiver")
    stream.remove(stream.read())
    assert send(store, message) == {}


def test_the_next_life_of_an_id_is_not_taken_for_the_last_one(store: RedisStore) -> None:
    lease = claim_durable(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    assert send(store, accepted(lease.id, stamp=NEWER)) == {}
    assert stored(store, lease.id).enqueued_at_us == NEWER
    assert markers(store) == {lease.id: STAMP}


# Another message has the id


@pytest.mark.parametrize("mode", ["raise", "keep"])
@pytest.mark.parametrize("runs", [False, True])
def test_other_content_is_a_duplicate(store: RedisStore, mode: str, runs: bool) -> None:
    message_id = enqueue(store)
    if runs:
        store.claim(PARTITION, 1)
    before = state(store)
    assert send(store, accepted(message_id, mode=mode, body=b"[2]")) == {0: "DUPLICATE"}
    assert send(store, accepted(message_id, mode=mode, priority=Priority.HIGH)) == {0: "DUPLICATE"}
    assert state(store) == before


@pytest.mark.parametrize("mode", ["raise", "keep"])
def test_a_durable_message_is_compared_without_that_flag(store: RedisStore, mode: str) -> None:
    message = accepted()
    send(store, message)
    before = state(store)
    assert send(store, outgoing(message[0], mode=mode)) == {0: "SAME"}
    assert send(store, outgoing(message[0], mode=mode, priority=Priority.LOW)) == {0: "DUPLICATE"}
    assert state(store) == before


@pytest.mark.parametrize("mode", ["raise", "keep"])
@pytest.mark.parametrize("runs", [False, True])
def test_the_same_content_becomes_this_life(store: RedisStore, mode: str, runs: bool) -> None:
    message_id = enqueue(store, when="5000", expires="6000000000000", priority=Priority.LOW)
    lease = store.claim(PARTITION, 1).leases[0] if runs else None
    before, stamp = state(store), stored(store, message_id).enqueued_at_us
    assert send(store, accepted(message_id, mode=mode, when="9", priority=Priority.LOW)) == {
        0: f"ADOPTED:{stamp}"
    }
    after = state(store)
    (old,), (new,) = before.pop("messages").values(), after.pop("messages").values()
    assert new == old[:14] + bytes([old[14] | DURABLE]) + old[15:]
    assert after == before
    assert store.queries.durable_status(PARTITION, [(message_id, stamp)]) == ["LIVE"]
    if lease:
        assert store.ack(PARTITION, [(lease, DETAIL)]) == []
        assert markers(store) == {message_id: stamp}


def test_what_was_adopted_is_the_same_under_its_own_stamp(store: RedisStore) -> None:
    message_id = enqueue(store)
    stamp = stored(store, message_id).enqueued_at_us
    words = [send(store, accepted(message_id, stamp=each)) for each in (STAMP, STAMP, stamp)]
    assert words == [{0: f"ADOPTED:{stamp}"}, {0: f"ADOPTED:{stamp}"}, {0: "SAME"}]


def test_another_life_of_the_same_content_is_adopted_as_the_one_that_lives(
    store: RedisStore,
) -> None:
    message = accepted()
    send(store, message)
    before = state(store)
    assert send(store, accepted(message[0], stamp=NEWER)) == {0: f"ADOPTED:{STAMP}"}
    assert state(store) == before


# Batches and a full Redis


def test_a_batch_answers_for_each_in_its_order(store: RedisStore) -> None:
    done, runs, twin, other = (
        claim_durable(store),
        claim_durable(store),
        enqueue(store),
        enqueue(store),
    )
    store.ack(PARTITION, [(done, DETAIL)])
    words = send(
        store,
        accepted(done.id),
        accepted(runs.id),
        accepted(),
        accepted(twin),
        accepted(other, body=b"[2]"),
        accepted(runs.id[::-1]),
        accepted(new_id(), mode="replace"),
    )
    assert words == {
        0: "DONE",
        1: "SAME",
        3: f"ADOPTED:{stored(store, twin).enqueued_at_us}",
        4: "DUPLICATE",
    }
    assert counter(store, "enqueued") == 7


@pytest.mark.parametrize("case", ["new", "adopt", "replace", "supersede"])
def test_a_full_redis_refuses_and_nothing_changes(
    store: RedisStore, server: Server, case: str
) -> None:
    plain, durable = enqueue(store, when=LATER), claim_durable(store)
    store.nack(PARTITION, [(durable, DAY_MS, True, DETAIL)])
    message = {
        "new": accepted(),
        "adopt": accepted(plain),
        "replace": accepted(durable.id, mode="replace", stamp=NEWER),
        "supersede": outgoing(durable.id, mode="replace"),
    }[case]
    before = dump(store)
    with full(server), pytest.raises(StoreFull):
        send(store, message)
    assert dump(store) == before
    send(store, message)
    assert dump(store) != before
