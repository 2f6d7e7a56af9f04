"""The data pipeline on Spark: jobs over the archive, the queue and the lake.

Only management imports it, and a worker never does. It may import everything below it. Start with
jobs.py, the list of jobs and of their modules. The jobs stand on lake/, which stands on sources/
and sinks/.
"""

from __future__ import annotations

__all__ = [
    "audit", "bulk_load", "export", "forecast", "job_errors", "jobs", "lake", "lineage", "params",
    "params_from_django", "schemas", "session", "sinks", "sources", "stats",
]  # fmt: skip
