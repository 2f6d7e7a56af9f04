"""The archiver: rows a second by itself, and what a drain loses while it runs on the same cores;
per database."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from tests import databases
from tests.benchmarks import common, on_database
from tests.benchmarks.burst import drain
from tests.benchmarks.common import median

COUNT = 100_000
BURST = 20_000
RUNS = 3

_used = 0


def main(arguments: list[str]) -> None:
    """Each kind of database."""
    own = on_database.arguments_of("archiving", databases.KINDS, arguments)
    if own is None:
        return
    measure(common.options(own, RUNS))


def measure(options: common.Options) -> None:
    """One database."""
    kind = databases.kind_of(json.loads(os.environ[databases.VARIABLE]))
    with common.bench_server():
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        rates = [_alone(options.scaled(COUNT, 1_000)) for _ in range(options.runs)]
        pairs = [_beside(options) for _ in range(options.runs)]
    common.report(
        "archiving",
        median(rates),
        "rows/s",
        case=kind,
        lowest=min(rates),
        highest=max(rates),
        drain_alone=median([alone for alone, _ in pairs]),
        drain_beside=median([beside for _, beside in pairs]),
        drain_ratio=median([beside / alone for alone, beside in pairs]),
        runs=options.runs,
    )


def _alone(count: int) -> float:
    """The archiver in a process of its own, nothing else to do: rows a second for what a drain has
    left."""
    from django_delayq.models import ArchivedMessage

    before = _rows(ArchivedMessage)
    with common.BenchWorker() as worker:
        worker.warm_up(100)
        drain(count, _fresh(count), head=1.5 + count / 50_000)
    waiting = _unarchived()
    with common.BenchWorker("--archiver", archiver=True):
        begun = time.perf_counter()
        assert common.wait_until(lambda: not _unarchived(), 120, every=0.005), (
            "the archiver did not finish"
        )
        took = time.perf_counter() - begun
    assert _rows(ArchivedMessage) - before == waiting, "rows are missing"
    return waiting / took


def _beside(options: common.Options) -> tuple[float, float]:
    """Messages a second of a drain without an archiver, and with one in the worker's process."""
    rates = []
    for archiver in (False, True):
        with common.BenchWorker(archiver=archiver) as worker:
            worker.warm_up()
            count = options.scaled(BURST, 500)
            rates.append(median([drain(count, _fresh(count)).per_second for _ in range(3)]))
        with common.BenchWorker("--archiver", archiver=True):
            assert common.wait_until(lambda: not _unarchived(), 120), "the archiver did not finish"
    return rates[0], rates[1]


def _fresh(count: int) -> int:
    """The first of so many numbers that no message has had."""
    global _used
    first, _used = _used, _used + count
    return first


def _unarchived() -> int:
    from django_delayq import topic_stats

    return topic_stats("bench").finished


def _rows(model: Any) -> int:
    rows: int = model.objects.count()
    return rows


if __name__ == "__main__":
    main(sys.argv[1:])
