"""What idle workers cost together, by their number and the number of topics that each serves."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack

from tests.benchmarks import common
from tests.benchmarks.idle import calls

SECONDS, SETTLE = 60, 15
CASES = ((1, 1), (4, 1), (1, 100), (1, 1_000), (4, 1_000))


def main(arguments: list[str]) -> None:
    """A fresh server for each case."""
    options = common.options(arguments, 1)
    for workers, topics in CASES:
        os.environ["DELAYQ_BENCH_TOPICS"] = str(topics)
        names = ",".join(f"many.{number:04}" for number in range(topics))
        with common.bench_server() as server, ExitStack() as stack:
            for _ in range(workers):
                stack.enter_context(common.BenchWorker(*options.worker, topics=names))
            client, seconds = server.client(), options.scaled(SECONDS, 2)
            time.sleep(options.scaled(SETTLE, 2))
            before, began = calls(client), time.monotonic()
            time.sleep(seconds)
            rate = (calls(client) - before - 1) / (time.monotonic() - began)
            client.close()
        common.report(
            "fleet",
            rate,
            "commands/s",
            case=f"{workers} workers, {topics:,} topics",
            for_each_topic=rate / topics,
            for_each_worker=rate / workers,
            seconds=seconds,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
