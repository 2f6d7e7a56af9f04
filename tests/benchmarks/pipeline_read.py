"""Reads two million rows of the archive into Spark, all columns: by COPY, from SQLite, and by
Django's cursor; beside two processes that read the same to Arrow without Spark, by turns."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from tests import databases
from tests.benchmarks import common, on_database, seed
from tests.benchmarks.common import median
from tests.benchmarks.pipeline_export import peak_memory, raw_rate

ROWS = 2_000_000
RUNS = 3
PARTS = 8
MASTER, MEMORY = "local[2]", "1g"
#: By the kind of the database.
READERS = {"postgresql": ("auto", "cursor"), "sqlite": ("auto", "cursor"), "mariadb": ("auto",)}
#: Of the rate of two processes that read the same to Arrow without Spark.
LEAST_RATIO = 0.5


def main(arguments: list[str]) -> None:
    """Each kind of database. --seeded: its rows are there already."""
    own = on_database.arguments_of("pipeline_read", list(READERS), arguments)
    if own is None:
        return
    known = common.options([one for one in own if one != "--seeded"], RUNS)
    measure(known, "--seeded" in own)


def measure(options: common.Options, seeded: bool) -> None:
    """One database, by each of its readers."""
    kind = databases.kind_of(json.loads(os.environ[databases.VARIABLE]))
    seed.set_up()
    rows = options.scaled(ROWS, 2_000)
    took = None if seeded else seed.fill(rows)
    from django_delayq.pipeline import params_from_django
    from django_delayq.pipeline.session import build_session

    spark = build_session(MASTER, MEMORY)
    try:
        with params_from_django.parameters() as params:
            for reader in READERS[kind]:
                _measure(spark, params, (kind, reader), (options.runs, rows, took))
    finally:
        spark.stop()


def _measure(
    spark: Any, params: Any, case: tuple[str, str], told: tuple[int, int, float | None]
) -> None:
    runs, rows, took = told
    times, raw = list[float](), list[float]()
    with peak_memory() as peak:
        for run in range(runs + 1):
            seconds, rate = _read(spark, params, case[1], rows), raw_rate(rows, case[1])
            if run:  # the first one warms up
                times.append(seconds)
                raw.append(rate)
    rate = rows / median(times)
    common.report(
        "pipeline_read", rate, "rows/s", case=" ".join(case), ceiling=median(raw),
        ceiling_is="two processes without Spark", ratio=rate / median(raw), bar_ratio=LEAST_RATIO, best=rows / min(times),
        rows=rows, parts=PARTS, memory=MEMORY, seed_s=took, peak_rss_mb=peak[0] / 1e6, runs=runs,
    )  # fmt: skip


def _read(spark: Any, params: Any, reader: str, rows: int) -> float:
    """Seconds that it takes to read all columns of all rows, and to do nothing with them."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    from django_delayq.pipeline.source_options import encoded

    source = spark.read.format("delayq_archive").option("database", encoded(params.database))
    frame = source.options(lo="0", hi=str(2**62), parts=str(PARTS), reader=reader).load()
    seen = Observation()
    begun = time.perf_counter()
    frame.observe(seen, F.count(F.lit(1)).alias("rows")).write.format("noop").mode(
        "overwrite"
    ).save()
    seconds = time.perf_counter() - begun
    assert seen.get["rows"] == rows, seen.get
    return seconds


if __name__ == "__main__":
    main(sys.argv[1:])
