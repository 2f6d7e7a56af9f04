"""What several workers cost together, and what it costs when the home of a topic fails.

Parts: idle (commands a second, by the number of workers and of topics), lone (calls for one message
that comes alone), failure (lateness when the home is killed or frozen) and precision (lateness with
one worker and with 16). `--parts idle,lone` runs some of them.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from django_delayq.worker.heartbeat import BEAT_S_EACH
from tests.benchmarks import common
from tests.benchmarks.common import median, percentile
from tests.benchmarks.idle import calls
from tests.benchmarks.precision import pace, steady

PARTS = ("idle", "lone", "failure", "precision")
WORKERS, TOPICS = (1, 4, 16, 64), (1, 100, 1_000)
SECONDS = 120
#: The first sample of all topics is taken a minute after the start: an idle fleet has it behind it.
SETTLE = 75
CREWS = 4
"""Processes that share the workers of a large fleet."""
LONE = 100
FAILURES = 5
FROZEN_S = 5
WORKERS_OF_FAILURE = 4
MANY, PRECISE_S = 16, 15


@contextmanager
def fleet(workers: int, topics: str) -> Iterator[None]:
    """So many workers in a few processes."""
    share = [len(range(at, workers, CREWS)) for at in range(min(CREWS, workers))]
    crews = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.crew", str(count), topics],
            stdout=subprocess.PIPE,
            text=True,
        )
        for count in share
    ]
    try:
        for crew in crews:
            assert crew.stdout is not None
            assert crew.stdout.readline().startswith("Ready"), "the workers did not begin"
        yield
    finally:
        for crew in crews:
            crew.kill()
            crew.wait()
            if crew.stdout is not None:
                crew.stdout.close()


def script_calls(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(
        int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("eval", "evalsha")
    )


def costs(
    options: common.Options, parts: list[str], sizes: Sequence[int], spreads: Sequence[int]
) -> None:
    """An empty server for each size of the fleet."""
    with common.bench_server() as server:
        client, first = server.client(), 0
        for topics in spreads:
            for workers in sizes:
                client.flushall()
                os.environ["DELAYQ_BENCH_TOPICS"] = str(topics)
                names = ",".join(["bench", *(f"many.{number:04}" for number in range(1, topics))])
                with fleet(workers, names):
                    time.sleep(options.scaled(SETTLE + workers // 4 * topics // 500, 3))
                    case = f"{workers} workers, {topics:,} topics"
                    if "lone" in parts:
                        first += _lone(options, client, case, first)
                    if "idle" in parts:
                        time.sleep(options.scaled(10, 1))
                        _idle(options, client, case, workers, topics)
        client.close()


def _idle(options: common.Options, client: Any, case: str, workers: int, topics: int) -> None:
    # Long enough for all heartbeats of an idle fleet, which come more seldom in a large one.
    seconds = options.scaled(max(SECONDS, BEAT_S_EACH * workers), 3)
    before, began = calls(client), time.monotonic()
    time.sleep(seconds)
    rate = (calls(client) - before - 1) / (time.monotonic() - began)
    common.report(
        "fleet",
        rate,
        "commands/s",
        case=f"idle, {case}",
        for_each_topic=rate / topics,
        for_each_worker=rate / workers,
        seconds=seconds,
    )


def _lone(options: common.Options, client: Any, case: str, first: int) -> int:
    """Messages that come one by one while nothing else is to do. Returns how many there were."""
    from tests.benchmarks.tasks import noop

    count = options.scaled(LONE, 20)
    noop.enqueue(first, "warm")
    time.sleep(0.5)
    scripts, commands = script_calls(client), calls(client)
    for index in range(1, count + 1):
        noop.enqueue(first + index, "x" * 80)
        time.sleep(0.02)
    assert common.wait_until(common.Progress(count, first + 1).done, 30), "not everything ran"
    time.sleep(0.2)
    common.report(
        "fleet",
        (script_calls(client) - scripts) / count,
        "script calls/message",
        case=f"lone, {case}",
        commands=(calls(client) - commands) / count,
        messages=count,
    )
    return count + 1


def failures(options: common.Options) -> None:
    """Messages fall due every 20 ms; the home of their topic is killed, or frozen for a while."""
    first = 0
    for what, number in (("killed", signal.SIGKILL), ("frozen", signal.SIGSTOP)):
        worst, late_all = [], []
        for _ in range(options.scaled(FAILURES)):
            with ExitStack() as stack:
                crew = [
                    stack.enter_context(common.BenchWorker(*options.worker))
                    for _ in range(WORKERS_OF_FAILURE)
                ]
                late = _failure(number, {worker.process.pid for worker in crew}, first)
                worst.append(max(late))
                late_all += late
                first += 2_000
        common.report(
            "fleet",
            max(worst),
            "ms late at most",
            case=f"home {what}",
            median_of_worst_ms=median(worst),
            p50_ms=percentile(late_all, 50),
            early=sum(late < 0 for late in late_all),
            runs=len(worst),
        )


def _failure(number: int, pids: set[int], first: int) -> list[float]:
    from tests.benchmarks.tasks import noop

    noop.enqueue_many((first + index, "warm") for index in range(200))
    assert common.wait_until(common.Progress(200, first).done, 30), "the workers did not begin"
    time.sleep(3)  # all know of each other, and none counts as full any more
    pid = home_of("bench", pids)

    def send(index: int) -> Any:
        if index == 100:  # nothing is claimed at this moment
            os.kill(pid, number)
        return noop.using(delay=0.005).enqueue(first + 1_000 + index, "x" * 80)

    due = pace((index * 0.02 for index in range(100 + 50 * FROZEN_S)), send)
    if number == signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
    done = common.Progress(len(due), first + 1_000).done
    assert common.wait_until(done, 60), "not everything ran"
    starts = common.starts(len(due), first + 1_000)
    return [(start - at) * 1000 for (start, _), at in zip(starts, due, strict=True)]


def home_of(topic: str, pids: set[int]) -> int:
    """Which of these worker processes is the home of the topic's first partition."""
    from django_delayq.store import get_store
    from django_delayq.store.keys import Partition
    from django_delayq.worker.fleet import score, seed_of

    names = [name for name in get_store().workers.heartbeats() if _pid(name) in pids]
    return _pid(max(names, key=lambda name: score(seed_of(name), Partition(topic, 0))))


