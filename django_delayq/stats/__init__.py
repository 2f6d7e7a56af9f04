"""What people see: the present (overview.py) and past hours and days (hourly.py).

May import client and what client may import. Start with overview.py.
"""

from __future__ import annotations

__all__ = [
    "overview", "figure_types", "sql_figures", "obstacles", "unserved", "hourly", "figure_rows",
    "stats_service", "history", "forecasts", "histogram",
]  # fmt: skip
