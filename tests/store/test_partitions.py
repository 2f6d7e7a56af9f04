"""Partitions of the store, and keys.py: where a message is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.core.conf import Settings, TopicSettings
from django_delayq.core.message import new_ids
from django_delayq.store import keys
from django_delayq.store.keys import Partition, partition_of
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import TASKS, enqueue, full, new_id, outgoing


def with_partitions(store: RedisStore, count: int) -> RedisStore:
    """Another process, whose settings split the topic into so many partitions."""
    topics = {"orders": TopicSettings(partitions=count)}
    return RedisStore(
        store.client.redis,
        Settings(prefix=store.client.prefix, redis=store.client.settings.redis, topics=topics),
    )


def put(store: RedisStore, message_id: bytes, keyed: bool = True) -> Partition:
    partition = store.partitions.place("orders", message_id, keyed)
    store.enqueue(partition, TASKS, [outgoing(message_id)])
    return partition


def test_a_topic_without_an_entry_has_one_partition(store: RedisStore) -> None:
    assert store.partitions.all("orders") == [Partition("orders", 0)]
    assert store.partitions.single("orders") == Partition("orders", 0)


def test_a_topic_is_spread_over_its_partitions(store: RedisStore) -> None:
    four = with_partitions(store, 4)
    assert {put(four, i, keyed=False) for i in new_ids(200)} == set(four.partitions.all("orders"))
    assert four.partitions.single("orders") is None


@given(message_id=st.binary(min_size=16, max_size=16), count=st.integers(1, 256))
def test_an_id_has_one_place(message_id: bytes, count: int) -> None:
    partition = partition_of("orders", message_id, count)
    assert 0 <= partition.number < count
    assert partition == partition_of("orders", message_id, count)


def test_old_partitions_are_still_served_after_the_number_was_raised(store: RedisStore) -> None:
    with_partitions(store, 2).partitions.counts("orders")
    assert len(with_partitions(store, 5).partitions.all("orders")) == 5
    assert len(with_partitions(store, 2).partitions.all("orders")) == 5


@pytest.mark.parametrize(("before", "after"), [(1, 4), (2, 3), (4, 2)])
def test_a_live_key_stays_where_it_is_when_the_number_changes(
    store: RedisStore, before: int, after: int
) -> None:
    old, new = with_partitions(store, before), with_partitions(store, after)
    places = {message_id: put(old, message_id) for message_id in new_ids(20)}
    assert {i: new.partitions.place("orders", i, True) for i in places} == places


def test_a_message_can_be_in_one_place_per_number(store: RedisStore) -> None:
    with_partitions(store, 3).partitions.counts("orders")
    new, message_id = with_partitions(store, 5), new_id()
    candidates = new.partitions.candidates("orders", message_id)
    assert candidates[0] == partition_of("orders", message_id, 5)
    assert set(candidates) == {partition_of("orders", message_id, count) for count in (3, 5)}


def test_other_topics_are_not_mixed_in(store: RedisStore) -> None:
    store.topics.register("orders.paid", 7)
    store.topics.register("orders", 1)
    assert store.topics.register("orders", 2) == {1, 2}
    assert store.topics.names() == ["orders", "orders.paid"]


def test_the_numbers_are_said_again_after_everything_was_lost(store: RedisStore) -> None:
    with_partitions(store, 3).partitions.counts("orders")
    four = with_partitions(store, 4)
    assert four.partitions.counts("orders") == {3, 4}
    store.client.command("DEL", keys.topics_key(store.client.prefix))
    assert four.partitions.counts("orders") == {3, 4}
    four.partitions.forget()
    assert four.partitions.counts("orders") == {4}
    assert store.topics.names() == ["orders"]


def test_a_full_redis_still_says_where_messages_are(store: RedisStore, server: Server) -> None:
    with_partitions(store, 2).partitions.counts("orders")
    with full(server):
        assert len(with_partitions(store, 2).partitions.all("orders")) == 2
        assert len(with_partitions(store, 4).partitions.all("orders")) == 4
    assert 4 not in store.topics.register("orders", 1)
    assert with_partitions(store, 4).partitions.counts("orders") == {1, 2, 4}


def test_every_key_of_a_partition_is_in_one_slot(store: RedisStore) -> None:
    tags = {
        key[key.index("{") : key.index("}")]
        for key in keys.partition_keys(store.client.prefix, Partition("a.b", 3))
    }
    assert tags == {"{a.b:3"}


def test_all_keys_begin_with_the_prefix(store: RedisStore) -> None:
    enqueue(store)
    names = [
        *keys.partition_keys("p", Partition("t", 0)),
        keys.topics_key("p"),
        keys.workers_key("p"),
    ]
    assert all(name.startswith("p:") for name in [*names, keys.wakeups_channel("p")])


def test_heartbeats_are_written_read_and_removed(store: RedisStore) -> None:
    store.workers.beat("one", '{"at": 1}')
    store.workers.beat("two", '{"at": 2}')
    assert store.workers.heartbeats() == {"one": {"at": 1}, "two": {"at": 2}}
    store.workers.forget("one")
    assert store.workers.heartbeats() == {"two": {"at": 2}}
