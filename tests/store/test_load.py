"""load.lua: a part of a bulk load, behind a fence that lets nothing through twice."""

from __future__ import annotations

import pickle

import pytest

from django_delayq.core.exceptions import FenceChanged, LoadLost, StoreError, StoreFull
from django_delayq.core.message import Priority, new_ids
from django_delayq.core.times import When
from django_delayq.store import bulk_load, keys
from django_delayq.store.bulk_load import FENCE_LIFE, BulkLoad, Loadable, LoadProgress
from django_delayq.store.client import BATCH
from django_delayq.store.store import Outgoing, RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    FAR,
    LATER,
    PARTITION,
    PAST,
    TASK,
    TASKS,
    accepted,
    claim,
    counter,
    dump,
    enqueue,
    follow,
    full,
    live,
    record,
    send,
    waiting,
    wakeups,
)

LOAD = BulkLoad("night", "3 rows")
NOTING = BulkLoad("night", "3 rows", record_conflicts=True)


def loadable(
    message_id: bytes, *, when: str = FAR, expires: str = "", body: bytes = b"[1]", **fields: int
) -> Loadable:
    return message_id, when, expires, record(body, **fields)  # type: ignore[arg-type]


def load(
    store: RedisStore,
    *ids: bytes,
    split: int = 0,
    as_load: BulkLoad = LOAD,
    passed: bytes = b"",
    **fields: str,
) -> LoadProgress:
    messages = [loadable(one, **fields) for one in ids]  # type: ignore[arg-type]
    return store.bulk_load.load(PARTITION, as_load, split, TASKS, messages, passed)()()


def counts(loaded: LoadProgress) -> tuple[int, ...]:
    return loaded[1:]


def ids_of(count: int) -> list[bytes]:
    return sorted(new_ids(count))


def test_messages_are_stored_as_an_enqueue_stores_them(store: RedisStore) -> None:
    one, other = ids_of(2)
    messages = [
        loadable(one, priority=Priority.LOW),
        loadable(other, when="1000", expires="+500", body=b'["x"]'),
    ]
    loaded = store.bulk_load.load(PARTITION, LOAD, 0, TASKS, messages)()()
    assert counts(loaded) == (2, 0, 0, 0)
    assert dump(store)["low"] == {one: float(FAR)}
    assert dump(store)["normal"] == {other: 1000.0}
    (found,) = store.queries.find(PARTITION, [other])
    assert found and found.record[14:] == messages[1][3]
    assert int.from_bytes(found.record[8:14], "big") == 1500
    assert counter(store, "enqueued") == 2
    assert store.queries.task_name(PARTITION, next(iter(TASKS))) == TASK


def test_a_repeated_call_adds_nothing(store: RedisStore) -> None:
    ids = ids_of(3)
    load(store, *ids)
    before = dump(store)
    assert counts(load(store, *ids)) == (0, 3, 0, 0)
    assert dump(store) == before


def test_what_has_ended_meanwhile_does_not_come_back(store: RedisStore) -> None:
    ids = ids_of(3)
    load(store, *ids, when=PAST)
    for lease in store.claim(PARTITION, 3).leases:
        store.ack(PARTITION, [(lease, DETAIL)])
    assert counts(load(store, *ids, when=PAST)) == (0, 3, 0, 0)
    assert live(store) == set()


def test_a_load_goes_on_where_it_was_cut_off(store: RedisStore) -> None:
    ids = ids_of(5)
    load(store, *ids[:2])
    assert counts(load(store, *ids)) == (3, 2, 0, 0)
    assert live(store) == set(ids)


def test_a_load_does_not_pass_messages_that_redis_has_lost(store: RedisStore) -> None:
    ids = ids_of(3)
    load(store, ids[0])
    for lost in ids[1], ids[2]:  # the fence knows of less, as after a failover
        before = dump(store)
        with pytest.raises(LoadLost, match="failover"):
            load(store, ids[2], passed=lost)
        assert dump(store) == before
    assert counts(load(store, *ids, passed=ids[0])) == (2, 1, 0, 0)

    store.client.redis.delete(keys.fence_key(store.client.prefix, PARTITION, "night"))
    with pytest.raises(LoadLost):
        load(store, ids[2], passed=ids[1])
    assert store.bulk_load.fences([PARTITION], "night")[0] == {}


