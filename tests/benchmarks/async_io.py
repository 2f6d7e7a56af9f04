"""`async def` tasks that wait for 10 ms, 1,000 at a time, against what asyncio alone makes of the
same coroutines."""

from __future__ import annotations

import sys

from tests.benchmarks import common
from tests.benchmarks.common import median
from tests.benchmarks.raw import loop_rate

COUNT = 60_000
RUNS = 5
CONCURRENCY = 1_000
SECONDS = 0.01


def drain(count: int, first: int) -> tuple[float, int]:
    """Messages per second from the due time to the last start, and how many were early."""
    from tests.benchmarks.tasks import io

    due, at = common.stored_instant(1.0 + count / 50_000)
    io.using(due_at=at).enqueue_many((first + index, SECONDS) for index in range(count))
    assert common.wait_until(common.Progress(count, first).done, 60 + count / 1000), (
        "not everything ran"
    )
    assert common.wait_until(lambda: common.nothing_leased("async"), 10), (
        "not everything was settled"
    )
    begun = [start for start, _ in common.starts(count, first)]
    return count / (max(begun) - due), sum(start < due - 1e-6 for start in begun)


def main(arguments: list[str]) -> None:
    """Interleaved A B A B; further arguments go to run_delayq."""
    options = common.options(arguments, RUNS)
    count = options.scaled(COUNT, 1_000)
    worker = ("--async-concurrency", str(CONCURRENCY), *options.worker)
    pairs = []
    with common.bench_server(), common.BenchWorker(*worker, topics="bench,async") as bench:
        bench.warm_up()
        for number in range(options.runs):
            ours = drain(count, number * count)
            pairs.append((*ours, loop_rate(count, CONCURRENCY, SECONDS, options.runs * count)))
    common.report(
        "async_io",
        median([rate for rate, _, _ in pairs]),
        "messages/s",
        ceiling=median([limit for _, _, limit in pairs]),
        ceiling_is="asyncio alone: 1,000 workers that create a task for each",
        ratio=median([rate / limit for rate, _, limit in pairs]),
        early=sum(early for _, early, _ in pairs),
        runs=options.runs,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
