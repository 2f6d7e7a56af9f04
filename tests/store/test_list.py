"""list.lua: one page of a lane after a cursor."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_delayq.core.message import Priority, State
from django_delayq.store.client import BATCH
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.store.factories import (
    DETAIL,
    LATER,
    PARTITION,
    TASKS,
    claim,
    corrupt,
    dump,
    enqueue,
    enqueue_many,
    outgoing,
)

NORMAL = int(Priority.NORMAL)


def pages(
    store: RedisStore, limit: int, partition: Partition = PARTITION
) -> list[tuple[int, bytes]]:
    """All places of the normal lane, page after page."""
    seen: list[tuple[int, bytes]] = []
    while page := store.queries.list(partition, NORMAL, seen[-1] if seen else None, limit):
        places = [(found.due_at_ms, found.id) for found in page]
        assert len(page) <= limit
        assert not seen or places[0] > seen[-1]  # else the pages would never end
        seen += places
    return seen


def test_the_first_page_begins_with_the_oldest(store: RedisStore) -> None:
    late, soon = enqueue(store, when="2000"), enqueue(store, when="1000")
    found = store.queries.list(PARTITION, NORMAL, None, 10)
    assert [(item.id, item.due_at_ms) for item in found] == [(soon, 1000), (late, 2000)]
    assert found[0].record == dump(store)["messages"][soon]


@pytest.mark.parametrize("priority", list(Priority))
def test_each_lane_is_listed_for_itself(store: RedisStore, priority: Priority) -> None:
    ids = [enqueue(store, priority=p) for p in Priority]
    assert [item.id for item in store.queries.list(PARTITION, priority, None, 10)] == [
        ids[priority]
    ]


def test_the_state_is_by_the_clock_of_redis(store: RedisStore) -> None:
    enqueue(store, when="1000")
    enqueue(store, when=LATER)
    assert [item.state for item in store.queries.list(PARTITION, NORMAL, None, 10)] == [
        State.READY,
        State.DELAYED,
    ]


def test_a_retry_is_listed_with_its_attempts_and_a_lease_not_at_all(store: RedisStore) -> None:
    retry, running = claim(store), claim(store)
    store.nack(PARTITION, [(retry, 5000, True, DETAIL)])
    (item,) = store.queries.list(PARTITION, NORMAL, None, 10)
    assert (item.id, item.attempts.attempt) == (retry.id, 1)
    assert item.id != running.id


@hypothesis_settings(max_examples=40)
@given(
    places=st.sets(st.tuples(st.integers(1, 4), st.binary(min_size=16, max_size=16)), max_size=30),
    limit=st.integers(1, 7),
)
def test_paging_sees_every_message_once_in_order(
    store: RedisStore, places: set[tuple[int, bytes]], limit: int
) -> None:
    partition = Partition("list", int.from_bytes(os.urandom(4), "big"))
    unique = {message_id: due for due, message_id in places}
    if unique:
        store.enqueue(partition, TASKS, [outgoing(i, when=str(due)) for i, due in unique.items()])
    assert pages(store, limit, partition) == sorted(
        (due, message_id) for message_id, due in unique.items()
    )


def test_the_cursor_holds_when_messages_come_and_go(store: RedisStore) -> None:
    ids = enqueue_many(store, 9)
    first = store.queries.list(PARTITION, NORMAL, None, 4)
    store.cancel_in(PARTITION, ids[:5])
    enqueue(store, when="1000")
    rest = store.queries.list(PARTITION, NORMAL, (first[-1].due_at_ms, first[-1].id), 10)
    assert [item.id for item in rest] == ids[5:]


def test_many_messages_of_one_instant_are_paged(store: RedisStore) -> None:
    ids = enqueue_many(store, 1200)
    assert [message_id for _, message_id in pages(store, 500)] == ids


def test_a_page_is_at_most_a_batch(store: RedisStore) -> None:
    enqueue_many(store, BATCH + 1)
    assert len(store.queries.list(PARTITION, NORMAL, None, 10_000)) == BATCH


@pytest.mark.parametrize("after", [None, (1, b"")])
def test_a_limit_of_zero_lists_nothing(store: RedisStore, after: tuple[int, bytes] | None) -> None:
    enqueue(store)
    assert store.queries.list(PARTITION, NORMAL, after, 0) == []


def test_a_message_without_a_record_is_listed_empty(store: RedisStore) -> None:
    message_id = enqueue(store)
    corrupt(store, message_id, None)
    (item,) = store.queries.list(PARTITION, NORMAL, None, 1)
    assert (item.id, item.record) == (message_id, b"")


def test_listing_changes_nothing(store: RedisStore) -> None:
    enqueue_many(store, 3)
    before = dump(store)
    pages(store, 2)
    assert dump(store) == before