def _pid(worker: str) -> int:
    return int(worker.split(":")[1])


def precise(options: common.Options) -> None:
    """One worker and 16, by turns."""
    p99: dict[int, list[float]] = {1: [], MANY: []}
    early = 0
    for number in range(options.runs):
        for workers in (1, MANY):
            with ExitStack() as stack:
                crew = [
                    stack.enter_context(common.BenchWorker(*options.worker)) for _ in range(workers)
                ]
                crew[0].warm_up()
                time.sleep(3)
                first = 100_000 + (2 * number + (workers > 1)) * 20_000
                late, _ = steady(options.scaled(PRECISE_S, 2), first=first)
                p99[workers].append(late.p99_ms)
                early += late.early
    common.report(
        "fleet",
        median(p99[MANY]),
        "ms p99",
        case=f"precision, {MANY} workers",
        one_worker_ms=median(p99[1]),
        ratio=median([many / one for one, many in zip(p99[1], p99[MANY], strict=True)]),
        early=early,
        runs=options.runs,
    )


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in (text or "").split(",") if number]


def main(arguments: list[str]) -> None:
    """Further arguments go to run_delayq."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--workers", help="of the parts idle and lone, such as 1,64")
    parser.add_argument("--topics")
    known, rest = parser.parse_known_args(arguments)
    parts, options = known.parts.split(","), common.options(rest, 3)
    if {"idle", "lone"} & {*parts}:
        workers, topics = _numbers(known.workers) or WORKERS, _numbers(known.topics) or TOPICS
        costs(options, parts, workers, topics)
    if {"failure", "precision"} & {*parts}:
        with common.bench_server():
            if "failure" in parts:
                failures(options)
            if "precision" in parts:
                precise(options)


if __name__ == "__main__":
    main(sys.argv[1:])