@pytest.mark.parametrize("at", [0, 5, 6, 11, 12, 15])
def test_ids_are_compared_by_their_bytes_in_any_locale(store: RedisStore, at: int) -> None:
    """Ids that differ in one byte, at either end of each number they are read as; 0x5f and 0x61
    sort otherwise in most locales than 0x41."""
    low, middle, high = (
        bytes(0x70 if i != at else byte for i in range(16)) for byte in (0x41, 0x5F, 0xE9)
    )
    assert counts(load(store, middle)) == (1, 0, 0, 0)
    assert counts(load(store, low, middle, high)) == (1, 2, 0, 0)
    assert live(store) == {middle, high}


def test_ids_that_do_not_ascend_are_an_error(store: RedisStore) -> None:
    one, other = ids_of(2)
    before = dump(store)
    for ids in ([other, one], [one, one]):
        with pytest.raises(StoreError, match="do not ascend"):
            load(store, *ids)
    assert dump(store) == before
    assert store.bulk_load.fences([PARTITION], "night")[0] == {}


@pytest.mark.parametrize("at", [0, 5, 6, 11, 12, 15])
def test_the_first_byte_that_differs_decides_which_id_is_higher(store: RedisStore, at: int) -> None:
    """Whatever comes behind it: scripts compare an id in three parts."""
    low = b"\x80" * at + b"\x01" + b"\xff" * (15 - at)
    high = b"\x80" * at + b"\x02" + b"\x00" * (15 - at)
    with pytest.raises(StoreError, match="do not ascend"):
        load(store, high, low)
    assert counts(load(store, low, high))[0] == 2


def test_each_split_has_a_mark_of_its_own(store: RedisStore) -> None:
    one, other = ids_of(2)
    load(store, other, split=1)
    assert counts(load(store, one, split=2)) == (1, 0, 0, 0)
    assert counts(load(store, one, split=1)) == (0, 1, 0, 0)


def test_loads_do_not_know_of_each_other(store: RedisStore) -> None:
    one, other = ids_of(2)
    load(store, other)
    assert counts(load(store, one, as_load=BulkLoad("another", "x"))) == (1, 0, 0, 0)


def test_a_fence_of_other_messages_refuses_and_changes_nothing(store: RedisStore) -> None:
    one, other = ids_of(2)
    load(store, one)
    before, fence = dump(store), store.bulk_load.fences([PARTITION], "night")[0]
    with pytest.raises(FenceChanged, match="night") as caught:
        load(store, other, as_load=LOAD._replace(fingerprint="4 rows"))
    assert "3 rows" in str(pickle.loads(pickle.dumps(caught.value)))
    assert (dump(store), store.bulk_load.fences([PARTITION], "night")[0]) == (before, fence)


def test_without_messages_it_opens_the_fence(store: RedisStore) -> None:
    before = dump(store)
    opened = load(store)
    assert counts(opened) == (0, 0, 0, 0)
    assert load(store, *ids_of(1)).began_ms == opened.began_ms
    assert before["messages"] == {} and wakeups(store) == 1
    assert store.bulk_load.fences([PARTITION], "night")[0] == {
        "fingerprint": "3 rows",
        "began": str(opened.began_ms),
        "new": "1",
    }


def test_a_repeated_load_began_when_the_first_did(store: RedisStore) -> None:
    began = load(store, *ids_of(1)).began_ms
    while store.clock_ms() < began + 3:
        pass
    assert load(store, *ids_of(1), split=1).began_ms == began
    assert began <= store.clock_ms()


