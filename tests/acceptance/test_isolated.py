"""Tasks in child processes: limits, deaths of every kind, and neighbours that do not notice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import isolated_tasks as apart
from tests.acceptance import tasks
from tests.acceptance.harness import End, Figure, Queue, percentile
from tests.acceptance.process import WorkerProcess
from tests.servers import Server, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def worker(queue: Queue) -> Callable[..., WorkerProcess]:
    """Starts a worker that has the isolated tasks."""

    def start(*arguments: str, **environment: str) -> WorkerProcess:
        worker = queue.begin(*arguments, **{"DELAYQ_TEST_CODE": "apart", **environment})
        return worker.wait_for("Ready in ", 60)

    return start


@pytest.fixture(autouse=True)
def no_child_is_left(queue: Queue) -> Iterator[None]:
    """A child ends with its worker, however that ended."""
    yield
    for process in queue.workers:
        process.close()
    pids = {run.pid for run in queue.history.all()} - {os.getpid()}
    wait_until(lambda: not any(map(is_alive, pids)), "all children have ended", 5)


def is_alive(pid: int) -> bool:
    """Not so for a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def end_of(queue: Queue, handle: Any, seconds: float = 60.0) -> End:
    """How the message has ended."""
    wait_until(lambda: handle.id in [end.id for end in queue.ends("apart")], "it ends", seconds)
    (end,) = [end for end in queue.ends("apart") if end.id == handle.id]
    return end


