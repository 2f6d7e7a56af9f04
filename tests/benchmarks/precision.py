"""200 messages a second with delays of 1 to 10 s: how late they start, and what the worker costs."""

from __future__ import annotations

import random
import sys
import time

from . import common

RATE = 200
SECONDS = 30


def produce() -> list[float]:
    """Enqueue at a steady rate. Returns the due time of each message in seconds."""
    from .tasks import noop

    due: list[float] = []
    begun = time.monotonic()
    for index in range(RATE * SECONDS):
        time.sleep(max(0.0, begun + index / RATE - time.monotonic()))
        handle = noop.using(delay=random.uniform(1, 10)).enqueue(index, "x" * 80)
        due.append((handle.due_ms or 0) / 1000)
    return due


def main(arguments: list[str]) -> None:
    """Lateness in ms; negative would be early."""
    with common.bench_server() as server, common.BenchWorker(*arguments) as worker:
        cpu, begun = worker.cpu_seconds(), time.monotonic()
        due = produce()
        assert common.wait_until(common.backlog_empty, 30, every=0.2), "not everything ran"
        cpu, seconds = worker.cpu_seconds() - cpu, time.monotonic() - begun
        late = [(start - at) * 1000 for (start, _), at in zip(common.starts(len(due)), due, strict=True)]
        client = server.client()
        trips = []
        for _ in range(1000):
            before = time.perf_counter()
            client.ping()
            trips.append((time.perf_counter() - before) * 1000)
        client.close()
    common.report(
        "precision",
        messages=len(late),
        early=sum(value < 0 for value in late),
        min_ms=min(late),
        p50_ms=common.percentile(late, 50),
        p99_ms=common.percentile(late, 99),
        max_ms=max(late),
        cpu_percent=100 * cpu / seconds,
        raw_round_trip_ms=common.median(trips),
        ratio=common.percentile(late, 50) / common.median(trips),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
