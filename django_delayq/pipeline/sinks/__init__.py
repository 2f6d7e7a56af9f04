"""The Spark data source that writes: messages into the queue.

Runs on executors, without a Django project.
"""

from __future__ import annotations

__all__ = ["queue"]
