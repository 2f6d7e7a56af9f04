"""The statistics of a lake of ten million rows: cold, warm and once more, with 1 GB of driver
memory.

Percentiles of each topic are compared with exact ones. The second run of the same must write
nothing.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from pyarrow import parquet

from django_delayq.pipeline.lake.lake import Lake
from tests import databases
from tests.benchmarks import common, on_database, seed
from tests.benchmarks.pipeline_export import MASTER, MEMORY, peak_memory
from tests.benchmarks.versus import made_lake

ROWS = 10_000_000
MOST_SECONDS, MOST_ERROR = 15.0, 0.045
METRICS = {"late": "lateness_ms", "run": "run_ms"}
SHARES = {"p50_ms": 0.5, "p99_ms": 0.99}


def main(arguments: list[str]) -> None:
    """On PostgreSQL."""
    own = on_database.arguments_of("pipeline_stats", ("postgresql",), arguments)
    if own is None:
        return
    measure(common.options(own, 3))


def measure(options: common.Options) -> None:
    """One database: a cold run, then warm ones from the beginning, then one of what is there
    already."""
    kind = databases.kind_of(json.loads(os.environ[databases.VARIABLE]))
    seed.set_up()
    from django_delayq.pipeline.session import build_session

    with tempfile.TemporaryDirectory() as folder:
        rows = options.scaled(ROWS, 10_000)
        begun = time.monotonic()
        lake = _committed(made_lake.make(Path(folder, "lake"), rows))
        made_s = time.monotonic() - begun
        with peak_memory() as peak:
            begun = time.monotonic()
            spark = build_session(MASTER, MEMORY)
            try:
                cold, report = _compute(spark, lake)
                cold_s = time.monotonic() - begun
                worked = common.cpu_seconds(psutil.Process())
                warm = [_compute(spark, lake)[0] for _ in range(options.runs)]
                worked = (common.cpu_seconds(psutil.Process()) - worked) / options.runs
                again, second = _compute(spark, lake, forget=False)
            finally:
                spark.stop()
        error = _largest_error(lake, report.rows)
    assert report.figures["rows"] == rows, report.figures
    common.report(
        "pipeline_stats", common.median(warm), "s", case=kind, bar_s=MOST_SECONDS, cold_s=cold, with_start_s=cold_s,
        warm_s=", ".join(f"{one:.1f}" for one in warm), warm_cpu_s=worked, again_s=again,
        replaced_again=second.figures["replaced"], same_again=second.figures["same"],
        hours=report.figures["hours"], days=report.figures["days"],
        largest_error=error, bar_error=MOST_ERROR, rows=rows, memory=MEMORY, peak_rss_mb=peak[0] / 1e6, made_s=made_s,
    )  # fmt: skip
    if second.figures["replaced"] or error > MOST_ERROR or common.median(warm) > MOST_SECONDS:
        print("  MISSED")


def _compute(spark: Any, lake: Lake, *, forget: bool = True) -> tuple[float, Any]:
    """The whole job: seconds, and its report."""
    from django_delayq.models import LakeBatch, TaskDay, TopicHour
    from django_delayq.pipeline import params_from_django
    from django_delayq.pipeline.stats import stats

    if forget:
        for model in (TopicHour, TaskDay):
            model.objects.all().delete()
        LakeBatch.objects.update(counted_at=None)
    with params_from_django.parameters(lake=lake.storage, job={"everything": not forget}) as params:
        begun = time.monotonic()
        report = stats.run(spark, params, lambda line: print(f"  {line}", flush=True))
        return time.monotonic() - begun, report


def _committed(made: Lake) -> Lake:
    """The same lake, in a ledger that knows it."""
    from django_delayq.models import LakeBatch
    from django_delayq.pipeline.lake.ledger import Ledger

    LakeBatch.objects.all().delete()
    ledger = Ledger(made)
    for one in made.appended(-1):
        ledger.committed((one.lo, one.hi), one.version, one.rows)
    return made


def _largest_error(lake: Lake, lines: Sequence[Any]) -> float:
    """Of all percentiles of all topics, as a part of the exact one."""
    columns = ["topic", *METRICS.values()]
    parts = [parquet.read_table(path, columns=columns, partitioning=None) for path in lake.uris()]
    topics = np.concatenate([part["topic"].to_numpy(zero_copy_only=False) for part in parts])
    worst = 0.0
    for name, column in METRICS.items():
        values = np.concatenate([part[column].to_numpy(zero_copy_only=False) for part in parts])
        for line in lines:
            ran = np.sort(values[(topics == line["topic"]) & ~np.isnan(values)])
            for percent, share in SHARES.items():
                exact = ran[max(1, int(np.ceil(share * len(ran)))) - 1]
                worst = max(worst, abs(line[f"{name}_{percent}"] - exact) / exact)
    return worst


if __name__ == "__main__":
    main(sys.argv[1:])
