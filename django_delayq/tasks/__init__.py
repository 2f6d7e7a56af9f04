"""Tasks as code declares them: their options, the registry, and the message that a call makes.

Stands on the store and core, and sends nothing. Start with task.py, then builder.py.
"""

from __future__ import annotations

__all__ = [
    "task", "options", "backoff", "batch", "context",
    "declaration", "annotations", "argument_edit", "arguments", "builder",
    "enqueue_hooks", "foreign", "naming", "recurrence", "registry",
]  # fmt: skip
