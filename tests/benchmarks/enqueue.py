"""Enqueueing one by one, with 100 bytes of arguments, against one raw EVALSHA per message."""

from __future__ import annotations

import sys
import time

from tests.benchmarks import common
from tests.benchmarks.common import median
from tests.benchmarks.raw import RawQueue

COUNT = 4_000
RUNS = 7


def ours(count: int) -> float:
    """Messages per second of enqueue()."""
    from tests.benchmarks.tasks import noop

    later = noop.using(delay=7200)
    begun = time.perf_counter()
    for index in range(count):
        later.enqueue(1_000_000 + index, "x" * 88)
    return count / (time.perf_counter() - begun)


def main(arguments: list[str]) -> None:
    """Interleaved A B A B: the round trip of a virtual machine drifts by a factor of two within
    minutes."""
    options = common.options(arguments, RUNS)
    count = options.scaled(COUNT, 50)
    with common.bench_server() as server:
        raw = RawQueue(server)
        ours(count // 10), raw.enqueue(1, count // 10)
        pairs = []
        for _ in range(options.runs):
            pairs.append((ours(count), raw.enqueue(1, count)))
            raw.clear()
    common.report(
        "enqueue",
        median([rate for rate, _ in pairs]),
        "messages/s",
        ceiling=median([ceiling for _, ceiling in pairs]),
        ceiling_is="one raw EVALSHA (ZADD, HSET) per message",
        ratio=median([rate / ceiling for rate, ceiling in pairs]),
        runs=options.runs,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
