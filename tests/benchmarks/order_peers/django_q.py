"""django-q2."""

from __future__ import annotations

from collections.abc import Iterable

from tests.benchmarks.order_peers import closing


def enqueue(ids: Iterable[int]) -> None:
    """One message for each."""
    from django_q.tasks import async_task

    for order_id in ids:
        async_task(f"{closing.__name__}.close", order_id)
