"""200 messages a second with delays of 1 to 10 s: how late they start, and what the worker
costs."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tests.benchmarks import common
from tests.benchmarks.common import median, percentile
from tests.benchmarks.raw import round_trip_ms

RATE = 200
SECONDS = 30
RUNS = 5


class Lateness(NamedTuple):
    """Start minus due time of messages, in milliseconds; negative is early."""

    messages: int
    early: int
    min_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float


def lateness(
    due: list[float], first: int = 0, since: float = 0.0, until: float = math.inf
) -> Lateness:
    """Of the messages from `first` on, with these due times in seconds; only of those due in the
    given time."""
    pairs = zip((at for at, _ in common.starts(len(due), first)), due, strict=True)
    return summary([(start - at) * 1000 for start, at in pairs if since <= at < until])


def summary(late: list[float]) -> Lateness:
    """Of these values in milliseconds."""
    early = sum(value < 0 for value in late)
    return Lateness(
        len(late), early, min(late), percentile(late, 50), percentile(late, 99), max(late)
    )


def pace(offsets: Iterable[float], send: Callable[[int], Any]) -> list[float]:
    """Call send(index) so many seconds from now. Returns the due time of each message in
    seconds."""
    due: list[float] = []
    begun = time.monotonic()
    for index, offset in enumerate(offsets):
        time.sleep(max(0.0, begun + offset - time.monotonic()))
        due.append((send(index).due_ms or 0) / 1000)
    return due


def steady(seconds: float, longest: float = 10.0, first: int = 0) -> tuple[Lateness, float]:
    """One run against a running worker. Returns the lateness and how many seconds it took."""
    from tests.benchmarks.tasks import noop

    def send(index: int) -> Any:
        return noop.using(delay=random.uniform(1, longest)).enqueue(first + index, "x" * 80)

    begun = time.monotonic()
    due = pace((index / RATE for index in range(int(RATE * seconds))), send)
    assert common.wait_until(common.Progress(len(due), first).done, longest + 20, every=0.2), (
        "not everything ran"
    )
    return lateness(due, first), time.monotonic() - begun


def main(arguments: list[str]) -> None:
    """Further arguments go to run_delayq."""
    options = common.options(arguments, RUNS)
    seconds = options.scaled(SECONDS)
    with common.bench_server() as server, common.BenchWorker(*options.worker) as worker:
        worker.warm_up()
        runs, percents = [], []
        for number in range(options.runs):
            cpu = worker.cpu_seconds()
            late, took = steady(seconds, first=number * RATE * seconds)
            runs.append(late)
            percents.append(100 * (worker.cpu_seconds() - cpu) / took)
        trip = round_trip_ms(server)
    common.report(
        "precision",
        median([late.p50_ms for late in runs]),
        "ms p50",
        ceiling=trip,
        ceiling_is="one PING and its answer",
        p99_ms=median([late.p99_ms for late in runs]),
        max_ms=max(late.max_ms for late in runs),
        min_ms=min(late.min_ms for late in runs),
        early=sum(late.early for late in runs),
        cpu_percent=median(percents),
        messages=sum(late.messages for late in runs),
        runs=options.runs,
    )
    assert not any(late.early for late in runs), "messages started early"


if __name__ == "__main__":
    main(sys.argv[1:])
