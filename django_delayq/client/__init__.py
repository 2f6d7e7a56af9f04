"""The calls of a project: enqueue, get, cancel, reschedule, edit, and operations on topics.

Stands on the outbox and the tasks. An enqueue: decorator.py -> enqueue.py -> tasks/builder.py ->
sender.py -> store/. Inside a transaction on_commit.py keeps it until the commit. Start with
enqueue.py; changes.py has cancel, reschedule and edit.
"""

from __future__ import annotations

__all__ = [
    "enqueue", "on_commit", "changes", "topics", "moving", "finding", "handle",
    "sender", "decorator", "waiting",
]  # fmt: skip
