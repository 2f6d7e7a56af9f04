"""Behaviours that the test suites of earlier systems ask for, with real processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from django_delayq import (
    MessageNotFound,
    MessageRunning,
    __version__,
    pause_topic,
    resume_topic,
    topic_stats,
)
from django_delayq.core.message import ATTEMPTS
from django_delayq.store.keys import Partition, partition_keys
from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue, gate, percentile
from tests.servers import Server, wait_until

pytestmark = pytest.mark.acceptance

Servers = Callable[..., Server]
Queues = Callable[..., Queue]


def test_even_messages_are_acked_once_and_odd_ones_run_max_attempts_times(queue: Queue) -> None:
    handles = tasks.fail_odd.enqueue_many([(n,) for n in range(1000)])
    queue.worker()
    queue.wait_until_drained()

    runs = Counter(run.id for run in queue.history.starts())
    assert {runs[handle.id] for handle in handles[::2]} == {1}
    assert {runs[handle.id] for handle in handles[1::2]} == {3}
    assert Counter((end.state, end.reason, end.error) for end in queue.ends()) == {
        ("acked", "", ""): 500,
        ("dead", "failed", "ValueError: odd"): 500,
    }
    counters = topic_stats("default").counters
    assert {name: count for name, count in counters.items() if count} == {
        "enqueued": 1000,
        "acked": 500,
        "retried": 1000,
        "dead": 500,
    }


def test_few_threads_run_each_of_101_messages_once(queue: Queue) -> None:
    handles = tasks.work.enqueue_many([(0.005,)] * 101)
    assert queue.begin("--burst", "--concurrency", "4").wait() == 0
    assert not queue.history.lost(handles)
    assert not queue.history.duplicates()
    assert queue.acked_once(handles)


def test_messages_sent_one_at_a_time_are_consumed_one_at_a_time(
    queue: Queue, figure: Figure
) -> None:
    queue.worker()
    handles = []
    for number in range(100):
        handles.append(tasks.note.enqueue(number))
        queue.wait_for_runs(handles[-1:], 2)

    late = queue.history.lateness(handles).values()
    figure(f"late p50 {percentile(late, 0.5):.1f} ms, p99 {percentile(late, 0.99):.1f} ms")
    assert percentile(late, 0.5) < 20
    assert not queue.history.early(handles)


@pytest.mark.long
def test_backlog_of_20_000_that_all_fail_once(
    own_server: Servers, queue_on: Queues, figure: Figure
) -> None:
    server = own_server(slowlog_log_slower_than=5000)
    queue = queue_on(server)
    handles = tasks.fail_once.enqueue_many([()] * 20_000)
    queue.worker()
    queue.wait_until_drained(seconds=60)

    runs = queue.history.starts()
    with server.client() as client:
        slow = [
            entry["duration"] / 1000
            for entry in client.slowlog_get(128)
            if b"EVAL" in entry["command"].upper()
        ]
    figure(
        f"40,000 runs in {runs[-1].started - runs[0].started:.1f} s; slowest script "
        f"{max(slow, default=0):.0f} ms"
    )
    assert Counter(run.attempt for run in runs) == {1: 20_000, 2: 20_000}
    assert topic_stats("default").counters["acked"] == len(handles)
    assert not queue.history.lost(handles)
    assert max(slow, default=0) < 100  # 500 messages per script at most, however long the backlog


def test_worker_claims_no_more_than_it_can_run_and_goes_on_when_there_is_room(
    queue: Queue, tmp_path: Path
) -> None:
    handles = tasks.hold.enqueue_many([(str(tmp_path / "gate"),)] * 12)
    queue.worker("--concurrency", "3")
    wait_until(lambda: queue.history.count() == 3, "three run")
    assert len(queue.leased()) == 3

    gate(tmp_path / "gate", 1)
    queue.wait_until_drained()
    assert queue.acked_once(handles)


def test_retry_waits_for_its_delay(queue: Queue, figure: Figure) -> None:
    handles = tasks.fail_once.enqueue_many([()] * 50)
    queue.worker()
    queue.wait_until_drained()

    waits = []
    for handle in handles:
        first, second = queue.history.starts(handle)
        waits.append(second.started - first.started)
    figure(
        f"second attempts after {1000 * min(waits):.0f} to {1000 * max(waits):.0f} ms (backoff 700 "
        f"ms)"
    )
    assert min(waits) >= 0.7
    assert max(waits) < 1


@pytest.mark.django_db(transaction=True)
def test_cancelled_messages_never_run_whatever_they_waited_for(
    queue: Queue, tmp_path: Path
) -> None:
    queue.worker()
    delayed = tasks.note.using(delay=0.7, key="delayed").enqueue()
    retried = tasks.fail_once.using(key="retried").enqueue()
    held = tasks.hold.using(key="held").enqueue(str(tmp_path / "gate"))
    wait_until(
        lambda: (m := retried.get()) and m.attempt == 1 and m.state == "delayed",
        "one waits for its retry",
    )
    wait_until(lambda: queue.history.starts(held), "one runs")
    pause_topic("default", by="tests", reason="cancel")
    ready = tasks.note.enqueue()

    tasks.note.cancel(key="delayed")
    tasks.fail_once.cancel(key="retried")
    ready.cancel()
    with pytest.raises(MessageRunning):
        held.cancel()
    for key in ("delayed", "retried"):
        with pytest.raises(MessageNotFound):
            tasks.note.cancel(key=key)

    resume_topic("default")
    gate(tmp_path / "gate", 1)
    last = tasks.note.using(delay=0.7).enqueue()
    queue.wait_for_runs([last])
    queue.wait_until_drained()
    assert not queue.history.starts(delayed, ready)
    assert len(queue.history.starts(retried)) == 1
    states = {end.id: end.state for end in queue.ends()}
    assert [states[handle.id] for handle in (delayed, retried, ready, held, last)] == [
        *["cancelled"] * 3,
        *["acked"] * 2,
    ]


@pytest.mark.django_db(transaction=True)
def test_rescheduled_message_runs_at_its_new_time_while_the_worker_sleeps(queue: Queue) -> None:
    queue.worker()
    sooner = tasks.note.using(delay=3600, key="sooner").enqueue()
    later = tasks.note.using(delay=0.3, key="later").enqueue()
    due_at = tasks.note.reschedule(key="sooner", delay=0.5)
    tasks.note.reschedule(key="later", delay=3600)

    queue.wait_for_runs([sooner], 3)

    assert 0 <= queue.history.starts(sooner)[0].started - due_at.timestamp() < 0.2
    assert not queue.history.starts(later)


def test_newest_event_while_a_message_runs_follows_it_once(queue: Queue, tmp_path: Path) -> None:
    queue.worker()
    replacing = tasks.hold.using(key="cart", on_duplicate="replace")
    first = replacing.enqueue(str(tmp_path / "first"))
    wait_until(lambda: queue.history.starts(first), "it runs")

    outcomes = [replacing.enqueue(str(tmp_path / name)).outcome for name in ("second", "third")]
    assert outcomes == ["follows", "follows"]
    assert len(queue.history.starts(first)) == 1

    gate(tmp_path / "first", 1)
    wait_until(lambda: len(queue.history.starts(first)) == 2, "the newest runs")
    gate(tmp_path / "third", 1)
    queue.wait_until_drained()
    assert [run.attempt for run in queue.history.starts(first)] == [1, 1]


def test_paused_topic_holds_and_goes_on_at_once(queue: Queue, figure: Figure) -> None:
    pause_topic("default", by="ops", reason="SMTP down")
    worker = queue.worker()
    handles = tasks.note.enqueue_many([()] * 20)
    held_for = tasks.note.using(topic="async").enqueue()
    queue.wait_for_runs([held_for])
    assert queue.history.count(*handles) == 0
    assert 'paused    default (by ops, "SMTP down")' in worker.out

    resume_topic("default")
    queue.wait_for_runs(handles, 2)
    assert queue.acked_once(handles) or queue.live() > 0
    queue.wait_until_drained()


def test_figures_are_seen_from_another_process(queue: Queue, tmp_path: Path) -> None:
    queue.worker("--concurrency", "2")
    tasks.hold.enqueue_many([(str(tmp_path / "gate"),)] * 5)
    tasks.note.using(delay=60).enqueue_many([()] * 7)
    wait_until(lambda: queue.history.count() == 2, "two run")

    stats = topic_stats("default")

    assert (stats.delayed, stats.backlog, stats.leased) == (7, 3, 2)
    assert stats.lag > 0
    gate(tmp_path / "gate", 1)
    wait_until(lambda: topic_stats("default").counters["acked"] == 5, "all are acked")


def test_two_prefixes_on_one_server_do_not_see_each_other(
    aof_server: Server, queue_on: Queues
) -> None:
    other = queue_on(aof_server)
    theirs = tasks.note.enqueue_many([()] * 10)
    mine = queue_on(aof_server)
    handles = tasks.note.enqueue_many([()] * 10)

    assert mine.begin("--burst").wait() == 0

    assert mine.history.count(*handles) == 10
    assert mine.history.count(*theirs) == 0
    assert other.live() == 10


@pytest.mark.long
def test_task_that_only_newer_workers_know_waits_for_one(queue: Queue, figure: Figure) -> None:
    old = queue.worker(DELAYQ_TEST_CODE="old")
    handle = tasks.newcomer.enqueue()
    known = tasks.note.enqueue_many([()] * 100)
    old.wait_for("unknown_task")
    queue.wait_for_runs(known)
    waiting = handle.get()
    assert waiting is not None
    assert (waiting.state, waiting.attempt) == ("delayed", 0)

    new = queue.worker()
    assert old.stop() == 0
    queue.wait_until_drained()

    figure(f"ran {1000 * queue.history.lateness([handle])[handle.id]:.0f} ms after its due time")
    assert [(run.attempt, run.pid) for run in queue.history.starts(handle)] == [(1, new.pid)]
    assert queue.acked_once([handle, *known])


@pytest.mark.long
def test_two_versions_of_the_code_work_side_by_side(queue: Queue) -> None:
    """A rolling deploy: what one version cannot run, the other runs, in its first attempt, and both
    run all else."""
    old = queue.worker("--log-format", "json", DELAYQ_TEST_CODE="old")
    grown = tasks.grown.enqueue_many([(n, "new") for n in range(5)])
    newcomers = tasks.newcomer.enqueue_many([()] * 5)
    known = tasks.grown.enqueue_many([(n,) for n in range(20)])
    queue.wait_for_runs(known)
    wait_until(
        lambda: sum('"put_off"' in line for line in old.out.splitlines()) >= 2,
        "the old one has met both",
    )
    said = [json.loads(line) for line in old.out.splitlines() if '"put_off"' in line]
    assert {event["task"].rpartition(".")[2]: event["error"].partition(":")[0] for event in said} == {
        "grown": "bad_args", "newcomer": "unknown_task",
    }  # fmt: skip
    assert {event["level"] for event in said} == {"warning"}
    assert all(f"django-delayq {__version__}" in event["error"] for event in said)

    new = queue.worker()
    queue.wait_for_runs([*grown, *newcomers])
    queue.wait_until_drained()

    runs = [queue.history.starts(handle) for handle in [*grown, *newcomers]]
    assert [[(run.attempt, run.pid) for run in of_one] for of_one in runs] == [[(1, new.pid)]] * 10
    assert queue.acked_once([*grown, *newcomers, *known])


@pytest.mark.long
def test_retry_that_meets_old_code_waits_too(queue: Queue) -> None:
    """A rollback: it was claimed first long before a worker met it that does not know its task."""
    handle = tasks.newcomer.using(delay=3600).enqueue()
    attempts, partition = (
        partition_keys(queue.prefix, Partition("default", 0))[5],
        Partition("default", 0),
    )
    queue.store.client.redis.hset(
        attempts, handle.identity, ATTEMPTS.pack(1, 0, bytes(6), b"\1" * 6, bytes(16), bytes(6))
    )
    queue.store.reschedule_in(partition, handle.identity, "+0")
    old = queue.worker(DELAYQ_TEST_CODE="old")
    old.wait_for("unknown_task")
    new = queue.worker()
    assert old.stop() == 0
    queue.wait_until_drained()
    assert [(run.attempt, run.pid) for run in queue.history.starts(handle)] == [(2, new.pid)]


def test_entry_that_cannot_be_read_is_buried_and_blocks_nobody(queue: Queue) -> None:
    broken = [tasks.note.using(delay=0.5).enqueue() for _ in range(4)]
    messages = partition_keys(queue.prefix, Partition("default", 0))[4]
    records = [queue.store.client.redis.hget(messages, handle.identity) for handle in broken]
    cut, version = records[0][:-1], records[1][:14] + b"\x01" + records[1][15:]
    for handle, raw in zip(broken, (cut, version, b"\0", None), strict=True):
        if raw is None:
            queue.store.client.redis.hdel(messages, handle.identity)
        else:
            queue.store.client.redis.hset(messages, handle.identity, raw)
    neighbours = tasks.note.using(delay=0.5).enqueue_many([()] * 20)

    queue.worker()
    queue.wait_until_drained()

    ends = {end.id: end for end in queue.ends()}
    assert [ends[handle.id].state for handle in broken] == ["dead"] * 4
    assert [ends[handle.id].reason for handle in broken] == [*["undecodable"] * 3, "body_missing"]
    assert {ends[handle.id].state for handle in neighbours} == {"acked"}
    assert not queue.history.starts(*broken)
