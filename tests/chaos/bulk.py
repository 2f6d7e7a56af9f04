"""kill -9 (--term: SIGTERM) of the worker in the middle of a bulk replay: another goes on, and each
dead letter is replayed once."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from tests.acceptance.process import WorkerProcess
from tests.chaos.world import Options, World, milliseconds

COUNT = 200_000
SECONDS = 60.0
"""How long it may stand still before it counts as stuck."""
RECONCILE_AFTER = 10.0
#: One dead letter in so many has a key: Redis is asked about those.
KEYED = 10
#: Seconds between two looks at the progress.
LOOK = 0.05
#: Messages per second that the workers run at the very least, so that a broken run ends.
SLOWEST = 200


class Operator:
    """May do everything."""

    def has_perm(self, permission: str) -> bool:
        """Yes."""
        return True

    def get_username(self) -> str:
        """A name."""
        return "chaos"


class Seen(NamedTuple):
    """What a page would show at one moment; all of it in one query."""

    at: float
    count: int
    action: int
    """OperatorAction.count: the same."""
    position: int
    total: int | None
    status: str


class Figures(NamedTuple):
    """Of the operation."""

    seen: list[Seen]
    killed_at: float
    resumed: Seen
    """The first progress after the kill."""
    settled: float
    """Seconds from its end until all that was replayed had run and was archived."""

    @property
    def end(self) -> Seen:
        """The last look."""
        return self.seen[-1]

    @property
    def killed_with(self) -> int:
        """How many it had replayed at the kill."""
        return max(look.count for look in self.seen if look.at < self.resumed.at)

    @property
    def before(self) -> float:
        """Messages per second until the kill."""
        first = next(look for look in self.seen if look.count)
        return (self.killed_with - first.count) / max(self.killed_at - first.at, 0.001)

    @property
    def after(self) -> float:
        """Messages per second since the other worker has gone on."""
        return (self.end.count - self.resumed.count) / max(self.end.at - self.resumed.at, 0.001)


def main(options: Options) -> int:
    """The exit code."""
    with World(options) as world:
        from django_delayq.archive.selection import Selection
        from django_delayq.operators import bulk

        _fill(options.count)
        operation = bulk.start(
            Operator(), "replay", Selection(task="tests.chaos.tasks.note"), reason="chaos"
        ).pk
        return _check(world, operation, _suffer(world, operation))


def _fill(count: int) -> None:
    from django_delayq.core.message import key_id, new_id
    from django_delayq.models import ArchivedMessage

    def row(number: int) -> ArchivedMessage:
        key = "" if number % KEYED else f"order:{number}"
        identity = key_id("default", key) if key else new_id()
        died = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=number)
        return ArchivedMessage(
            message_id=UUID(bytes=identity), enqueued_at=died, topic="default", partition=0, key=key,
            task="tests.chaos.tasks.note", state="dead", body=f'{{"args":[{number}],"kwargs":{{}}}}', ttr_ms=60_000,
            due_at=died, finished_at=died, error_class="ValueError",
        )  # fmt: skip

    for first in range(0, count, 10_000):
        batch = [row(number) for number in range(first, min(first + 10_000, count))]
        ArchivedMessage.objects.bulk_create(batch, batch_size=1_000)


def _suffer(world: World, operation: int) -> Figures:
    """Kill the worker at half, and let another one end it."""
    seen: list[Seen] = []
    worker = world.worker("--concurrency", "4")
    half = _watch(world, operation, seen, lambda look: look.count >= world.options.count // 2)
    world.promise(half, f"half of it was not done: {seen[-1]}")
    killed_at = time.time()
    _end(world, worker)
    left = _look(operation)
    put_down = "waiting" if world.options.variant == "term" else "running"
    world.promise(left.status == put_down, f"its worker has left it {left.status}")
    replayed = _replayed()
    world.promise(
        left.count == replayed,
        f"it says {left.count:,} at the kill, {replayed:,} are marked as replayed",
    )
    world.worker("--concurrency", "4")
    _watch(world, operation, seen, lambda look: look.count > left.count)
    resumed = seen[-1]
    ended = _watch(world, operation, seen, lambda look: look.status not in ("waiting", "running"))
    world.promise(ended, f"it stands still at {seen[-1]}")
    begun = time.monotonic()
    settled = world.wait(world.settled, SECONDS + world.options.count / SLOWEST, 0.5)
    world.promise(
        settled, f"not all has run: {world.outbox():,} in the outbox, {world.live():,} in Redis"
    )
    return Figures(seen, killed_at, resumed, time.monotonic() - begun)


def _end(world: World, worker: WorkerProcess) -> None:
    if world.options.variant == "term":
        code = worker.stop()
        world.promise(code == 0, f"the worker ended with {code}")
        return
    worker.kill()
    time.sleep(0.5)  # its last transaction ends, one way or the other


def _watch(world: World, operation: int, seen: list[Seen], enough: Callable[[Seen], bool]) -> bool:
    """Look at it until there is enough. False when it stands still."""
    moved, count = time.monotonic(), -1
    while time.monotonic() < moved + world.options.seconds:
        look = _look(operation)
        seen.append(look)
        if look.count != count:
            moved, count = time.monotonic(), look.count
        if enough(look):
            return True
        time.sleep(LOOK)
    return False


def _look(operation: int) -> Seen:
    from django_delayq.models import BulkOperation

    values = BulkOperation.objects.values_list(
        "count", "action__count", "position", "total", "status"
    )
    return Seen(time.time(), *values.get(pk=operation))


def _replayed() -> int:
    from django_delayq.models import ArchivedMessage

    return ArchivedMessage.objects.exclude(replayed_at=None).count()


def _check(world: World, operation: int, figures: Figures) -> int:
    from django_delayq.models import BulkOperation

    count, end = world.options.count, figures.end
    for look in figures.seen:
        world.promise(
            look.count == look.action, f"the operation says {look.count}, its record {look.action}"
        )
    wrong = [pair for pair in pairwise(figures.seen) if pair[0].position > pair[1].position]
    world.promise(not wrong, f"it has gone back: {wrong[:1]}")
    is_done = (end.status, end.count, end.action, end.total) == ("done", count, count, count)
    world.promise(is_done, f"at its end it is {end} of {count:,}")
    skipped = BulkOperation.objects.get(pk=operation).skipped
    world.promise(skipped == "{}", f"it has skipped {skipped}")
    _check_once(world)
    gaps = [later.at - earlier.at for earlier, later in _moves(figures)]
    pause, took = figures.resumed.at - figures.killed_at, end.at - figures.seen[0].at
    return world.finish(
        "bulk",
        f"{count:,} dead letters, each replayed once; stopped at {figures.killed_with:,}; "
        f"{figures.before:,.0f}/s "
        f"before and {figures.after:,.0f}/s after it, {pause:.1f} s between; done in {took:.0f} s, "
        f"all had run "
        f"{figures.settled:.0f} s later",
        messages=count,
        killed_at=figures.killed_with,
        per_second_before=round(figures.before),
        per_second_after=round(figures.after),
        pause=round(pause, 2),
        seconds=round(took, 1),
        longest_without_progress_ms=milliseconds(gaps, 1.0),
        median_without_progress_ms=milliseconds(gaps, 0.5),
        seconds_to_settle=round(figures.settled, 1),
    )


def _moves(figures: Figures) -> list[tuple[Seen, Seen]]:
    """Pairs of looks between which the count has changed; not the one over the kill."""
    moves = [later for earlier, later in pairwise(figures.seen) if later.count > earlier.count]
    return [pair for pair in pairwise(moves) if pair[1] is not figures.resumed]


def _check_once(world: World) -> None:
    """Each origin has one message that replays it, in the archive by now, and knows that one."""
    from django_delayq.models import ArchivedMessage

    count = world.options.count
    replays = ArchivedMessage.objects.exclude(replay_of=None)
    pairs = dict(replays.values_list("replay_of", "message_id"))
    origins = dict(ArchivedMessage.objects.filter(state="dead").values_list("pk", "replayed_by"))
    world.promise(
        replays.count() == count, f"{replays.count():,} messages replay {count:,} dead letters"
    )
    world.promise(len(pairs) == count, f"{len(pairs):,} of {count:,} dead letters were replayed")
    differ = [pk for pk, by in origins.items() if pairs.get(pk) != by]
    world.promise(
        not differ,
        f"{len(differ):,} dead letters name another message than the one that ran: {differ[:3]}",
    )
    bad = replays.exclude(state="acked").count()
    world.promise(not bad, f"{bad:,} of what was replayed is not acked")
