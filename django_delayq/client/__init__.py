"""Using: enqueue, cancel, reschedule, edit and get, at once or at the commit; and whole topics.

May import outbox and what outbox may import. Start with enqueue.py; on_commit.py is the part
that waits for a transaction.
"""

from __future__ import annotations

__all__ = [
    "client", "enqueue", "on_commit", "changes", "duplicates", "replicated", "topics", "moving",
]  # fmt: skip
