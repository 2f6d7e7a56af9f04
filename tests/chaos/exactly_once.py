"""kill -9 of workers and archiver, at random and at every named step: each message has counted
exactly once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tests.acceptance.process import WorkerProcess
from tests.chaos import failpoints
from tests.chaos.world import Options, World

COUNT = 5_000
SECONDS = 60.0
RECONCILE_AFTER = 2.0
#: The processes: one worker that archives too, one that does not, and an archiver.
PROCESSES = (("--concurrency", "4"), ("--concurrency", "4", "--no-archiver"), ("--archiver",))
#: Seconds between two kills.
PAUSE = (0.5, 3.0)
#: How the messages of one transaction in so many fare: the producer dies after its commit; Redis
#: refuses them.
UNSENT = 10
#: Messages of a failpoint, seconds in which they are due, and how long it may take until a process
#: has died there.
AT_POINT = 60
POINT_SECONDS = 3.0
POINT_LONGEST = 15.0
TRIES = 3


def main(options: Options) -> int:
    """The exit code."""
    with World(options, POISON_LIMIT=100) as world:
        dice = random.Random(options.seed)
        expected: dict[str, int] = {}
        ids: list[str] = []
        fleet = _Fleet(world)
        producer = _produce_in_background(
            "random", options.count, options.seconds, dice, ids, expected
        )
        kills = fleet.suffer(options.seconds, dice)
        producer.join()
        for point in options.points:
            fleet.restart(point)
            for _ in range(TRIES):
                _produce(point, AT_POINT, POINT_SECONDS, dice, ids, expected)
                if fleet.keep_up_until(point):
                    break
        fleet.restart("")
        begun = time.monotonic()
        world.wait(lambda: world.archived() >= len(ids) and world.settled(), 300)
        return _check(world, ids, expected, kills, time.monotonic() - begun)


class _Fleet:
    """The processes, each started anew when it has died."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._point = ""
        self._members: list[WorkerProcess] = []
        self.restart("")

    def _begin(self, index: int) -> WorkerProcess:
        return self._world.begin(*PROCESSES[index], **{failpoints.VARIABLE: self._point})

    def restart(self, point: str) -> None:
        """All of them, with this failpoint armed."""
        for member in self._members:
            member.kill()
        self._point = point
        self._members = [self._begin(index) for index in range(len(PROCESSES))]

    def suffer(self, seconds: float, dice: random.Random) -> int:
        """Kill one at random, again and again. Returns how many."""
        kills, until = 0, time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, dice.uniform(*PAUSE)))
            index = dice.randrange(len(PROCESSES))
            self._members[index].kill()
            self._members[index] = self._begin(index)
            kills += 1
        return kills

    def keep_up_until(self, point: str) -> bool:
        """Start anew what has killed itself, until the messages are due. Returns whether that has
        happened."""
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < POINT_LONGEST:
            for index, member in enumerate(self._members):
                if member.process.poll() is not None:
                    self._members[index] = self._begin(index)
            if passed > POINT_SECONDS + 1 and _kills(self._world)[point]:
                return True
            time.sleep(0.05)
        return False


def _kills(world: World) -> Counter[str]:
    """How often a process has killed itself, by failpoint."""
    return Counter(run.id for run in world.history.all() if run.what == "killed")


def _produce_in_background(*args: object) -> threading.Thread:
    producer = threading.Thread(target=_produce, args=args, daemon=True)
    producer.start()
    return producer


def _produce(
    name: str,
    count: int,
    seconds: float,
    dice: random.Random,
    ids: list[str],
    expected: dict[str, int],
) -> None:
    """Messages for one counter, each in a transaction of its own, due together at whole seconds."""
    from django.db import connection, transaction

    from tests.chaos.models import Counter as Row
    from tests.chaos.tasks import add, add_many

    dice = random.Random(dice.random())
    Row.objects.get_or_create(name=name)
    expected[name] = expected.get(name, 0) + count
    for number in range(count):
        with _unsent(number), transaction.atomic():
            task = add_many if number % 2 else add
            handle = task.using(delay=dice.randrange(max(1, int(seconds)))).enqueue(name)
        ids.append(handle.id)
    connection.close()


@contextmanager
def _unsent(number: int) -> Iterator[None]:
    """Some messages do not get to Redis: only the reconciler, or the relay, brings them there."""
    from django_delayq.outbox import outbox

    left = {0: lambda items: None, 1: outbox.put_back}.get(number % UNSENT)
    if left is None:
        yield
        return
    with mock.patch("django_delayq.client.on_commit.store_committed", left):
        yield


def _check(world: World, ids: list[str], expected: dict[str, int], kills: int, took: float) -> int:
    from tests.chaos.models import Counter as Row

    sums = dict(Row.objects.values_list("name", "value"))
    wrong = {
        name: (sums.get(name), count) for name, count in expected.items() if sums.get(name) != count
    }
    world.promise(not wrong, f"sums that are wrong (is, should be): {wrong}")
    world.check_archive(ids)
    suicides = _kills(world)
    silent = [point for point in world.options.points if not suicides[point]]
    world.promise(
        not silent, f"no process has died at {', '.join(silent)}: the run says nothing about that"
    )
    starts, total = len(world.history.starts()), sum(sums.values())
    return world.finish(
        "exactly_once",
        f"{len(ids):,} messages, {kills} kills at random and {suicides.total()} at "
        f"{len(world.options.points)} named "
        f"steps; {starts:,} runs began, the sum is {total:,} of {len(ids):,}, {world.archived():,} "
        f"rows; drained in "
        f"{took:.1f} s",
        messages=len(ids),
        kills=kills,
        kills_at=dict(suicides),
        runs_begun=starts,
        sum=total,
        rows=world.archived(),
        seconds_to_drain=round(took, 2),
    )
