"""Ours, driven like every peer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import django

django.setup()

from tests.benchmarks.tasks import noop  # noqa: E402  (after setup)


@lru_cache(maxsize=1)
def at(due: float) -> Any:
    """The task with this due time: a program whose messages have one due time makes this copy
    once."""
    return noop.using(due_at=datetime.fromtimestamp(due, tz=timezone.utc))


def enqueue(index: int, due: float, padding: str) -> None:
    """One message."""
    at(due).enqueue(index, padding)


def enqueue_bulk(indexes: Sequence[int], due: float, padding: str) -> None:
    """One call for many."""
    at(due).enqueue_many((index, padding) for index in indexes)
