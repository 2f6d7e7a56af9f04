"""enqueue.lua: which of two messages with one id stays, and what becomes of the durable one."""

from __future__ import annotations

import pytest

from django_delayq.core.message import DURABLE, Record
from django_delayq.store.store import RedisStore
from tests.store.factories import (
    DAY_MS,
    DETAIL,
    FAR,
    LATER,
    PARTITION,
    PAST,
    STAMP,
    accepted,
    attempts,
    claim,
    claim_durable,
    corrupt,
    counter,
    end_leases,
    ends,
    enqueue,
    finished,
    follow,
    markers,
    outgoing,
    send,
    waiting,
)
from tests.store.records import NEWER, OLDER, REPLACED, follower, state, stored


def test_a_newer_life_replaces_the_older_silently(store: RedisStore) -> None:
    message = accepted(when=FAR)
    send(store, message)
    assert send(store, accepted(message[0], mode="replace", stamp=NEWER, body=b"[2]")) == {
        0: "REPLACED"
    }
    assert (stored(store, message[0]).enqueued_at_us, waiting(store)) == (
        NEWER,
        {message[0]: int(PAST)},
    )
    assert (ends(store), markers(store), counter(store, "enqueued")) == ([], {}, 1)


def test_an_older_life_does_not_replace_a_newer(store: RedisStore) -> None:
    message = accepted()
    send(store, message)
    before = state(store)
    assert send(store, accepted(message[0], mode="replace", stamp=OLDER, body=b"[2]")) == {
        0: "OLDER"
    }
    assert state(store) == before


def test_what_redis_accepted_later_is_not_replaced_either(store: RedisStore) -> None:
    message_id = enqueue(store)
    before = state(store)
    assert send(store, accepted(message_id, mode="replace")) == {0: "OLDER"}
    assert state(store) == before


def test_what_comes_to_redis_now_is_newer_whatever_the_stamps_say(store: RedisStore) -> None:
    """The clock of the machine that accepted the other was an hour ahead, and SQL does not know of
    this one."""
    message = accepted(stamp=int(store.clock_ms() * 1000) + 3_600_000_000)
    send(store, message)
    assert send(store, outgoing(message[0], mode="replace", body=b"[2]")) == {0: "REPLACED"}


@pytest.mark.parametrize("raw", [b"", b"\xff" * 7])
def test_a_truncated_record_is_replaced(store: RedisStore, raw: bytes) -> None:
    message_id = enqueue(store)
    corrupt(store, message_id, raw)
    assert send(store, accepted(message_id, mode="replace")) == {0: "REPLACED"}
    assert stored(store, message_id).enqueued_at_us == STAMP


@pytest.mark.parametrize("place", ["runs", "follows"])
def test_an_older_life_does_not_follow_a_newer(store: RedisStore, place: str) -> None:
    lease = claim_durable(store)
    if place == "follows":
        send(store, accepted(lease.id, mode="replace", stamp=NEWER + 1))
    stamp = OLDER if place == "runs" else NEWER
    before = state(store)
    assert send(store, accepted(lease.id, mode="replace", stamp=stamp)) == {0: "OLDER"}
    assert state(store) == before


def test_a_newer_life_follows_the_run_that_goes_on(store: RedisStore) -> None:
    lease = claim_durable(store)
    for stamp in (NEWER, NEWER + 1):
        assert send(store, accepted(lease.id, mode="replace", stamp=stamp, when=FAR)) == {
            0: "FOLLOWS"
        }
        assert follower(store, lease.id).enqueued_at_us == stamp
    store.ack(PARTITION, [(lease, DETAIL)])
    assert (ends(store), markers(store)) == ([(lease.id, "acked")], {lease.id: STAMP})
    assert (stored(store, lease.id).enqueued_at_us, waiting(store)) == (
        NEWER + 1,
        {lease.id: int(FAR)},
    )


@pytest.mark.parametrize("archive", ["all", "none"])
def test_a_waiting_durable_message_that_is_replaced_by_another_kind_ends(
    store: RedisStore, archive: str
) -> None:
    store.client.settings = type(store.client.settings)(prefix=store.client.prefix, archive=archive)
    lease = claim_durable(store)
    store.nack(PARTITION, [(lease, DAY_MS, True, DETAIL)])
    assert send(store, outgoing(lease.id, mode="replace", body=b"[2]")) == {0: "REPLACED"}
    (entry,) = finished(store)
    assert (entry["id"], entry["state"], entry["detail"]) == (lease.id, *REPLACED)
    assert (entry["record"], markers(store)) == (lease.record, {lease.id: STAMP})
    assert (counter(store, "cancelled"), counter(store, "enqueued")) == (0, 1)
    assert (bool(stored(store, lease.id).flags & DURABLE), attempts(store, lease.id)) == (
        False,
        None,
    )
    assert send(store, accepted(lease.id, mode="replace")) == {0: "DONE"}


def test_a_durable_follower_that_is_replaced_by_another_kind_ends(store: RedisStore) -> None:
    lease = claim_durable(store)
    send(store, accepted(lease.id, mode="replace", stamp=NEWER))
    follow(store, lease.id)
    (entry,) = finished(store)
    assert (entry["state"], entry["detail"]) == REPLACED
    assert Record.decode(entry["record"]).enqueued_at_us == NEWER
    assert markers(store) == {lease.id: NEWER}
    assert not follower(store, lease.id).flags & DURABLE


def test_a_durable_message_replaces_another_kind_without_a_word(store: RedisStore) -> None:
    message_id, lease = enqueue(store, when=LATER), claim(store)
    follow(store, lease.id)
    later = 2**51
    assert send(
        store,
        accepted(message_id, mode="replace", stamp=later),
        accepted(lease.id, mode="replace", stamp=later),
    ) == {0: "REPLACED", 1: "FOLLOWS"}
    assert (ends(store), markers(store)) == ([], {})


def test_a_repeated_replacement_ends_the_durable_message_once(store: RedisStore) -> None:
    message = accepted()
    send(store, message)
    for _ in range(2):
        send(store, outgoing(message[0], mode="replace"))
    assert ends(store) == [(message[0], "cancelled")]


@pytest.mark.parametrize("how", ["nack", "release", "reclaim"])
def test_a_durable_run_that_gives_way_to_another_kind_ends(store: RedisStore, how: str) -> None:
    lease = claim_durable(store)
    follow(store, lease.id)
    if how == "nack":
        store.nack(PARTITION, [(lease, 0, True, DETAIL)])
    elif how == "release":
        store.release(PARTITION, [lease])
    else:
        end_leases(store)
        store.reclaim(PARTITION)
    (entry,) = finished(store)
    assert (entry["state"], entry["detail"]) == REPLACED
    assert markers(store) == {lease.id: STAMP}


@pytest.mark.parametrize("score", ["inf", "1e300", "9000000000000.5"])
@pytest.mark.parametrize("mode", ["extend", "earliest"])
def test_a_due_time_that_is_damaged_has_no_say(store: RedisStore, mode: str, score: str) -> None:
    """As text it would be cut: what is never due would be due at once."""
    message_id = enqueue(store)
    lane = f"{store.client.prefix}:{{orders:0}}:delayed:normal"
    store.client.redis.zadd(lane, {message_id: score})
    send(store, outgoing(message_id, mode=mode, when="8000000000000", body=b"[2]"))
    assert waiting(store) == {message_id: 8_000_000_000_000}
