"""What people do to messages and topics: operations with permissions, replay, bulk operations, the
doctor. Each action leaves a record.

May import client and what client may import. Start with operations.py.
"""

from __future__ import annotations

__all__ = [
    "operations", "replay", "bulk", "bulk_runner", "message_search", "recent_actions", "bulk_run",
    "recurring", "replayer", "walk", "bulk_waiting", "purge", "waiting_list", "waiting_orders",
    "waiting_selection",
    "wider_search",
    "doctor", "edit_examples", "erase", "erased_texts", "api_tokens", "topic_permission",
]  # fmt: skip
