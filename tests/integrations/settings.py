"""A project that names our backend in its settings."""

from __future__ import annotations

from tests.integrations.conftest import BACKEND
from tests.settings import *  # noqa: F403

TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "only-in-the-settings"]}}
