"""Declaring: the decorator, the task that it makes, its options and its arguments.

May import store, models and core. Start with task.py; options.py has every option with its
meaning.
"""

from __future__ import annotations

__all__ = [
    "task", "options", "backoff", "context", "declaration", "arguments", "builder", "handle",
    "naming", "registry",
]  # fmt: skip
