"""Checkouts while Redis is stopped, or frozen: each succeeds, quickly, and its message runs when
Redis is back."""

from __future__ import annotations

import os
import signal
import time

from tests.acceptance.harness import stop_gracefully
from tests.chaos.world import Options, World, milliseconds

COUNT = 500
SECONDS = 0.0
RECONCILE_AFTER = 10.0
#: Seconds that a checkout may take when the first failure has been seen: far less than a time limit
#: of Redis (5 s), and more than a busy machine takes by itself. The figures tell what it is.
LONGEST = 1.0
#: Seconds until all have run.
RECOVERY = 2.0


def main(options: Options) -> int:
    """The exit code."""
    with World(options) as world:
        world.worker()
        ids, warm = [], _checkouts(100, -1000)[0]
        world.wait(lambda: world.history.count() >= len(warm), 20)
        world.wait(world.settled, 20)
        _leave(world)
        ids, took = _checkouts(options.count, 0)
        back_at = _come_back(world)
        ran = world.wait(lambda: world.history.count() >= len(ids) + len(warm), 60, 0.01)
        world.promise(ran, "not all messages have run 60 s after Redis was back")
        world.wait(lambda: world.archived() >= len(ids) + len(warm) and world.settled(), 60)
        time.sleep(RECOVERY)  # for what should not come
        world.wait(world.settled, 30)
        return _check(world, warm, ids, took, back_at)


def _checkouts(count: int, first: int) -> tuple[list[str], list[float]]:
    """As many shop transactions one after the other: the ids of their messages, and how long each
    has taken."""
    from django.db import transaction

    from tests.chaos.models import Order
    from tests.chaos.tasks import note

    ids, took = [], []
    for number in range(first, first + count):
        begun = time.perf_counter()
        with transaction.atomic():
            Order.objects.create(number=number)
            handle = note.enqueue(number)
        took.append(time.perf_counter() - begun)
        ids.append(handle.id)
    return ids, took


def _leave(world: World) -> None:
    (node,) = world.redis.primaries
    if world.options.variant == "frozen" and node.pid:
        os.kill(node.pid, signal.SIGSTOP)
    else:
        stop_gracefully(world.redis)


def _come_back(world: World) -> float:
    (node,) = world.redis.primaries
    if world.options.variant == "frozen" and node.pid:
        os.kill(node.pid, signal.SIGCONT)
    else:
        world.redis.restart()
    return time.time()


def _check(world: World, warm: list[str], ids: list[str], took: list[float], back_at: float) -> int:
    from tests.chaos.models import Order

    world.promise(Order.objects.filter(number__gte=0).count() == len(ids), "orders are missing")
    first = {run.id: run.started for run in reversed(world.history.starts())}
    never = set(ids) - first.keys()
    world.promise(not never, f"{len(never)} messages never ran: {sorted(never)[:3]}")
    recovery = max((first[message] for message in ids if message in first), default=0.0) - back_at
    world.promise(
        recovery <= RECOVERY, f"the last message began {recovery:.2f} s after Redis was back"
    )
    rest = took[1:]
    world.promise(
        max(rest) <= LONGEST, f"a checkout after the first took {1000 * max(rest):.0f} ms"
    )
    # Redis runs the call of the first checkout when it wakes up, long after that has given up and
    # kept the message in SQL: two messages, unless the one is still live when the other comes. All
    # else runs once.
    unknown = set(ids[:1]) if world.options.variant == "frozen" else set()
    twice = world.history.duplicates()
    world.promise(twice.keys() <= unknown, f"{len(twice)} ran twice: {list(twice)[:3]}")
    world.check_archive([*warm, *ids], may_be_twice=unknown)
    figures = {
        "p50": milliseconds(rest, 0.5),
        "p99": milliseconds(rest, 0.99),
        "max": milliseconds(rest, 1),
    }
    return world.finish(
        "redis_away",
        f"{len(ids)} checkouts, the first {1000 * took[0]:.0f} ms, the others p50 "
        f"{figures['p50']}, p99 "
        f"{figures['p99']}, max {figures['max']} ms; all ran {recovery:.2f} s after Redis was "
        f"back, {len(twice)} twice",
        checkouts=len(ids),
        first_ms=round(1000 * took[0], 1),
        **{f"{name}_ms": value for name, value in figures.items()},
        over_50_ms=sum(seconds > 0.05 for seconds in rest),
        seconds_to_run=round(recovery, 2),
        ran_twice=len(twice),
    )
