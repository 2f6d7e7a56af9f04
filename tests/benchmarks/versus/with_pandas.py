"""pandas: PATHS."""

from __future__ import annotations

import pandas as pd
from answer import COLUMNS, KEYS, SHARES, give, paths
from pyarrow import parquet

STATES = ("acked", "dead", "cancelled", "expired")


def main() -> None:
    """Exact percentiles. Names are categories: as text they would take several times as much."""
    names = ["topic", "task", "state"]
    table = parquet.read_table(
        paths(), columns=list(COLUMNS), read_dictionary=names, partitioning=None
    )
    frame = table.to_pandas(self_destruct=True)
    del table
    frame["hour"] = frame["finished_at"].dt.floor("h")
    for state in STATES:
        frame[state] = frame["state"] == state
    frame["retried"] = frame["attempts"] > 1
    groups = frame.groupby(list(KEYS), observed=True)
    figures = groups.agg(
        messages=("attempts", "size"), attempts=("attempts", "sum"), retried=("retried", "sum"),
        **{state: (state, "sum") for state in STATES},
        lateness_sum=("lateness_ms", "sum"), lateness_max=("lateness_ms", "max"),
        run_sum=("run_ms", "sum"), run_max=("run_ms", "max"),
    )  # fmt: skip
    late, run = (
        groups[name]
        .quantile(list(SHARES), interpolation="higher")
        .unstack()
        .fillna(0.0)
        .reindex(figures.index)
        for name in ("lateness_ms", "run_ms")
    )
    rows = zip(
        figures["messages"], figures["attempts"], late.to_numpy(), run.to_numpy(), strict=True
    )
    give(rows, version=pd.__version__)


if __name__ == "__main__":
    main()
