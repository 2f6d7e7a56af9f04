"""The store moves to another Redis under load, with workers in other processes. Nothing is lost,
nothing runs twice, and starts and calls stand still for less than two seconds."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import pairwise

from tests.acceptance.history import Run
from tests.chaos.failover import Load
from tests.chaos.world import Options, World
from tests.servers import binary_of, launcher

#: Messages a second, and seconds before the move, and after it.
COUNT = 200
SECONDS = 15.0
RECONCILE_AFTER = 5.0
LONGEST_PAUSE = 2.0
#: Messages that wait meanwhile for another day.
WAITING = 50_000


def main(options: Options) -> int:
    """The exit code."""
    kind = "redis7" if binary_of("redis7") else "valkey"
    with launcher(kind) as old, launcher(kind) as new:
        next_url = new.url
        with World(options, old, REDIS_NEXT=next_url) as world:
            return _run(world, next_url)


def _run(world: World, next_url: str) -> int:
    options = world.options
    way = "replica" if options.variant == "replica" else "copy"
    _fill()
    for _ in range(2):
        world.worker("--concurrency", "8")
    load = Load(options.count, options.seed)
    time.sleep(options.seconds)
    command = (sys.executable, "-m", "django", "delayq", "move-store", "--way", way, "--json")
    began_at = time.time()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.time() - began_at
    print(done.stdout, done.stderr, flush=True)
    world.promise(done.returncode == 0, "the command failed")
    time.sleep(options.seconds)
    load.stop()
    ended_at = time.time()
    ids = {message.id for message in load.sent}
    world.wait(lambda: {run.id for run in world.history.starts()} >= ids, 30)
    world.wait(lambda: not world.outbox() and not world.stream(), 30)
    moments = sorted(
        run.started for run in world.history.starts() if began_at - 1 <= run.started <= ended_at
    )
    pause = max(b - a for a, b in pairwise(moments))
    world.promise(pause <= LONGEST_PAUSE, f"nothing started for {pause:.2f} s")
    world.promise(load.slowest <= LONGEST_PAUSE, f"an enqueue took {load.slowest:.2f} s")
    words, figures = _compared(world, load, next_url)
    return world.finish(
        "move_store",
        f"{words}; nothing started for {pause:.2f} s, the slowest enqueue took {load.slowest:.2f} s, "
        f"the command {took:.1f} s",
        **figures,
        pause=round(pause, 3),
        slowest_enqueue=round(load.slowest, 3),
    )


def _compared(world: World, load: Load, next_url: str) -> tuple[str, dict[str, int]]:
    """What was accepted, beside what has run, in words and numbers."""
    from django_delayq.store import get_store

    first: dict[str, Run] = {run.id: run for run in reversed(world.history.starts())}
    lost = {message.id for message in load.sent} - first.keys()
    twice = world.history.duplicates()
    early = [
        s for s in load.sent if s.id in first and s.due_ms and first[s.id].started * 1000 < s.due_ms
    ]
    spilled = sum(message.outcome == "outbox" and not message.durable for message in load.sent)
    waiting, rows = world.live(), world.archived()
    world.promise(get_store().client.where == next_url, "this process has not changed over")
    world.promise(not lost, f"{len(lost)} messages were lost: {sorted(lost)[:3]}")
    world.promise(not twice, f"{len(twice)} ran twice: {list(twice)[:3]}")
    world.promise(not early, f"{len(early)} were early: {early[:3]}")
    world.promise(not load.refused, f"{len(load.refused)} were refused: {load.refused[:3]}")
    world.promise(waiting == WAITING, f"{waiting} messages wait, and not {WAITING}")
    world.promise(rows == len(load.sent), f"{rows} rows of {len(load.sent)} messages")
    words = (
        f"{len(load.sent)} accepted, {spilled} plain ones in the outbox, {waiting} waited; lost "
        f"{len(lost)}, twice {len(twice)}, early {len(early)}"
    )
    return words, {
        "accepted": len(load.sent),
        "spilled": spilled,
        "lost": len(lost),
        "twice": len(twice),
        "early": len(early),
    }


def _fill() -> None:
    """Messages that wait for another day: they have to be carried over, too."""
    from tests.chaos.tasks import note

    for at in range(0, WAITING, 5_000):
        note.using(delay=86_400).enqueue_many([(number,) for number in range(at, at + 5_000)])
