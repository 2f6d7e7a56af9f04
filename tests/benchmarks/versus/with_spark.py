"""Spark with the transforms of the package: LAKE DRIVER_MEMORY. Histograms; percentiles are taken from them in the end."""

from __future__ import annotations

import sys
from typing import Any

from django_delayq.histogram import percentile
from django_delayq.pipeline import transforms
from django_delayq.pipeline.lake import Lake
from django_delayq.pipeline.session import build_session
from django_delayq.pipeline.sources.lake import read_lake

from .answer import COLUMNS, KEYS, SHARES, give


def main(lake: str, memory: str) -> None:
    """On two cores."""
    import pyspark
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    spark = build_session("local[2]", memory)
    frame = read_lake(spark, Lake(lake), list(COLUMNS)).withColumn("hour", F.date_trunc("hour", "finished_at"))
    rows = transforms._figures(frame, KEYS).select("messages", "attempts", "lateness", "run").collect()
    give(((row[0], row[1], _shares(row[2]), _shares(row[3])) for row in rows), version=pyspark.__version__)
    spark.stop()


def _shares(cells: Any) -> list[float | None]:
    counts = {cell[0]: cell[1] for cell in cells or ()}
    return [percentile(counts, share) for share in SHARES]


if __name__ == "__main__":
    main(*sys.argv[1:])
