"""A topic that is paused, for ever or up to an instant: claim.lua and topics.py."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core.exceptions import StoreFull
from django_delayq.store import keys
from django_delayq.store.finished import FinishedStream
from django_delayq.store.keys import Partition
from django_delayq.store.store import Claimed, RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    FAR,
    PARTITION,
    claim,
    configure,
    dump,
    enqueue,
    enqueue_many,
    full,
    wakeups,
)

TOPIC = PARTITION.topic
END = int(FAR)
NOTE = '{"by": "ops"}'


def pause_of(store: RedisStore, partition: Partition = PARTITION) -> dict[bytes, bytes]:
    """What holds a partition."""
    meta = store.client.redis.hgetall(keys.meta_key(store.client.prefix, partition))
    return {name: meta[name] for name in (b"paused", b"paused_until") if name in meta}


def pass_end(store: RedisStore, *partitions: Partition) -> None:
    """As if the end of the pause were just over."""
    for partition in partitions or (PARTITION,):
        store.client.command(
            "HSET",
            keys.meta_key(store.client.prefix, partition),
            "paused_until",
            int(store.clock_ms()) - 1,
        )


def four_partitions(store: RedisStore) -> list[Partition]:
    """As after a deploy that splits the topic."""
    store.topics.register(TOPIC, 4)
    return [Partition(TOPIC, number) for number in range(4)]


def test_nothing_is_claimed_before_the_end_and_nothing_changes(store: RedisStore) -> None:
    enqueue(store)
    enqueue(store, when="1000", expires="+1")
    store.topics.pause(TOPIC, NOTE, END)
    before = dump(store)
    claimed = store.claim(PARTITION, 10)
    assert (claimed.leases, claimed.over, claimed.paused, claimed.unarchived) == (
        [],
        [],
        True,
        False,
    )
    assert dump(store) == before


@pytest.mark.parametrize(("until", "next_due"), [(END, END), (None, None)])
def test_the_next_look_is_at_the_end(
    store: RedisStore, until: int | None, next_due: int | None
) -> None:
    enqueue(store)
    store.topics.pause(TOPIC, NOTE, until)
    assert store.claim(PARTITION, 1).next_due_ms == next_due


def test_it_is_over_at_that_very_millisecond(store: RedisStore) -> None:
    enqueue(store)
    end = int(store.clock_ms()) + 200
    store.topics.pause(TOPIC, NOTE, end)
    answers: list[Claimed] = []
    while not (answers and answers[-1].leases):
        answers.append(store.claim(PARTITION, 1))
    assert [claimed.now_us // 1000 < end for claimed in answers] == [
        claimed.paused for claimed in answers
    ]
    assert len(answers) > 1


def test_after_the_end_nothing_is_left_of_it(store: RedisStore) -> None:
    store.topics.pause(TOPIC, NOTE, END)
    assert pause_of(store) == {b"paused": NOTE.encode(), b"paused_until": FAR.encode()}
    pass_end(store)
    claimed = store.claim(PARTITION, 1)
    assert (claimed.paused, claimed.next_due_ms, pause_of(store)) == (False, None, {})


def test_after_the_end_whatever_is_due_is_claimed_in_its_order(store: RedisStore) -> None:
    ids = enqueue_many(store, 20)
    store.topics.pause(TOPIC, NOTE, END)
    pass_end(store)
    assert [lease.id for lease in store.claim(PARTITION, 50).leases] == ids


@pytest.mark.parametrize("second", [END - 5, END + 5, None])
def test_a_second_pause_replaces_the_end(store: RedisStore, second: int | None) -> None:
    store.topics.pause(TOPIC, NOTE, END)
    store.topics.pause(TOPIC, '{"by": "another"}', second)
    assert store.claim(PARTITION, 1).next_due_ms == second
    assert pause_of(store)[b"paused"] == b'{"by": "another"}'


def test_a_pause_gets_an_end(store: RedisStore) -> None:
    store.topics.pause(TOPIC, NOTE)
    store.topics.pause(TOPIC, NOTE, END)
    pass_end(store)
    assert not store.claim(PARTITION, 1).paused


def test_a_pause_without_an_end_outlives_the_end_of_the_one_before(store: RedisStore) -> None:
    enqueue(store)
    end = int(store.clock_ms()) + 5
    store.topics.pause(TOPIC, NOTE, end)
    store.topics.pause(TOPIC, NOTE)
    while store.clock_ms() <= end:
        pass
    assert store.claim(PARTITION, 1).paused


def test_resume_ends_it_before_its_time(store: RedisStore) -> None:
    message_id = enqueue(store)
    store.topics.pause(TOPIC, NOTE, END)
    store.topics.resume(TOPIC)
    assert pause_of(store) == {}
    assert claim(store, message_id).id == message_id


def test_the_dispatchers_are_woken_to_learn_the_end(store: RedisStore) -> None:
    before = wakeups(store)
    store.topics.pause(TOPIC, NOTE, END)
    assert wakeups(store) == before + 1
    store.topics.resume(TOPIC)
    assert wakeups(store) == before + 2


def test_partitions_that_come_later_end_with_it(store: RedisStore) -> None:
    store.topics.register(TOPIC, 1)
    store.topics.pause(TOPIC, NOTE, END)
    partitions = four_partitions(store)
    assert [pause_of(store, one) for one in partitions] == [pause_of(store)] * 4
    assert [store.claim(one, 1).next_due_ms for one in partitions] == [END] * 4
    pass_end(store, *partitions)
    assert not any(store.claim(one, 1).paused for one in partitions)


def test_partitions_that_come_after_the_end_are_not_held(store: RedisStore) -> None:
    """Although nobody has claimed since, and so the note of the pause is still there."""
    store.topics.register(TOPIC, 1)
    store.topics.pause(TOPIC, NOTE, END)
    pass_end(store)
    assert not any(store.claim(one, 1).paused for one in four_partitions(store))


def test_later_partitions_of_a_topic_that_runs_are_not_held(store: RedisStore) -> None:
    store.topics.register(TOPIC, 1)
    store.topics.pause(TOPIC, NOTE, END)
    store.topics.resume(TOPIC)
    assert [pause_of(store, one) for one in four_partitions(store)] == [{}] * 4


# Together with a finished stream that nobody empties


@pytest.fixture
def stream(store: RedisStore) -> FinishedStream:
    """One entry is too many, and there is one."""
    lease = claim(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    configure(store, finished_limit=1)
    return FinishedStream(store, PARTITION, "archiver")


def test_a_pause_with_an_end_hides_that_nobody_archives(
    store: RedisStore, stream: FinishedStream
) -> None:
    store.topics.pause(TOPIC, NOTE, END)
    claimed = store.claim(PARTITION, 1)
    assert (claimed.paused, claimed.unarchived, claimed.next_due_ms) == (True, False, END)


def test_after_its_end_claims_wait_for_the_archiver(
    store: RedisStore, stream: FinishedStream
) -> None:
    message_id = enqueue(store)
    store.topics.pause(TOPIC, NOTE, END)
    pass_end(store)
    claimed = store.claim(PARTITION, 1)
    assert (claimed.paused, claimed.unarchived, claimed.next_due_ms) == (True, True, None)
    assert pause_of(store) == {}
    stream.remove(stream.read())
    assert claim(store, message_id).id == message_id


# On a full Redis


def test_a_full_redis_takes_no_pause_with_an_end(store: RedisStore, server: Server) -> None:
    before = dump(store)
    with full(server), pytest.raises(StoreFull):
        store.topics.pause(TOPIC, NOTE, END)
    assert dump(store) == before


def test_a_refused_pause_leaves_the_one_before_it(store: RedisStore, server: Server) -> None:
    store.topics.pause(TOPIC, NOTE, END)
    before = pause_of(store)
    with full(server), pytest.raises(StoreFull):
        store.topics.pause(TOPIC, '{"by": "another"}')
    assert pause_of(store) == before


def test_a_pause_ends_on_a_full_redis_too(store: RedisStore, server: Server) -> None:
    message_id = enqueue(store)
    store.topics.pause(TOPIC, NOTE, END)
    pass_end(store)
    with full(server):
        assert claim(store, message_id).id == message_id
    assert pause_of(store) == {}


def test_a_full_redis_can_be_drained_by_resuming(store: RedisStore, server: Server) -> None:
    partitions = four_partitions(store)
    store.partitions.forget()
    store.topics.pause(TOPIC, NOTE)
    before = _wakeups(store, partitions)
    with full(server):
        store.topics.resume(TOPIC)
    assert [pause_of(store, one) for one in partitions] == [{}] * 4
    assert _wakeups(store, partitions) == [count + 1 for count in before]


def _wakeups(store: RedisStore, partitions: list[Partition]) -> list[Any]:
    return [found.wakeups for found in store.queries.counters(partitions)]
