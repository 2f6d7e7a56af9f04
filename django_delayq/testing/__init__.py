"""For a project's own tests: the queue under test, its pytest fixture and mixin, and a Redis server
for tests and demos.

May import all but admin and management. Start with kit.py; running.py runs what is due.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fake import fake_batch, fake_message
    from .kit import QueueUnderTest
    from .mixin import QueueTestMixin
    from .running import RunReport, TaskRun

_MODULES = {
    "QueueUnderTest": "kit",
    "QueueTestMixin": "mixin",
    "RunReport": "running",
    "TaskRun": "running",
    "fake_batch": "fake",
    "fake_message": "fake",
}


def __getattr__(name: str) -> Any:
    # Imported when they are used: they need Django's apps, and the server of a demo does not.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


__all__ = [
    "QueueTestMixin", "QueueUnderTest", "RunReport", "TaskRun", "fake_batch",
    "fake_message", "embedded",
]  # fmt: skip
