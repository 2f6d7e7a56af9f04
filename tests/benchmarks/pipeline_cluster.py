"""The statistics of a lake in Spark on this machine (`local[2]`), and on a standalone master with two
workers of a core each, by turns: warm, each in sessions of its own.

A cluster has three Javas where `local[2]` has one, and each compiles for itself: warm is a session
that has computed a few times."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.benchmarks import common, on_database, seed
from tests.benchmarks.pipeline_export import MASTER, MEMORY
from tests.benchmarks.pipeline_stats import committed, compute
from tests.benchmarks.versus import made_lake
from tests.pipeline.clusters import Cluster

ROWS, RUNS = 10_000_000, 3
#: Sessions of each kind.
TURNS = 2
#: Computed before in each session.
WARM = 10


def main(arguments: list[str]) -> None:
    """On PostgreSQL."""
    own = on_database.arguments_of("pipeline_cluster", ("postgresql",), arguments)
    if own is not None:
        measure(common.options(own, RUNS))


def measure(options: common.Options) -> None:
    """Both kinds by turns."""
    seed.set_up()
    from django_delayq.pipeline.session import build_session

    rows = options.scaled(ROWS, 10_000)
    with tempfile.TemporaryDirectory() as folder:
        lake = committed(made_lake.make(Path(folder, "lake"), rows))
        java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
        environment = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **java}
        cluster = Cluster(Path(folder), environment)
        found: dict[str, list[float]] = {MASTER: [], cluster.url: []}
        with cluster.running():
            for master in list(found) * TURNS:
                spark = build_session(master, MEMORY)
                try:
                    for _ in range(options.scaled(WARM)):
                        compute(spark, lake)
                    found[master] += [compute(spark, lake)[0] for _ in range(options.runs)]
                finally:
                    spark.stop()
    local, on_cluster = map(common.median, found.values())
    common.report(
        "pipeline_cluster", on_cluster, "s", local_s=local, of_local=on_cluster / local,
        bar_of_local=1.0, rows=rows, runs=options.runs * TURNS,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
