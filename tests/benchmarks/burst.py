"""20,000 no-op messages due at one instant, drained by one worker process."""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

from tests.benchmarks import common
from tests.benchmarks.common import median
from tests.benchmarks.raw import raw_drain

COUNT = 20_000
RUNS = 5
SLOWEST = 1_000
"""Messages per second that count as drained at all."""


class Drain(NamedTuple):
    """One burst."""

    per_second: float
    """From the due time to the last start."""
    early: int
    earliest_ms: float
    due: float
    end: float


def drain(count: int, first: int = 0, head: float = 1.5) -> Drain:
    """Enqueue, wait for the due time and until all has started. Head: seconds to enqueue in."""
    from tests.benchmarks.tasks import noop

    due, at = common.stored_instant(head)
    noop.using(due_at=at).enqueue_many((first + index, "x" * 80) for index in range(count))
    assert time.time() < due, "enqueueing took longer than the head start"
    progress = common.Progress(count, first)
    assert common.wait_until(progress.done, head + 10 + count / SLOWEST), (
        "the burst was not drained"
    )
    assert common.wait_until(common.nothing_leased, 10), "the burst was not settled"
    slots = common.starts(count, first)
    begun, runs = [start for start, _ in slots], sum(number for _, number in slots)
    assert runs == count, f"{runs} starts of {count} messages"
    # A microsecond for the rounding of a float.
    early = sum(start < due - 1e-6 for start in begun)
    return Drain(count / (max(begun) - due), early, (min(begun) - due) * 1000, due, max(begun))


def measure(options: common.Options) -> dict[str, float]:
    """Runs and medians."""
    count = options.scaled(COUNT, 200)
    with common.bench_server(), common.BenchWorker(*options.worker) as worker:
        worker.warm_up()
        results = [drain(count, number * count) for number in range(options.runs)]
        ceilings = [raw_drain(count) for _ in range(3)]
    rates = [result.per_second for result in results]
    return {
        "figure": median(rates),
        "ceiling": median(ceilings),
        "lowest": min(rates),
        "highest": max(rates),
        "early": sum(result.early for result in results),
        "earliest_ms": min(result.earliest_ms for result in results),
    }


def main(arguments: list[str]) -> None:
    """Further arguments go to run_delayq."""
    options = common.options(arguments, RUNS)
    figures = measure(options)
    common.report(
        "burst",
        figures.pop("figure"),
        "messages/s",
        case=" ".join(options.worker) or None,
        ceiling_is="our claim and ack scripts in a bare loop, nothing called",
        runs=options.runs,
        **figures,
    )
    assert not figures["early"], "messages started early"


if __name__ == "__main__":
    main(sys.argv[1:])
