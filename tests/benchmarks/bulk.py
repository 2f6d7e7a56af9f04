"""Enqueueing in bulk, with 100 bytes of arguments, against raw EVALSHA of 500 messages each."""

from __future__ import annotations

import sys
import time

from tests.benchmarks import common
from tests.benchmarks.common import median
from tests.benchmarks.raw import RawQueue

COUNT = 50_000
RUNS = 7


def ours(count: int) -> float:
    """Messages per second of enqueue_many()."""
    begun = time.perf_counter()
    common.fill(count)
    return count / (time.perf_counter() - begun)


def main(arguments: list[str]) -> None:
    """Interleaved A B A B."""
    options = common.options(arguments, RUNS)
    count = options.scaled(COUNT, 500)
    with common.bench_server() as server:
        raw = RawQueue(server)
        ours(count // 10), raw.enqueue(500, count // 10)
        pairs = []
        for _ in range(options.runs):
            pairs.append((ours(count), raw.enqueue(500, count)))
            raw.clear()
    common.report(
        "bulk",
        median([rate for rate, _ in pairs]),
        "messages/s",
        ceiling=median([ceiling for _, ceiling in pairs]),
        ceiling_is="raw EVALSHA (ZADD, HSET) of 500 messages",
        ratio=median([rate / ceiling for rate, ceiling in pairs]),
        runs=options.runs,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
