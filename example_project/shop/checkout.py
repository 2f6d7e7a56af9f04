"""Buying and paying: what changes an order, and the message that would close it."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from django_delayq import MessageNotFound, StoreUnavailable

from .models import Order, Product
from .tasks import auto_review, close_order, pay_late, remind_unpaid, webhook_retry

MORE_TIME = timedelta(seconds=30)
#: The race: payment and deadline are at most so many milliseconds apart.
LAST_MOMENT_MS = 50


class SoldOut(Exception):
    """No piece is left."""


def place(product_id: int, window: int) -> Order:
    """Order one piece, to be paid within `window` seconds. Raises SoldOut, or DelayQError when it
    cannot be timed."""
    with transaction.atomic():
        if not Product.objects.filter(pk=product_id, stock__gt=0).update(stock=F("stock") - 1):
            raise SoldOut
        order: Order = Order.objects.create(product_id=product_id, window=window)
        handle = close_order.using(delay=window, key=order.key).enqueue(order.pk)
        remind_unpaid.using(delay=window / 2, expires=window / 2).enqueue(order.pk)
    if handle.outcome in ("failed", "unknown"):  # only where nothing may be kept in the database
        # The commit stands, the message does not: an order that nothing would close gives its piece
        # back now.
        Order.objects.close(order.pk)
        raise StoreUnavailable("nobody keeps the time of the order.")
    order.message_id, order.due_at = handle.id, handle.due_at
    order.save(update_fields=["message_id", "due_at"])
    return order


def pay(order_id: int) -> bool:
    """Pay, unless the deadline was quicker. Returns who won; the queue is told, but does not
    decide."""
    with transaction.atomic():
        won: bool = Order.objects.pay(order_id)
        if won:
            auto_review.enqueue(order_id)
            if settings.SHOP_WEBHOOK_URL:
                webhook_retry.enqueue(order_id)
            # Too late to take it back? Then it runs, finds the order paid and does nothing.
            close_order.cancel(key=f"order:{order_id}", missing_ok=True)
    return won


def more_time(order: Order) -> datetime:
    """Move the deadline by 30 s and return it. Raises MessageNotFound or MessageRunning when it is
    too late."""
    message = close_order.get(key=order.key)
    if message is None:
        raise MessageNotFound
    later = max(message.due_at, timezone.now()) + MORE_TIME
    order.due_at = close_order.reschedule(key=order.key, due_at=later)
    order.save(update_fields=["due_at"])
    return order.due_at


def race(order: Order) -> int:
    """Let a payment arrive at the last moment. Returns how many milliseconds after the deadline
    (below 0: before).

    Raises MessageNotFound when there is no deadline any more.
    """
    offset_ms = random.randint(-LAST_MOMENT_MS, LAST_MOMENT_MS)
    if order.due_at is None or order.state != Order.State.PENDING:
        raise MessageNotFound
    at = order.due_at + timedelta(milliseconds=offset_ms)
    pay_late.using(due_at=at, key=order.key, on_duplicate="replace").enqueue(order.pk)
    Order.objects.filter(pk=order.pk).update(race_offset_ms=offset_ms)
    return offset_ms


def start_races(count: int, window: int) -> None:
    """Several at once, of what there is most of. Raises SoldOut."""
    product = Product.objects.order_by("-stock").first()
    for _ in range(count):
        race(place(product.pk if product else 0, window))
