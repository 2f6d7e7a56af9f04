"""Workers that die in the middle of batches."""

from __future__ import annotations

import random
import time
from collections import defaultdict

import pytest

from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue
from tests.acceptance.history import Run

pytestmark = pytest.mark.acceptance

MESSAGES_A_KILL = 200
THREADS = 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.long)])
def test_killed_batches_lose_nothing_and_run_again(
    queue: Queue, figure: Figure, kills: int
) -> None:
    """A call closes its orders at its end, so a kill before that closes none of them. Each kill is
    one crash of the messages that the worker held, so none becomes poison."""
    dice, handles, victims = random.Random(kills), [], set()
    for _ in range(kills):
        handles += tasks.close_many.enqueue_many([(0.002,)] * MESSAGES_A_KILL)
        victim = queue.worker("--concurrency", str(THREADS))
        time.sleep(dice.uniform(0.05, 0.2))
        victim.kill()
        victims.add(victim.pid)
        rescuer = queue.worker("--concurrency", str(THREADS))
        queue.wait_until_drained(seconds=30)
        rescuer.kill()
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in queue.history.starts():
        runs[run.id].append(run)
    closed = {run.id for run in queue.history.done()}
    more = sum(map(len, runs.values())) - len(runs)
    figure(f"{kills} kills, {len(handles)} orders, {more} runs more than needed")
    assert not {handle.id for handle in handles} - closed
    assert not queue.history.early(handles)
    assert queue.acked_once(handles)
    # A message runs again only when its worker was killed, and a worker holds two calls.
    assert {run.pid for some in runs.values() for run in some[:-1]} <= victims
    assert more <= kills * THREADS * tasks.CALL
    assert more > 10 * kills, "the kills have hit few calls: this says nothing"
