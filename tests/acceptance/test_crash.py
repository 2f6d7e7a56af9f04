"""Workers that die, freeze or hang: nothing is lost, and what they held runs elsewhere."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue, gate
from tests.servers import Server, wait_until

pytestmark = pytest.mark.acceptance


@pytest.mark.parametrize("other", ["alive", "started after"])
def test_killed_worker_loses_nothing_and_only_what_it_held_runs_twice(
    queue: Queue, figure: Figure, other: str
) -> None:
    handles = tasks.work.enqueue_many([(0.01,)] * 1000)
    victim = queue.worker()
    if other == "alive":
        queue.worker()
    wait_until(lambda: queue.history.count() >= 400, "work is under way")

    victim.kill()
    killed_at, held = time.monotonic(), queue.leased()
    if other == "started after":
        queue.begin()
    queue.wait_until_drained(seconds=10)
    took = time.monotonic() - killed_at

    twice = queue.history.duplicates()
    first = {run.id: run.pid for run in reversed(queue.history.starts())}
    figure(
        f"{len(held)} held, {len(twice)} ran twice, all done {took:.2f} s after the kill (ttr 2 s)"
    )
    assert not queue.history.lost(handles)
    assert not queue.history.early(handles)
    assert set(twice) <= held
    assert {first[message] for message in twice} <= {victim.pid}
    assert set(twice.values()) <= {2}
    assert queue.acked_once(handles)
    assert took <= 2 + 2


@pytest.mark.long
def test_task_that_kills_its_process_ends_as_poison_and_its_neighbours_run(
    queue: Queue, figure: Figure
) -> None:
    worker = queue.worker("--processes", "2", "--concurrency", "4")
    poison = tasks.crash.enqueue_many([("exit",), ("segfault",)])
    neighbours = tasks.work.enqueue_many([(0.01,)] * 300) + tasks.spin.enqueue_many([(0.2,)] * 8)
    neighbours += tasks.work.using(delay=3).enqueue_many([(0.01,)] * 300)

    began = time.monotonic()
    queue.wait_until_drained(seconds=40)
    figure(
        f"dead {time.monotonic() - began:.1f} s after the start (three leases of 1 s, backoff 5 s)"
    )

    ends = {end.id: end for end in queue.ends()}
    assert [(ends[handle.id].state, ends[handle.id].reason) for handle in poison] == [
        ("dead", "poison")
    ] * 2
    assert [ends[handle.id].attempts.crashes for handle in poison] == [3, 3]
    # One that only waited in the process that the other killed is charged for that too, and so
    # starts less often.
    assert all(
        1 <= starts <= 3
        for starts in Counter(run.id for run in queue.history.starts(*poison)).values()
    )
    assert {ends[handle.id].state for handle in neighbours} == {"acked"}
    assert "a new one starts in" in worker.output
    assert worker.stop() == 0


@pytest.mark.long
def test_all_that_two_killed_workers_held_runs_in_the_third(
    aof_server: Server, queue_on: Callable[..., Queue], tmp_path: Path, figure: Figure
) -> None:
    """A node that goes out of memory twice: everything has one crash left, and comes back at the
    same time."""
    queue = queue_on(aof_server, TOPICS={"default": {"partitions": 4}})
    handles = tasks.hold.enqueue_many([(str(tmp_path / "gate"),)] * 8)
    for kills in (1, 2):
        victim = queue.worker("--concurrency", "8")
        wait_until(
            lambda kills=kills: len(queue.history.starts()) == 8 * kills, "all of them run", 20
        )
        victim.kill()
    gate(tmp_path / "gate", 3)
    killed_at = time.monotonic()
    third = queue.worker("--concurrency", "8")
    ordinary = tasks.note.enqueue_many([()] * 20)

    queue.wait_until_drained(seconds=30)

    figure(
        f"all done {time.monotonic() - killed_at:.1f} s after the second kill (ttr 1 s, backoff 5 "
        f"s)"
    )
    assert sorted(queue.history.duplicates(*handles).values()) == [3] * 8
    assert queue.acked_once([*handles, *ordinary])
    assert third.stop() == 0


def test_killed_supervisor_takes_its_processes_along(queue: Queue) -> None:
    supervisor = queue.worker("--processes", "2")
    queue.wait_for_beats(2)
    pids = [beat["pid"] for beat in queue.store.workers.heartbeats().values()]

    supervisor.kill()

    wait_until(lambda: not any(_alive(pid) for pid in pids), "both processes have ended")


def test_frozen_worker_is_refused_when_it_wakes_up(queue: Queue, tmp_path: Path) -> None:
    handle = tasks.hold.enqueue(str(tmp_path / "gate"))
    frozen = queue.worker()
    wait_until(lambda: queue.history.starts(handle), "the first run")
    frozen.signal(signal.SIGSTOP)
    queue.worker()
    wait_until(lambda: len(queue.history.starts(handle)) == 2, "the second run")

    gate(tmp_path / "gate", 1)
    frozen.signal(signal.SIGCONT)
    wait_until(lambda: len(queue.history.done(handle)) == 1, "the first run has ended")
    frozen.wait_for("lease_lost")
    assert queue.live() == 1  # the second run goes on: nobody has acked it

    gate(tmp_path / "gate", 2)
    queue.wait_until_drained()
    assert [run.attempt for run in queue.history.starts(handle)] == [1, 2]
    assert queue.acked_once([handle])
    assert "result" in frozen.output and "refused" in frozen.output
    assert frozen.stop() == 0


@pytest.mark.long
def test_long_task_keeps_its_lease_and_one_that_overruns_is_given_up(
    queue: Queue, tmp_path: Path
) -> None:
    queue.worker()
    long = [tasks.hold.enqueue(str(tmp_path / "gate")), tasks.spin.enqueue(3.5)]
    over = [tasks.overrun.enqueue(6)]
    cancelled = [tasks.overrun_async.enqueue(30)]

    wait_until(lambda: len(queue.history.starts(*over, *cancelled)) == 4, "the second runs")
    gate(tmp_path / "gate", 1)
    queue.wait_until_drained()
    queue.wait_until_drained("async")

    assert not queue.history.duplicates(*long)
    assert [run.attempt for run in queue.history.starts(*over)] == [1, 2]
    assert [run.attempt for run in queue.history.starts(*cancelled)] == [1, 2]
    assert len(queue.history.done()) == 2  # the cancelled coroutine did not end its first run
    assert queue.acked_once([*long, *over])
    assert queue.acked_once(cancelled, "async")
    assert "more than its max_runtime" in queue.workers[0].output


@pytest.mark.long
def test_worker_whose_threads_all_hang_ends_with_code_6_and_is_replaced(queue: Queue) -> None:
    worker = queue.worker("--processes", "2", "--concurrency", "1", "--shutdown-timeout", "0.2")
    handles = tasks.overrun.enqueue_many([(60,)] * 2)

    queue.wait_until_drained()

    assert [run.attempt for run in queue.history.starts(handles[0])] == [1, 2]
    worker.wait_for("ended with code 6")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
