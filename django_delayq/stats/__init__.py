"""What people see: the present (overview.py) and past hours and days (hourly.py).

May import client and what client may import. Start with overview.py.
"""

from __future__ import annotations

__all__ = [
    "overview", "figures", "attention", "held_messages", "unserved", "alerts", "hourly",
    "stats_service", "history", "histogram", "marks", "overview_sql", "capacity",
    "outlook", "due_counts",
]  # fmt: skip
