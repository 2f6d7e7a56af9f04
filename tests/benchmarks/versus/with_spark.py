"""Spark as the job stats uses it: LAKE DRIVER_MEMORY. Histograms, and percentiles of these in the
end."""

from __future__ import annotations

import sys
from functools import partial

from django_delayq.pipeline import transforms
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.session import build_session
from django_delayq.pipeline.sources.lake_files import mapped_files
from django_delayq.pipeline.stats import aggregates
from django_delayq.pipeline.stats.aggregates import HOUR, READ, Unit
from django_delayq.stats.histogram import decode, percentile
from tests.benchmarks.versus.answer import SHARES, give


def main(path: str, memory: str) -> None:
    """On two cores. What the job computes, at another grain than its two, which are hour x topic,
    and day x topic x task."""
    import pyspark

    spark = build_session("local[2]", memory)
    lake = Lake(path)
    count = partial(aggregates.cells, units=(Unit("hour", HOUR, ("topic", "task"), False),))
    found = transforms.added_up(
        mapped_files(spark, lake, lake.files(), READ, count, aggregates.CELLS)
    )
    rows = (
        transforms.figures(found, "hour")
        .select("messages", "attempts", "lateness", "run")
        .collect()
    )
    give(
        ((row[0], row[1], _shares(row[2]), _shares(row[3])) for row in rows),
        version=pyspark.__version__,
    )
    spark.stop()


def _shares(text: str) -> list[float | None]:
    counts = decode(text)
    return [percentile(counts, share) for share in SHARES]


if __name__ == "__main__":
    main(*sys.argv[1:])
