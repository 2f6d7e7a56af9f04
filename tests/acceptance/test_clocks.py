"""Delays, short and very long, and clocks that are wrong. Only Redis' clock counts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from django_delayq import Handle
from tests.acceptance import tasks
from tests.acceptance.clocks import Clock
from tests.acceptance.harness import ROOT, Figure, Queue, percentile, running
from tests.servers import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.alone]

HOUR = 3600.0
DAY = 24 * HOUR

Queues = Callable[..., Queue]


def test_no_delay_of_less_than_a_second_is_early(queue: Queue, figure: Figure) -> None:
    queue.worker()
    handles = tasks.note.enqueue_many(
        [tasks.note.using(delay=n / 1000).prepare() for n in range(1, 1000)]
    )
    at = timezone.now() + timedelta(seconds=0.4567)
    handles.append(tasks.note.using(due_at=at).enqueue())
    queue.wait_for_runs(handles)

    late = queue.history.lateness(handles).values()
    figure(
        f"1,000 messages late p50 {percentile(late, 0.5):.1f} ms, p99 {percentile(late, 0.99):.1f} "
        f"ms; none early"
    )
    assert not queue.history.early(handles)
    assert queue.history.starts(handles[-1])[0].started >= at.timestamp()
    assert percentile(late, 0.5) < 50
    assert not queue.history.duplicates()


def test_near_message_behind_100_000_far_ones_runs_on_time(queue: Queue, figure: Figure) -> None:
    queue.worker()
    began = time.monotonic()
    tasks.note.using(delay=HOUR).enqueue_many([(n,) for n in range(100_000)])
    took = time.monotonic() - began
    near = tasks.note.using(delay=2).enqueue()
    nearer = tasks.note.using(delay=1).enqueue()
    queue.wait_for_runs([near, nearer], 5)

    late = queue.history.lateness([near, nearer])
    figure(
        f"late {1000 * late[near.id]:.1f} ms and {1000 * late[nearer.id]:.1f} ms (100,000 sent in "
        f"{took:.1f} s)"
    )
    assert not queue.history.early([near, nearer])
    assert max(late.values()) < 0.25
    assert queue.live() >= 100_000


class Bent:
    """A server with a clock that the test moves, and a worker that waits for its messages."""

    def __init__(self, stack: ExitStack, clock: Clock, kind: str, folder: Path) -> None:
        self.clock = clock
        with clock.applied():
            server = stack.enter_context(running(kind))
        self.queue = stack.enter_context(Queue(server.url, folder))
        self.queue.worker()
        self.queue.wait_for_beats(1)

    def enqueue(self, *delays: float) -> list[Handle]:
        """Messages that the worker has learnt of: it knows when to look again, by the clock as it
        is now."""
        with self.queue.here():
            handles = [tasks.note.using(delay=delay).enqueue() for delay in delays]
        known = self._scripts()
        wait_until(lambda: self._scripts() > known, "the worker has looked")
        return handles

    def _scripts(self) -> int:
        stats = self.queue.store.client.redis.info("commandstats")
        return sum(
            stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha")
        )

    def late(self, handle: Handle) -> float:
        """Once it has run: how late, by the server's clock."""
        self.queue.wait_for_runs([handle], 15)
        return self.queue.history.lateness([handle], self.clock.offset)[handle.id]


@pytest.mark.long
def test_days_and_weeks_are_as_good_as_seconds_and_clocks_may_jump(
    server_kind: str, shim: Path, tmp_path: Path, figure: Figure
) -> None:
    """Three servers at once, each with a clock that is moved while its worker sleeps."""
    with ExitStack() as stack:
        days, weeks, back = (
            Bent(stack, Clock(shim, tmp_path, name), server_kind, tmp_path)
            for name in ("days", "weeks", "back")
        )
        in_days, in_a_week = days.enqueue(3 * DAY, 7 * DAY)
        in_weeks, in_a_year = weeks.enqueue(70 * DAY, 365 * DAY)
        days.clock.set(3 * DAY - 3)  # due in three seconds: it must not run at the jump
        weeks.clock.set(70 * DAY - 3)
        (before,) = back.enqueue(1)
        back.clock.set(-HOUR)
        with back.queue.here():
            after = tasks.note.using(delay=0.5).enqueue()
        assert 0 <= back.late(after) < 0.5
        assert not back.queue.history.starts(before)  # late by the jump
        back.clock.set(0)

        for what, bent, handle in (
            ("3 days", days, in_days), ("10 weeks", weeks, in_weeks), ("an hour back and forth", back, before)
        ):  # fmt: skip
            late = bent.late(handle)
            figure(f"{what}: {late:.2f} s late after the jump")
            assert (
                0 <= late < 13
            )  # a worker that has nothing to claim looks at Redis' clock every ten seconds
        assert not days.queue.history.starts(in_a_week)
        assert not weeks.queue.history.starts(in_a_year)
        assert [bent.queue.live() for bent in (days, weeks, back)] == [1, 1, 0]


def test_wrong_clock_of_a_worker_or_producer_makes_nothing_early(
    queue: Queue, shim: Path, tmp_path: Path, figure: Figure
) -> None:
    for name, offset in (("ahead", HOUR), ("behind", -HOUR)):
        worker = queue.begin(
            "--concurrency", "2", **Clock(shim, tmp_path, name, offset).environment
        )
        queue.history.ahead[worker.pid] = offset
    for worker in queue.workers:
        worker.ready()
    # More than the two threads of one worker can do: its home takes a message first, and else the
    # other worker would have none.
    handles = tasks.work.enqueue_many(
        [tasks.work.using(delay=n / 300).prepare(0.01) for n in range(1, 1000)]
    )
    for name, offset in (("early", -HOUR), ("late", HOUR)):
        handles.append(_enqueue_elsewhere(queue, 0.3, Clock(shim, tmp_path, name, offset)))
    queue.wait_for_runs(handles)
    queue.wait_until_drained()

    late = queue.history.lateness(handles).values()
    figure(
        f"late p50 {percentile(late, 0.5):.1f} ms, p99 {percentile(late, 0.99):.1f} ms; none early"
    )
    assert {run.pid for run in queue.history.starts()} == {worker.pid for worker in queue.workers}
    assert not queue.history.early(handles)
    assert max(late) < 1
    assert not queue.history.duplicates()
    assert queue.acked_once(handles)


_ENQUEUE = """
import django; django.setup()
from tests.acceptance.tasks import note
handle = note.using(delay={delay}).enqueue()
print(handle.id, handle.due_ms)
"""


def _enqueue_elsewhere(queue: Queue, delay: float, clock: Clock) -> Handle:
    """From a process with that clock."""
    command = [sys.executable, "-c", _ENQUEUE.format(delay=delay)]
    environment = {**queue.environment, **clock.environment}
    answer = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    message, due_ms = answer.split()
    return Handle(
        bytes.fromhex(message),
        "default",
        "tests.acceptance.tasks.note",
        None,
        "stored",
        int(due_ms),
    )


def test_clock_of_redis_may_jump_while_tasks_run(
    server_kind: str, queue_on: Queues, shim: Path, tmp_path: Path
) -> None:
    clock = Clock(shim, tmp_path, "running")
    with clock.applied(), running(server_kind) as server:
        queue = queue_on(server)
        queue.worker()
        handles = tasks.hold.enqueue_many([(str(tmp_path / "gate"),)] * 4)
        wait_until(lambda: queue.history.count() == 4, "they run")
        clock.set(-HOUR)
        (tmp_path / "gate.1").touch()
        queue.wait_until_drained()

        assert not queue.history.duplicates()
        assert queue.acked_once(handles)
