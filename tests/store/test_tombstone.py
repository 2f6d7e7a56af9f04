"""tombstone.lua: nothing -> cancelled, for a durable message that Redis does not have."""

from __future__ import annotations

import pytest

from django_delayq.core.message import DURABLE, Record
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    LATER,
    PARTITION,
    STAMP,
    accepted,
    claim_durable,
    configure,
    counter,
    dump,
    ends,
    enqueue,
    finished,
    full,
    live,
    markers,
    new_id,
    outgoing,
    send,
    stamped,
    waiting,
)


def test_a_missing_message_ends_as_cancelled(store: RedisStore) -> None:
    message_id, before = new_id(), store.clock_ms()
    assert store.tombstone(PARTITION, message_id, stamped(), "paid") == "OK"
    (entry,) = finished(store)
    assert (entry["id"], entry["state"], entry["detail"]) == (
        message_id,
        b"cancelled",
        b'{"reason": "paid"}',
    )
    assert (entry["record"], entry["attempts"]) == (stamped(), b"")
    assert int(before) <= int(entry["at"]) <= store.clock_ms()
    assert (counter(store, "cancelled"), counter(store, "enqueued")) == (1, 1)


def test_a_life_that_goes_on_under_a_newer_stamp_is_not_told_as_ended(store: RedisStore) -> None:
    message_id = new_id()
    assert store.tombstone(PARTITION, message_id, stamped(), None) == "OK"
    assert (finished(store), counter(store, "cancelled")) == ([], 0)
    assert send(store, accepted(message_id)) == {0: "DONE"}
    assert send(store, accepted(message_id, stamp=STAMP + 1)) == {}


@pytest.mark.parametrize(("mode", "word"), [("replace", "OLDER"), ("keep", "DUPLICATE")])
def test_what_sql_ends_because_of_another_message_leaves_no_memory_of_an_older_life(
    store: RedisStore, mode: str, word: str
) -> None:
    message_id = new_id()
    store.tombstone(PARTITION, message_id, stamped(), None)
    send(store, accepted(message_id, stamp=STAMP + 2, body=b"[2]"))
    assert markers(store) == {message_id: STAMP}
    assert send(store, accepted(message_id, mode=mode, stamp=STAMP + 1)) == {0: word}
    assert markers(store) == {}


@pytest.mark.parametrize("mode", ["raise", "keep"])
def test_a_plain_duplicate_forgets_no_life_that_waits_for_the_archiver(
    store: RedisStore, mode: str
) -> None:
    message_id = new_id()
    store.tombstone(PARTITION, message_id, stamped())
    enqueue(store, message_id)
    assert send(store, outgoing(message_id, mode=mode, body=b"[2]")) == {0: "DUPLICATE"}
    assert markers(store) == {message_id: STAMP}


def test_a_durable_duplicate_that_waits_for_the_other_forgets_nothing(store: RedisStore) -> None:
    message_id = new_id()
    store.tombstone(PARTITION, message_id, stamped(), None)
    send(store, accepted(message_id, stamp=STAMP + 2, body=b"[2]"))
    assert send(store, accepted(message_id, stamp=STAMP + 1)) == {0: "DUPLICATE"}
    assert markers(store) == {message_id: STAMP}


def test_a_newer_end_is_not_forgotten_for_an_older_life(store: RedisStore) -> None:
    message_id = new_id()
    store.tombstone(PARTITION, message_id, stamped(STAMP + 2))
    enqueue(store, message_id)
    assert send(store, accepted(message_id, mode="keep", body=b"[2]")) == {0: "DUPLICATE"}
    assert markers(store) == {message_id: STAMP + 2}


def test_what_is_sent_later_under_this_stamp_is_done(store: RedisStore) -> None:
    message = accepted()
    store.tombstone(PARTITION, message[0], stamped())
    before = dump(store)
    assert send(store, message) == {0: "DONE"}
    assert {name: value for name, value in dump(store).items() if name != "meta"} == {
        name: value for name, value in before.items() if name != "meta"
    }
    assert (live(store), waiting(store), markers(store)) == (set(), {}, {message[0]: STAMP})


def test_a_second_burial_changes_nothing(store: RedisStore) -> None:
    message_id = new_id()
    store.tombstone(PARTITION, message_id, stamped())
    before = dump(store)
    assert store.tombstone(PARTITION, message_id, stamped()) == "DONE"
    assert dump(store) == before


@pytest.mark.parametrize("runs", [False, True])
def test_a_live_message_is_not_touched(store: RedisStore, runs: bool) -> None:
    message = accepted()
    send(store, message)
    if runs:
        store.claim(PARTITION, 1)
    before = dump(store)
    assert store.tombstone(PARTITION, message[0], stamped()) == "LIVE"
    assert dump(store) == before


def test_a_message_that_follows_a_run_is_not_touched(store: RedisStore) -> None:
    lease = claim_durable(store)
    send(store, accepted(lease.id, mode="replace", stamp=STAMP + 1))
    before = dump(store)
    assert store.tombstone(PARTITION, lease.id, stamped(STAMP + 1)) == "LIVE"
    assert dump(store) == before


@pytest.mark.parametrize("lost", ["messages", "other life"])
def test_a_lost_life_is_buried_beside_another_that_lives(store: RedisStore, lost: str) -> None:
    message_id = enqueue(store, when=LATER) if lost == "other life" else new_id()
    before = waiting(store)
    assert store.tombstone(PARTITION, message_id, stamped()) == "OK"
    assert (ends(store), waiting(store)) == ([(message_id, "cancelled")], before)


def test_what_has_ended_is_not_buried_again(store: RedisStore) -> None:
    lease = claim_durable(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    before = dump(store)
    assert store.tombstone(PARTITION, lease.id, stamped()) == "DONE"
    assert dump(store) == before


def test_the_newest_end_of_an_id_is_remembered(store: RedisStore) -> None:
    lease = claim_durable(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    assert store.tombstone(PARTITION, lease.id, stamped(STAMP + 1)) == "OK"
    assert markers(store) == {lease.id: STAMP + 1}
    assert ends(store) == [(lease.id, "acked"), (lease.id, "cancelled")]


@pytest.mark.parametrize("archive", ["all", "dead", "none"])
def test_a_burial_is_told_whatever_is_archived(store: RedisStore, archive: str) -> None:
    configure(store, archive=archive)
    message_id = new_id()
    store.tombstone(PARTITION, message_id, stamped())
    assert (ends(store), markers(store)) == ([(message_id, "cancelled")], {message_id: STAMP})
    assert Record.decode(finished(store)[0]["record"]).flags & DURABLE


def test_a_full_redis_takes_a_burial(store: RedisStore, server: Server) -> None:
    message_id = new_id()
    with full(server):
        assert store.tombstone(PARTITION, message_id, stamped()) == "OK"
    assert (ends(store), markers(store)) == ([(message_id, "cancelled")], {message_id: STAMP})


def test_a_full_redis_says_what_lives_too(store: RedisStore, server: Server) -> None:
    lease = claim_durable(store)
    with full(server):
        assert store.tombstone(PARTITION, lease.id, stamped()) == "LIVE"
        store.ack(PARTITION, [(lease, DETAIL)])
        assert store.queries.durable_status(PARTITION, [(lease.id, STAMP)]) == ["DONE"]
        assert store.tombstone(PARTITION, lease.id, stamped()) == "DONE"
