"""DuckDB: PATHS exact|histogram [MEMORY_LIMIT]. Run by the Python of its own environment."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import duckdb
from answer import SHARES, give, paths
from duck_figures import FIGURES, MACROS

QUERY = """
    SELECT messages, attempts, lateness, run FROM (
        SELECT time_bucket(INTERVAL 1 HOUR, finished_at::TIMESTAMP) AS hour, topic, task, {figures},
               {lateness} AS lateness, {run} AS run
        FROM read_parquet(?, hive_partitioning = false) GROUP BY hour, topic, task
    )
"""


def main(way: str, limit: str) -> None:
    """Exact percentiles, or the histogram of the package."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    if limit:
        connection.execute(f"SET memory_limit = '{limit}'")
    made = {
        "exact": "quantile_disc({0}, [0.5, 0.95, 0.99])",
        "histogram": "histogram(bucket({0}))",
    }[way]
    for macro in MACROS:
        connection.execute(macro)
    query = QUERY.format(
        figures=FIGURES, lateness=made.format("lateness_ms"), run=made.format("run_ms")
    )
    rows = connection.execute(query, [paths()]).fetchall()
    if way == "histogram":
        percentile = _histogram().percentile
        rows = [
            (*row[:2], *([percentile(one or {}, share) for share in SHARES] for one in row[2:]))
            for row in rows
        ]
    give(
        ((*row[:2], *(values or (0,) * len(SHARES) for values in row[2:])) for row in rows),
        version=duckdb.__version__,
    )


def _histogram() -> Any:
    """Our module, which needs nothing else of ours."""
    path = Path(__file__).resolve().parents[3] / "django_delayq" / "stats" / "histogram.py"
    spec = importlib.util.spec_from_file_location("histogram", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(sys.argv[2], "".join(sys.argv[3:]))
