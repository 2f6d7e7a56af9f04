"""Spark as the job stats uses it: LAKE DRIVER_MEMORY. Histograms, and percentiles of these in the
end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.session import build_session
from django_delayq.pipeline.stats import aggregates
from django_delayq.pipeline.stats.aggregates import HOUR, Unit
from django_delayq.stats.histogram import decode, percentile
from tests.benchmarks.versus.answer import SHARES, give


def count(batches: Iterator[Any]) -> Iterator[Any]:
    """On an executor: hours of tasks, and no days."""
    aggregates.HOURS_AND_DAYS = (Unit("hour", HOUR, ("topic", "task"), False),)
    return aggregates.aggregated(batches)


def main(path: str, memory: str) -> None:
    """On two cores. What the job computes, at another grain than its two, which are hour x topic,
    and day x topic x task."""
    import pyspark

    spark = build_session("local[2]", memory)
    lake = Lake(path)
    found = aggregates.aggregate_files(spark, lake.storage, lake.files(), count)
    rows = aggregates.figures_by_spark(found, 0)
    give(
        (
            (row["messages"], row["attempts"], _shares(row["lateness"]), _shares(row["run"]))
            for row in rows
        ),
        version=pyspark.__version__,
    )
    spark.stop()


def _shares(text: str) -> list[float | None]:
    counts = decode(text)
    return [percentile(counts, share) for share in SHARES]


if __name__ == "__main__":
    main(*sys.argv[1:])
