"""moving/: the store moves to another Redis while everything runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from django_delayq.core.conf import Settings, parse_settings
from django_delayq.core.exceptions import (
    ConfigurationError,
    LoadLost,
    MoveRefused,
    MoveUndone,
    StoreMoved,
    StoreUnavailable,
)
from django_delayq.core.task_report import TaskProgress, TaskReport
from django_delayq.store import get_store, keys
from django_delayq.store.finished import FinishedStream
from django_delayq.store.hints import HintStream
from django_delayq.store.moving import mover as module
from django_delayq.store.moving.freeze import decide, freeze, move_in, thaw
from django_delayq.store.moving.mover import StoreMover
from django_delayq.store.store import RedisStore
from tests.servers import Server, binary_of, launcher
from tests.store.factories import (
    DETAIL,
    LATER,
    PARTITION,
    claim,
    dump,
    ends,
    enqueue,
    follow,
    new_id,
    on_all_nodes,
    outgoing,
    send,
    waiting,
    wakeups,
)
from tests.store.life import whole_life
from tests.store.test_scripts import ACL, ACL_OF_CLIENT, prefix_rules

#: From which server to which. A server takes the values of older ones.
PAIRS = [("redis7", "redis7"), ("redis62", "redis7"), ("redis7", "valkey")]
WAYS = ["copy", "replica"]


@contextmanager
def running(*kinds: str) -> Iterator[tuple[Server, Server]]:
    old, new = map(launcher, kinds)
    try:
        for server in (old, new):
            server.start(repl_diskless_sync_delay=0)
        yield old, new
    finally:
        old.stop()
        new.stop()


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    with running(*request.param) as servers:
        yield servers


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Server, Server]]:
    kind = "redis7" if binary_of("redis7") else "valkey"
    with running(kind, kind) as servers:
        yield servers


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATE_S", 0.0)


@contextmanager
def moving(servers: tuple[Server, Server], prefix: str) -> Iterator[tuple[RedisStore, StoreMover]]:
    """A store on the first server, and what moves it to the second one. Both servers are empty."""
    for server in servers:
        with server.client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
            client.flushall()
    settings = parse_settings(
        {
            "REDIS": servers[0].url,
            "REDIS_NEXT": servers[1].url,
            "PREFIX": prefix,
            "SOCKET_TIMEOUT": 0.3,
        }
    )
    store, mover = made(settings), StoreMover(settings)
    try:
        yield store, mover
    finally:
        store.close()
        mover.close()


def made(settings: Settings) -> RedisStore:
    """A process's store."""
    return RedisStore(module.open_client(settings), settings)


@pytest.fixture
def moved(two: tuple[Server, Server], prefix: str) -> Iterator[tuple[RedisStore, StoreMover]]:
    with moving(two, prefix) as both:
        yield both


def contents(redis_py: Any) -> dict[bytes, Any]:
    """Every key with its value, as bytes. Not the state of the move."""
    return {key: redis_py.dump(key) for key in redis_py.keys("*") if not key.endswith(b":move")}


def test_a_store_moves_to_a_server_behind_sentinel_and_from_there(prefix: str) -> None:
    with launcher("sentinel") as watched, launcher("redis7") as single:
        for servers in ((single, watched), (watched, single)):
            with moving(servers, prefix) as (store, mover):
                lease = claim(store)
                store.topics.register("orders", 1)
                mover.run("copy", 5)
                assert store.ack(PARTITION, [(lease, DETAIL)]) == []
                assert is_at(store, servers[1])


def is_at(store: RedisStore, server: Server) -> bool:
    return store.client.where == server.url


# All of it arrives


