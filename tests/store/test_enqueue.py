"""enqueue.lua: nothing -> delayed."""

from __future__ import annotations

import math

import pytest
from redis import Redis

from django_delayq.core.exceptions import StoreError, StoreFull
from django_delayq.core.message import Priority, Record, new_ids
from django_delayq.store import keys
from django_delayq.store.client import BATCH
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    CODE,
    DAY_MS,
    LATER,
    PARTITION,
    PAST,
    TASK,
    TASKS,
    attempts,
    claim,
    counter,
    dump,
    end_leases,
    enqueue,
    follow,
    full,
    leased,
    new_id,
    outgoing,
    send,
    waiting,
    wakeups,
)
from tests.store.records import stored

BODIES = [b"[9007199254740993]", b"[[]]", '["käse 🧀"]'.encode(), b'["\\u0000"]', b"\0\xff\r\n"]


def test_a_new_message_waits_for_its_instant(store: RedisStore) -> None:
    message_id = new_id()
    assert send(store, outgoing(message_id, when=PAST)) == {}
    assert waiting(store) == {message_id: int(PAST)}
    assert counter(store, "enqueued") == 1


def test_a_delay_counts_from_the_clock_of_redis_rounded_up(store: RedisStore) -> None:
    message = outgoing(when="+1500")
    now_us, _ = store.enqueue(PARTITION, TASKS, [message])
    assert waiting(store) == {message[0]: math.ceil(now_us / 1000) + 1500}


def test_the_stamp_is_the_time_of_redis(store: RedisStore) -> None:
    before = store.clock_ms()
    message_id = enqueue(store, body=b'["x"]')
    record = stored(store, message_id)
    assert before <= record.enqueued_at_us / 1000 <= store.clock_ms()
    assert (record.body, record.task_code, record.ttr_ms, record.expires_at_ms) == (
        b'["x"]',
        CODE,
        60_000,
        0,
    )


@pytest.mark.parametrize(
    "body", [b"[9007199254740993]", b"[[]]", '["käse 🧀"]'.encode(), b'["\\u0000"]', b"\0\xff\r\n"]
)
def test_a_body_passes_unchanged(store: RedisStore, body: bytes) -> None:
    enqueue(store, body=body)
    (lease,) = store.claim(PARTITION, 1).leases
    assert Record.decode(lease.record).body == body


def test_the_name_of_the_task_is_remembered(store: RedisStore) -> None:
    assert store.queries.task_name(PARTITION, CODE) == f"code:{CODE.hex()}"
    enqueue(store)
    assert store.queries.task_name(PARTITION, CODE) == TASK


@pytest.mark.parametrize(
    ("priority", "lane"), [(Priority.HIGH, "high"), (Priority.NORMAL, "normal"), (2, "low")]
)
def test_the_priority_is_the_lane(store: RedisStore, priority: Priority, lane: str) -> None:
    message_id = enqueue(store, priority=priority)
    assert list(dump(store)[lane]) == [message_id]
    assert stored(store, message_id).priority == priority


def test_a_full_batch_is_stored_in_one_call(store: RedisStore) -> None:
    ids = new_ids(BATCH)
    assert send(store, *(outgoing(i) for i in ids)) == {}
    assert set(waiting(store)) == set(ids)
    assert counter(store, "enqueued") == BATCH


def test_a_batch_answers_only_for_what_is_not_new(store: RedisStore) -> None:
    known = enqueue(store)
    words = send(store, outgoing(), outgoing(known, body=b"[2]"), outgoing(), outgoing(known[::-1]))
    assert words == {1: "DUPLICATE"}
    assert counter(store, "enqueued") == 4


def test_an_id_that_occurs_twice_is_refused_before_anything_changes(store: RedisStore) -> None:
    message_id, before = new_id(), dump(store)
    with pytest.raises(StoreError, match="twice"):
        send(store, outgoing(), outgoing(message_id), outgoing(message_id, priority=Priority.LOW))
    assert dump(store) == before


@pytest.mark.parametrize(
    "when", ["inf", "nan", "+inf", "1e300", "281474976710656", "9000000000000.5"]
)
def test_a_due_time_that_would_be_cut_is_refused_before_anything_changes(
    store: RedisStore, when: str
) -> None:
    before = dump(store)
    with pytest.raises(StoreError):
        send(store, outgoing(when=when))
    assert dump(store) == before


@pytest.mark.parametrize("field", ["when", "expires"])
def test_a_time_that_is_not_a_number_is_refused_before_anything_changes(
    store: RedisStore, field: str
) -> None:
    before = dump(store)
    for text in ("soon", "+soon"):
        with pytest.raises(StoreError):
            send(store, outgoing(), outgoing(**{field: text}))
    assert dump(store) == before


# Expiry


def test_an_absolute_expiry_is_stored_as_it_is(store: RedisStore) -> None:
    assert stored(store, enqueue(store, expires="1763632200123")).expires_at_ms == 1_763_632_200_123


def test_a_relative_expiry_counts_from_the_due_time(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER, expires="+5000")
    assert stored(store, message_id).expires_at_ms == waiting(store)[message_id] + 5000


# An id that is live


@pytest.mark.parametrize("mode", ["raise", "keep"])
def test_the_same_record_again_is_the_same_message(store: RedisStore, mode: str) -> None:
    message = outgoing(mode=mode, when=PAST)
    send(store, message)
    before = dump(store)
    assert send(store, message) == {0: "SAME"}
    assert dump(store) == before


