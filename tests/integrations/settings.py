"""A project that names our backend in its settings."""

from __future__ import annotations

from tests.settings import *  # noqa: F403

BACKEND = "django_delayq.integrations.django_tasks.DelayqBackend"
TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "only-in-the-settings"]}}
