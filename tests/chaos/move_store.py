"""The store moves to another Redis under load, with workers in other processes. Nothing is lost,
nothing runs twice, and starts and calls stand still for less than two seconds."""

from __future__ import annotations

import subprocess
import sys
import time

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
    from django_delayq.store import get_store

    options = world.options
    _fill()
    for _ in range(2):
        world.worker("--concurrency", "8")
    load = Load(options.count, options.seed)
    time.sleep(options.seconds)
    way = "replica" if options.variant == "replica" else "copy"
    command = (sys.executable, "-m", "django", "delayq", "move-store", "--way", way, "--json")
    began_at = time.time()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    over_at = time.time()
    print(done.stdout, done.stderr, flush=True)
    time.sleep(options.seconds)
    load.stop()
    ended_at = time.time()
    world.promise(done.returncode == 0, "the command failed")
    world.promise(get_store().client.where == next_url, "this process has not changed over")
    sent = {message.id for message in load.sent}
    world.wait(lambda: len({run.id for run in world.history.starts()} & sent) >= len(sent), 30)
    world.wait(lambda: not world.outbox() and not world.stream(), 30)
    first: dict[str, Run] = {run.id: run for run in reversed(world.history.starts())}
    lost = sent - first.keys()
    twice = world.history.duplicates()
    early = [
        s for s in load.sent if s.id in first and s.due_ms and first[s.id].started * 1000 < s.due_ms
    ]
    moments = sorted(
        run.started for run in first.values() if began_at - 1 <= run.started <= ended_at
    )
    pause = max(b - a for a, b in zip(moments, moments[1:], strict=False))
    spilled = sum(message.outcome == "outbox" and not message.durable for message in load.sent)
    waiting = world.live()
    world.promise(not lost, f"{len(lost)} messages were lost: {sorted(lost)[:3]}")
    world.promise(not twice, f"{len(twice)} ran twice: {list(twice)[:3]}")
    world.promise(not early, f"{len(early)} were early: {early[:3]}")
    world.promise(not load.refused, f"{len(load.refused)} were refused: {load.refused[:3]}")
    world.promise(pause <= LONGEST_PAUSE, f"nothing started for {pause:.2f} s")
    world.promise(load.slowest <= LONGEST_PAUSE, f"an enqueue took {load.slowest:.2f} s")
    world.promise(waiting == WAITING, f"{waiting} messages wait, and not {WAITING}")
    world.promise(world.archived() == len(sent), f"{world.archived()} rows of {len(sent)} messages")
    text = (
        f"{len(sent)} accepted, {spilled} plain ones in the outbox, {waiting} waited; lost "
        f"{len(lost)}, twice {len(twice)}, early {len(early)}; nothing started for {pause:.2f} s, "
        f"the slowest enqueue took {load.slowest:.2f} s; the command {over_at - began_at:.1f} s"
    )
    return world.finish(
        f"move_store by {way}",
        text,
        accepted=len(sent),
        spilled=spilled,
        lost=len(lost),
        twice=len(twice),
        early=len(early),
        pause=round(pause, 3),
        slowest_enqueue=round(load.slowest, 3),
    )


def _fill() -> None:
    """Messages that wait for another day: they have to be carried over, too."""
    from tests.chaos.tasks import note

    for at in range(0, WAITING, 5_000):
        note.using(delay=86_400).enqueue_many([(number,) for number in range(at, at + 5_000)])
