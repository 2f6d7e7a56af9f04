"""20,000 no-op messages due at one instant, drained by one worker process."""

from __future__ import annotations

import sys
import time
from datetime import datetime, timezone

from . import common

COUNT = 20_000
RUNS = 5


def one_run(number: int, arguments: list[str]) -> tuple[float, float]:
    """Messages per second from the due time to the last start, and the earliest start against it in ms."""
    from .tasks import noop

    due = time.time() + 1.5
    at = datetime.fromtimestamp(due, tz=timezone.utc)
    first = number * COUNT
    noop.using(due_at=at).enqueue_many((first + i, "x" * 80) for i in range(COUNT))
    assert time.time() < due, "enqueueing took longer than the head start"
    assert common.wait_until(common.backlog_empty, 60), "the burst was not drained"
    begun = [start for start, _ in common.starts(COUNT, first)]
    runs = sum(count for _, count in common.starts(COUNT, first))
    assert runs == COUNT, f"{runs} starts of {COUNT} messages"
    return COUNT / (max(begun) - due), (min(begun) - due) * 1000


def main(arguments: list[str]) -> None:
    """Runs and medians; further arguments go to run_delayq."""
    with common.bench_server() as server, common.BenchWorker(*arguments):
        common.wait_until(lambda: False, 0.5)
        results = [one_run(number, arguments) for number in range(RUNS)]
        ceilings = [common.raw_drain(server, COUNT) for _ in range(3)]
    rate, ceiling = common.median([rate for rate, _ in results]), common.median(ceilings)
    common.report(
        "burst",
        per_second=rate,
        lowest=min(rate for rate, _ in results),
        highest=max(rate for rate, _ in results),
        raw_scripts_per_second=ceiling,
        ratio=rate / ceiling,
        earliest_ms=min(early for _, early in results),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
