"""Reading the structures of a partition, page by page, on each kind of server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq.core.message import State
from django_delayq.core.times import When
from django_delayq.pipeline import schemas
from django_delayq.pipeline.sources import queue_source
from django_delayq.store import structures
from django_delayq.store.keys import Partition, partition_keys
from django_delayq.store.store import Outgoing, RedisStore
from django_delayq.store.structures import LANES, STRUCTURES, Structure
from tests.conftest import client, server  # noqa: F401 - as fixtures of their own: of the kinds below
from tests.hands import ORDERS, stored_record
from tests.servers import require

RECORD = stored_record(1_700_000_000_000_001, b"[1]")
LONG = 2_500
"""Elements of a structure that takes several pages."""


@pytest.fixture(scope="session", params=["redis7", "valkey", "redis62", "cluster", "sentinel"])
def server_kind(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)


def an_id(number: int) -> bytes:
    return os.urandom(12) + number.to_bytes(4, "big")


def keys_of(store: RedisStore, partition: Partition = ORDERS) -> dict[str, str]:
    names = (*LANES, "leased", "messages", "attempts", "finished", "followers", "meta", "limits")
    return dict(zip(names, partition_keys(store.client.prefix, partition), strict=True))


def read(store: RedisStore, name: str, partition: Partition = ORDERS) -> list[dict[str, Any]]:
    """The rows of a structure; no batch is larger than a page."""
    batches = list(queue_source.read_structure(store, Structure(partition, name)))
    assert all(batch.schema == schemas.QUEUE for batch in batches)
    assert all(batch.num_rows <= 2 * structures.RECORDS for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def everything(store: RedisStore) -> list[dict[str, Any]]:
    return [row for name in STRUCTURES for row in read(store, name)]


def places(store: RedisStore, message_id: bytes) -> list[tuple[Any, ...]]:
    """Of one id: place, and which columns are not null."""
    rows = [row for row in everything(store) if row["message_id"] == message_id.hex()]
    shown = ("due_at", "enqueued_at_us", "task_code", "durable", "has_attempts", "record")
    return [(row["place"], [name for name in shown if row[name] is not None]) for row in rows]


ALL = ["due_at", "enqueued_at_us", "task_code", "durable", "has_attempts", "record"]
WITHOUT_RECORD = ["due_at", "has_attempts"]


# What is healthy


def test_each_waiting_message_has_one_row_though_it_takes_pages(store: RedisStore):
    keys = keys_of(store)
    due = {an_id(number): 1_800_000_000_000 + number for number in range(LONG)}
    store.client.redis.zadd(keys["normal"], due)
    store.client.redis.hset(keys["messages"], mapping=dict.fromkeys(due, RECORD))
    rows = everything(store)
    assert {row["message_id"]: row["due_at"].timestamp() * 1000 for row in rows} == {
        one.hex(): at for one, at in due.items()
    }
    assert len({row["message_id"] for row in rows}) == LONG
    assert {(row["topic"], row["partition"], row["place"]) for row in rows} == {
        ("orders", 0, "normal")
    }
    assert {row["record"] for row in rows} == {RECORD}


def test_what_the_scripts_store_is_what_is_read(store: RedisStore):
    """Waiting, leased, followed, finished, remembered as done."""
    store.partitions.counts("orders")
    task, ids = bytes(4), [an_id(number) for number in range(4)]
    waiting, running, ended, followed = ids
    record, durable = RECORD[14:], stored_record(1, b"[1]", flags=0x91)[14:]
    store.enqueue(ORDERS, {task: "t"}, [Outgoing(waiting, "raise", When("+60000"), When(), record)])
    store.enqueue(
        ORDERS,
        {},
        [Outgoing(one, "raise", When("1"), When(), record) for one in (running, followed)],
    )
    store.enqueue(ORDERS, {}, [Outgoing(ended, "raise", When("@77:1"), When(), durable)])
    leases = {lease.id: lease for lease in store.claim(ORDERS, 10).leases}
    store.ack(ORDERS, [(leases[ended], b"{}")])
    store.enqueue(ORDERS, {}, [Outgoing(followed, "replace", When("+60000"), When(), record)])
    assert places(store, waiting) == [("normal", ALL)]
    assert places(store, running) == [("leased", ALL)]
    assert places(store, followed) == [("leased", ALL), ("follower", ALL)]
    assert places(store, ended) == [
        ("finished", ["due_at", "enqueued_at_us", "task_code", "durable", "record"]),
        ("done", ["enqueued_at_us", "durable"]),
    ]
    rows = everything(store)
    assert {row["enqueued_at_us"] for row in rows if row["message_id"] == ended.hex()} == {77}
    assert [row["has_attempts"] for row in rows if row["message_id"] == waiting.hex()] == [False]
    assert [row["has_attempts"] for row in rows if row["message_id"] == running.hex()] == [True]
    (row,) = [row for row in rows if row["place"] == "normal"]
    (found,) = store.queries.find(ORDERS, [waiting])
    assert found is not None and found.state == State.DELAYED
    assert (row["record"], row["due_at"].timestamp() * 1000) == (found.record, found.due_at_ms)
    assert (row["task_code"], row["durable"]) == (RECORD[19:23].hex(), False)


def test_a_finished_stream_is_read_to_its_end(store: RedisStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(structures, "RECORDS", 10)
    ids = [an_id(number) for number in range(35)]
    fields = {"state": "acked", "at": 5, "record": RECORD, "attempts": b"", "detail": b"{}"}
    for one in ids:
        store.client.redis.xadd(keys_of(store)["finished"], {"id": one, **fields})
    rows = read(store, "finished")
    assert [row["message_id"] for row in rows] == [one.hex() for one in ids]
    assert rows[0]["due_at"].timestamp() == 0.005


def test_counters_and_flags_of_meta_are_no_rows(store: RedisStore):
    names = ("paused", "acked", "task:00000000", "wakeups")
    store.client.redis.hset(keys_of(store)["meta"], mapping=dict.fromkeys(names, "1"))
    assert everything(store) == []


def test_large_bodies_make_smaller_pages(store: RedisStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(structures, "REPLY_BYTES", 40 * store.client.settings.body_limit)
    due = {an_id(number): 1 for number in range(1_000)}
    store.client.redis.zadd(keys_of(store)["high"], due)
    batches = list(queue_source.read_structure(store, Structure(ORDERS, "high")))
    assert sum(batch.num_rows for batch in batches) == 1_000
    assert max(batch.num_rows for batch in batches) < 200


# Damage


@pytest.fixture
def damaged(store: RedisStore) -> Iterator[tuple[RedisStore, dict[str, str], bytes]]:
    """One id, beside healthy ones."""
    keys = keys_of(store)
    healthy = {an_id(number): 1_800_000_000_000 for number in range(600)}
    store.client.redis.zadd(keys["normal"], healthy)
    store.client.redis.hset(keys["messages"], mapping=dict.fromkeys(healthy, RECORD))
    yield store, keys, an_id(0)
    assert (
        sum(row["message_id"] in {one.hex() for one in healthy} for row in everything(store)) == 600
    )


def test_an_id_in_two_places_has_a_row_for_each(damaged: tuple[RedisStore, dict[str, str], bytes]):
    store, keys, one = damaged
    store.client.redis.hset(keys["messages"], one, RECORD)
    for name in ("normal", "low", "leased"):
        store.client.redis.zadd(keys[name], {one: 5})
    assert places(store, one) == [("normal", ALL), ("low", ALL), ("leased", ALL)]


def test_a_place_without_a_record_has_a_null_record(
    damaged: tuple[RedisStore, dict[str, str], bytes],
):
    store, keys, one = damaged
    store.client.redis.zadd(keys["high"], {one: 5})
    assert places(store, one) == [("high", WITHOUT_RECORD)]


def test_a_record_without_a_place_is_none(damaged: tuple[RedisStore, dict[str, str], bytes]):
    store, keys, one = damaged
    store.client.redis.hset(keys["messages"], one, RECORD)
    assert places(store, one) == [("none", [name for name in ALL if name != "due_at"])]


def test_attempts_without_a_record_and_a_place_are_none(
    damaged: tuple[RedisStore, dict[str, str], bytes],
):
    store, keys, one = damaged
    store.client.redis.hset(keys["attempts"], one, bytes(38))
    assert places(store, one) == [("none", ["has_attempts"])]
    store.client.redis.zadd(keys["leased"], {one: 5})
    assert places(store, one) == [("leased", WITHOUT_RECORD)]
    store.client.redis.hset(keys["messages"], one, RECORD)
    assert places(store, one) == [("leased", ALL)]
    store.client.redis.zrem(keys["leased"], one)
    assert [place for place, _ in places(store, one)] == ["none"]


@pytest.mark.parametrize(
    ("record", "known"),
    [
        (b"", ["durable"]),
        (b"short", ["durable"]),
        (RECORD[:8], ["enqueued_at_us", "durable"]),
        (RECORD[:22], ["enqueued_at_us", "durable"]),
    ],
)
def test_a_record_that_is_cut_says_what_it_can(
    damaged: tuple[RedisStore, dict[str, str], bytes], record: bytes, known: list[str]
):
    store, keys, one = damaged
    store.client.redis.hset(keys["messages"], one, record)
    store.client.redis.zadd(keys["low"], {one: 5})
    ((place, columns),) = places(store, one)
    assert place == "low"
    assert [name for name in columns if name in ("enqueued_at_us", "task_code", "durable")] == known


@pytest.mark.parametrize(
    ("score", "year"), [("inf", 9999), ("1e300", 9999), ("-inf", 1970), ("-5", 1970)]
)
def test_a_due_time_that_no_calendar_has_is_its_last_or_first_day(
    damaged: tuple[RedisStore, dict[str, str], bytes], score: str, year: int
):
    store, keys, one = damaged
    store.client.redis.zadd(keys["low"], {one: score})
    (row,) = read(store, "low")
    assert row["due_at"].year == year


def test_what_a_limit_holds_back_has_its_due_time(
    damaged: tuple[RedisStore, dict[str, str], bytes],
):
    store, keys, one = damaged
    store.client.redis.zadd(keys["low"], {one: 2**48 + 1_700_000_000_000})
    (row,) = read(store, "low")
    assert row["due_at"].year == 2023


def test_an_entry_of_the_stream_without_its_fields_is_a_row_all_the_same(
    damaged: tuple[RedisStore, dict[str, str], bytes],
):
    store, keys, _ = damaged
    store.client.redis.xadd(keys["finished"], {"state": "acked"})
    (row,) = read(store, "finished")
    assert (row["message_id"], row["record"], row["place"]) == ("", None, "finished")


def test_a_follower_that_is_cut_has_no_record(damaged: tuple[RedisStore, dict[str, str], bytes]):
    store, keys, one = damaged
    store.client.redis.hset(keys["followers"], one, b"\0\0\0\0\0\1")
    assert places(store, one) == [("follower", WITHOUT_RECORD)]
