"""Polars, its streaming engine: PATHS. Run by the Python of its own environment."""

from __future__ import annotations

import polars as pl
from answer import SHARES, give, paths


def main() -> None:
    """Exact percentiles."""
    state, late, run = pl.col("state"), pl.col("lateness_ms"), pl.col("run_ms")
    counts = [(state == one).sum().alias(one) for one in ("acked", "dead", "cancelled", "expired")]
    sums = [(pl.col("attempts") > 1).sum().alias("retried"), pl.col("attempts").sum()]
    extremes = [late.sum().alias("lateness_sum"), late.max().alias("lateness_max"), run.sum().alias("run_sum"),
                run.max().alias("run_max")]  # fmt: skip
    shares = [
        column.quantile(share, "equiprobable").alias(f"{column.meta.output_name()}_{share}")
        for column in (late, run)
        for share in SHARES
    ]
    frame = pl.scan_parquet(paths(), hive_partitioning=False).group_by(
        pl.col("finished_at").dt.truncate("1h").alias("hour"), "topic", "task"
    )
    result = frame.agg(pl.len().alias("messages"), *counts, *sums, *extremes, *shares).collect(
        engine="streaming"
    )
    names = [
        "messages",
        "attempts",
        *(f"{name}_{share}" for name in ("lateness_ms", "run_ms") for share in SHARES),
    ]
    give(
        ((row[0], row[1], row[2:5], row[5:]) for row in result.select(names).iter_rows()),
        version=pl.__version__,
    )


if __name__ == "__main__":
    main()
