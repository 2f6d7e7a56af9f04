"""Pruning beside the archiver: rows a second that go while others come, and alone; per database."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

from tests import databases
from tests.benchmarks import archive_rate, common, on_database
from tests.benchmarks.common import median

COUNT = 50_000
RUNS = 3
KEPT = timedelta(days=30)


def main(arguments: list[str]) -> None:
    """Each kind of database."""
    own = on_database.arguments_of("pruning", databases.KINDS, arguments)
    if own is not None:
        measure(common.options(own, RUNS))


def measure(options: common.Options) -> None:
    """One database: each run prunes as many rows as the archiver inserts."""
    kind = databases.kind_of(json.loads(os.environ[databases.VARIABLE]))
    count = options.scaled(COUNT, 1_000)
    alone, beside, coming = [], [], []
    with common.bench_server():
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        for number in range(options.runs):
            with common.BenchWorker() as worker:
                worker.warm_up(100)
                archive_rate._finish(count, 2 * number * count)
                _archive()
                _make_old()
                alone.append(_prune())
                archive_rate._finish(count, (2 * number + 1) * count)
                _archive()
                _make_old()
                archive_rate._finish(count, (2 * number + 2) * count)
            waiting = archive_rate._unarchived()
            with common.BenchWorker("--archiver", archiver=True):
                begun = time.perf_counter()
                beside.append(_prune())
                pruned_s = time.perf_counter() - begun
                came = waiting - archive_rate._unarchived()
                coming.append(came / pruned_s)
                assert common.wait_until(lambda: not archive_rate._unarchived(), 120)
            _make_old()
            _prune()
    common.report(
        "pruning",
        median(beside),
        "rows/s",
        case=kind,
        alone=median(alone),
        archived_meanwhile=median(coming),
        runs=options.runs,
    )


def _archive() -> None:
    from django_delayq.archive.archiver import Archiver
    from django_delayq.store import get_store

    archiver = Archiver(get_store(), "bench")
    while archive_rate._unarchived():
        archiver.run_once()
        archiver._began_at = 0.0  # a service would wait


def _make_old() -> None:
    """All rows are as old as those that go."""
    from django.utils import timezone

    from django_delayq.models import ArchivedMessage

    at = timezone.now() - KEPT - timedelta(days=1)
    ArchivedMessage.objects.update(finished_at=at)


def _prune() -> float:
    """Rows a second, as the retention prunes them."""
    from django_delayq.archive import retention
    from django_delayq.archive.prune import prune

    begun = time.perf_counter()
    done = prune(KEPT, state="acked", exported=True, batch=retention.BATCH)
    assert done.count, "nothing was old"
    return done.count / (time.perf_counter() - begun)


if __name__ == "__main__":
    main(sys.argv[1:])
