"""1,000,000 messages due at one instant: the longest script, what a small topic beside feels, and
the drain rate."""

from __future__ import annotations

import sys
import threading
from importlib.resources import files
from typing import Any

from tests.benchmarks import burst, common
from tests.benchmarks.common import median
from tests.benchmarks.fairness import neighbours
from tests.benchmarks.precision import Lateness, lateness
from tests.benchmarks.raw import raw_drain
from tests.servers import Server

COUNT = 1_000_000
BURST = 20_000
RUNS = 3
"""Bursts to compare with; the release itself runs once."""
ENQUEUE_RATE = 40_000
"""Messages per second that the head start allows for."""
SLOW_US = 1_000
"""Scripts above this are written down. Lower, and writing them down would be measured too."""


class Scripts:
    """The longest script, from Redis' slow log."""

    def __init__(self, server: Server) -> None:
        self._client = server.client()
        self._client.config_set("slowlog-max-len", 100_000)
        self._client.config_set("slowlog-log-slower-than", SLOW_US)

    def reset(self) -> None:
        """Begin anew."""
        self._client.slowlog_reset()

    def figures(self) -> dict[str, Any]:
        """The longest with its name, and how many took more than a millisecond. Redis counts what
        the system steals."""
        from django_delayq.store import scripts

        folder = files(scripts.__package__) / "lua"
        names = {
            scripts.load(name).sha: name
            for file in folder.iterdir()
            if (name := file.name.removesuffix(".lua")) != file.name
        }
        took = [
            (entry["duration"] / 1000, names.get(words[1].decode(), "another"))
            for entry in self._client.slowlog_get(100_000)
            if len(words := entry["command"].split(b" ", 2)) > 1
            and words[0].upper() in (b"EVALSHA", b"EVAL")
        ]
        longest, name = max(took, default=(SLOW_US / 1000, "none"))
        return {
            "longest_script_ms": longest,
            "longest_script": name,
            "scripts_over_1_ms": len(took),
        }


def released(count: int, first: int) -> tuple[burst.Drain, Lateness]:
    """Drain them all in a thread, while this one feeds the small topic."""
    result: list[burst.Drain] = []
    head = 2 + count / ENQUEUE_RATE
    thread = threading.Thread(target=lambda: result.append(burst.drain(count, first, head)))
    thread.start()
    due = neighbours(first + count, lambda _: not thread.is_alive())
    thread.join()
    assert result, "the release failed"
    drained = result[0]
    return drained, lateness(due, first + count, drained.due, drained.end)


def main(arguments: list[str]) -> None:
    """Further arguments go to run_delayq."""
    options = common.options(arguments, RUNS)
    count, small = options.scaled(COUNT, 1_000), options.scaled(BURST, 200)
    with (
        common.bench_server() as server,
        common.BenchWorker(*options.worker, topics="bench,neighbour") as worker,
    ):
        worker.warm_up()
        bursts = [burst.drain(small, number * small).per_second for number in range(options.runs)]
        scripts = Scripts(server)
        scripts.reset()
        drained, late = released(count, options.runs * small)
        figures = scripts.figures()
        ceiling = median([raw_drain(small) for _ in range(3)])
    common.report(
        "release",
        drained.per_second,
        "messages/s",
        ceiling=ceiling,
        ceiling_is="our claim and ack scripts in a bare loop, nothing called",
        against_burst=drained.per_second / median(bursts),
        **figures,
        neighbour_p50_ms=late.p50_ms,
        neighbour_p99_ms=late.p99_ms,
        neighbour_max_ms=late.max_ms,
        neighbour_messages=late.messages,
        early=drained.early + late.early,
        messages=count,
    )
    assert not drained.early + late.early, "messages started early"


if __name__ == "__main__":
    main(sys.argv[1:])
