"""Where executors write: messages to the queue.

They know Params and no Django project. Start with loader.py.
"""

from __future__ import annotations

__all__ = ["loader", "queue_sink"]
