"""What people do to messages and topics: operations with permissions, replay, bulk operations.
Each action leaves a record.

May import client and what client may import. Start with operations.py.
"""

from __future__ import annotations

__all__ = [
    "operations", "replay", "replay_walk", "replay_sender", "bulk", "bulk_check", "bulk_progress",
    "bulk_runner", "lookup", "recent_actions",
]  # fmt: skip
