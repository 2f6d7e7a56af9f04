"""The job stats: lake or archive -> figures of hours and days in SQL, and from there to the lake.

Stands on lake/. Start with stats.py; aggregates.py counts, on executors or in one process.
"""

from __future__ import annotations

__all__ = ["aggregates", "stats", "thresholds"]
