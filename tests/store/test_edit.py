"""edit.lua: delayed -> delayed with another body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from django_delayq.core.exceptions import StoreFull
from django_delayq.core.message import HEADER_END, Priority, Record
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    LATER,
    PARTITION,
    PAST,
    STAMP,
    accepted,
    attempts,
    claim,
    corrupt,
    dump,
    enqueue,
    enqueue_many,
    follow,
    full,
    new_id,
    send,
    wakeups,
)

NEW = b'["edited"]'


def record_of(store: RedisStore, message_id: bytes) -> bytes:
    """The record as it lies in Redis."""
    return bytes(dump(store)["messages"][message_id])


def with_body(record: bytes, body: bytes = NEW) -> bytes:
    return record[:HEADER_END] + body


def edit(store: RedisStore, message_id: bytes, body: bytes = NEW) -> str:
    """Look at it and give it another body."""
    before = record_of(store, message_id)
    return store.edit_in(PARTITION, message_id, before, with_body(before, body))


def at_once(*calls: Callable[[], Sequence[str]]) -> list[Sequence[str]]:
    """What the calls return, each from a thread of its own."""
    start = Barrier(len(calls))

    def run(call: Callable[[], Sequence[str]]) -> Sequence[str]:
        start.wait(10)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@pytest.mark.parametrize("priority", list(Priority))
def test_a_waiting_message_gets_another_body_and_nothing_else_changes(
    store: RedisStore, priority: Priority
) -> None:
    message_id = enqueue(store, when=LATER, priority=priority, expires="+5000")
    before = dump(store)
    assert edit(store, message_id) == "OK"
    after = dump(store)
    assert after.pop("messages") == {message_id: with_body(before.pop("messages")[message_id])}
    assert after == before


def test_a_message_that_is_due_can_be_edited_until_it_is_claimed(store: RedisStore) -> None:
    message_id = enqueue(store, when=PAST)
    assert edit(store, message_id) == "OK"
    assert claim(store, message_id).record.endswith(NEW)


def test_attempts_stay(store: RedisStore) -> None:
    lease = claim(store)
    store.nack(PARTITION, [(lease, 5000, True, DETAIL)])
    before = attempts(store, lease.id)
    assert edit(store, lease.id) == "OK"
    assert attempts(store, lease.id) == before
    assert before and before.attempt == 1


def test_a_durable_message_stays_the_same_life(store: RedisStore) -> None:
    message = accepted(when=LATER[1:])
    send(store, message)
    assert edit(store, message[0]) == "OK"
    assert store.queries.durable_status(PARTITION, [(message[0], STAMP)]) == ["LIVE"]


def test_a_relative_expiry_still_moves_with_the_due_time(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER, expires="+5000")
    edit(store, message_id)
    store.reschedule_in(PARTITION, message_id, "2000000000000")
    record = Record.decode(record_of(store, message_id))
    assert (record.expires_at_ms, record.body) == (2_000_000_005_000, NEW)


def test_it_wakes_nobody(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER)
    before = wakeups(store)
    edit(store, message_id)
    assert wakeups(store) == before


def test_twice_is_once(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER)
    before = record_of(store, message_id)
    assert store.edit_in(PARTITION, message_id, before, with_body(before)) == "OK"
    content = dump(store)
    assert store.edit_in(PARTITION, message_id, before, with_body(before)) == "OK"
    assert dump(store) == content


def test_an_edit_whose_answer_was_lost_is_done_although_it_runs_by_now(store: RedisStore) -> None:
    message_id = enqueue(store)
    before = record_of(store, message_id)
    store.edit_in(PARTITION, message_id, before, with_body(before))
    claim(store, message_id)
    content = dump(store)
    assert store.edit_in(PARTITION, message_id, before, with_body(before)) == "OK"
    assert dump(store) == content


def test_an_unknown_message_is_not_found(store: RedisStore) -> None:
    before = dump(store)
    assert store.edit_in(PARTITION, new_id(), b"x" * 23, b"y" * 23) == "NOT_FOUND"
    assert dump(store) == before


def test_a_message_that_has_ended_is_not_found(store: RedisStore) -> None:
    lease = claim(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    assert store.edit_in(PARTITION, lease.id, lease.record, with_body(lease.record)) == "NOT_FOUND"


@pytest.mark.parametrize("followed", [False, True])
def test_a_running_message_cannot_be_edited(store: RedisStore, followed: bool) -> None:
    lease = claim(store)
    if followed:
        follow(store, lease.id)
    before = dump(store)
    assert edit(store, lease.id) == "RUNNING"
    assert dump(store) == before


def test_nobodys_edit_is_overwritten_unseen(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER)
    seen = record_of(store, message_id)
    assert edit(store, message_id, b'["quicker"]') == "OK"
    before = dump(store)
    assert store.edit_in(PARTITION, message_id, seen, with_body(seen)) == "CHANGED"
    assert dump(store) == before


def test_a_replacement_is_not_overwritten_either(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER)
    seen = record_of(store, message_id)
    enqueue(store, message_id, mode="replace", when=LATER)  # the same body under another stamp
    assert store.edit_in(PARTITION, message_id, seen, with_body(seen)) == "CHANGED"


def test_an_expiry_that_has_moved_meanwhile_is_a_change(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER, expires="+5000")
    seen = record_of(store, message_id)
    store.reschedule_in(PARTITION, message_id, "2000000000000")
    assert store.edit_in(PARTITION, message_id, seen, with_body(seen)) == "CHANGED"


def test_exactly_one_of_edit_and_claim_wins(store: RedisStore) -> None:
    ids = enqueue_many(store, 200)
    records = dump(store)["messages"]
    claimed: dict[bytes, bytes] = {}

    def edit_all() -> list[str]:
        return [
            store.edit_in(PARTITION, i, records[i], with_body(records[i])) for i in reversed(ids)
        ]

    def claim_all() -> list[str]:
        while leases := store.claim(PARTITION, 1).leases:
            claimed.update({lease.id: lease.record for lease in leases})
        return []

    words = dict(zip(reversed(ids), at_once(edit_all, claim_all)[0], strict=True))
    assert set(words.values()) == {"OK", "RUNNING"}  # else the two have not met
    for message_id, word in words.items():
        assert claimed[message_id] == (
            with_body(records[message_id]) if word == "OK" else records[message_id]
        )


def test_exactly_one_of_two_edits_wins(store: RedisStore) -> None:
    ids = enqueue_many(store, 100, when=LATER)
    records = dump(store)["messages"]

    def edit_all(body: bytes) -> list[str]:
        return [store.edit_in(PARTITION, i, records[i], with_body(records[i], body)) for i in ids]

    first, second = at_once(lambda: edit_all(b"[3]"), lambda: edit_all(b"[2]"))
    assert {tuple(sorted(pair)) for pair in zip(first, second, strict=True)} == {("CHANGED", "OK")}
    for message_id, word in zip(ids, first, strict=True):
        assert record_of(store, message_id) == with_body(
            records[message_id], b"[3]" if word == "OK" else b"[2]"
        )


@pytest.mark.parametrize("raw", [b"", b"x" * 13, b"x" * 22])
def test_a_truncated_record_can_be_edited(store: RedisStore, raw: bytes) -> None:
    message_id = enqueue(store, when=LATER)
    corrupt(store, message_id, raw)
    if raw[14:15]:
        store.client.redis.zadd(f"{store.client.prefix}:{{orders:0}}:delayed:high", {message_id: 1})
    assert store.edit_in(PARTITION, message_id, raw, b"y" * 23) == "OK"
    assert record_of(store, message_id) == b"y" * 23


def test_a_full_redis_refuses_and_nothing_changes(store: RedisStore, server: Server) -> None:
    message_id = enqueue(store, when=LATER)
    record = record_of(store, message_id)
    before = dump(store)
    with full(server), pytest.raises(StoreFull):
        store.edit_in(PARTITION, message_id, record, with_body(record))
    assert dump(store) == before
