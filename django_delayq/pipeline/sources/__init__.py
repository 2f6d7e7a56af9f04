"""The Spark data sources that read: archive, outbox, queue, lake and queries.

They run on executors, without a Django project. Start with archive.py.
"""

from __future__ import annotations

__all__ = [
    "adbc", "archive", "archive_stream", "connect", "lake_files", "outbox", "query", "queue",
    "queue_rows", "ranges", "rows",
]  # fmt: skip
