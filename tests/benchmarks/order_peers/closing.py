"""What all Python queues call."""

from __future__ import annotations

import django

django.setup()

from tests.benchmarks.shop.models import BenchOrder  # noqa: E402  (after setup)


def close(order_id: int) -> None:
    """One order, one statement, one commit."""
    BenchOrder.objects.filter(pk=order_id, state="pending").update(state="closed")
