"""Where executors write: messages to the queue, and Parquet files to the lake.

They know Params and no Django project. Start with loader.py.
"""

from __future__ import annotations

__all__ = ["loader", "parquet_files", "queue_sink"]
