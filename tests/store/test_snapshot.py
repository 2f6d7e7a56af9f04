"""All that the overview reads of Redis, in one round trip; and what it reads besides partitions:
samples, quiet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from redis.connection import AbstractConnection

from django_delayq.core.exceptions import StoreError, StoreUnavailable
from django_delayq.store import keys, workers
from django_delayq.store.hints import HintStream
from django_delayq.store.keys import QUIET_HINT, Partition
from django_delayq.store.store import RedisStore
from tests.faults import scripts_run, unreachable
from tests.servers import Server
from tests.store.factories import (
    LATER,
    PARTITION,
    TASKS,
    enqueue,
    enqueue_many,
    nodes,
    on_all_nodes,
    outgoing,
)

OTHER = Partition("mails", 0)
#: Now, in a minute, in ten years.
INSTANTS = (
    int(time.time() * 1000),
    int(time.time() * 1000) + 60_000,
    int(time.time() * 1000) + 10 * 366 * 86_400_000,
)
#: What it reads besides the partitions: heartbeats, quiet workers, samples, topics.
PLAIN = 4


@contextmanager
def round_trips() -> Iterator[list[object]]:
    """Every time that something is sent to a server."""
    sent: list[object] = []
    real = AbstractConnection.send_packed_command

    def send(self: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(command)
        return real(self, command, *args, **kwargs)

    with mock.patch.object(AbstractConnection, "send_packed_command", send):
        yield sent


def expected_trips(server: Server, reads: int) -> int:
    """One; but a cluster's client has no pipeline that reaches several nodes at once."""
    return reads if server.kind == "cluster" else 1


@pytest.fixture
def partitions(store: RedisStore) -> Sequence[Partition]:
    """Two of them, one with two waiting messages, one of them due."""
    enqueue(store)
    enqueue(store, when=LATER)
    store.enqueue(OTHER, TASKS, [outgoing(when=LATER)])
    store.partitions.counts(PARTITION.topic)
    store.partitions.counts(OTHER.topic)
    return PARTITION, OTHER


def test_it_is_one_round_trip(
    store: RedisStore, server: Server, partitions: Sequence[Partition]
) -> None:
    store.queries.snapshot(partitions, INSTANTS, 5)
    with round_trips() as sent:
        store.queries.snapshot(partitions, INSTANTS, 5)
    assert len(sent) == expected_trips(server, 2 * len(partitions) + PLAIN)


def test_it_says_what_the_single_reads_say(
    store: RedisStore, partitions: Sequence[Partition]
) -> None:
    store.workers.beat("worker", '{"at_ms": 5}')
    store.workers.quiet("worker")
    for number in range(1, 5):
        store.workers.add_sample(number, {"orders": {"finished": number, "waiting": 2, "lag": 0.5}})
    snapshot = store.queries.snapshot(partitions, INSTANTS, 3)
    assert {p: stats[1:] for p, stats in snapshot.stats.items()} == {
        p: store.queries.stats(p)[1:] for p in partitions
    }
    assert snapshot.forecast == {PARTITION: [1, 1, 2], OTHER: [0, 0, 1]}
    assert (snapshot.heartbeats, snapshot.quiet) == ({"worker": {"at_ms": 5}}, {"worker"})
    assert snapshot.samples == [
        {"at_ms": number, "finished": number, "waiting": 2, "lag": 0.5} for number in (2, 3, 4)
    ]
    assert snapshot.used == store.topics.used_partitions() == [OTHER, PARTITION]


def test_of_nothing_it_is_empty(store: RedisStore) -> None:
    assert store.queries.snapshot((), (), 1) == ({}, {}, {}, set(), [], [])


def test_it_comes_right_after_a_flush_of_the_script_cache(
    store: RedisStore, server: Server, partitions: Sequence[Partition]
) -> None:
    before = store.queries.snapshot(partitions, INSTANTS, 1)
    on_all_nodes(server, "SCRIPT", "FLUSH")
    assert store.queries.snapshot(partitions, INSTANTS, 1).forecast == before.forecast
    with round_trips() as sent:  # and the flush costs once
        store.queries.snapshot(partitions, INSTANTS, 1)
    assert len(sent) == expected_trips(server, 2 * len(partitions) + PLAIN)


def test_the_cost_does_not_depend_on_how_many_wait(
    store: RedisStore, server: Server, partitions: Sequence[Partition]
) -> None:
    enqueue_many(store, 2_000, when=LATER)
    before = _scripts(server)
    store.queries.snapshot(partitions, INSTANTS, 1)
    assert _scripts(server) - before == 2 * len(partitions)


