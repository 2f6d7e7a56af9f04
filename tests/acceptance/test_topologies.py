"""A worker and a producer on a Redis Cluster, and through a failover that Sentinel makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_delayq import DelayQError, Handle
from django_delayq.store.keys import Partition
from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue, percentile, running
from tests.servers import Server, wait_until

pytestmark = pytest.mark.acceptance

Queues = Callable[..., Queue]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    with running("cluster") as server:
        yield server


@pytest.fixture
def sentinel() -> Iterator[Server]:
    with running("sentinel") as server:
        yield server


def test_cluster_serves_a_topic_of_four_partitions(
    cluster: Server, queue_on: Queues, figure: Figure
) -> None:
    queue = queue_on(cluster, TOPICS={"parts": {"partitions": 4}})
    workers = [queue.worker("--topics", "parts"), queue.worker("--topics", "parts")]
    now = tasks.note.using(topic="parts").enqueue_many([(n,) for n in range(500)])
    soon = tasks.note.using(topic="parts", delay=0.5).enqueue_many([(n,) for n in range(500)])
    queue.wait_until_drained("parts")

    late = queue.history.lateness(soon).values()
    figure(f"1,000 messages once each; the delayed ones late p50 {percentile(late, 0.5):.0f} ms")
    acked = [
        queue.store.queries.stats(Partition("parts", n)).meta.get("acked", "0") for n in range(4)
    ]
    assert min(map(int, acked)) > 100  # every partition had its share
    assert not queue.history.lost([*now, *soon])
    assert not queue.history.early([*now, *soon])
    assert not queue.history.duplicates()
    assert queue.acked_once([*now, *soon], "parts")
    assert [worker.stop() for worker in workers] == [0, 0]


@pytest.mark.long
def test_cluster_node_that_dies_and_comes_back_loses_nothing(
    cluster: Server, queue_on: Queues, figure: Figure
) -> None:
    queue = queue_on(cluster, TOPICS={"parts": {"partitions": 4}})
    worker = queue.worker("--topics", "parts")
    handles = tasks.note.using(topic="parts", delay=1).enqueue_many([(n,) for n in range(400)])
    began = time.monotonic()
    cluster.primaries[-1].kill()
    worker.wait_for("level=warning")
    cluster.restart()
    queue.wait_until_drained("parts")

    figure(f"all done {time.monotonic() - began:.1f} s after a node was killed")
    assert not queue.history.lost(handles)
    assert not queue.history.early(handles)
    assert not queue.history.duplicates()
    assert queue.acked_once(handles, "parts")
    assert worker.stop() == 0


def test_worker_goes_on_with_the_new_primary_after_a_failover(
    sentinel: Server, queue_on: Queues, figure: Figure, tmp_path: Path
) -> None:
    queue = queue_on(sentinel)
    worker = queue.worker()
    before = tasks.note.enqueue_many([()] * 50)
    waiting = tasks.note.using(delay=4).enqueue_many([()] * 50)
    queue.wait_for_runs(before)
    wait_until(lambda: _replica_has_everything(sentinel), "the replica has everything")

    died = time.monotonic()
    sentinel.kill()
    after = _enqueue_when_possible()
    queue.wait_for_runs([after], 10)
    figure(
        f"a new message ran {time.monotonic() - died:.1f} s after the primary died (Sentinel waits "
        f"for 1 s)"
    )
    queue.wait_for_runs(waiting, 10)
    queue.wait_until_drained()

    assert not queue.history.early([*waiting, after])
    assert not queue.history.duplicates(*waiting, after)
    assert "Redis is back" in worker.output
    assert worker.stop() == 0


def _replica_has_everything(server: Server) -> bool:
    with server.client() as client:
        info = client.info("replication")
    return bool(info.get("slave0", {}).get("offset") == info["master_repl_offset"])


def _enqueue_when_possible() -> Handle:
    handles: list[Handle] = []

    def sent() -> bool:
        try:
            handles.append(tasks.note.enqueue())
        except DelayQError:
            return False
        return True

    wait_until(sent, "the producer reaches a primary", 15)
    return handles[0]