def test_a_run_has_a_process_of_its_own_and_the_next_one_finds_it_warm(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    process = worker("--concurrency", "2")
    handles = [apart.apart.enqueue() for _ in range(1)]
    queue.wait_until_drained("apart", 60)
    for _ in range(9):
        handles.append(apart.apart.enqueue())
        queue.wait_until_drained("apart", 60)
    pids = {run.pid for run in queue.history.starts()}
    assert len(pids) == 1
    assert process.pid not in pids
    assert queue.acked_once(handles, "apart")


def test_a_transaction_that_a_run_leaves_open_is_not_that_of_the_next(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    worker("--concurrency", "1")
    handles = [apart.leave_open.enqueue() for _ in range(2)]
    queue.wait_until_drained("apart", 60)
    assert len({run.pid for run in queue.history.all()}) == 1
    assert [run.what for run in queue.history.all()] == ["start", "start"]
    for handle in handles:
        end = end_of(queue, handle)
        assert (end.state, "TransactionLeftOpen" in end.error) == ("dead", True)


@pytest.mark.long
def test_children_are_as_many_as_messages_run_at_a_time(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    worker("--concurrency", "3")
    handles = apart.apart.enqueue_many([(0.3,)] * 12)
    queue.wait_until_drained("apart", 60)
    assert len({run.pid for run in queue.history.starts()}) == 3
    assert queue.acked_once(handles, "apart")


def test_a_task_asks_for_its_message_and_reports_as_in_a_thread(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    process = worker()
    handle = apart.report_apart.using(key="k", headers={"a": "b"}).enqueue("message")
    key, headers, attempt, pid, parent, argument = handle.wait(timeout=60)
    assert (key, headers, attempt, parent) == ("k", {"a": "b"}, 1, process.pid)
    assert pid != process.pid
    assert argument == "--no-archiver"
    assert queue.store.reports.progress("apart", handle.identity).done == 3


@pytest.mark.long
def test_extend_lets_a_run_go_on_beyond_its_max_runtime(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    worker()
    assert apart.report_apart.enqueue("extend").wait(timeout=60) == "extended"


@pytest.mark.parametrize(
    "how",
    [
        "sleep",
        "gil",
        *(
            pytest.param(how, marks=pytest.mark.long)
            for how in ("spin", "program", "stopped", "deaf")
        ),
    ],
)
def test_a_task_that_hangs_is_killed_at_its_max_runtime_and_tried_again(
    queue: Queue, worker: Callable[..., WorkerProcess], how: str
) -> None:
    """Also in one C call that holds the interpreter, and while it waits for a program."""
    worker()
    handle = apart.hang_apart.enqueue(how)
    end = end_of(queue, handle)
    assert (end.state, end.attempts and end.attempts.attempt) == ("dead", 2)
    assert end.attempts and end.attempts.crashes == 0
    assert "RuntimeLimitExceeded: The run took more than the 1 s that it may take" in end.error
    first, second = queue.history.starts()
    assert first.pid != second.pid
    assert second.started - first.started >= 1
    assert not queue.history.done()
    if how not in ("stopped", "deaf"):
        assert "in hang_apart" in queue.detail_of(handle, "apart")["traceback"]
    if how == "program":
        commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
        assert b"sleep\x0061.5\0" not in commands


def test_a_task_that_eats_memory_is_killed_at_its_limit(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    worker()
    end = end_of(queue, apart.eat_memory.enqueue())
    assert (end.state, end.attempts and end.attempts.attempt) == ("dead", 2)
    assert "MemoryLimitExceeded: The child process had " in end.error
    had = int(end.error.partition("had ")[2].partition(" MiB")[0].replace(",", ""))
    assert 160 <= had < 160 + 400


@pytest.mark.parametrize(
    ("how", "words"),
    [
        pytest.param("exit", "exit code 3 before its task did", marks=pytest.mark.long),
        pytest.param("fork", "exit code 4 before its task did", marks=pytest.mark.long),
        pytest.param("close", "The child process ", marks=pytest.mark.long),
        ("kill", "ended by SIGKILL. Perhaps the system has no memory left."),
        ("segfault", "ended by SIGSEGV"),
    ],
)
def test_a_child_that_dies_costs_an_attempt_and_nothing_else(
    queue: Queue, worker: Callable[..., WorkerProcess], how: str, words: str
) -> None:
    process = worker()
    end = end_of(queue, apart.die_apart.enqueue(how))
    assert end.state == "dead"
    assert "ChildDied: The child process " in end.error
    assert words in end.error
    assert end.attempts and end.attempts.crashes == 0
    after = apart.apart.enqueue()
    assert end_of(queue, after).state == "acked"
    assert process.process.poll() is None


def test_what_a_task_raises_is_recorded_as_that_of_a_thread(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    worker()
    handle = apart.report_apart.enqueue("raise")
    end = end_of(queue, handle)
    assert end.state == "dead"
    assert end.error.startswith("tests.acceptance.isolated_tasks.Unpicklable: <_io.TextIOWrapper")
    assert "raise Unpicklable" in queue.detail_of(handle, "apart")["traceback"]
    rejected = end_of(queue, apart.report_apart.enqueue("reject"))
    assert (rejected.state, rejected.reason) == ("dead", "no such thing")
    much = end_of(queue, apart.report_apart.enqueue("much"))
    assert "takes 1,000,002 bytes, the limit is 65,536" in much.reason
    snoozed = apart.report_apart.enqueue("snooze")
    wait_until(lambda: len(queue.history.starts(snoozed)) == 1, "it runs")
    wait_until(lambda: (m := snoozed.get()) is not None and m.state == "delayed", "it waits")
    message = snoozed.get()
    assert message is not None and message.attempt == 0


@pytest.mark.long
def test_what_a_child_says_tells_no_secret(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    process, card = worker(), "4111111111111111"
    for how in ("raise", "reject", "hang"):
        handle = apart.pay_apart.enqueue(how, card)
        end = end_of(queue, handle)
        assert end.state == "dead"
        assert card not in f"{end} {queue.detail_of(handle, 'apart')}"
        assert ("[redacted] is refused" in f"{end}") is (how != "hang")
    assert "pay_apart" in process.output
    assert card not in process.output


@pytest.mark.long
def test_a_flood_of_progress_is_borne(queue: Queue, worker: Callable[..., WorkerProcess]) -> None:
    worker()
    handle = apart.flood.enqueue()
    end_of(queue, handle)
    assert queue.detail_of(handle, "apart")["progress"][:2] == [20_000, 20_000]


@pytest.mark.long
def test_progress_is_kept_when_the_child_dies(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    worker()
    handle = apart.report_apart.enqueue("progress")
    end_of(queue, handle)
    assert queue.detail_of(handle, "apart")["progress"] == [1, 2, "", 1]


@pytest.mark.long
def test_neighbours_of_tasks_that_hang_and_eat_memory_are_not_late(
    queue: Queue, worker: Callable[..., WorkerProcess], figure: Figure
) -> None:
    worker("--concurrency", "6")
    queue.wait_until_drained("apart", 60)
    alone = tasks.note.using(delay=1).enqueue_many([(n,) for n in range(200)])
    queue.wait_for_runs(alone)
    bad = [*apart.hang_apart.enqueue_many([("spin",)] * 2), apart.eat_memory.enqueue()]
    handles = []
    until = time.monotonic() + 8
    while time.monotonic() < until:
        handles.append(tasks.note.using(delay=0.05).enqueue())
        time.sleep(0.02)
    queue.wait_for_runs(handles)
    for handle in bad:
        assert end_of(queue, handle).state == "dead"
    late = queue.history.lateness(handles).values()
    figure(
        f"lateness beside them: p50 {percentile(late, 0.5):.1f} p99 {percentile(late, 0.99):.1f} ms"
    )
    assert percentile(late, 0.5) < 50
    assert queue.acked_once([*alone, *handles])


@pytest.mark.long
def test_middleware_surrounds_the_run_in_the_child(
    queue_on: Callable[..., Queue], aof_server: Server
) -> None:
    queue = queue_on(aof_server, MIDDLEWARE=["tests.acceptance.isolated_tasks.surround"])
    worker = queue.begin(DELAYQ_TEST_CODE="apart").wait_for("Ready in ", 60)
    end_of(queue, apart.apart.enqueue())
    runs = queue.history.all()
    assert [run.what for run in runs] == ["begin", "start", "done", "end"]
    assert len({run.pid for run in runs}) == 1
    assert runs[0].pid != worker.pid


# The worker


def children_of(pid: int) -> list[int]:
    """Processes that it has started."""
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, thread.read_text().split())
    return found


@pytest.mark.long
def test_children_and_workers_that_are_killed_at_any_moment_lose_nothing(
    queue: Queue, worker: Callable[..., WorkerProcess], figure: Figure
) -> None:
    """While a child starts, loads, begins, runs, ends, or has nothing to do."""
    chance, killed = random.Random(7), Counter[str]()
    handles = apart.try_often.enqueue_many([(0.05,)] * 150)
    process, known = worker("--concurrency", "3"), set[int]()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.02, 0.5))
        children = children_of(process.pid)
        known.update(children)
        if chance.random() < 0.04:
            process.kill()
            killed["workers"] += 1
            wait_until(lambda: not any(map(is_alive, known)), "its children are gone", 5)
            process = worker("--concurrency", "3")
        elif children:
            with suppress(OSError):
                os.kill(chance.choice(children), signal.SIGKILL)
            killed["children"] += 1
    queue.wait_until_drained("apart", 120)
    figure(f"killed {killed['children']} children and {killed['workers']} workers")
    ends = [(end.id, end.state) for end in queue.ends("apart")]
    poisoned = [end.id for end in queue.ends("apart") if end.reason == "poison"]
    assert len(poisoned) <= killed["workers"]
    assert sorted(ends) == sorted((h.id, "dead" if h.id in poisoned else "acked") for h in handles)


@pytest.mark.long
def test_children_die_with_a_worker_that_is_killed(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    """Also one that holds the interpreter in C code; the message runs again elsewhere."""
    victim = worker()
    hung = apart.hang_apart.using(max_attempts=1).enqueue("gil")
    slow = apart.apart.enqueue(30)
    queue.wait_for_runs([hung, slow], 60)
    pids = {run.pid for run in queue.history.starts()}
    victim.kill()
    wait_until(lambda: not any(map(is_alive, pids)), "the children are gone", 2)
    worker()
    wait_until(lambda: len(queue.history.starts(slow)) == 2, "it runs again", 60)


@pytest.mark.long
def test_a_worker_that_stops_waits_for_isolated_runs(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    process = worker()
    handle = apart.apart.enqueue(1.0)
    queue.wait_for_runs([handle], 60)
    assert process.stop() == 0
    assert len(queue.history.done(handle)) == 1
    assert queue.acked_once([handle], "apart")


@pytest.mark.long
def test_a_run_that_outlives_the_shutdown_is_killed_and_given_back(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    process = worker("--shutdown-timeout", "0.5")
    handle = apart.apart.enqueue(30)
    queue.wait_for_runs([handle], 60)
    (run,) = queue.history.starts()
    assert process.stop() == 4
    assert not is_alive(run.pid)
    message = handle.get()
    assert message is not None
    assert (message.state, message.attempt) == ("ready", 0)


@pytest.mark.long
def test_signals_to_the_whole_group_leave_the_child_to_its_worker(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    process = worker()
    handle = apart.apart.enqueue(1.0)
    queue.wait_for_runs([handle], 60)
    (run,) = queue.history.starts()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(run.pid, number)
    process.terminate()
    assert process.wait() == 0
    assert queue.acked_once([handle], "apart")


@pytest.mark.long
def test_a_child_that_cannot_load_the_project_fails_the_attempt_and_no_more(
    queue: Queue, worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    """The code was damaged after the worker had started."""
    broken = tmp_path / "broken"
    process = worker(DELAYQ_TEST_BROKEN=str(broken))
    end_of(queue, apart.apart.enqueue())
    broken.touch()
    end_of(queue, apart.die_apart.enqueue("exit"))
    end = end_of(queue, apart.die_apart.enqueue("exit"))
    assert end.error.endswith("It was loading the project: the output of the worker says why.")
    assert "the code is damaged" in process.output
    broken.unlink()
    assert end_of(queue, apart.apart.enqueue()).state == "acked"


# Cancel


def test_cancelled_isolated_run_ends_at_once(
    queue: Queue, worker: Callable[..., WorkerProcess], figure: Figure
) -> None:
    worker()
    handle = apart.apart.enqueue(30)
    queue.wait_for_runs([handle], 60)
    (run,) = queue.history.starts()
    begun = time.monotonic()
    assert handle.cancel(running=True)
    wait_until(lambda: not is_alive(run.pid), "the child is killed", 5)
    figure(f"gone {time.monotonic() - begun:.2f} s after the cancel")
    assert time.monotonic() - begun < 1.5
    assert [(end.id, end.state) for end in queue.ends("apart")] == [(handle.id, "cancelled")]
    assert apart.apart.enqueue().wait(timeout=60) is None
    assert len(queue.history.starts(handle)) == 1


def test_cancelled_coroutine_ends_at_once(
    queue: Queue, worker: Callable[..., WorkerProcess], figure: Figure
) -> None:
    worker()
    handle = tasks.wait_long.enqueue()
    queue.wait_for_runs([handle], 60)
    begun = time.monotonic()
    assert handle.cancel(running=True)
    wait_until(lambda: queue.history.all()[-1].what == "cancelled", "it is cancelled", 5)
    figure(f"cancelled {time.monotonic() - begun:.2f} s after the call")
    assert time.monotonic() - begun < 1.5
    assert [(end.id, end.state) for end in queue.ends("async")] == [(handle.id, "cancelled")]


def test_cancelled_thread_sees_that_its_lease_is_lost(
    queue: Queue, worker: Callable[..., WorkerProcess]
) -> None:
    worker()
    handle = tasks.watch_lease.enqueue()
    queue.wait_for_runs([handle], 60)
    begun = time.monotonic()
    assert handle.cancel(running=True)
    wait_until(lambda: queue.history.all()[-1].what == "lost", "it sees it", 5)
    assert time.monotonic() - begun < 1.5
    assert [(end.id, end.state) for end in queue.ends()] == [(handle.id, "cancelled")]


def test_without_the_hint_a_worker_hears_of_a_cancel_when_it_extends_the_lease(
    queue: Queue, worker: Callable[..., WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker()
    handle = tasks.wait_long.enqueue()
    queue.wait_for_runs([handle], 60)
    from django_delayq.store.workers import Workers

    monkeypatch.setattr(Workers, "hint_cancelled", lambda self, message_id: None)
    assert handle.cancel(running=True)
    wait_until(lambda: queue.history.all()[-1].what == "cancelled", "it is cancelled", 3)


@pytest.mark.long
def test_cancels_and_ends_of_runs_meet_and_each_message_ends_once(
    queue: Queue, worker: Callable[..., WorkerProcess], figure: Figure
) -> None:
    worker("--concurrency", "4")
    worker("--concurrency", "4")
    handles = tasks.fail_odd.using(max_attempts=2).enqueue_many([(n,) for n in range(600)])
    handles += tasks.work.enqueue_many([(0.01,)] * 600)
    chance = random.Random(7)
    order = chance.sample(handles, len(handles))
    cancelled = [h.id for h in order if h.cancel(missing_ok=True, running=True)]
    queue.wait_until_drained()
    ends = queue.ends()
    assert sorted(end.id for end in ends) == sorted(handle.id for handle in handles)
    assert sorted(end.id for end in ends if end.state == "cancelled") == sorted(cancelled)
    ran = sum(end.reason == "cancelled while it ran" for end in ends)
    figure(
        f"{ran} cancelled while they ran, {len(cancelled)} of {len(handles)} cancelled, each message ended once"
    )


def test_message_of_a_dead_worker_is_cancelled_and_no_other_takes_it(
    queue: Queue, worker: Callable[..., WorkerProcess], own_server: Callable[..., Server]
) -> None:
    victim = worker()
    handle = apart.apart.enqueue(30)
    queue.wait_for_runs([handle], 60)
    victim.kill()
    assert handle.cancel(running=True)
    worker()
    assert end_of(queue, apart.apart.enqueue()).state == "acked"
    assert len(queue.history.starts(handle)) == 1
    assert [end.state for end in queue.ends("apart") if end.id == handle.id] == ["cancelled"]
