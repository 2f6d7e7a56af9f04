"""The operators' pages in the Django admin. Nothing to configure: the admin finds this package by
itself.

On a site of your own: `site.register(Dashboard, DashboardAdmin)`.
"""

from __future__ import annotations

from .pages.dashboard_page import DashboardAdmin

__all__ = ["DashboardAdmin"]
