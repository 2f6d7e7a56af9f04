"""The database stops under load: no task notices, nothing is lost, and the archive catches up when
it is back."""

from __future__ import annotations

import threading
import time

from django.db import connection

from django_delayq import DelayQError
from tests.chaos.world import Options, World

COUNT = 500
"""Messages per second."""
SECONDS = 60.0
RECONCILE_AFTER = 10.0
#: Seconds of load before and after the outage.
AROUND = 3.0
#: Seconds within which the stream has to be empty again.
CATCH_UP = 60.0


def main(options: Options) -> int:
    """The exit code."""
    with World(options) as world:
        for _ in range(2):
            world.worker()
        producer = _Producer(options.count)
        producer.start()
        time.sleep(AROUND)
        connection.close()
        world.database.stop()
        lengths = _watch(world, options.seconds)
        world.database.start()
        back = time.monotonic()
        after = _watch(world, AROUND)
        ids = producer.stop()
        empty = world.wait(lambda: world.stream() == 0 and world.live() == 0, CATCH_UP)
        took = time.monotonic() - back
        world.promise(
            empty,
            f"the stream holds {world.stream()} entries {took:.0f} s after the database was back",
        )
        world.wait(lambda: world.archived() >= len(ids) and world.settled(), 60)
        caught_up = next((at - back for at, length in after if length <= options.count), took)
        return _check(world, ids, max(length for _, length in lengths + after), caught_up, took)


class _Producer(threading.Thread):
    def __init__(self, rate: int) -> None:
        super().__init__(daemon=True)
        self._rate = rate
        self._ids: list[str] = []
        self._ended = threading.Event()

    def run(self) -> None:
        from tests.chaos.tasks import note

        begun = time.monotonic()
        while not self._ended.wait(0.02):
            want = int((time.monotonic() - begun) * self._rate) - len(self._ids)
            self._ids += [handle.id for handle in note.enqueue_many([(0,)] * want)]

    def stop(self) -> list[str]:
        self._ended.set()
        self.join()
        return self._ids


def _watch(world: World, seconds: float) -> list[tuple[float, int]]:
    """How long the stream was, and when."""
    seen, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            seen.append((time.monotonic(), world.stream()))
        except DelayQError as error:
            world.promise(False, f"Redis is away too: {error}")
        time.sleep(min(0.1, max(0.0, until - time.monotonic())))
    return seen


def _check(world: World, ids: list[str], longest: int, caught_up: float, took: float) -> int:
    from django_delayq.models import ArchivedMessage

    options = world.options
    sent = options.count * (options.seconds + 2 * AROUND)
    world.promise(len(ids) >= 0.9 * sent, f"the load was {len(ids)} messages instead of {sent:.0f}")
    more = ArchivedMessage.objects.exclude(attempts=1, crashes=0).count()
    world.promise(not more, f"{more} messages needed more than one attempt")
    twice = world.history.duplicates()
    world.promise(not twice, f"{len(twice)} ran twice")
    world.check_archive(ids)
    return world.finish(
        "database_away",
        f"{len(ids):,} messages at {options.count}/s, {options.seconds:.0f} s without the "
        f"database; the stream was "
        f"{longest:,} long, had caught up {caught_up:.1f} s after it was back and was empty when "
        f"the load had ended, "
        f"after {took:.1f} s; {world.archived():,} rows",
        messages=len(ids),
        seconds=options.seconds,
        longest_stream=longest,
        seconds_to_catch_up=round(caught_up, 2),
        seconds_to_zero=round(took, 2),
        rows=world.archived(),
        ran_twice=len(twice),
    )
