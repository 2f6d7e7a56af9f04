"""The forecast of a million waiting messages, in one partition and in four: seconds, and rows a
second of the reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import databases
from tests.benchmarks import common
from tests.benchmarks.common import median

WAITING, RUNS = 1_000_000, 3
MOST_S, LEAST_ROWS = 6.0, 400_000
PARTITIONS = (1, 4)
CHUNK = 1_000
"""Messages that are due at the same instant: a few minutes of each hour have some, over two weeks.
"""


def main(arguments: list[str]) -> None:
    """Each number of partitions by a process of its own: the settings are read once."""
    if "--one" in arguments:
        measure(common.options([one for one in arguments if one != "--one"], RUNS))
        return
    run = [sys.executable, "-m", "tests.benchmarks.pipeline_forecast", "--one", *arguments]
    with tempfile.TemporaryDirectory(dir=common.MEMORY) as folder:
        for count in PARTITIONS:
            entry = {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(Path(folder, f"{count}.sqlite3")),
            }
            own = {databases.VARIABLE: json.dumps(entry), "DELAYQ_BENCH_PARTITIONS": str(count)}
            subprocess.run(run, check=True, env={**os.environ, **own})


def measure(options: common.Options) -> None:
    """One number of partitions, in a session that has run the job once."""
    count = options.scaled(WAITING, 10_000)
    with common.bench_server():
        from django.core.management import call_command

        from django_delayq.pipeline import params_from_django
        from django_delayq.pipeline.forecast import forecast
        from django_delayq.pipeline.session import build_session
        from django_delayq.pipeline.sources.queue_source import read_queue

        call_command("migrate", verbosity=0)
        _fill(count)
        spark = build_session("local[2]")
        with params_from_django.parameters(job={"drain_rate": 1_000.0}) as params:
            job = {
                "forecast": lambda: _checked(forecast.run(spark, params, bool), count),
                "due": lambda: _drain(read_queue(spark, params.redis, due_only=True)),
                "whole": lambda: _drain(read_queue(spark, params.redis)),
            }
            first = _timed(job["forecast"])
            took = {
                name: median([_timed(one) for _ in range(options.runs)])
                for name, one in job.items()
            }
        spark.stop()
        common.report(
            "pipeline_forecast", took["forecast"], "s", case=f"{os.environ['DELAYQ_BENCH_PARTITIONS']} partitions",
            bar_s=MOST_S, first_s=first, waiting=count, due_rows_per_second=count / took["due"],
            bar_rows_per_second=LEAST_ROWS, whole_rows_per_second=count / took["whole"],
        )  # fmt: skip


def _fill(count: int) -> None:
    from tests.benchmarks.tasks import noop

    chunks = range(0, count, CHUNK)
    for nth, at in enumerate(chunks):
        later = noop.using(delay=60 + 14 * 86_400 * nth / len(chunks))
        later.enqueue_many(
            (1_000_000 + index, "x" * 88) for index in range(at, min(count, at + CHUNK))
        )


def _checked(report: Any, count: int) -> None:
    assert report.figures["waiting"] == count, report.figures


def _drain(frame: Any) -> None:
    """Read it, and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def _timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main(sys.argv[1:])
