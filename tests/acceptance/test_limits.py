"""Limits hold for all worker processes together."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from django_delayq import pause_topic, resume_topic
from django_delayq.core.exceptions import MessageRunning
from django_delayq.core.times import When
from django_delayq.store.keys import Partition
from django_delayq.tasks.builder import edited
from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue, gate
from tests.servers import wait_until

pytestmark = pytest.mark.acceptance

#: What a rate of 50/s lets start at once: what half a second gives, and one.
AT_ONCE = 26


@pytest.mark.long
def test_a_rate_holds_for_all_processes(queue: Queue, figure: Figure) -> None:
    handles = tasks.paced.enqueue_many([(n,) for n in range(200)])
    queue.worker("--processes", "3")
    queue.wait_until_drained("paced")

    times = sorted(run.started for run in queue.history.starts())
    figure(f"200 messages in {times[-1] - times[0]:.2f} s at 50/s")
    assert not queue.history.lost(handles) and not queue.history.duplicates()
    assert queue.acked_once(handles, "paced")
    # A worker may begin a moment after its claim.
    assert times[-1] - times[0] >= (200 - AT_ONCE) / 50 - 0.5
    assert times[-1] - times[0] <= 200 / 50 + 5


def test_no_key_runs_more_often_at_once_than_it_may(queue: Queue, figure: Figure) -> None:
    queue.worker("--processes", "2")
    queue.wait_for_beats(2)
    calls = [(customer, 0.01) for customer in range(30) for _ in range(8)]
    handles = tasks.keyed.enqueue_many(calls)
    queue.wait_until_drained("keyed", seconds=40)

    runs, running, most = queue.history.all(), Counter[str](), 0
    for run in sorted(runs, key=lambda run: run.started):
        what, _, customer = run.what.partition(":")
        running[customer] += 1 if what == "start" else -1
        most = max(most, running[customer])
    figure(f"{len(handles)} messages of 30 keys, {most} of a key at once at most")
    assert most == 2
    assert queue.acked_once(handles, "keyed")


def test_the_place_of_a_dead_worker_comes_back_with_the_end_of_its_lease(
    queue: Queue, tmp_path: Path
) -> None:
    door = tmp_path / "gate"
    first, second = tasks.alone.enqueue(str(door)), tasks.alone.enqueue(str(door))
    worker = queue.worker()
    wait_until(lambda: len(queue.history.starts()) == 1, "one of them runs")
    worker.kill()
    queue.worker()
    gate(door, 1, 2)
    queue.wait_until_drained("keyed")
    assert queue.acked_once([first, second], "keyed")


@pytest.mark.long
def test_of_a_thousand_keys_none_is_over_its_limit_whatever_happens(
    queue: Queue, figure: Figure
) -> None:
    calls = [(customer, 0.005) for customer in range(1000) for _ in range(3)]
    victim = queue.worker("--concurrency", "16")
    queue.worker("--concurrency", "16")
    handles = tasks.keyed.enqueue_many(calls)
    wait_until(lambda: len(queue.history.all()) >= 200, "work is under way")
    victim.kill()
    queue.begin("--concurrency", "16")
    pause_topic("keyed", reason="attack")
    words = {handle.id: queue.store.cancel("keyed", handle.identity) for handle in handles[5::7]}
    for handle in handles[3::7]:
        with suppress(MessageRunning):
            queue.store.reschedule("keyed", handle.identity, When.after(500))
    for handle in handles[4::70]:
        with suppress(MessageRunning):
            identity = handle.identity
            queue.store.edit(
                "keyed",
                identity,
                lambda old, identity=identity: edited(old, identity, [7, 0.005], {}),
            )
    resume_topic("keyed")
    queue.wait_until_drained("keyed", seconds=90)

    runs, running, most = queue.history.all(), Counter[str](), 0
    ended = {(run.id, run.attempt) for run in runs if not run.what.startswith("start")}
    for run in sorted(runs, key=lambda run: run.started):
        if (run.id, run.attempt) in ended:  # the others died with their worker
            what, _, customer = run.what.partition(":")
            running[customer] += 1 if what == "start" else -1
            most = max(most, running[customer])
    left = [handle for handle in handles if words.get(handle.id) != "OK"]
    figure(f"{len(left):,} of {len(handles):,} messages ran, {most} of a key at once at most")
    assert most <= 2
    assert {handle.id for handle in left} <= {run.id for run in runs}
    assert {end.id for end in queue.ends("keyed")} >= {handle.id for handle in left}
    assert not queue.store.queries.holding_back([Partition("keyed", 0)])
