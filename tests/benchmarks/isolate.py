"""What a message costs whose task runs in a child process, beside one that runs on a thread; and how
long a child takes to load the project."""

from __future__ import annotations

import sys
import time
from typing import Any

from tests.benchmarks import common

COUNT = 3_000
CASES = ("noop", "apart", "apart_limited")


def drain(name: str, count: int) -> tuple[float, float]:
    """Seconds for so many messages that are all due, and seconds of CPU."""
    from tests.benchmarks import tasks

    with common.BenchWorker("--concurrency", "1", topics="bench,apart") as worker:
        getattr(tasks, name).using(topic="apart").enqueue(0, "x")
        assert common.wait_until(lambda: common.backlog_empty("apart"), 60), "it did not begin"
        due, due_at = common.stored_instant(2)
        task = getattr(tasks, name).using(topic="apart", due_at=due_at)
        task.enqueue_many((index, "x" * 80) for index in range(count))
        assert time.time() < due, "the messages are late already: a smaller --scale helps"
        time.sleep(max(0.0, due - time.time()))
        cpu = worker.cpu_seconds()
        assert common.wait_until(lambda: common.backlog_empty("apart"), 300), "it did not end"
        return time.time() - due, worker.cpu_seconds() - cpu


def first_run() -> float:
    """Seconds from the start of a child to the end of its first message."""
    from django_delayq.core.conf import get_settings
    from django_delayq.store import get_store
    from django_delayq.worker.isolated.child_process import ChildProcess
    from django_delayq.worker.isolated.frames import Setup

    settings = get_settings()
    get_store()
    child = ChildProcess(Setup("bench", sys.argv, settings.redis, settings.prefix))
    while not child.look_ready(0.01):
        """It loads the project."""
    took = time.monotonic() - child.started_at
    child.close()
    return took


def main(arguments: list[str]) -> None:
    """The median of some runs for each kind."""
    options = common.options(arguments, 3)
    count = options.scaled(COUNT, 50)
    with common.bench_server():
        plain: dict[str, Any] = {}
        for name in CASES:
            times = [drain(name, count) for _ in range(options.runs)]
            wall = common.median([took for took, _ in times]) / count * 1e6
            cpu = common.median([cpu for _, cpu in times]) / count * 1e6
            plain = plain or {"ceiling": wall}
            common.report(
                "isolate", wall, "us a message", case=name, cpu_us=cpu, count=count, **plain
            )
        start = common.median([first_run() for _ in range(options.runs)])
        common.report("isolate", 1000 * start, "ms until a new child is ready", case="start")


if __name__ == "__main__":
    main(sys.argv[1:])
