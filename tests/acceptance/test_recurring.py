"""Recurring tasks on three workers: through both changes of the clock, kill -9 and two days of
outage."""

from __future__ import annotations

import random
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.acceptance.clocks import Clock
from tests.acceptance.harness import Figure, Queue
from tests.acceptance.process import WorkerProcess
from tests.databases import launcher
from tests.servers import Server, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.alone]

UTC = timezone.utc
HOUR = timedelta(hours=1)

#: By the night in which Berlin's clocks change: the instants in UTC that the test lives through,
#: and the ticks of the line "30 2 * * *" among them. In March 02:30 does not exist, and the tick
#: comes at 03:00; in October the first 02:30 counts.
NIGHTS = {
    "forward": (
        [datetime(2026, 3, 29, 0, tzinfo=UTC) + n * HOUR for n in range(3)],
        [datetime(2026, 3, 29, 1, tzinfo=UTC)],
    ),
    "back": (
        [datetime(2026, 10, 25, 0, tzinfo=UTC) + n * HOUR / 2 for n in range(5)],
        [datetime(2026, 10, 25, 0, 30, tzinfo=UTC)],
    ),
}


class World:
    """Three workers that archive into one database, on a server whose clock the test moves."""

    def __init__(self, queue: Queue, clock: Clock, database: str, seed: int) -> None:
        self.queue, self.clock, self.database = queue, clock, database
        self.random = random.Random(seed)
        self.workers = [self.start() for _ in range(3)]
        for worker in self.workers:
            worker.ready()
        wait_until(lambda: len(self.rows("recurringtask", "task")) == 4, "they write ticks")

    def start(self) -> WorkerProcess:
        return self.queue.begin("--concurrency", "2", DELAYQ_TEST_RECURRING="1")

    def rows(self, table: str, columns: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.database, timeout=20)) as connection:
            return connection.execute(f"SELECT {columns} FROM django_delayq_{table}").fetchall()

    def move_to(self, when: datetime) -> None:
        self.clock.set(when.timestamp() - time.time())

    def wait_until(self, when: datetime) -> None:
        store, ms = self.queue.store, 1000 * when.timestamp()
        wait_until(lambda: store.clock_ms() >= ms, "the clock shows it")

    def kill_one(self) -> None:
        """kill -9 at some moment of the next two seconds, and another worker in its place."""
        time.sleep(self.random.uniform(0, 2))
        victim = self.workers.pop(0)
        victim.kill()
        self.workers.append(self.start())

    def ran(self, name: str) -> dict[datetime, set[str]]:
        """The ids of the messages that ran for each tick of a task."""
        found: dict[datetime, set[str]] = defaultdict(set)
        for run in self.queue.history.all():
            task, _, tick = run.what.partition(" ")
            if task == name:
                found[datetime.fromisoformat(tick)].add(run.id)
        return found

    def late(self, name: str, tick: datetime) -> float:
        """By how many seconds the run for this tick was late, by the server's clock."""
        what = f"{name} {tick}"
        started = next(run.started for run in self.queue.history.all() if run.what == what)
        return started + self.clock.offset - tick.timestamp()

    def wait_for(self, name: str, tick: datetime) -> None:
        wait_until(lambda: tick in self.ran(name), f"{name} has run for {tick}", 30)


@pytest.fixture(params=["forward", pytest.param("back", marks=pytest.mark.long)])
def night(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(
    night: str,
    own_server: Callable[[], Server],
    shim: Path,
    tmp_path: Path,
    queue_on: Callable[..., Queue],
) -> Iterator[World]:
    begin = NIGHTS[night][0][0] - timedelta(minutes=5)
    clock = Clock(shim, tmp_path, "night", begin.timestamp() - time.time())
    with launcher("sqlite") as database:
        with clock.applied():
            server = own_server()
        queue = queue_on(server, database=database.entry)
        queue.migrate()
        yield World(queue, clock, database.entry["NAME"], seed=len(night))


def live_through(world: World, instants: list[datetime], nightly: list[datetime]) -> None:
    """Four seconds before each instant the clock is there; then one of the workers dies."""
    for instant in instants:
        world.move_to(instant - timedelta(seconds=4))
        world.kill_one()
        if instant.minute == 0:
            for name in ("hourly", "skipping", "once"):
                world.wait_for(name, instant)
        if instant in nightly:
            world.wait_for("nightly", instant)
        # Nothing more may come.
        world.wait_until(instant + timedelta(seconds=2))


@pytest.mark.long
def test_each_tick_runs_once_as_its_policy_says(world: World, night: str, figure: Figure) -> None:
    instants, nightly = NIGHTS[night]
    live_through(world, instants, nightly)
    late = world.late("once", instants[-1])

    # Two days without any worker. They end ten minutes after an hour has begun.
    for worker in world.workers:
        worker.kill()
    newest, after = instants[-1] + timedelta(days=2), instants[-1] + timedelta(days=2) + HOUR
    world.move_to(newest + timedelta(minutes=10))
    world.workers = [world.start() for _ in range(3)]
    world.wait_for("once", newest)
    live_through(world, [after], [])

    lived = {instant for instant in instants if instant.minute == 0}
    half_past_two = nightly[0].replace(hour=0 if night == "forward" else 1, minute=30)
    expected = {
        "hourly": {instants[0] + n * HOUR for n in range(int((after - instants[0]) / HOUR) + 1)},
        "nightly": {*nightly, *(half_past_two + timedelta(days=day) for day in (1, 2))},
        "once": {*lived, newest, after},
        "skipping": {*lived, after},
    }
    ticks = sum(map(len, expected.values()))
    wait_until(lambda: len(world.rows("archivedmessage", "id")) == ticks, "all are archived", 60)
    for name, instants_of_it in expected.items():
        assert sorted(world.ran(name)) == sorted(instants_of_it), name
        assert all(len(ids) == 1 for ids in world.ran(name).values()), "one message for each tick"
    assert {state for (state,) in world.rows("archivedmessage", "state")} == {"acked"}
    figure(f"{ticks} ticks, each once; one tick was {1000 * late:.0f} ms late")
    assert 0 <= late < 5
