"""One module for each page of the operators.

Start with dashboard_page.py, which lists the pages.
"""

from __future__ import annotations

__all__ = [
    "api_tokens_page", "archive_page", "bulk_page", "dashboard_page", "dead_letters_page",
    "find_page",
    "message_page", "operator_actions_page", "overview_page", "recurring_page", "running_page",
    "schedule_page",
    "statistics_page", "topic_page", "unarchivable_page", "waiting_page", "workers_page",
    "zone_page",
]  # fmt: skip