def test_another_message_with_the_id_is_kept_and_the_same_one_counts_apart(
    store: RedisStore,
) -> None:
    kept, same, new = ids_of(3)
    enqueue(store, kept, body=b'["another"]', when=LATER)
    enqueue(store, same, when=FAR)
    before = store.queries.find(PARTITION, [kept, same])
    assert counts(load(store, kept, same, new)) == (1, 0, 1, 1)
    assert store.queries.find(PARTITION, [kept, same]) == before
    assert counts(load(store, kept, same, new)) == (0, 3, 0, 0)
    fence = store.bulk_load.fences([PARTITION], "night")[0]
    assert (fence["new"], fence["same"], fence["kept"]) == ("1", "1", "1")
    assert counter(store, "enqueued") == 3


def test_a_running_message_and_what_follows_it_are_kept(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id)
    before = dump(store)
    assert counts(load(store, lease.id, body=b'["third"]')) == (0, 0, 0, 1)  # type: ignore[arg-type]
    assert dump(store) == before


def test_a_durable_message_is_kept(store: RedisStore) -> None:
    message = accepted(when=FAR, body=b"[2]")
    send(store, message)
    before = dump(store)
    assert counts(load(store, message[0])) == (0, 0, 0, 1)
    assert dump(store) == before


def test_what_is_live_in_another_partition_is_only_counted(store: RedisStore) -> None:
    one, other = ids_of(2)
    messages = [(one, FAR, "", b""), loadable(other)]
    assert counts(store.bulk_load.load(PARTITION, NOTING, 0, TASKS, messages)()()) == (1, 0, 0, 1)
    assert live(store) == {other}
    assert store.bulk_load.left(PARTITION, "night", [(0, one), (0, bytes(16))]) == {one}


def test_only_a_load_that_record_conflicts_knows_what_it_has_kept(store: RedisStore) -> None:
    ids = ids_of(1200)
    for at in range(0, len(ids), BATCH):
        send(
            store,
            *(
                Outgoing(i, "raise", When(FAR), When(), record(b"[0]"))
                for i in ids[at : at + BATCH]
            ),
        )
        load(store, *ids[at : at + BATCH], as_load=NOTING)
    messages = [(0, identity) for identity in ids]
    assert store.bulk_load.left(PARTITION, "night", [*messages, (0, bytes(16))]) == set(ids)
    load(store, *ids[:3], as_load=BulkLoad("another", "x"))
    assert store.bulk_load.left(PARTITION, "another", messages[:3]) == set()


def test_what_the_fence_has_not_passed_is_lost(store: RedisStore) -> None:
    one, other = ids_of(2)
    load(store, one, as_load=NOTING)
    for lost in [(0, other), (1, one)]:
        with pytest.raises(LoadLost):
            store.bulk_load.left(PARTITION, "night", [(0, one), lost])


def test_a_due_message_wakes_the_dispatchers(store: RedisStore) -> None:
    load(store, *ids_of(2), when=PAST)
    assert wakeups(store) == 1


def test_a_full_redis_refuses_the_whole_call(store: RedisStore, server: Server) -> None:
    ids = ids_of(3)
    enqueue(store, ids[0], when=FAR, body=b'["another"]')
    before = dump(store)
    with full(server):
        for batch in (ids, ids[:1], []):
            with pytest.raises(StoreFull):
                load(store, *batch)
    assert (dump(store), store.bulk_load.fences([PARTITION], "night")[0]) == (before, {})
    assert counts(load(store, *ids)) == (2, 0, 0, 1)


def test_the_fence_goes_when_nobody_repeats_the_load(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(store, *ids_of(1))
    fence = keys.fence_key(store.client.prefix, PARTITION, "night")
    assert FENCE_LIFE - 5 <= store.client.command("TTL", fence) <= FENCE_LIFE
    store.client.command("EXPIRE", fence, 50)
    load(store, *ids_of(1))
    assert store.client.command("TTL", fence) <= 50  # said an hour ago at most
    monkeypatch.setattr(bulk_load, "RENEW", 0.0)
    load(store, *ids_of(1))
    assert store.client.command("TTL", fence) > 50


def test_a_full_batch_is_taken_in_one_call(store: RedisStore) -> None:
    ids = ids_of(BATCH)
    assert counts(load(store, *ids)) == (BATCH, 0, 0, 0)
    assert set(waiting(store)) == set(ids)