@pytest.mark.parametrize("way", WAYS)
def test_everything_is_carried_over(pair: tuple[Server, Server], prefix: str, way: str) -> None:
    with moving(pair, prefix) as (store, mover):
        lease = claim(store)
        lease.report = TaskReport()
        store.progress(lease, b"[1]", 60_000)
        follow(store, lease.id)
        store.ack(PARTITION, [(claim(store), DETAIL)])
        send(store, outgoing(mode="keep/60000", when=LATER), outgoing(when=LATER, priority=0))
        store.topics.register("orders", 1)
        store.topics.pause("orders", "{}")
        before, at_work = dump(store), mover.plan(way)
        assert at_work.problems == []
        done = mover.run(way, 5)
        assert done.before == done.after == at_work.counts
        assert (done.before.records, done.before.leased, done.before.finished) == (3, 1, 1)
        assert dump(RedisStore(mover.new, mover.next_settings)) == before
        assert store.reports.progress("orders", lease.id) == TaskProgress(1)
        assert store.ack(PARTITION, [(lease, DETAIL)]) == [], "the lease holds there"
        assert is_at(store, pair[1])
        assert ends(store)[-1] == (lease.id, "acked")
        assert lease.id in waiting(store), "its follower"


@pytest.mark.parametrize("way", WAYS)
def test_a_value_keeps_its_end_and_a_stream_its_readers(
    moved: tuple[RedisStore, StoreMover], way: str
) -> None:
    store, mover = moved
    store.ack(PARTITION, [(claim(store), DETAIL)])
    store.topics.register("orders", 1)
    store.workers.acquire_lock("sample", 50_000)
    stream = FinishedStream(store, PARTITION, "archiver")
    (entry,) = stream.read()
    mover.run(way, 5)
    lock = keys.lock_key(store.client.prefix, "sample")
    assert 40_000 < mover.new.pttl(lock) <= 50_000
    with pytest.raises(StoreUnavailable, match="call again"):
        stream.read()
    assert stream.read() == [], "it was read before the move"
    assert stream.remove([entry]) == 0


def test_an_answer_of_the_api_that_is_written_while_others_change_over_is_carried_over_too(
    moved: tuple[RedisStore, StoreMover],
) -> None:
    store, mover = moved
    enqueue(store)
    store.topics.register("orders", 1)
    real, late = mover.decide, keys.answer_keys(store.client.prefix, "call")[1]
    lock = keys.lock_key(store.client.prefix, "released")

    def decide_late(move: Any) -> None:
        real(move)
        mover.old.hset(late, "of", "late")
        mover.old.set(lock, 1)

    mover.decide = decide_late  # type: ignore[method-assign]
    assert mover.run("copy", 5).late == 1
    assert mover.new.hgetall(late) == {b"of": b"late"}
    assert not mover.new.exists(lock)


def test_an_empty_store_moves_too(
    moved: tuple[RedisStore, StoreMover], two: tuple[Server, Server]
) -> None:
    store, mover = moved
    mover.run("copy", 5)
    store.topics.register("orders", 1)
    assert claim(store)
    assert is_at(store, two[1])


# The freeze


@pytest.mark.parametrize("state", ["frozen", "moved"])
def test_no_call_changes_a_frozen_store(moved: tuple[RedisStore, StoreMover], state: str) -> None:
    store, mover = moved
    store.client.settings = replace(store.client.settings, redis_next="", socket_timeout=0.01)
    every = list(whole_life(store))
    lease = claim(store)
    every[0]()
    follow(store, lease.id)
    store.ack(PARTITION, [(store.claim(PARTITION, 1).leases[0], DETAIL)])
    store.topics.register("orders", 1)
    move = mover.freeze(60)
    if state == "moved":
        mover.decide(move)
    before = contents(mover.old)
    changing: list[Callable[[], Any]] = [
        *every,
        lambda: enqueue(store),
        lambda: enqueue(store, mode="keep/60000"),
        lambda: store.claim(PARTITION, 5),
        lambda: store.ack(PARTITION, [(lease, DETAIL)]),
        lambda: store.nack(PARTITION, [(lease, 0, False, DETAIL)]),
        lambda: store.extend(PARTITION, [lease]),
        lambda: store.release(PARTITION, [lease]),
        lambda: store.put_off(PARTITION, [(lease, 0, DETAIL)]),
        lambda: store.progress(lease, b"[1]", 60_000),
        lambda: store.reclaim(PARTITION),
        lambda: store.cancel_in(PARTITION, [lease.id]),
        lambda: store.cancel_running_in(PARTITION, lease.id),
        lambda: store.purge(PARTITION),
        lambda: FinishedStream(store, PARTITION, "late").read(),
        lambda: store.topics.pause("orders", "{}"),
        lambda: store.topics.register("another", 1),
        lambda: store.workers.beat("worker", "{}"),
    ]
    refused = 0
    for call in changing:
        try:
            call()
        except (StoreUnavailable, StoreMoved):
            refused += 1
        except LoadLost:
            pass  # its load was refused before
    after = contents(mover.old)
    free = (b":lock:", b":bulk:")  # of no message
    changed = {
        key
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key) and not any(word in key for word in free)
    }
    assert changed == set()
    assert refused >= len(changing) - 8, "some calls ask for nothing that is frozen"


