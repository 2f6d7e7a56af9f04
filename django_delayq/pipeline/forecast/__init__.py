"""The job forecast: counts when the messages of Redis and the outbox fall due.

Start with forecast.py.
"""

from __future__ import annotations

__all__ = ["due_counts", "forecast"]
