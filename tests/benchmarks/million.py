"""One million waiting messages: what enqueueing, a byte of Redis and an idle worker beside them cost."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from . import common

COUNT = 1_000_000
IDLE_SECONDS = 30


def main(arguments: list[str]) -> None:
    """COUNT may be given as the first argument."""
    count = int(arguments[0]) if arguments else COUNT
    with common.bench_server() as server:
        client = server.client()
        raw = common.median([common.raw_enqueue(server, 500, 100_000) for _ in range(3)])
        single_raw = common.raw_enqueue(server, 1, 10_000)
        rate, size = fill(client, count)
        single = one_by_one()
        idle = beside(client)
        client.close()
    common.report("enqueue_many", messages=count, per_second=rate, raw_batched_per_second=raw, ratio=rate / raw)
    common.report("enqueue", per_second=single, raw_per_second=single_raw, ratio=single / single_raw)
    common.report("memory", messages=count, bytes_per_message=size, arguments_bytes=100)
    common.report("idle", messages=count, **idle)


def fill(client: Any, count: int) -> tuple[float, float]:
    """Messages per second of enqueue_many, and bytes of Redis per message with 100 bytes of arguments."""
    from .tasks import noop

    padding = "x" * 88
    assert len(json.dumps([1_000_000, padding], separators=(",", ":"))) == 100
    before = int(client.info("memory")["used_memory"])
    begun = time.perf_counter()
    noop.using(delay=3600).enqueue_many((1_000_000 + index, padding) for index in range(count))
    seconds = time.perf_counter() - begun
    return count / seconds, (int(client.info("memory")["used_memory"]) - before) / count


def one_by_one(count: int = 10_000) -> float:
    """Messages per second of enqueue()."""
    from .tasks import noop

    later = noop.using(delay=7200)
    begun = time.perf_counter()
    for index in range(count):
        later.enqueue(index, "x" * 88)
    return count / (time.perf_counter() - begun)


def beside(client: Any) -> dict[str, float]:
    """What an idle worker costs: commands per second (also those inside scripts), CPU, memory and its growth."""
    with common.BenchWorker() as worker:
        time.sleep(5)
        rss, cpu, calls, begun = worker.rss_mb(), worker.cpu_seconds(), _calls(client), time.monotonic()
        time.sleep(IDLE_SECONDS)
        seconds = time.monotonic() - begun
        return {
            "commands_per_second": (_calls(client) - calls - 1) / seconds,
            "cpu_percent": 100 * (worker.cpu_seconds() - cpu) / seconds,
            "rss_mb": worker.rss_mb(),
            "growth_mb": worker.rss_mb() - rss,
        }


def _calls(client: Any) -> int:
    return sum(int(stat["calls"]) for stat in client.info("commandstats").values())


if __name__ == "__main__":
    main(sys.argv[1:])
