"""How a worker stops: drained, out of time, at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from django_delayq.worker.process.runner import SAME_SIGNAL
from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue, gate
from tests.servers import wait_until

pytestmark = pytest.mark.acceptance


def test_sigterm_lets_running_tasks_finish_and_hands_the_buffered_ones_back(
    queue: Queue, tmp_path: Path
) -> None:
    worker = queue.worker("--concurrency", "2")
    warm = tasks.note.enqueue_many(
        [()] * 300
    )  # short tasks: from now on the worker claims in advance
    queue.wait_until_drained()
    handles = tasks.hold.enqueue_many([(str(tmp_path / "gate"),)] * 12)
    wait_until(
        lambda: queue.history.count(*handles) == 2 and len(queue.leased()) > 2,
        "two run, others are buffered",
    )

    worker.terminate()
    worker.wait_for("draining")
    wait_until(lambda: len(queue.leased()) == 2, "the buffered ones are handed back")
    waiting = [m for handle in handles if handle.id not in queue.leased() and (m := handle.get())]
    assert [(m.state, m.attempt) for m in waiting] == [("ready", 0)] * 10

    gate(tmp_path / "gate", 1)
    assert worker.wait() == 0
    assert len(queue.history.done(*handles)) == 2

    queue.worker()
    queue.wait_until_drained()
    assert {run.attempt for run in queue.history.starts(*handles)} == {1}
    assert not queue.history.duplicates()
    assert queue.acked_once([*warm, *handles])


def test_task_longer_than_the_shutdown_timeout_runs_again_with_its_attempt_given_back(
    queue: Queue, tmp_path: Path, figure: Figure
) -> None:
    handle = tasks.hold.enqueue(str(tmp_path / "gate"))
    worker = queue.worker("--shutdown-timeout", "0.5")
    wait_until(lambda: queue.history.starts(handle), "it runs")
    queue.worker()

    began = time.monotonic()
    worker.terminate()
    assert worker.wait() == 4
    wait_until(lambda: len(queue.history.starts(handle)) == 2, "it runs elsewhere", 2)
    figure(f"runs again elsewhere {time.monotonic() - began:.2f} s after SIGTERM (timeout 0.5 s)")

    assert "1 abandoned" in worker.output
    gate(tmp_path / "gate", 1)
    queue.wait_until_drained()
    assert [run.attempt for run in queue.history.starts(handle)] == [1, 1]
    assert queue.acked_once([handle])


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_it_at_once(
    queue: Queue, tmp_path: Path, number: signal.Signals, processes: str
) -> None:
    handles = tasks.hold.enqueue_many([(str(tmp_path / "gate"),)] * 8)
    worker = queue.worker("--processes", processes, "--concurrency", "4")
    wait_until(lambda: queue.history.count(*handles) == 4 * int(processes), "every thread is busy")

    worker.signal(number)
    worker.wait_for("draining", times=int(processes))
    assert worker.runs_for(SAME_SIGNAL + 0.1)
    worker.signal(number)

    assert worker.wait(10) == 128 + number


def test_ctrl_c_in_a_terminal_reaches_every_process_and_is_one_signal(
    queue: Queue, tmp_path: Path
) -> None:
    handles = tasks.hold.enqueue_many([(str(tmp_path / "gate"),)] * 4)
    worker = queue.worker("--processes", "2", "--concurrency", "2")
    wait_until(lambda: queue.history.count() == 4, "every thread is busy")

    os.killpg(worker.pid, signal.SIGINT)
    worker.wait_for("draining", times=2)
    gate(tmp_path / "gate", 1)

    assert worker.wait() == 0
    assert len(queue.history.done(*handles)) == 4
    assert queue.acked_once(handles)


@pytest.mark.parametrize("processes", ["1", "3"])
def test_idle_worker_stops_soon_after_sigterm(queue: Queue, figure: Figure, processes: str) -> None:
    worker = queue.worker("--processes", processes)
    queue.wait_for_beats(int(processes))

    began = time.monotonic()
    worker.terminate()

    assert worker.wait() == 0
    took = time.monotonic() - began
    figure(f"{took:.2f} s")
    assert took < 2  # 0.5 s on a quiet machine
    assert queue.store.workers.heartbeats() == {}


@pytest.mark.parametrize("processes", ["1", "3"])
def test_sigterm_in_the_moment_of_the_start_is_obeyed(queue: Queue, processes: str) -> None:
    worker = queue.worker("--processes", processes)
    worker.terminate()
    assert worker.wait(5) == 0


def test_task_may_stop_its_own_worker(queue: Queue) -> None:
    handles = tasks.stop_worker.enqueue_many([()])
    worker = queue.worker()

    assert worker.wait() == 0

    assert len(queue.history.done(*handles)) == 1
    assert queue.acked_once(handles)


@pytest.mark.parametrize("name", ["use_own_threads", "use_lent_thread"])
def test_threads_that_are_busy_do_not_keep_the_process(
    queue: Queue, figure: Figure, name: str
) -> None:
    task = getattr(tasks, name)
    handle = task.enqueue(60)
    worker = queue.worker("--shutdown-timeout", "0.2")
    wait_until(lambda: queue.history.starts(handle), "it runs")
    time.sleep(0.2)  # until the thread has it

    began = time.monotonic()
    worker.terminate()
    assert worker.wait(20) == 4
    took = time.monotonic() - began
    figure(f"{took:.2f} s")
    assert took < 8  # 3 s on a quiet machine
    assert "1 abandoned" in worker.output
    message = handle.get()
    assert message is not None
    assert (message.state, message.attempt) == ("ready", 0)


@pytest.mark.parametrize("name", ["use_own_threads", "use_lent_thread"])
def test_threads_that_are_idle_cost_no_time_at_the_end(queue: Queue, name: str) -> None:
    task = getattr(tasks, name)
    handle = task.enqueue(0)
    worker = queue.worker()
    queue.wait_until_drained(task.options.topic)
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 2
    assert queue.acked_once([handle], task.options.topic)
