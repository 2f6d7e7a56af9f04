"""How long one call holds Redis when bodies are large: the longest of each kind, by Redis' own slow
log. It is wall time: on a machine that does other things too, a core that is taken away counts."""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.benchmarks import common
from tests.benchmarks.common import median

KIB = 1024
CASES = ((64 * KIB, 500), (1024 * KIB, 60))
"""Bytes of a body, and how many messages."""
RUNS = 5


def main(arguments: list[str]) -> None:
    """Each transition with messages of each size, and the reads of the archiver."""
    options = common.options(arguments, RUNS)
    os.environ["DELAYQ_BENCH_BODY_LIMIT"] = str(1024 * KIB)
    with common.bench_server() as server:
        client = server.client()
        client.config_set("slowlog-log-slower-than", 500)
        client.config_set("slowlog-max-len", 100_000)
        for size, count in CASES:
            runs = [longest(client, size, options.scaled(count, 3)) for _ in range(options.runs)]
            for name in runs[0]:
                mine = [run.get(name, 0.0) for run in runs]
                common.report(
                    "bodies",
                    median(mine),
                    "ms in one call",
                    case=f"{size // KIB} KiB, {name}",
                    longest_ms=max(mine),
                    runs=len(mine),
                )
            all_ms = [max(run.values()) for run in runs]
            common.report(
                "bodies",
                median(all_ms),
                "ms in the longest call",
                case=f"{size // KIB} KiB",
                longest_ms=max(all_ms),
                messages=options.scaled(count, 3),
                runs=len(all_ms),
            )
        client.close()


def longest(client: Any, size: int, count: int) -> dict[str, float]:
    """Milliseconds of the longest call, by what was done."""
    from tests.benchmarks.body_steps import steps

    client.flushall()
    found: dict[str, float] = {}
    for name, do in steps(size, count):
        client.slowlog_reset()
        do()
        if name:
            took = [entry["duration"] / 1000 for entry in client.slowlog_get(100_000)]
            found[name] = max(took, default=0.0)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
