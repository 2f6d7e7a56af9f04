"""Data sources for Spark: the archive, the outbox, a query and the queue.

They run on executors, so they know Params and no Django project. Start with archive.py; rows.py
reads a range of ids from any database.
"""

from __future__ import annotations

__all__ = [
    "adbc", "archive", "archive_stream", "connect", "outbox", "query", "queue", "queue_rows",
    "ranges", "rows", "settling",
]  # fmt: skip
