"""The statistics of a lake of ten million rows: cold, warm and once more, with 1 GB of driver
memory.

Beside each warm run DuckDB computes the same figures of the same files, with histograms, too.
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

import duckdb
import numpy as np
import pyarrow.compute as pc
from pyarrow import parquet

from django_delayq.pipeline.lake.lake import Lake
from tests import databases
from tests.benchmarks import common, on_database, seed
from tests.benchmarks.pipeline_export import MASTER, MEMORY, peak_memory
from tests.benchmarks.versus import duck_figures, made_lake

ROWS = 10_000_000
MOST_ERROR, MOST_RATIO = 0.045, 3.0
METRICS = {"late": "lateness_ms", "run": "run_ms"}
SHARES = {"p50_ms": 0.5, "p99_ms": 0.99}
#: Hours by topic, and days by topic and task.
SPANS = """
    SELECT date_trunc('hour', finished_at::TIMESTAMP) AS hour, date_trunc('day', finished_at::TIMESTAMP) AS day,
           topic, task, {figures},
           histogram(bucket(lateness_ms)) AS lateness, histogram(bucket(run_ms)) AS run
    FROM read_parquet($files, hive_partitioning = false)
    GROUP BY GROUPING SETS ((hour, topic), (day, topic, task))
"""
ERRORS = """
    SELECT date_trunc('day', finished_at::TIMESTAMP) AS day, topic, task,
           CASE error_class WHEN '' THEN reason ELSE error_class END AS error, count(*) AS n
    FROM read_parquet($files, hive_partitioning = false) WHERE state = 'dead' GROUP BY ALL
"""


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
        lake = committed(made_lake.make(Path(folder, "lake"), rows))
        made_s = time.monotonic() - begun
        with peak_memory() as peak:
            begun = time.monotonic()
            spark = build_session(MASTER, MEMORY)
            try:
                cold, report = compute(spark, lake)
                cold_s = time.monotonic() - begun
                turns = [
                    (compute(spark, lake)[0], _by_duckdb(lake, rows)) for _ in range(options.runs)
                ]
                again, second = compute(spark, lake, forget=False)
            finally:
                spark.stop()
        error = _largest_error(lake, report.rows)
    assert report.figures["rows"] == rows, report.figures
    warm, by_duckdb = (common.median(list(column)) for column in zip(*turns, strict=True))
    of_duckdb = warm / by_duckdb
    common.report(
        "pipeline_stats", warm, "s", case=kind, cold_s=cold, with_start_s=cold_s,
        warm_s=", ".join(f"{one:.1f}" for one, _ in turns), again_s=again, duckdb_s=by_duckdb, of_duckdb=of_duckdb, bar_of_duckdb=MOST_RATIO,
        replaced_again=second.figures["replaced"], same_again=second.figures["same"],
        hours=report.figures["hours"], days=report.figures["days"],
        largest_error=error, bar_error=MOST_ERROR, rows=rows, memory=MEMORY, peak_rss_mb=peak[0] / 1e6, made_s=made_s,
    )  # fmt: skip
    missed = error > MOST_ERROR or of_duckdb > MOST_RATIO
    if second.figures["replaced"] or missed:
        print("  MISSED")


def compute(spark: Any, lake: Lake, *, forget: bool = True) -> tuple[float, Any]:
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
        report = stats.run(spark, params, lambda line, *_: print(f"  {line}", flush=True))
        return time.monotonic() - begun, report


def _by_duckdb(lake: Lake, rows: int) -> float:
    """Seconds of DuckDB for the same figures, with the memory that Java has. It writes nothing."""
    connection = duckdb.connect(config={"memory_limit": f"{MEMORY}b"})
    connection.execute("SET TimeZone = 'UTC'")
    for macro in duck_figures.MACROS:
        connection.execute(macro)
    files = {"files": lake.uris()}
    query = SPANS.format(figures=duck_figures.FIGURES)
    begun = time.monotonic()
    spans = connection.sql(query, params=files).to_arrow_table()
    connection.sql(ERRORS, params=files).to_arrow_table()
    seconds = time.monotonic() - begun
    assert pc.sum(spans["messages"]).as_py() == 2 * rows  # once in hours, once in days
    return seconds


def committed(made: Lake) -> Lake:
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
