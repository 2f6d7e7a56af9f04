"""The data pipeline on Spark: jobs over the archive, the queue and the lake. No worker imports it.

May import everything but management, admin and testing. Start with jobs.py (which jobs there
are), then runner.py (how one runs); each job has a package.
"""

from __future__ import annotations

__all__ = [
    "audit", "bulk_load", "error_messages", "errors", "export", "forecast", "jobs", "lake",
    "options", "package", "params", "params_from_django", "rendering", "runner", "schemas",
    "session", "sinks", "sources", "stats", "tempdirs", "transforms",
]  # fmt: skip
