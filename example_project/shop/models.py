"""Products, orders and coupons. Who wins an order, payment or deadline, is decided here by one
conditional UPDATE."""

from __future__ import annotations

from datetime import timedelta

from django.db import models, transaction
from django.db.models import F
from django.urls import reverse
from django.utils import timezone


class Product(models.Model):
    """Something to buy."""

    name = models.CharField(max_length=60)
    slug = models.SlugField(unique=True)
    blurb = models.CharField(max_length=120)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    stock = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return self.name

    @property
    def picture(self) -> str:
        """Path of its static file."""
        return f"shop/{self.slug}.svg"


class OrderQuerySet(models.QuerySet["Order"]):
    """The transitions of an order. Each says whether this call was the one that made it."""

    def pending(self) -> OrderQuerySet:
        """Those that can still be paid or closed."""
        found: OrderQuerySet = self.filter(state=Order.State.PENDING)
        return found

    def pay(self, pk: int) -> bool:
        """PENDING -> PAID."""
        return bool(
            self.pending().filter(pk=pk).update(state=Order.State.PAID, paid_at=timezone.now())
        )

    def close(self, pk: int) -> bool:
        """PENDING -> CLOSED, and its piece goes back into the stock."""
        with transaction.atomic():
            won = bool(
                self.pending()
                .filter(pk=pk)
                .update(state=Order.State.CLOSED, closed_at=timezone.now())
            )
            if won:
                Product.objects.filter(order=pk).update(stock=F("stock") + 1)
        return won

    def note_fired(self, pk: int) -> None:
        """Remember when the deadline's message ran first, whoever wins."""
        self.filter(pk=pk, fired_at=None).update(fired_at=timezone.now())


class Order(models.Model):
    """One piece of one product, to be paid before `due_at`."""

    class State(models.TextChoices):
        """What became of it."""

        PENDING = "pending"
        PAID = "paid"
        CLOSED = "closed"

    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    window = models.PositiveIntegerField(default=30, help_text="Seconds to pay.")
    message_id = models.CharField(
        max_length=32, blank=True, help_text="Of the message that closes it."
    )
    created_at = models.DateTimeField(default=timezone.now)
    due_at = models.DateTimeField(
        null=True, blank=True, help_text="When that message is due, by Redis' clock."
    )
    reminded_at = models.DateTimeField(null=True, blank=True)
    paid_at = models.DateTimeField(null=True, blank=True)
    fired_at = models.DateTimeField(
        null=True, blank=True, help_text="When the message ran, whoever had won."
    )
    closed_at = models.DateTimeField(null=True, blank=True)
    race_offset_ms = models.SmallIntegerField(
        null=True, blank=True, help_text="Payment minus deadline, in a race."
    )
    stars = models.PositiveSmallIntegerField(null=True, blank=True)

    objects = OrderQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"Order {self.pk}"

    def get_absolute_url(self) -> str:
        """Its page."""
        return reverse("shop:order", args=[self.pk])

    @property
    def key(self) -> str:
        """Business identity of the message that closes it."""
        return f"order:{self.pk}"

    @property
    def lateness_ms(self) -> int | None:
        """How long after the deadline the message fired."""
        return _ms(self.fired_at - self.due_at) if self.fired_at and self.due_at else None

    @property
    def overdue_ms(self) -> int | None:
        """How long after the deadline it was closed."""
        return _ms(self.closed_at - self.due_at) if self.closed_at and self.due_at else None

    @property
    def spared_ms(self) -> int | None:
        """How long before the deadline it was paid; negative when after."""
        return _ms(self.due_at - self.paid_at) if self.paid_at and self.due_at else None


class CouponQuerySet(models.QuerySet["Coupon"]):
    """Coupons that still count."""

    def valid(self) -> CouponQuerySet:
        """Not expired."""
        found: CouponQuerySet = self.filter(expired_at=None)
        return found


class Coupon(models.Model):
    """A discount until an instant."""

    code = models.CharField(max_length=20, unique=True)
    percent = models.PositiveSmallIntegerField(default=10)
    valid_until = models.DateTimeField()
    expired_at = models.DateTimeField(null=True, blank=True)

    objects = CouponQuerySet.as_manager()

    def __str__(self) -> str:
        return self.code


def _ms(span: timedelta) -> int:
    return round(span / timedelta(milliseconds=1))
