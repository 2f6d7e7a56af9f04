"""The operators' pages in the Django admin, which finds this package by itself.

May import everything but management. Start with site.py, then pages/. On a site of your own:
`site.register(Dashboard, DashboardAdmin)`.
"""

from __future__ import annotations

from .pages.dashboard_page import DashboardAdmin

__all__ = ["DashboardAdmin"]
