"""What a demo starts with."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from . import checkout
from .models import Coupon, Order, Product
from .tasks import expire_coupon, webhook_retry

PRODUCTS = [
    ("Kettle", "kettle", "Boils in the time you have to pay for it.", "49.00"),
    ("Desk lamp", "lamp", "Goes out by itself. So do the orders for it.", "79.50"),
    ("Headphones", "headphones", "So quiet that you hear the deadline pass.", "129.00"),
]
#: Seconds to pay of the orders that nobody pays. The first is over a few seconds after the start.
UNPAID = (3, 4, 4, 5)
PAID = 5
#: Nobody listens there: what is sent to it dies, and can be replayed from the pages of the queue
#: with another one.
BROKEN_URL = "http://127.0.0.1:9/paid"


def seed(coupons: int = 200) -> tuple[list[Order], Order]:
    """Products, coupons for the next hour, orders, and a message that dies.

    Returns the orders that will close and the one that must not.
    """
    products = Product.objects.bulk_create(
        Product(name=name, slug=slug, blurb=blurb, price=price, stock=100)
        for name, slug, blurb, price in PRODUCTS
    )
    unpaid = [
        checkout.place(products[number % 3].pk, window) for number, window in enumerate(UNPAID)
    ]
    paid = checkout.place(products[0].pk, PAID)
    checkout.pay(paid.pk)
    _issue_coupons(coupons)
    webhook_retry.using(max_attempts=1).enqueue(paid.pk, url=BROKEN_URL)
    return unpaid, paid


def _issue_coupons(count: int) -> None:
    now = timezone.now()
    coupons = Coupon.objects.bulk_create(
        Coupon(
            code=f"LAST-{number:04}",
            valid_until=now + timedelta(seconds=60 + 3540 * number / count),
        )
        for number in range(count)
    )
    expire_coupon.enqueue_many(
        expire_coupon.using(due_at=coupon.valid_until, key=coupon.code).prepare(coupon.pk)
        for coupon in coupons
    )
