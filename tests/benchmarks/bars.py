"""What the figures must reach, as agreed before they were measured. Lower is better for those with
a "<="."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Bar(NamedTuple):
    """One demand on one field of one result."""

    workload: str
    field: str
    sign: str
    limit: float
    text: str
    case: str = ""
    """Where the workload has several; empty: all of them."""

    def applies(self, result: Mapping[str, Any]) -> bool:
        """Whether it is about this result, which must be ours."""
        if result["workload"] != self.workload or "peer" in result or self.field not in result:
            return False
        return not self.case or result.get("case") == self.case

    def met(self, result: Mapping[str, Any]) -> bool:
        """Whether the result reaches it."""
        value = result[self.field]
        return bool(value >= self.limit if self.sign == ">=" else value <= self.limit)


MILLION = "1,000,000 waiting"

BARS = (
    Bar("best burst", "ratio", ">=", 0.85, "of a bare loop, best process setting"),
    Bar("archive", "ratio", ">=", 0.64, "of a bare loop, archive stream on", "archive on"),
    Bar("archive_rate", "ratio", ">=", 0.5, "of raw COPY", "postgresql"),
    Bar("archive_rate", "ratio", ">=", 0.6, "of raw INSERT of 1,000 rows", "mariadb"),
    Bar("archive_rate", "ratio", ">=", 0.7, "of raw INSERT of 1,000 rows", "sqlite"),
    Bar("pruning", "figure", ">=", 5_000, "rows/s beside the archiver"),
    Bar("archiving", "drain_ratio", ">=", 0.67, "of the burst's rate while archiving", "sqlite"),
    Bar(
        "archiving", "drain_ratio", ">=", 0.67, "of the burst's rate while archiving", "postgresql"
    ),
    Bar("burst", "early", "<=", 0, "early"),
    Bar("precision", "figure", "<=", 1, "ms p50"),
    Bar("precision", "p99_ms", "<=", 5, "ms p99"),
    Bar("precision", "max_ms", "<=", 30, "ms at most"),
    Bar("precision", "early", "<=", 0, "early"),
    Bar("precision", "cpu_percent", "<=", 8, "% of a core"),
    Bar("enqueue", "ratio", ">=", 0.80, "of a raw EVALSHA per message"),
    Bar("bulk", "ratio", ">=", 0.45, "of raw EVALSHA of 500"),
    Bar("bytes", "figure", "<=", 330, "bytes"),
    Bar("idle", "figure", "<=", 2, "commands/s", MILLION),
    Bar("idle", "cpu_percent", "<=", 1, "% of a core", MILLION),
    Bar("idle", "rss_mb", "<=", 70, "MB", MILLION),
    Bar("fleet", "for_each_topic", "<=", 2, "commands/s", "idle, 64 workers, 1 topics"),
    Bar("fleet", "for_each_topic", "<=", 2, "commands/s", "idle, 64 workers, 1,000 topics"),
    Bar("fleet", "figure", "<=", 20, "commands/s", "idle, 1 workers, 1,000 topics"),
    Bar("fleet", "figure", "<=", 3, "script calls/message", "lone, 64 workers, 1 topics"),
    Bar("fleet", "figure", "<=", 1_000, "ms late at most", "home killed"),
    Bar("fleet", "figure", "<=", 1_000, "ms late at most", "home frozen"),
    Bar("fleet", "ratio", "<=", 1, "of the p99 with one worker", "precision, 16 workers"),
    Bar("bodies", "figure", "<=", 10, "ms for the longest call", "64 KiB"),
    Bar("bodies", "figure", "<=", 30, "ms for the longest call", "1024 KiB"),
    Bar("pages", "figure", "<=", 150, "ms for the slowest page"),
    Bar("pages", "queries", "<=", 6, "queries"),
    Bar("overview", "figure", "<=", 30, "ms for the overview"),
    Bar("many_topics", "figure", "<=", 150, "ms for the slowest page"),
    Bar("many_topics", "queries", "<=", 6, "queries"),
    Bar("many_topics", "overview_kb", "<=", 100, "KB for the overview"),
    Bar("release", "longest_script_ms", "<=", 10, "ms for the longest script"),
    Bar("release", "neighbour_p99_ms", "<=", 50, "ms p99 of another topic"),
    Bar("release", "against_burst", ">=", 0.8, "of the burst's rate"),
    Bar("orders", "against_single", ">=", 10, "times single messages", "batch"),
    Bar("orders", "to_python_peers", ">=", 25, "times the best Python peer", "batch, 2 processes"),
    Bar("orders", "seconds", "<=", 0.7, "s for 20,000 orders", "batch, 2 processes"),
    Bar("orders", "seconds", "<=", 1, "s for 20,000 orders", "exactly once, 2 processes"),
    Bar("orders", "to_python_peers", ">=", 4, "times the best Python peer", "single, 2 processes"),
    Bar("orders", "to_graphile", ">=", 1.3, "times Graphile Worker", "single, 2 processes"),
    Bar("capacity", "off_by", "<=", 0.25, "of what was predicted"),
    Bar("async_io", "ratio", ">=", 0.38, "of asyncio workers without a queue"),
    Bar("growth", "against_first", "<=", 1.3, "times the claim cost beside 10^4", MILLION),
    Bar("pipeline_read", "ratio", ">=", 0.5, "of two processes without Spark"),
    Bar("pipeline_export", "of_raw_copy", ">=", 0.35, "of raw COPY to Arrow by two processes"),
    Bar("pipeline_stats", "largest_error", "<=", 0.045, "of a percentile"),
    Bar("pipeline_stats", "of_duckdb", "<=", 3, "times DuckDB's seconds, beside Spark's start"),
    Bar("pipeline_stats", "replaced_again", "<=", 0, "figures changed by a second run"),
    Bar("pipeline_schedule", "added_again", "<=", 0, "added by the same job again"),
    Bar("pipeline_schedule", "came_back", "<=", 0, "of those that had finished came back"),
    Bar(
        "pipeline_schedule", "figure", ">=", 0.8, "of a raw client's rate, by Spark", "against raw"
    ),
    Bar(
        "pipeline_schedule",
        "one_process",
        ">=",
        0.8,
        "of a raw client's rate, by send --file",
        "against raw",
    ),
    Bar("pipeline_forecast", "figure", "<=", 2, "times a raw scan of 1,000,000", "1 partitions"),
    Bar("pipeline_forecast", "figure", "<=", 2, "times a raw scan of 1,000,000", "4 partitions"),
    Bar("pipeline_forecast", "forecast_s", "<=", 15, "s for 1,000 topics", "many topics"),
    Bar("pipeline_forecast", "rows_written", "<=", 30_000, "rows for 1,000 topics", "many topics"),
    Bar("pipeline_lake", "figure", "<=", 0.3, "s to open 10,000 commits", "open, compacted"),
    Bar("pipeline_lake", "figure", "<=", 0.5, "s for a commit", "commit, compacted"),
    Bar("pipeline_lake", "figure", "<=", 1, "s to plan a read of one day", "plan, compacted"),
    Bar("pipeline_cluster", "of_local", "<=", 1, "times the seconds of local[2]"),
    Bar("pipeline_memory", "figure", "<=", 200, "MB more for ten times the rows"),
    Bar("pipeline_interval", "differing", "<=", 0, "rows that differ after three kills"),
    Bar("growth", "p50_against_first", "<=", 1.3, "times the p50 lateness beside 10^4", MILLION),
)

PEER_FACTORS = {"bullmq": 3.5, "graphile": 2.5}
"""How many times the burst of a peer, in the same run, ours must be."""
