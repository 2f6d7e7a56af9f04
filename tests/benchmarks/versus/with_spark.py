"""Spark with the transforms of the package: LAKE DRIVER_MEMORY. Histograms, and percentiles of these in the end."""

from __future__ import annotations

import sys

from django_delayq.histogram import decode, percentile
from django_delayq.pipeline import transforms
from django_delayq.pipeline.cells import HOUR, READ, Unit
from django_delayq.pipeline.lake import Lake
from django_delayq.pipeline.session import build_session
from django_delayq.pipeline.sources.lake import read_lake

from .answer import SHARES, give


def main(lake: str, memory: str) -> None:
    """On two cores. What the job stats computes, at another grain than its two, which are hour x topic, and day x topic
    x task."""
    import pyspark

    spark = build_session("local[2]", memory)
    frame = read_lake(spark, Lake(lake), list(READ))
    found = transforms.counted(frame, (Unit("hour", HOUR, ("topic", "task"), False),))
    rows = transforms.figures(found, "hour").select("messages", "attempts", "lateness", "run").collect()
    give(((row[0], row[1], _shares(row[2]), _shares(row[3])) for row in rows), version=pyspark.__version__)
    spark.stop()


def _shares(text: str) -> list[float | None]:
    counts = decode(text)
    return [percentile(counts, share) for share in SHARES]


if __name__ == "__main__":
    main(*sys.argv[1:])
