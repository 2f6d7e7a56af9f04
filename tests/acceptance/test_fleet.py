"""Several workers share the partitions; a home that dies, freezes, or is full delays nobody for
long."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from django_delayq import Handle
from django_delayq.store.keys import Partition
from django_delayq.worker.fleet import score, seed_of
from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue, running
from tests.acceptance.process import WorkerProcess
from tests.servers import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

#: Seconds by which a home that fails may delay a message, on a machine that does other things too.
DELAY = 1.0


def home(queue: Queue, workers: Sequence[WorkerProcess]) -> WorkerProcess:
    """The worker that is the home of the topic `default`."""
    return order(queue, workers)[0]


def order(queue: Queue, workers: Sequence[WorkerProcess]) -> Sequence[WorkerProcess]:
    """The workers, the home of the topic `default` first."""
    pids = {worker.pid: worker for worker in workers}
    names = [name for name in queue.store.workers.heartbeats() if int(name.split(":")[1]) in pids]
    names.sort(key=lambda name: score(seed_of(name), Partition("default", 0)), reverse=True)
    return [pids[int(name.split(":")[1])] for name in names]


def together(queue: Queue, count: int, *arguments: str) -> list[WorkerProcess]:
    """So many workers that know each other."""
    workers = [queue.begin(*arguments) for _ in range(count)]
    for worker in workers:
        worker.ready()
    queue.wait_for_beats(count)
    time.sleep(2)  # all have answered the calls of all
    return workers


def flow(queue: Queue, seconds: float, every: float = 0.05) -> list[Handle]:
    """Messages that come alone, one by one."""
    handles, begun = [], time.monotonic()
    for number in range(int(seconds / every)):
        time.sleep(max(0.0, begun + number * every - time.monotonic()))
        handles.append(tasks.note.enqueue())
    return handles


def worst(queue: Queue, handles: Sequence[Handle]) -> float:
    """The longest lateness; all ran, and none early."""
    queue.wait_for_runs(handles)
    assert not queue.history.early(handles)
    return max(queue.history.lateness(handles).values())


def test_of_several_idle_workers_one_claims(queue: Queue) -> None:
    workers = together(queue, 4)
    first = home(queue, workers)
    handles = flow(queue, 2)
    queue.wait_for_runs(handles)
    ran = Counter(run.pid for run in queue.history.starts())
    assert ran[first.pid] > 0.9 * len(handles)


def test_what_the_homes_cannot_run_reaches_the_worker_that_comes_last(queue: Queue) -> None:
    """A rolling deploy has hardly begun."""
    workers = [queue.worker(DELAYQ_TEST_CODE="old") for _ in range(2)]
    handles = tasks.newcomer.enqueue_many([()] * 5)
    for worker in workers:
        worker.wait_for("unknown_task")
    while True:
        new = queue.worker()
        queue.wait_for_beats(len(workers) + 1)
        if order(queue, [*workers, new])[-1] is new:
            break
        new.stop()
    queue.wait_for_runs(handles, 30)
    assert {run.pid for run in queue.history.starts()} == {new.pid}


def test_in_a_deploy_that_renames_a_task_each_message_reaches_its_worker(queue: Queue) -> None:
    """The code of each worker lacks what the other one has."""
    for code in ("old", "new"):
        queue.worker(DELAYQ_TEST_CODE=code)
    queue.wait_for_beats(2)
    handles = []
    for _ in range(5):
        handles += [tasks.newcomer.enqueue(), tasks.leaver.enqueue()]
        time.sleep(1.2)  # each puts one off, and says so
    queue.wait_for_runs(handles, 90)  # usually 20
    assert not queue.history.duplicates()


@pytest.mark.parametrize("how", ["killed", "frozen", "told to stop"])
def test_a_home_that_fails_delays_its_messages_by_less_than_a_second(
    queue: Queue, figure: Figure, how: str
) -> None:
    workers = together(queue, 4)
    first = home(queue, workers)
    before = flow(queue, 1)
    queue.wait_for_runs(before)
    number = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP, "told to stop": signal.SIGTERM}
    os.kill(first.pid, number[how])
    handles = flow(queue, 5)
    late = worst(queue, handles)
    if how == "frozen":
        os.kill(first.pid, signal.SIGCONT)
    figure(f"home {how}: {1000 * late:.0f} ms late at most")
    assert late < DELAY
    after = flow(queue, 3)
    assert worst(queue, after[20:]) < DELAY / 2
    assert not queue.history.duplicates()


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_so_it_is_where_nothing_proves_that_hints_arrive(
    kind: str, how: str, queue_on: Callable[..., Queue], figure: Figure
) -> None:
    with running(kind) as server:
        queue = queue_on(server)
        workers = together(queue, 3)
        first = home(queue, workers)
        os.kill(first.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        late = worst(queue, flow(queue, 4))
        figure(f"{1000 * late:.0f} ms late at most")
        assert late < DELAY
        if how == "frozen":
            os.kill(first.pid, signal.SIGCONT)


def test_after_all_others_were_killed_the_last_one_takes_over(queue: Queue, figure: Figure) -> None:
    """Their heartbeats say for a while that they live."""
    workers = together(queue, 4)
    last = random.choice(workers)
    for worker in workers:
        if worker is not last:
            worker.kill()
    time.sleep(3)  # the end of their subscriptions is noticed, without any message
    late = worst(queue, flow(queue, 2))
    figure(f"{1000 * late:.0f} ms late at most")
    assert late < DELAY


def test_new_workers_do_not_wait_for_those_that_were_killed(queue: Queue, figure: Figure) -> None:
    for worker in together(queue, 3):
        worker.kill()
    handles = [tasks.note.using(delay=1).enqueue() for _ in range(20)]
    queue.worker()
    assert worst(queue, flow(queue, 1)) < DELAY
    queue.wait_for_runs(handles)


@pytest.mark.parametrize("code", ["new", "old"])
def test_a_home_with_no_free_thread_delays_nobody(
    queue: Queue, figure: Figure, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setenv("DELAYQ_TEST_CODE", code)
    workers = together(queue, 3, "--concurrency", "2")
    first = home(queue, workers)
    while code == "old" and any("unknown_task" not in worker.output for worker in workers):
        tasks.newcomer.enqueue()  # each puts one off
        time.sleep(1.2)
    tasks.work.enqueue_many([(4.0,)] * 2)
    wait_until(lambda: queue.history.count() == 2, "both run")
    time.sleep(0.2)
    ran = {run.pid for run in queue.history.starts()}
    handles = flow(queue, 2)
    late = sorted(queue.history.lateness(handles).values())
    assert worst(queue, handles) < DELAY
    figure(f"home full ({first.pid in ran}): median {1000 * late[len(late) // 2]:.0f} ms late")
    assert late[len(late) // 2] < 0.1


def test_workers_whose_subscriptions_are_cut_lose_nothing(queue: Queue, figure: Figure) -> None:
    together(queue, 3)
    handles: list[Handle] = []
    for _ in range(5):
        handles += flow(queue, 0.4)
        queue.store.client.command("CLIENT", "KILL", "TYPE", "pubsub")
    late = worst(queue, handles + flow(queue, 1))
    figure(f"{1000 * late:.0f} ms late at most")
    assert late < 2 * DELAY
    assert not queue.history.duplicates()


def test_workers_that_come_and_go_lose_nothing_and_are_not_late(
    queue: Queue, figure: Figure
) -> None:
    workers = together(queue, 16, "--concurrency", "2")
    dice = random.Random(7)
    handles = []
    for _ in range(10):
        delays = [dice.uniform(1, 20) for _ in range(500)]
        handles += [tasks.note.using(delay=delay).enqueue() for delay in delays]
    until = time.monotonic() + 20
    while time.monotonic() < until:
        at = dice.randrange(len(workers))
        # Not kill -9: what a killed one holds comes back after its ttr, homes or not.
        workers[at].process.send_signal(signal.SIGTERM)
        workers[at] = queue.begin("--concurrency", "2")
        time.sleep(dice.uniform(0.2, 0.8))
    queue.wait_for_runs(handles, 60)
    late = sorted(queue.history.lateness(handles).values())
    p99 = late[int(0.99 * len(late))]
    figure(f"{1000 * p99:.0f} ms late p99, {1000 * late[-1]:.0f} ms at most")
    assert not queue.history.lost(handles)
    assert not queue.history.early(handles)
    assert late[-1] < 3 * DELAY  # a process that starts takes both cores for a while
