"""Workers that die in the middle of batches."""

from __future__ import annotations

import random
import time

import pytest

from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue

pytestmark = pytest.mark.acceptance

MESSAGES_A_KILL = 200


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.long)])
def test_killed_batches_lose_nothing_and_run_again(
    queue: Queue, figure: Figure, kills: int
) -> None:
    """Each kill is one crash of the messages that the worker held, so none becomes poison."""
    dice = random.Random(kills)
    handles = []
    for _ in range(kills):
        handles += tasks.work_many.enqueue_many([(0.002,)] * MESSAGES_A_KILL)
        victim = queue.worker("--concurrency", "2")
        time.sleep(dice.uniform(0.05, 0.3))
        victim.kill()
        rescuer = queue.worker("--concurrency", "2")
        queue.wait_until_drained(seconds=30)
        rescuer.kill()
    twice = queue.history.duplicates()
    figure(f"{kills} kills, {len(handles)} messages, {len(twice)} ran more than once")
    assert not queue.history.lost(handles)
    assert not queue.history.early(handles)
    assert queue.acked_once(handles)
    assert max(twice.values(), default=1) <= 3
