"""A session that starts quickly, and is quick with a few rows; figures come from
tests/benchmarks."""

from __future__ import annotations

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.default.parallelism": "2",
}
#: The code cache is that small with one compiler that Java throws code away and compiles it again.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
