"""The tasks of the workload `orders`."""

from __future__ import annotations

from django_delayq import Batch, delayed_task
from tests.benchmarks.shop.models import BenchOrder


@delayed_task(topic="orders-single", ttr=30)
def close_order(order_id: int) -> None:
    """One order, one statement, one commit."""
    BenchOrder.objects.filter(pk=order_id, state="pending").update(state="closed")


@delayed_task(topic="orders-batch", ttr=30, batch=500)
def close_orders(messages: Batch[int]) -> None:
    """Many orders, one statement, one commit."""
    _close(messages)


@delayed_task(topic="orders-once", ttr=30, batch=500, exactly_once=True)
def close_orders_once(messages: Batch[int]) -> None:
    """The same, with the archive rows in the transaction."""
    _close(messages)


def _close(messages: Batch[int]) -> None:
    ids = [order_id for message in messages for order_id in message.args]
    BenchOrder.objects.filter(pk__in=ids, state="pending").update(state="closed")
