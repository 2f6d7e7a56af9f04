"""Data sources for Spark: the archive, the outbox, a query and the queue.

They run on executors, so they know Params and no Django project. Start with archive_source.py;
table_reader.py reads a range of ids from any database.
"""

from __future__ import annotations

__all__ = [
    "adbc", "archive_source", "databases", "outbox_source", "query_source",
    "queue_source", "ranges", "settling", "table_reader",
]  # fmt: skip
