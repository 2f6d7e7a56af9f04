"""The job stats: lake or archive -> figures of hours and days in SQL.

Stands on lake/. Start with stats.py; aggregates.py counts on the executors.
"""

from __future__ import annotations

__all__ = ["aggregates", "stats", "thresholds"]
