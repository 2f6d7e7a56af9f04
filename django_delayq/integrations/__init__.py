"""Other libraries' ways to use the queue. Nothing here is imported before a project names it.

May import all but admin and management. Start with django_tasks.py.
"""

from __future__ import annotations

__all__ = [
    "api", "django_tasks", "event_stream", "forward", "opentelemetry", "prometheus", "sentry",
]  # fmt: skip
