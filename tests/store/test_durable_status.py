"""durable_status.lua: what Redis knows of durable messages. Changes nothing."""

from __future__ import annotations

import pytest

from django_delayq.store.client import BATCH
from django_delayq.store.finished import FinishedStream
from django_delayq.store.store import RedisStore
from tests.store.factories import (
    DETAIL,
    FAR,
    LATER,
    PARTITION,
    STAMP,
    accepted,
    claim,
    claim_durable,
    dump,
    enqueue,
    follow,
    new_id,
    send,
)


def lives(store: RedisStore, *ids: bytes, stamp: int = STAMP) -> list[str]:
    return [*store.queries.durable_status(PARTITION, [(message_id, stamp) for message_id in ids])]


def test_what_was_never_sent_is_missing(store: RedisStore) -> None:
    assert lives(store, new_id()) == ["MISSING"]


@pytest.mark.parametrize("when", ["1000", "9000000000000"])
def test_what_waits_is_live(store: RedisStore, when: str) -> None:
    message = accepted(when=when)
    send(store, message)
    assert lives(store, message[0]) == ["LIVE"]


def test_what_runs_is_live(store: RedisStore) -> None:
    assert lives(store, claim_durable(store).id) == ["LIVE"]


def test_a_retry_is_live(store: RedisStore) -> None:
    lease = claim_durable(store)
    store.nack(PARTITION, [(lease, 5000, True, DETAIL)])
    assert lives(store, lease.id) == ["LIVE"]


def test_what_follows_the_run_that_goes_on_is_live_and_so_is_the_run(store: RedisStore) -> None:
    lease = claim_durable(store)
    assert send(store, accepted(lease.id, mode="replace", stamp=STAMP + 1)) == {0: "FOLLOWS"}
    assert lives(store, lease.id) == lives(store, lease.id, stamp=STAMP + 1) == ["LIVE"]
    assert lives(store, lease.id, stamp=STAMP + 2) == ["MISSING"]


def test_another_life_of_the_same_id_is_missing(store: RedisStore) -> None:
    message = accepted()
    send(store, message)
    assert lives(store, message[0], stamp=STAMP + 1) == ["MISSING"]
    assert lives(store, enqueue(store, when=LATER)) == ["MISSING"]


def test_the_stamp_is_compared_to_the_microsecond_and_the_highest_byte(store: RedisStore) -> None:
    message = accepted()
    send(store, message)
    other_high_byte = STAMP | 1 << 62
    assert store.queries.durable_status(
        PARTITION, [(message[0], stamp) for stamp in (STAMP - 1, STAMP, other_high_byte)]
    ) == [
        "MISSING",
        "LIVE",
        "MISSING",
    ]


def test_what_has_ended_is_done_until_it_is_archived(store: RedisStore) -> None:
    lease = claim_durable(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    assert lives(store, lease.id) == ["DONE"]
    assert lives(store, lease.id, stamp=STAMP + 1) == ["MISSING"]
    stream = FinishedStream(store, PARTITION, "archiver")
    stream.remove(stream.read())
    assert lives(store, lease.id) == ["MISSING"]


def test_a_new_life_does_not_hide_that_the_last_one_is_done(store: RedisStore) -> None:
    lease = claim_durable(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    enqueue(store, lease.id)
    assert lives(store, lease.id) == ["DONE"]


def test_what_is_not_durable_is_not_remembered(store: RedisStore) -> None:
    lease = claim(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    stamp = int.from_bytes(lease.record[:8], "big")
    assert lives(store, lease.id, stamp=stamp) == ["MISSING"]


def test_a_batch_answers_in_its_order(store: RedisStore) -> None:
    done, runs = claim_durable(store), claim_durable(store)
    follow(store, runs.id)
    store.ack(PARTITION, [(done, DETAIL)])
    assert lives(store, runs.id, new_id(), done.id, runs.id) == ["LIVE", "MISSING", "DONE", "LIVE"]


def test_a_full_batch_is_one_call(store: RedisStore) -> None:
    messages = [accepted(when=FAR) for _ in range(BATCH)]
    send(store, *messages)
    assert lives(store, *(message[0] for message in messages)) == ["LIVE"] * BATCH


def test_looking_changes_nothing(store: RedisStore) -> None:
    lease = claim_durable(store)
    before = dump(store)
    lives(store, lease.id, new_id())
    assert dump(store) == before
