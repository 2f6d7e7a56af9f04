"""What the shop does later."""

from __future__ import annotations

from datetime import timedelta
from urllib.request import Request, urlopen

from django.conf import settings
from django.core.mail import send_mail
from django.db.models import Count, Sum
from django.utils import timezone
from django.utils.dateparse import parse_date

from django_delayq import Retry, current_message, delayed_task

from .models import Coupon, Order

#: Seconds before each of Alipay's eight attempts to report a payment.
LADDER = [0, 120, 600, 600, 3600, 7200, 21_600, 54_000]


@delayed_task(topic="orders", delay=timedelta(minutes=30), priority="high")
def close_order(order_id: int) -> None:
    """Close the order, unless it was paid."""
    Order.objects.note_fired(order_id)
    Order.objects.close(order_id)


@delayed_task(topic="reminders", max_attempts=3)
def remind_unpaid(order_id: int) -> None:
    """Write to the customer once half of the time has gone."""
    if Order.objects.pending().filter(pk=order_id).update(reminded_at=timezone.now()):
        send_mail(
            f"Order {order_id} waits for your payment",
            "Half of your time is gone.",
            None,
            ["you@example.com"],
        )


@delayed_task(topic="coupons")
def expire_coupon(coupon_id: int) -> None:
    """Take a coupon out of use."""
    Coupon.objects.valid().filter(pk=coupon_id).update(expired_at=timezone.now())


@delayed_task(topic="webhooks", delay=LADDER[0], backoff=LADDER[1:], max_attempts=len(LADDER))
def webhook_retry(order_id: int, url: str = "") -> None:
    """Report a payment until the merchant's server takes it. `url`: another address than the usual
    one."""
    with urlopen(
        Request(url or settings.SHOP_WEBHOOK_URL, f"paid={order_id}".encode()), timeout=10
    ) as response:
        if response.read(7) != b"success":
            raise Retry("the merchant did not say success")


@delayed_task(topic="reviews", delay=settings.SHOP_REVIEW_AFTER)
def auto_review(order_id: int) -> None:
    """Five stars from everyone who said nothing."""
    Order.objects.filter(pk=order_id, stars=None).update(stars=5)


@delayed_task(topic="payments", priority="high")
def pay_late(order_id: int) -> None:
    """The other side of the race: a payment at the last moment."""
    from .checkout import pay

    pay(order_id)


@delayed_task(topic="reminders", cron="5 0 * * *", max_attempts=5, expires=timedelta(hours=12))
def mail_sales(day: str = "") -> None:
    """Mail what was sold on a day (2026-11-20), or on the day before the tick."""
    date = parse_date(day) if day else None
    if date is None:
        tick = current_message().tick or timezone.now()
        date = timezone.localdate(tick) - timedelta(days=1)
    sold = Order.objects.filter(state=Order.State.PAID, paid_at__date=date).aggregate(
        orders=Count("pk"), sum=Sum("product__price", default=0)
    )
    send_mail(
        f"Sales of {date}", "{orders} orders, {sum:.2f}".format(**sold), None, ["you@example.com"]
    )
