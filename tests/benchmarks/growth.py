"""Precision, and what claiming a message costs, beside 10^4, 10^5 and 10^6 waiting messages
(--huge: 10^7 too)."""

from __future__ import annotations

import sys
import time

from tests.benchmarks import common
from tests.benchmarks.common import median
from tests.benchmarks.precision import RATE, steady

WAITING = (10_000, 100_000, 1_000_000)
HUGE = 10_000_000
SECONDS = 15
LONGEST = 3.0
CLAIMS = 20_000
RUNS = 5


def claim_us(count: int) -> float:
    """Microseconds per message of claiming so many due messages, 500 at a time, in the partition
    where others wait."""
    from django_delayq.store import get_store
    from django_delayq.store.keys import Partition
    from tests.benchmarks.tasks import noop

    store, partition = get_store(), Partition("bench", 0)
    noop.enqueue_many((index, "x" * 80) for index in range(count))
    spent, claimed = 0.0, 0
    while claimed < count:
        begun = time.perf_counter()
        leases = store.claim(partition, 500).leases
        spent += time.perf_counter() - begun
        claimed += len(leases)
        store.ack(partition, [(lease, b'{"worker":"raw","run_ms":0.001}') for lease in leases])
    return 1e6 * spent / claimed


def main(arguments: list[str]) -> None:
    """One server, filled further from step to step; a fresh worker each."""
    options = common.options([one for one in arguments if one != "--huge"], RUNS)
    counts = [
        options.scaled(number) for number in (*WAITING, *([HUGE] if "--huge" in arguments else []))
    ]
    seconds, claims = options.scaled(SECONDS, 2), options.scaled(CLAIMS, 500)
    there, base = 0, (0.0, 0.0)
    with common.bench_server():
        for number, count in enumerate(counts):
            common.fill(count - there)
            there = count
            cost = median([claim_us(claims) for _ in range(options.runs)])
            with common.BenchWorker(*options.worker) as worker:
                worker.warm_up()
                late, _ = steady(seconds, LONGEST, first=number * RATE * seconds)
            base = base if number else (cost, late.p50_ms)
            common.report(
                "growth",
                cost,
                "us/claimed message",
                case=f"{count:,} waiting",
                waiting=count,
                against_first=cost / base[0],
                p50_against_first=late.p50_ms / base[1],
                p50_ms=late.p50_ms,
                p99_ms=late.p99_ms,
                max_ms=late.max_ms,
                early=late.early,
                runs=options.runs,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