@pytest.mark.parametrize("mode", ["raise", "keep"])
@pytest.mark.parametrize("first", [PAST, LATER])
def test_a_kept_message_keeps_its_due_time_and_arguments(
    store: RedisStore, mode: str, first: str
) -> None:
    message_id = enqueue(store, when=first)
    before = dump(store)
    assert send(
        store, outgoing(message_id, mode=mode, when="5", body=b"[2]", priority=Priority.HIGH)
    ) == {0: "DUPLICATE"}
    assert dump(store) == before


@pytest.mark.parametrize("mode", ["raise", "keep"])
def test_a_running_message_is_kept(store: RedisStore, mode: str) -> None:
    lease = claim(store)
    before = dump(store)
    assert send(store, outgoing(lease.id, mode=mode, body=b"[2]")) == {0: "DUPLICATE"}
    assert dump(store) == before


def test_replace_changes_due_time_and_arguments(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER)
    assert send(store, outgoing(message_id, mode="replace", when="7000", body=b"[2]")) == {
        0: "REPLACED"
    }
    assert waiting(store) == {message_id: 7000}
    assert stored(store, message_id).body == b"[2]"
    assert counter(store, "enqueued") == 1


def test_replace_moves_the_message_to_its_new_lane(store: RedisStore) -> None:
    message_id = enqueue(store, priority=Priority.LOW)
    enqueue(store, message_id, mode="replace", priority=Priority.HIGH)
    content = dump(store)
    assert (list(content["high"]), list(content["low"])) == ([message_id], [])


def test_replace_begins_a_new_life_without_the_old_attempts(store: RedisStore) -> None:
    lease = claim(store)
    store.nack(PARTITION, [(lease, DAY_MS, True, b"{}")])
    enqueue(store, lease.id, mode="replace")
    assert attempts(store, lease.id) is None
    assert claim(store, lease.id).attempts.attempt == 1


def test_replace_without_a_live_message_is_simply_new(store: RedisStore) -> None:
    assert send(store, outgoing(mode="replace")) == {}


def test_replacing_a_running_message_follows_its_run(store: RedisStore) -> None:
    lease = claim(store)
    before = dump(store)
    follow(store, lease.id, when="7000")
    after = dump(store)
    (follower,) = after.pop("followers").items()
    assert follower[0] == lease.id
    assert int.from_bytes(follower[1][:6], "big") == 7000
    assert after == {name: value for name, value in before.items() if name != "followers"}


def test_the_newest_follower_wins(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id, b"[1]")
    follow(store, lease.id, b"[2]")
    store.ack(PARTITION, [(lease, b"{}")])
    assert stored(store, lease.id).body == b"[2]"


def test_a_message_whose_lease_has_ended_is_still_running_until_it_is_reclaimed(
    store: RedisStore,
) -> None:
    lease = claim(store)
    end_leases(store)
    follow(store, lease.id)
    assert leased(store) == {lease.id}


def test_a_repeated_replace_leaves_one_message(store: RedisStore) -> None:
    message = outgoing(mode="replace", when=PAST)
    send(store, message)
    assert send(store, message) == {0: "REPLACED"}
    assert waiting(store) == {message[0]: int(PAST)}
    assert stored(store, message[0]).body == b"[1]"
    assert counter(store, "enqueued") == 1


# Full


@pytest.mark.parametrize("case", ["new", "replace", "follow", "batch"])
def test_a_full_redis_refuses_and_nothing_changes(
    store: RedisStore, server: Server, case: str
) -> None:
    waiting_id, lease = enqueue(store, when=LATER), claim(store)
    messages = {
        "new": [outgoing()],
        "replace": [outgoing(waiting_id, mode="replace", body=b"[2]")],
        "follow": [outgoing(lease.id, mode="replace")],
        "batch": [
            outgoing(),
            outgoing(waiting_id, mode="replace"),
            outgoing(lease.id, mode="replace"),
        ],
    }[case]
    before = dump(store)
    with full(server), pytest.raises(StoreFull):
        store.enqueue(PARTITION, {b"\0\0\0\1": "shop.other"}, messages)
    assert dump(store) == before


# Waking up


def test_only_a_sooner_head_wakes_the_workers(store: RedisStore) -> None:
    seen = []
    for when in ("5000", "9000", "5000", "4999", "1", "2"):
        enqueue(store, when=when)
        seen.append(wakeups(store))
    assert seen == [1, 1, 1, 2, 3, 3]


def test_a_batch_wakes_the_workers_once(store: RedisStore) -> None:
    send(store, *(outgoing(when=str(when)) for when in range(100, 0, -1)))
    assert wakeups(store) == 1


def test_a_sooner_head_is_published_with_its_due_time(store: RedisStore, server: Server) -> None:
    with server.client() as client, listening(client, store) as pubsub:
        for when in ("1763632200123", "1763632200999", "1763632200122"):
            enqueue(store, when=when)
        heard = [pubsub.get_message(timeout=5)["data"] for _ in range(2)]
    assert heard == [b"orders:0:1763632200123", b"orders:0:1763632200122"]


def listening(client: Redis, store: RedisStore):  # type: ignore[no-untyped-def]
    pubsub = client.pubsub(ignore_subscribe_messages=False)
    pubsub.subscribe(keys.wakeups_channel(store.client.prefix))
    assert pubsub.get_message(timeout=5)["type"] == "subscribe"
    return pubsub


def test_the_record_that_is_sent_is_the_record_that_is_stored(store: RedisStore) -> None:
    message = outgoing()
    send(store, message)
    assert dump(store)["messages"][message.id][14:] == message.record
