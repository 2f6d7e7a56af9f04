"""A project whose Django tasks run on the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from django_delayq.store.keys import Partition
from django_delayq.tasks import registry
from tests.hands import Hands

BACKEND = "django_delayq.integrations.django_tasks.DelayqBackend"
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "queue_1"]},
    "any": {"BACKEND": BACKEND, "QUEUES": []},
    "patient": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 3, "backoff": [0], "ttr": 5}},
    "at-once": {"BACKEND": BACKEND, "OPTIONS": {"after_commit": False}},
    "lazy": {"BACKEND": BACKEND, "OPTIONS": {"delay": 600}},
    "missing": {"BACKEND": "does.not.exist"},
}


@pytest.fixture
def sample(settings: Any, declared: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with the tasks, and a registry that forgets them after the test."""
    settings.TASKS = TASKS
    monkeypatch.setattr(registry, "topics", set())
    monkeypatch.setattr(registry, "finders", [])
    sample = import_module("tests.integrations.sample")
    sample.seen.clear()
    sample.failures.clear()
    return sample


@pytest.fixture
def work(sample: Any, hands: Hands) -> Callable[[], int]:
    """Runs all that is due, once. Returns how many."""

    def work(*topics: str) -> int:
        leases = [
            lease
            for topic in topics or ("default", "queue_1")
            for lease in hands.claim(Partition(topic, 0))
        ]
        for lease in leases:
            task = registry.by_code[lease.record[19:23]]
            if task.definition.is_async:
                asyncio.run(hands.executor.run_async(lease))
            else:
                hands.executor.run(lease)
        hands.settler.run_once()
        return len(leases)

    return work
