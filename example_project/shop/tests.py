"""Tests of the shop's deadlines: `python manage.py test`. They need no server, and nobody waits."""

from __future__ import annotations

from datetime import timedelta

from django.core import mail
from django.test import TestCase, override_settings
from django.urls import reverse

from django_delayq.testing import QueueTestMixin

from . import checkout
from .models import Order, Product
from .tasks import LADDER, auto_review, close_order, remind_unpaid, webhook_retry


class ShopTestCase(QueueTestMixin, TestCase):
    """A shop with one product."""

    product: Product

    @classmethod
    def setUpTestData(cls) -> None:
        cls.product = Product.objects.create(name="Lamp", slug="lamp", price=1, stock=1)

    def buy(self, window: int = 30) -> Order:
        """The order of a customer who pressed the button."""
        form = {"product": self.product.pk, "window": window}
        self.assertEqual(self.client.post(reverse("shop:buy"), form).status_code, 302)
        order: Order = Order.objects.latest("pk")
        return order


class UnpaidOrderTests(ShopTestCase):
    """Nobody pays."""

    def test_a_purchase_sets_the_deadline(self) -> None:
        order = self.buy()
        self.queue.assert_enqueued(close_order, args=[order.pk], key=order.key, delay=30)
        self.queue.assert_enqueued(remind_unpaid, args=[order.pk], delay=15)

    def test_the_customer_is_reminded_and_then_the_order_closes(self) -> None:
        order = self.buy()
        self.queue.travel(seconds=15)
        self.assertEqual(self.queue.run_due().of(remind_unpaid).outcomes, ["acked"])
        self.assertEqual(len(mail.outbox), 1)
        self.queue.travel(seconds=15)
        self.queue.run_due()
        order.refresh_from_db()
        self.assertEqual((order.state, order.product.stock), ("closed", 1))

    def test_more_time_moves_the_deadline(self) -> None:
        order = self.buy()
        self.client.post(reverse("shop:extend", args=[order.pk]))
        self.queue.travel(seconds=45)
        self.queue.run_due()
        order.refresh_from_db()
        self.assertEqual(order.state, "pending")
        self.queue.assert_enqueued(close_order, delay=60)


class PaidOrderTests(ShopTestCase):
    """The customer pays in time."""

    def test_a_payment_takes_the_deadline_back(self) -> None:
        order = self.buy()
        self.client.post(reverse("shop:pay", args=[order.pk]))
        self.queue.refute_enqueued(close_order)
        self.queue.assert_enqueued(auto_review, args=[order.pk])

    def test_silence_is_five_stars(self) -> None:
        order = self.buy()
        checkout.pay(order.pk)
        self.queue.travel(days=1)
        self.queue.run_due()
        order.refresh_from_db()
        self.assertEqual((order.state, order.stars), ("paid", 5))

    @override_settings(SHOP_WEBHOOK_URL="https://merchant.example/paid")
    def test_a_merchant_who_is_away_for_a_day_is_asked_eight_times(self) -> None:
        checkout.pay(self.buy().pk)
        for wait in LADDER:
            self.queue.fail_next(ConnectionRefusedError, task=webhook_retry)
            self.queue.travel(seconds=wait)
            (run,) = self.queue.run_due().of(webhook_retry)
        self.assertEqual((run.outcome, run.attempt), ("dead", len(LADDER)))
        self.assertLess(timedelta(seconds=sum(LADDER)), timedelta(days=1, hours=1))
