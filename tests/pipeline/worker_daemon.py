"""PySpark's daemon, which forks the Python workers of a session, with their imports done.

Each fork would import them anew: that is most of what a small data source takes.
"""

from __future__ import annotations

import importlib

from pyspark import daemon

MODULES = (
    "numpy",
    "pandas",
    "pyarrow.parquet",
    "pyspark.sql.datasource",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "redis",
    "django_delayq.pipeline.sinks.queue_sink",
    "django_delayq.pipeline.sources.archive_source",
    "django_delayq.pipeline.sources.outbox_source",
    "django_delayq.pipeline.sources.query_source",
    "django_delayq.pipeline.sources.queue_source",
)

if __name__ == "__main__":
    for name in MODULES:
        importlib.import_module(name)
    daemon.manager()
