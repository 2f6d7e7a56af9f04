"""What an idle worker costs beside 0, 100,000 and 1,000,000 messages that wait for an hour."""

from __future__ import annotations

import sys
import time
from typing import Any

import psutil

from tests.benchmarks import common
from tests.servers import Server

WAITING = (0, 100_000, 1_000_000)
SECONDS = 30
SETTLE = 5


def beside(
    server: Server, seconds: float, settle: float, worker_arguments: list[str]
) -> dict[str, float]:
    """Commands per second (also those inside scripts), CPU of worker and Redis, memory of the
    worker and its growth."""
    client, pid = server.client(), server.primaries[0].pid
    with common.BenchWorker(*worker_arguments) as worker:
        redis = psutil.Process(pid)
        time.sleep(settle)
        rss, cpu, redis_cpu = worker.rss_mb(), worker.cpu_seconds(), common.cpu_seconds(redis)
        before, begun = calls(client), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - begun
        figures = {
            "commands_per_second": (calls(client) - before - 1) / took,
            "cpu_percent": 100 * (worker.cpu_seconds() - cpu) / took,
            "redis_cpu_percent": 100 * (common.cpu_seconds(redis) - redis_cpu) / took,
            "rss_mb": worker.rss_mb(),
            "growth_mb": worker.rss_mb() - rss,
        }
    client.close()
    return figures


def calls(client: Any) -> int:
    return sum(int(stat["calls"]) for stat in client.info("commandstats").values())


def main(arguments: list[str], waiting: tuple[int, ...] = WAITING) -> None:
    """One server, filled further from step to step; a fresh worker each."""
    options = common.options(arguments, 1)
    with common.bench_server() as server:
        there = 0
        for count in (options.scaled(number, 0) for number in waiting):
            common.fill(count - there)
            there = count
            seconds = options.scaled(SECONDS, 2)
            figures = beside(server, seconds, options.scaled(SETTLE), options.worker)
            common.report(
                "idle",
                figures.pop("commands_per_second"),
                "commands/s",
                case=f"{count:,} waiting",
                waiting=count,
                seconds=seconds,
                **figures,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
