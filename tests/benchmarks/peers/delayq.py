"""Ours, driven like every peer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

import django

django.setup()

from tests.benchmarks.tasks import noop  # noqa: E402  (after setup)


def enqueue(index: int, due: float, padding: str) -> None:
    """One message."""
    noop.using(due_at=datetime.fromtimestamp(due, tz=timezone.utc)).enqueue(index, padding)


def enqueue_bulk(indexes: Sequence[int], due: float, padding: str) -> None:
    """One call for many."""
    later = noop.using(due_at=datetime.fromtimestamp(due, tz=timezone.utc))
    later.enqueue_many((index, padding) for index in indexes)