def test_a_call_that_waits_ends_in_the_new_store(
    moved: tuple[RedisStore, StoreMover], two: tuple[Server, Server]
) -> None:
    store, mover = moved
    store.client.settings = replace(store.client.settings, socket_timeout=5)
    enqueue(store)
    store.topics.register("orders", 1)
    mover._empty_new()
    move = mover.freeze(60)
    threads = [threading.Thread(target=enqueue, args=(store,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    mover._copy(move)
    mover.decide(move)
    for thread in threads:
        thread.join(10)
    assert is_at(store, two[1])
    assert len(waiting(store)) == 5


def test_several_reads_of_a_round_trip_are_made_again(
    moved: tuple[RedisStore, StoreMover], two: tuple[Server, Server]
) -> None:
    store, mover = moved
    message_id = enqueue(store)
    store.topics.register("orders", 1)
    store.topics.register("mail", 1)
    mover.run("copy", 5)
    found = store.find_many([("orders", message_id), ("mail", new_id())])
    assert [at.partition for at in found] == [PARTITION]
    assert is_at(store, two[1])


def test_who_listens_for_hints_hears_those_of_the_new_store(
    moved: tuple[RedisStore, StoreMover],
) -> None:
    store, mover = moved
    enqueue(store)
    store.topics.register("orders", 1)
    hints = HintStream(store)
    assert hints.connect()
    mover.run("copy", 5)
    assert wakeups(store) == 1
    assert hints.connect(), "a new subscription: hints were lost meanwhile"
    assert not hints.connect()
    store.client.redis.publish(keys.wakeups_channel(store.client.prefix), "orders:0:7")
    while (heard := hints.read(5)) is None:
        pass
    assert heard == (PARTITION, 7.0)
    hints.close()


# Who does not know where


def test_a_process_that_does_not_know_the_new_store_is_told(
    moved: tuple[RedisStore, StoreMover],
) -> None:
    store, mover = moved
    enqueue(store)
    store.topics.register("orders", 1)
    unaware = made(replace(store.client.settings, redis_next=""))
    mover.run("copy", 5)
    with pytest.raises(StoreMoved, match="does not know where"):
        enqueue(unaware)
    unaware.close()


def test_a_process_with_another_new_store_is_told(
    moved: tuple[RedisStore, StoreMover], two: tuple[Server, Server]
) -> None:
    store, mover = moved
    enqueue(store)
    store.topics.register("orders", 1)
    wrong = made(replace(store.client.settings, redis_next=two[1].url[:-1] + "5"))
    mover.run("copy", 5)
    with pytest.raises(StoreMoved, match="Correct DELAYQ"):
        enqueue(wrong)
    wrong.close()


def test_a_process_that_starts_after_the_move_finds_the_store_though_the_old_server_is_off(
    moved: tuple[RedisStore, StoreMover], settings: Any, two: tuple[Server, Server]
) -> None:
    store, mover = moved
    message_id = enqueue(store)
    store.topics.register("orders", 1)
    mover.run("copy", 5)
    settings.DELAYQ = {
        "REDIS": "redis://127.0.0.1:1",
        "REDIS_NEXT": two[1].url,
        "PREFIX": store.client.prefix,
    }
    assert set(waiting(get_store())) == {message_id}
    get_store().close()


def test_a_process_that_was_idle_finds_it_when_it_looks_for_redis(
    moved: tuple[RedisStore, StoreMover], two: tuple[Server, Server]
) -> None:
    store, mover = moved
    message_id = enqueue(store)
    store.topics.register("orders", 1)
    idle = made(replace(store.client.settings, redis="redis://127.0.0.1:1"))
    mover.run("copy", 5)
    with pytest.raises(StoreUnavailable):
        waiting_of(idle)
    idle.client._probe()
    assert waiting_of(idle) == {message_id}
    idle.close()


def waiting_of(store: RedisStore) -> set[bytes]:
    return {at.found.id for at in store.find_many([("orders", i) for i in waiting_ids(store)])}


def waiting_ids(store: RedisStore) -> list[bytes]:
    lane = keys.partition_keys(store.client.prefix, PARTITION)[1]
    return list(store.client.command("ZRANGE", lane, 0, -1))


# A move that was killed


def kill_after(mover: StoreMover, step: str, way: str) -> None:
    """Let the command die without a word after this step: a new process goes on from there."""
    if way == "copy":
        mover._empty_new()
    else:
        mover._replicate()
    if step == "begun":
        return
    # Of a freeze that is to pass; long enough for what comes before its step.
    move = mover.freeze({"frozen": 0.2, "copied": 1.0}.get(step, 60))
    if step == "frozen":
        return
    (mover._copy if way == "copy" else mover._promote)(move)
    if step == "decided":
        mover.decide(move)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", ["begun", "frozen", "copied"])
def test_when_the_command_is_killed_the_old_store_serves_again(
    moved: tuple[RedisStore, StoreMover], two: tuple[Server, Server], step: str, way: str
) -> None:
    store, mover = moved
    store.client.settings = replace(store.client.settings, socket_timeout=5)
    lease = claim(store)
    enqueue(store, when=LATER)
    store.topics.register("orders", 1)
    before = contents(mover.old)
    kill_after(mover, step, way)
    assert store.extend(PARTITION, [lease]) == [], "after the longest time of the freeze"
    assert is_at(store, two[0])
    if step == "begun":
        assert contents(mover.old).keys() == before.keys()
    assert len(dump(store)["messages"]) == 2
    again = StoreMover(mover.settings)
    assert again.plan(way).problems == []
    assert again.run(way, 5).before.records == 2
    assert store.ack(PARTITION, [(lease, DETAIL)]) == []
    assert is_at(store, two[1])
    again.close()


@pytest.mark.parametrize("way", WAYS)
def test_when_the_command_is_killed_after_the_decision_the_new_store_serves(
    moved: tuple[RedisStore, StoreMover], two: tuple[Server, Server], way: str
) -> None:
    store, mover = moved
    lease = claim(store)
    store.topics.register("orders", 1)
    kill_after(mover, "decided", way)
    assert store.ack(PARTITION, [(lease, DETAIL)]) == []
    assert is_at(store, two[1])
    assert move_in(mover.new, store.client.prefix).state == "arrived"
    again = StoreMover(mover.settings)
    assert again.run(way, 5).frozen_ms == 0
    assert ends(store) == [(lease.id, "acked")]
    again.close()


def test_a_command_that_was_too_slow_does_not_decide(
    moved: tuple[RedisStore, StoreMover], two: tuple[Server, Server]
) -> None:
    store, mover = moved
    store.client.settings = replace(store.client.settings, socket_timeout=5)
    message_id = enqueue(store)
    store.topics.register("orders", 1)
    mover._empty_new()
    move = mover.freeze(0.05)
    assert claim(store, message_id).id == message_id, "a worker has undone the freeze"
    mover._copy(move)
    with pytest.raises(MoveUndone):
        mover.decide(move)
    assert is_at(store, two[0])


def test_a_freeze_is_not_undone_while_it_may_last_nor_after_the_decision(
    moved: tuple[RedisStore, StoreMover],
) -> None:
    store, mover = moved
    enqueue(store)
    store.topics.register("orders", 1)
    prefix, move = store.client.prefix, mover.freeze(60)
    assert thaw(mover.old, prefix, move, "undone", late=True) == "frozen"
    assert decide(mover.old, prefix, "another", "frozen", "moved") == ""
    mover.decide(move)
    assert thaw(mover.old, prefix, move, "undone") == "moved"


def test_a_topic_that_is_new_is_frozen_too(moved: tuple[RedisStore, StoreMover]) -> None:
    store, mover = moved
    store.topics.register("orders", 1)
    assert freeze(mover.old, store.client.prefix, "id", 1000, [], []) == "CHANGED"
    assert move_in(mover.old, store.client.prefix).state == ""


# Checks


def test_what_speaks_against_a_move_is_said(
    moved: tuple[RedisStore, StoreMover], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, mover = moved
    enqueue(store)
    now_ms = int(store.clock_ms())
    store.workers.beat("old-worker", f'{{"at_ms": {now_ms}}}')
    store.workers.beat("dead-worker", '{"at_ms": 1}')
    mover.new.set(f"{store.client.prefix}:topics", "in use")
    monkeypatch.setattr(module, "SKEW_MS", -1)
    text = "\n".join(mover.plan().problems)
    assert "do not know" in text and "old-worker" in text and "dead-worker" not in text
    assert "no move has left" in text
    assert "clocks" in text
    with pytest.raises(MoveRefused, match="not empty"):
        mover.run("copy", 5)


def test_a_replica_takes_whole_servers_only(moved: tuple[RedisStore, StoreMover]) -> None:
    store, mover = moved
    enqueue(store)
    for number in range(20):
        mover.old.set(f"another:{number}", 1)
    mover.new.set("another", 1)
    text = "\n".join(mover.plan("replica").problems)
    assert "20 keys of others" in text
    assert "not empty" in text
    assert mover.plan("copy").problems == []


def test_a_new_server_that_is_full_is_found(moved: tuple[RedisStore, StoreMover]) -> None:
    store, mover = moved
    enqueue(store)
    mover.new.config_set("maxmemory", 2_000_000)
    mover.new.config_set("maxmemory-policy", "allkeys-lru")
    try:
        text = "\n".join(mover.plan().problems)
    finally:
        mover.new.config_set("maxmemory", 0)
        mover.new.config_set("maxmemory-policy", "noeviction")
    assert "maxmemory" in text and "evicts" in text


def test_a_store_cannot_move_to_where_it_is(moved: tuple[RedisStore, StoreMover]) -> None:
    _, mover = moved
    same = StoreMover(replace(mover.settings, redis_next=mover.settings.redis))
    with pytest.raises(MoveRefused, match="same server"):
        same.plan()
    same.close()


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ({"REDIS_NEXT": "queue"}, "must be the URL"),
        ({"REDIS_NEXT": "redis+cluster://h:1"}, "must be the URL"),
        ({"REDIS": "redis+cluster://h:1", "REDIS_NEXT": "redis://h"}, "is a cluster"),
    ],
)
def test_what_cannot_move_is_refused(entries: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        parse_settings({"REDIS": "redis://h", **entries})


def test_a_replica_that_gets_no_connection_is_given_up(
    moved: tuple[RedisStore, StoreMover], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, mover = moved
    monkeypatch.setattr(module, "UNCONNECTED_S", 0.2)
    mover.settings = replace(mover.settings, redis="redis://127.0.0.1:1")
    with pytest.raises(MoveRefused, match="no connection to the old one"):
        mover._replicate()
    assert mover.new.info("replication")["role"] == "master"


# Rights


def test_two_rights_more_let_a_limited_user_follow_and_undo(
    moved: tuple[RedisStore, StoreMover], two: tuple[Server, Server]
) -> None:
    store, mover = moved
    message_id = enqueue(store)
    store.topics.register("orders", 1)
    rules = (*prefix_rules(store.client.prefix), *ACL, *ACL_OF_CLIENT[:3], "+rename", "+del")
    for server in two:
        on_all_nodes(server, "ACL", "SETUSER", "shop", "reset", "on", ">secret", *rules)
    urls = [server.url.replace("://", "://shop:secret@") for server in two]
    limited = made(
        replace(store.client.settings, redis=urls[0], redis_next=urls[1], socket_timeout=5)
    )
    mover._empty_new()
    mover.freeze(0.05)
    assert limited.queries.find(PARTITION, [message_id])[0], "it has undone the freeze"
    mover.run("copy", 5)
    assert claim(limited, message_id).id == message_id
    limited.close()
