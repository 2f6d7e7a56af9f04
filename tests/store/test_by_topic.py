"""What the store does with a topic and an id: wherever the message is."""

from __future__ import annotations

import pytest

from django_delayq.core.exceptions import MessageRunning
from django_delayq.core.message import new_ids
from django_delayq.store import queries
from django_delayq.store import store as module
from django_delayq.store.client import Read, RedisClient
from django_delayq.store.keys import partition_of
from django_delayq.store.queries import Life
from django_delayq.store.store import RedisStore
from tests.store.factories import FAR, LATER, PAST, STAMP, TASKS, accepted, new_id, outgoing
from tests.store.test_partitions import put, with_partitions

TOPIC = "orders"


@pytest.fixture
def moved(store: RedisStore) -> tuple[RedisStore, bytes]:
    """A store of five partitions, and the id of a message in a partition of the time of three."""
    old, new = with_partitions(store, 3), with_partitions(store, 5)
    message_id = next(
        i for i in new_ids(50) if partition_of(TOPIC, i, 3) != partition_of(TOPIC, i, 5)
    )
    partition = old.partitions.place(TOPIC, message_id, True)
    old.enqueue(partition, TASKS, [outgoing(message_id, when=LATER)])
    return new, message_id


def test_a_message_is_found_in_an_old_partition(moved: tuple[RedisStore, bytes]) -> None:
    store, message_id = moved
    located = store.find(TOPIC, message_id)
    assert located is not None
    assert located.partition == partition_of(TOPIC, message_id, 3)
    assert located.found.id == message_id
    assert store.find(TOPIC, new_id()) is None


def test_many_are_found_at_once(store: RedisStore) -> None:
    wide = with_partitions(store, 5)
    places = {message_id: put(wide, message_id) for message_id in new_ids(20)}
    found = wide.find_many((TOPIC, message_id) for message_id in [*places, new_id()])
    assert {located.found.id: located.partition for located in found} == places


def test_of_many_topics_the_partitions_with_the_message_are_asked(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = with_partitions(store, 5)
    places = {message_id: put(wide, message_id) for message_id in new_ids(20)}
    asked = [(TOPIC, message_id) for message_id in [*places, *new_ids(20)]]
    asked += [("others", message_id) for message_id in new_ids(20)]
    monkeypatch.setattr(module, "FEW", 1)
    reads = list[Read]()
    read_all = RedisClient.read_all
    monkeypatch.setattr(
        RedisClient, "read_all", lambda self, some: reads.extend(some) or read_all(self, some)
    )
    found = wide.find_many(asked)
    assert {located.found.id: located.partition for located in found} == places
    assert {i for read in reads if read.name == "find" for i in read.args} == set(places)
    nowhere = [(topic, i) for topic in (TOPIC, "others") for i in new_ids(20)]
    assert wide.find_many(nowhere) == []
    monkeypatch.setattr(module, "TOGETHER", 7)
    assert {located.found.id for located in wide.find_many(asked)} == set(places)


def test_leases_of_many_partitions_are_counted_where_there_are_any(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = with_partitions(store, 5)
    message_id = new_id()
    partition = partition_of(TOPIC, message_id, 5)
    wide.enqueue(partition, TASKS, [outgoing(message_id, when=PAST)])
    assert wide.claim(partition, 1).leases
    every = wide.partitions.all(TOPIC)
    for together in (1, 2, 50):
        monkeypatch.setattr(queries, "TOGETHER", together)
        counts = wide.queries.count_leased(every)
        assert dict(zip(every, counts, strict=True)) == {one: one == partition for one in every}
    assert wide.queries.count_leased([]) == []


def test_cancel_reaches_an_old_partition(moved: tuple[RedisStore, bytes]) -> None:
    store, message_id = moved
    assert [store.cancel(TOPIC, message_id) for _ in range(2)] == ["OK", "NOT_FOUND"]


def test_reschedule_reaches_an_old_partition(moved: tuple[RedisStore, bytes]) -> None:
    store, message_id = moved
    assert store.reschedule(TOPIC, message_id, FAR) == int(FAR)
    assert store.reschedule(TOPIC, new_id(), FAR) is None


def test_edit_reaches_an_old_partition(moved: tuple[RedisStore, bytes]) -> None:
    store, message_id = moved
    after = store.edit(TOPIC, message_id, lambda record: record + b" ")
    located = store.find(TOPIC, message_id)
    assert located is not None
    assert located.found.record == after
    assert store.edit(TOPIC, new_id(), lambda record: record) is None


def test_a_message_that_runs_is_neither_moved_nor_edited(moved: tuple[RedisStore, bytes]) -> None:
    store, message_id = moved
    store.reschedule(TOPIC, message_id, PAST)
    assert store.claim(partition_of(TOPIC, message_id, 3), 1).leases
    assert store.cancel(TOPIC, message_id) == "RUNNING"
    with pytest.raises(MessageRunning):
        store.reschedule(TOPIC, message_id, FAR)
    with pytest.raises(MessageRunning):
        store.edit(TOPIC, message_id, lambda record: record + b" ")


def test_only_a_durable_message_that_is_in_no_partition_is_missing(store: RedisStore) -> None:
    old, new = with_partitions(store, 3), with_partitions(store, 5)
    stored, lost = [Life(message_id, STAMP) for message_id in new_ids(2)]
    partition = old.partitions.place(TOPIC, stored.id, True)
    old.enqueue(partition, TASKS, [accepted(stored.id, when=FAR)])
    assert new.missing([(TOPIC, stored), (TOPIC, lost)]) == {lost}
    assert new.durable_status(TOPIC, stored) == (partition, "LIVE")
    assert new.durable_status(TOPIC, lost)[1] == "MISSING"
