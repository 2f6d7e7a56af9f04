"""Where executors write: messages to the queue, and Parquet files to the lake.

They know Params and no Django project. Start with queue_sink.py.
"""

from __future__ import annotations

__all__ = ["parquet_files", "queue_sink"]