def test_stats_of_several_partitions_are_one_round_trip(
    store: RedisStore, server: Server, partitions: Sequence[Partition]
) -> None:
    store.queries.all_stats(partitions)
    with round_trips() as sent:
        found = store.queries.all_stats(partitions)
    assert [stats[1:] for stats in found] == [store.queries.stats(p)[1:] for p in partitions]
    assert len(sent) == expected_trips(server, len(partitions))


def test_an_error_among_the_answers_is_raised(
    store: RedisStore, partitions: Sequence[Partition]
) -> None:
    store.client.redis.set(keys.workers_key(store.client.prefix), "not a hash")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        store.queries.snapshot(partitions, INSTANTS, 1)


def test_an_error_of_a_script_is_raised(store: RedisStore, partitions: Sequence[Partition]) -> None:
    lane = keys.partition_keys(store.client.prefix, PARTITION)[1]
    store.client.redis.delete(lane)
    store.client.redis.set(lane, "not a zset")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        store.queries.snapshot(partitions, INSTANTS, 1)


def test_a_server_that_is_away_is_told(store: RedisStore, partitions: Sequence[Partition]) -> None:
    with unreachable(), pytest.raises(StoreUnavailable):
        store.queries.snapshot(partitions, INSTANTS, 1)
    assert store.queries.snapshot(partitions, INSTANTS, 1).used


def _scripts(server: Server) -> int:
    calls = 0
    for node in nodes(server):
        with node:
            calls += scripts_run(mock.Mock(**{"client.redis": node}))
    return calls


# Workers that claim nothing


def test_a_worker_is_quiet_until_it_is_told_otherwise(store: RedisStore) -> None:
    assert not store.workers.is_quiet("worker")
    store.workers.quiet("worker")
    store.workers.quiet("worker")
    assert (store.workers.is_quiet("worker"), store.workers.is_quiet("other")) == (True, False)
    store.workers.unquiet("worker")
    store.workers.unquiet("worker")
    assert not store.workers.is_quiet("worker")


def test_workers_are_told_by_a_hint_that_is_no_topic(store: RedisStore) -> None:
    hints = HintStream(store)
    try:
        hints.connect()
        # The subscription is there once something is heard.
        for _ in range(50):
            store.client.command("PUBLISH", keys.wakeups_channel(store.client.prefix), "warm:0:1")
            if hints.read(0.1):
                break
        while hints.read(0.1):
            pass
        store.workers.quiet("worker")
        assert hints.read(5) == (Partition(QUIET_HINT, 0), 0)
        store.workers.unquiet("worker")
        assert hints.read(5) == (Partition(QUIET_HINT, 0), 0)
    finally:
        hints.close()


def test_a_forgotten_worker_is_not_quiet(store: RedisStore) -> None:
    for worker in ("a", "b", "c"):
        store.workers.beat(worker, '{"at_ms": 5}')
        store.workers.quiet(worker)
    store.workers.forget("a", "b")
    snapshot = store.queries.snapshot((), (), 1)
    assert (set(snapshot.heartbeats), snapshot.quiet) == ({"c"}, {"c"})


# Samples


def test_one_of_all_workers_takes_a_turn(store: RedisStore) -> None:
    assert [store.workers.acquire_lock("sample", 55_000) for _ in range(5)] == [
        True,
        False,
        False,
        False,
        False,
    ]
    left = store.client.redis.pttl(keys.lock_key(store.client.prefix, "sample"))
    assert 0 < left <= 55_000
    store.client.redis.delete(
        keys.lock_key(store.client.prefix, "sample")
    )  # as if its time were over
    assert store.workers.acquire_lock("sample", 55_000)


def test_samples_go_on_although_the_clock_went_back(store: RedisStore) -> None:
    for at_ms in (5_000, 4_000):
        store.workers.add_sample(at_ms, {"orders": {"finished": 1, "waiting": 0, "lag": 0.0}})
    found = store.queries.snapshot((), (), 9).samples
    assert [sample["at_ms"] for sample in found] == [5_000, 4_000]


def test_samples_of_a_day_are_kept(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SAMPLES", 20)
    for number in range(500):
        store.workers.add_sample(number + 1, {})
    kept = [sample["at_ms"] for sample in store.queries.snapshot((), (), 1_000).samples]
    assert kept == list(range(501 - len(kept), 501))
    assert 20 <= len(kept) <= 120  # whole nodes of the stream are removed, of 100 entries
