"""finished.py and archived.lua: the finished stream as archivers read and empty it."""

from __future__ import annotations

import pytest

from django_delayq.core.exceptions import StoreUnavailable
from django_delayq.store import finished as module
from django_delayq.store.client import BATCH
from django_delayq.store.entries import Entry
from django_delayq.store.finished import GROUP, FinishedStream, lengths
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.faults import unreachable
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    PARTITION,
    STAMP,
    accepted,
    claim,
    claim_durable,
    corrupt,
    dump,
    ends,
    enqueue,
    enqueue_many,
    finished,
    full,
    key,
    markers,
    send,
    stamped,
)


@pytest.fixture
def stream(store: RedisStore) -> FinishedStream:
    return FinishedStream(store, PARTITION, "archiver")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every other archiver were dead for longer than anybody waits."""
    monkeypatch.setattr(module, "TAKE_OVER_AFTER_MS", 0)


def end(store: RedisStore, durable: bool = False) -> bytes:
    lease = claim_durable(store) if durable else claim(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    return lease.id


def end_many(store: RedisStore, count: int) -> list[bytes]:
    ids = enqueue_many(store, count)
    for _ in range(0, count, BATCH):
        store.ack(PARTITION, [(lease, DETAIL) for lease in store.claim(PARTITION, BATCH).leases])
    return ids


def ids(entries: object) -> list[bytes]:
    return [entry.id for entry in entries]  # type: ignore[attr-defined]


def group(store: RedisStore) -> dict[str, int]:
    """Each consumer, and how many entries it has read and not archived."""
    consumers = store.client.redis.xinfo_consumers(key(store, "finished"), GROUP)
    return {consumer["name"].decode(): consumer["pending"] for consumer in consumers}


# Reading


def test_an_entry_is_what_the_script_wrote(store: RedisStore, stream: FinishedStream) -> None:
    lease, before = claim(store, body=b'["k\xc3\xa4se", "\\u0000"]'), store.clock_ms()
    detail = '{"error":"käse 🧀\\u0000"}'.encode()
    store.nack(PARTITION, [(lease, None, True, detail)])
    (entry,) = stream.read()
    ((stream_id, _),) = store.client.redis.xrange(key(store, "finished"))
    expected = Entry(
        stream_id, PARTITION, lease.id, "dead", entry.at_ms, lease.record, lease.entry, detail
    )
    assert entry == expected
    assert int(before) <= entry.at_ms <= store.clock_ms()


@pytest.mark.parametrize("raw", [None, b"", b"\xff", b"\0" * 14])
def test_an_entry_without_a_whole_record_is_read_too(
    store: RedisStore, stream: FinishedStream, raw: bytes | None
) -> None:
    message_id = enqueue(store)
    corrupt(store, message_id, raw)
    if raw is None:
        store.claim(PARTITION, 1)
    else:
        store.cancel_in(PARTITION, [message_id])
    (entry,) = stream.read()
    assert (entry.id, entry.record, entry.attempts) == (message_id, raw or b"", b"")
    assert stream.remove([entry]) == 0


def test_an_empty_stream_gives_nothing(stream: FinishedStream) -> None:
    assert stream.read() == stream.take_over() == []


def test_each_entry_is_read_once_in_the_order_of_their_ends(
    store: RedisStore, stream: FinishedStream
) -> None:
    first, second = end(store), end(store)
    assert ids(stream.read()) == [first, second]
    assert stream.read() == []
    third = end(store)
    assert ids(stream.read()) == [third]


def test_what_ended_before_there_was_an_archiver_is_read(store: RedisStore) -> None:
    ended = end(store)
    assert ids(FinishedStream(store, PARTITION, "late").read()) == [ended]


def test_no_more_than_a_batch_is_read_at_once(store: RedisStore, stream: FinishedStream) -> None:
    ended = end_many(store, BATCH + 1)
    assert ids(stream.read()) == ended[:BATCH]
    assert ids(stream.read()) == ended[BATCH:]


def test_several_batches_are_read_at_once(store: RedisStore, stream: FinishedStream) -> None:
    ended = end_many(store, 2 * BATCH + 1)
    assert ids(stream.read(2)) == ended[: 2 * BATCH]
    assert ids(stream.read(2)) == ended[2 * BATCH :]
    assert stream.read(2) == []


def test_large_bodies_are_read_in_one_batch_at_a_time(
    store: RedisStore, stream: FinishedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = end_many(store, BATCH + 1)
    monkeypatch.setattr(module, "TOGETHER_BYTES", BATCH)
    stream._batch = BATCH
    assert ids(stream.read(2)) == ended[:BATCH]


def test_two_archivers_share_the_entries(store: RedisStore, stream: FinishedStream) -> None:
    other = FinishedStream(store, PARTITION, "other")
    first = end(store)
    assert ids(stream.read()) == [first]
    second = end(store)
    assert (ids(other.read()), stream.read()) == ([second], [])


def test_a_stream_that_was_deleted_meanwhile_is_read_again(
    store: RedisStore, stream: FinishedStream
) -> None:
    end(store)
    stream.read()
    for name in ("finished", "meta"):
        store.client.command("DEL", key(store, name))
    ended = end(store)
    assert stream.read() == []  # the group is gone, and made again
    assert ids(stream.read()) == [ended]


def test_there_is_nothing_to_take_over_from_a_stream_that_was_deleted(
    store: RedisStore, stream: FinishedStream
) -> None:
    stream.read()
    store.client.command("DEL", key(store, "finished"))
    assert stream.take_over() == []
    ended = end(store)
    assert (stream.take_over(), ids(stream.read())) == ([], [ended])


# Taking over


def test_a_living_archiver_keeps_what_it_reads(store: RedisStore, stream: FinishedStream) -> None:
    end(store)
    FinishedStream(store, PARTITION, "alive").read()
    assert stream.take_over() == []


@pytest.mark.usefixtures("at_once")
def test_what_a_dead_archiver_has_read_is_taken_over(
    store: RedisStore, stream: FinishedStream
) -> None:
    ended = [end(store), end(store)]
    dead = FinishedStream(store, PARTITION, "dead")
    read = dead.read()
    assert ids(read) == ended
    assert stream.take_over() == read
    assert group(store) == {"dead": 0, "archiver": 2}


def test_only_what_was_left_for_long_enough_is_taken_over(
    store: RedisStore, stream: FinishedStream
) -> None:
    dead = FinishedStream(store, PARTITION, "dead")
    old, new = end(store), end(store)
    entries = dead.read()
    moved = (
        key(store, "finished"),
        GROUP,
        "dead",
        0,
        entries[0].entry,
        "IDLE",
        module.TAKE_OVER_AFTER_MS,
    )
    store.client.command("XCLAIM", *moved)
    assert (ids(stream.take_over()), old != new) == ([old], True)


@pytest.mark.usefixtures("at_once")
def test_an_archiver_takes_over_from_its_own_earlier_life(store: RedisStore) -> None:
    ended = end(store)
    FinishedStream(store, PARTITION, "same").read()
    again = FinishedStream(store, PARTITION, "same")
    assert (again.read(), ids(again.take_over())) == ([], [ended])


@pytest.mark.usefixtures("at_once")
def test_what_was_removed_meanwhile_is_not_taken_over(
    store: RedisStore, stream: FinishedStream
) -> None:
    slow = FinishedStream(store, PARTITION, "slow")
    end(store)
    kept = end(store)
    entries = slow.read()
    store.client.redis.xdel(key(store, "finished"), entries[0].entry)
    assert ids(stream.take_over()) == [kept]


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("pending", [True, False])
def test_consumers_long_dead_are_forgotten_unless_they_hold_something(
    store: RedisStore,
    stream: FinishedStream,
    monkeypatch: pytest.MonkeyPatch,
    idle: bool,
    pending: bool,
) -> None:
    end(store)
    dead = FinishedStream(store, PARTITION, "dead")
    entries = dead.read()
    if not pending:
        dead.remove(entries)
    stream.read()
    if idle:
        monkeypatch.setattr(module, "FORGET_AFTER_MS", -1)
    stream.take_over()
    assert ("dead" in group(store)) == (pending or not idle)


# Removing


def test_a_removed_entry_is_gone_for_everybody(
    store: RedisStore, stream: FinishedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = end(store), end(store)
    entries = stream.read()
    assert stream.remove(entries[:1]) == 1
    assert (ids(entries), ends(store)) == ([first, second], [(second, "acked")])
    assert group(store) == {"archiver": 1}
    monkeypatch.setattr(module, "TAKE_OVER_AFTER_MS", 0)
    assert ids(FinishedStream(store, PARTITION, "other").take_over()) == [second]


def test_removing_again_changes_nothing(store: RedisStore, stream: FinishedStream) -> None:
    end(store, durable=True)
    entries = stream.read()
    stream.remove(entries)
    before = dump(store)
    assert stream.remove(entries) == 0
    assert dump(store) == before


def test_full_batches_are_removed(store: RedisStore, stream: FinishedStream) -> None:
    end_many(store, 2 * BATCH)
    assert stream.remove(stream.read(2)) == 0
    assert group(store) == {"archiver": 0}


def test_what_is_archived_is_not_remembered_any_more(
    store: RedisStore, stream: FinishedStream
) -> None:
    archived, waits = end(store, durable=True), end(store, durable=True)
    entries = stream.read()
    assert markers(store) == {archived: STAMP, waits: STAMP}
    stream.remove(entries[:1])
    assert markers(store) == {waits: STAMP}


@pytest.mark.parametrize("first", ["older", "newer"])
def test_each_life_is_forgotten_with_its_own_entry(
    store: RedisStore, stream: FinishedStream, first: str
) -> None:
    message_id = end(store, durable=True)
    send(store, accepted(message_id, stamp=STAMP + 1))
    store.ack(PARTITION, [(claim(store, message_id), DETAIL)])
    older, newer = stream.read()
    stream.remove([older if first == "older" else newer])
    assert markers(store) == ({message_id: STAMP + 1} if first == "older" else {})


def test_an_entry_of_a_message_that_is_not_durable_forgets_nothing(
    store: RedisStore, stream: FinishedStream
) -> None:
    message_id = end(store)
    (entry,) = stream.read()
    store.tombstone(PARTITION, message_id, stamped(int.from_bytes(entry.record[:8], "big")))
    before = markers(store)
    stream.remove([entry])
    assert markers(store) == before != {}


def test_a_full_redis_can_be_emptied(
    store: RedisStore, stream: FinishedStream, server: Server
) -> None:
    end(store, durable=True)
    end(store)
    entries = stream.read()
    with full(server):
        assert stream.remove(entries) == 0
    assert (finished(store), markers(store)) == ([], {})


# Lengths


def test_the_lengths_are_of_each_partition(store: RedisStore) -> None:
    end_many(store, 3)
    partitions = [Partition("never", 0), PARTITION, Partition("orders", 1)]
    assert lengths(store, partitions) == [0, 3, 0]
    assert lengths(store, []) == []


def test_an_unreachable_redis_is_said(store: RedisStore, stream: FinishedStream) -> None:
    stream.read()
    with unreachable():
        for call in (stream.read, stream.take_over, lambda: lengths(store, [PARTITION])):
            with pytest.raises(StoreUnavailable):
                call()
