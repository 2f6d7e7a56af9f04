"""The example project's shop: what a customer sees, and that payment and deadline never both
win."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.core import mail
from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone
from shop import checkout
from shop.models import Coupon, Order, Product
from shop.tasks import (
    LADDER,
    auto_review,
    close_order,
    expire_coupon,
    mail_sales,
    pay_late,
    remind_unpaid,
    webhook_retry,
)

from django_delayq import State, list_messages, topic_stats
from django_delayq.models import OutboxMessage
from django_delayq.outbox.ticker import Ticker
from tests.sending import ack, claim

NOWHERE = "redis://127.0.0.1:1/0"

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq")]


@pytest.fixture
def browser() -> Client:
    """Django's client; the fixture `client` is Redis'."""
    return Client()


@pytest.fixture
def product(delayq: Any) -> Product:
    return Product.objects.create(name="Kettle", slug="kettle", price=49, stock=10)


@pytest.fixture
def order(product: Product) -> Order:
    return checkout.place(product.pk, 30)


@pytest.fixture
def due_order(product: Product) -> Order:
    """One whose deadline is over and whose message no worker has taken yet."""
    return checkout.place(product.pk, 0)


@pytest.fixture
def without_redis(delayq: Any, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": NOWHERE}


def work(*topics: str) -> None:
    call_command(
        "run_delayq", burst=True, reload=False, topics=",".join(topics) or "all", verbosity=0
    )
    _close_event_loops()


def _close_event_loops() -> None:
    """Do what worker.EventLoop.stop() leaves to the end of the process, which a test does not wait
    for."""
    for thread in threading.enumerate():
        if thread.name == "delayq-event-loop":
            thread.join(5)
    for loop in gc.get_objects():
        if isinstance(loop, asyncio.AbstractEventLoop) and not loop.is_running():
            loop.close()


def told(response: Any) -> str:
    return " ".join(str(message) for message in get_messages(response.wsgi_request))


class TestSales:
    def test_the_sales_of_a_day_are_mailed_in_the_night_after_it(self, order: Order, delayq: Any):
        checkout.pay(order.pk)
        midnight = (timezone.now() + timedelta(days=1)).replace(hour=0, minute=5, second=0)
        Order.objects.update(paid_at=timezone.now())
        ticker = Ticker(delayq)
        for seconds in (20, 5):
            ticker.write_ticks(int((midnight.timestamp() - seconds) * 1000))
        row = OutboxMessage.objects.get(task="shop.tasks.mail_sales")
        mail_sales.reschedule(key=row.key, delay=0)
        work("reminders")
        (sent,) = mail.outbox
        assert sent.subject == f"Sales of {timezone.now():%F}"
        assert sent.body == "1 orders, 49.00"

    def test_those_of_another_day_are_mailed_on_demand(self, order: Order):
        mail_sales("2026-01-31")
        assert mail.outbox[0].subject == "Sales of 2026-01-31"
        assert mail.outbox[0].body.startswith("0 orders")


class TestBuying:
    def test_it_keeps_a_piece_and_sends_the_message_that_closes_the_order(
        self, browser: Client, product: Product
    ):
        response = browser.post("/buy/", {"product": product.pk, "window": 30})
        order = Order.objects.get()
        message = close_order.get(key=f"order:{order.pk}")
        assert response.headers["Location"] == f"/orders/{order.pk}/"
        assert (message.id, message.due_at, message.state) == (
            order.message_id,
            order.due_at,
            State.DELAYED,
        )
        assert timedelta(seconds=30) <= order.due_at - order.created_at < timedelta(seconds=31)
        product.refresh_from_db()
        assert product.stock == 9

    def test_a_rolled_back_order_sends_nothing(self, product: Product):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            order = checkout.place(product.pk, 30)
            raise ZeroDivisionError
        assert close_order.get(key=order.key) is None
        assert (
            topic_stats("orders").counters["enqueued"]
            == topic_stats("reminders").counters["enqueued"]
            == 0
        )
        product.refresh_from_db()
        assert (product.stock, Order.objects.count()) == (10, 0)

    def test_what_is_sold_out_cannot_be_bought(self, browser: Client, product: Product):
        Product.objects.update(stock=0)
        response = browser.post("/buy/", {"product": product.pk, "window": 30})
        assert "Sold out" in told(response)
        assert not Order.objects.exists()

    @pytest.mark.parametrize("window", ["", "1", "121", "-5", "abc", "²", "9" * 30])
    def test_a_window_out_of_range_is_refused(self, browser: Client, product: Product, window: str):
        assert browser.post("/buy/", {"product": product.pk, "window": window}).status_code == 400

    @pytest.mark.usefixtures("without_redis", "raising")
    def test_without_redis_and_outbox_nothing_is_ordered(self, browser: Client, product: Product):
        response = browser.post("/buy/", {"product": product.pk, "window": 30})
        assert "cannot take orders" in told(response)
        product.refresh_from_db()
        assert (product.stock, Order.objects.get().state) == (10, Order.State.CLOSED)


class TestDoingNothing:
    def test_it_closes_the_order_and_gives_the_piece_back(self, due_order: Order):
        work()
        due_order.refresh_from_db()
        assert due_order.state == Order.State.CLOSED
        assert due_order.product.stock == 10
        assert due_order.due_at <= due_order.fired_at <= due_order.closed_at

    def test_the_page_says_how_late(self, browser: Client, due_order: Order):
        work()
        page = browser.get(due_order.get_absolute_url()).content.decode()
        assert re.search(r"Closed \d+ ms after the deadline", page)
        assert re.findall(r'<li class="(\w+)"><strong>(\w+)', page) == [
            ("done", name) for name in ("scheduled", "fired", "acked")
        ]

    def test_closing_twice_gives_back_one_piece(self, due_order: Order):
        close_order(due_order.pk)
        close_order(due_order.pk)
        assert Product.objects.get().stock == 10


class TestPaying:
    def test_it_cancels_the_message_by_its_key(self, browser: Client, order: Order):
        browser.post(f"/orders/{order.pk}/pay/")
        order.refresh_from_db()
        assert order.state == Order.State.PAID
        assert close_order.get(key=order.key) is None
        assert topic_stats("orders").counters["cancelled"] == 1

    def test_a_paid_order_is_not_closed(self, due_order: Order):
        checkout.pay(due_order.pk)
        work()
        due_order.refresh_from_db()
        assert (due_order.state, due_order.fired_at, due_order.product.stock) == (
            Order.State.PAID,
            None,
            9,
        )

    def test_the_page_says_that_the_message_was_cancelled(self, browser: Client, order: Order):
        page = browser.post(f"/orders/{order.pk}/pay/", follow=True).content.decode()
        assert re.findall(r"<strong>(\w+)</strong><span>", page) == ["scheduled", "cancelled"]
        assert "Paid in time" in page

    def test_a_message_that_runs_already_does_not_undo_it(self, due_order: Order):
        (lease,) = claim("orders")
        assert checkout.pay(due_order.pk)
        close_order(due_order.pk)
        ack(lease)
        assert Order.objects.get().state == Order.State.PAID

    def test_a_failure_after_it_leaves_order_and_message_as_they_were(
        self, order: Order, monkeypatch: pytest.MonkeyPatch
    ):
        def fail(*args: object) -> None:
            raise OSError("the webhook has no address")

        monkeypatch.setattr(checkout.auto_review, "enqueue", fail)
        with pytest.raises(OSError, match="no address"):
            checkout.pay(order.pk)
        assert Order.objects.get().state == Order.State.PENDING
        assert close_order.get(key=order.key)

    @pytest.mark.usefixtures("order", "without_redis")
    def test_it_does_not_need_redis(self, browser: Client):
        order = Order.objects.get()
        page = browser.post(f"/orders/{order.pk}/pay/", follow=True).content.decode()
        assert Order.objects.get().state == Order.State.PAID
        assert "Paid in time" in page


class TestMoreTime:
    def test_it_moves_the_deadline_by_thirty_seconds(self, browser: Client, order: Order):
        browser.post(f"/orders/{order.pk}/extend/")
        before = order.due_at
        order.refresh_from_db()
        assert (
            order.due_at == before + timedelta(seconds=30) == close_order.get(key=order.key).due_at
        )

    def test_a_late_one_counts_from_now(self, due_order: Order):
        assert checkout.more_time(due_order) > timezone.now() + timedelta(seconds=29)

    def test_a_closed_order_gets_none(self, browser: Client, due_order: Order):
        work()
        assert "Too late" in told(browser.post(f"/orders/{due_order.pk}/extend/"))

    @pytest.mark.usefixtures("order", "without_redis")
    def test_without_redis_the_deadline_stays(self, browser: Client):
        assert "stays as it is" in told(browser.post(f"/orders/{Order.objects.get().pk}/extend/"))


class TestTheRace:
    def test_the_deadline_first(self, browser: Client, due_order: Order):
        close_order(due_order.pk)
        assert "Too late" in told(browser.post(f"/orders/{due_order.pk}/pay/"))
        assert Order.objects.get().state == Order.State.CLOSED

    def test_the_payment_first(self, due_order: Order):
        assert checkout.pay(due_order.pk)
        close_order(due_order.pk)
        due_order.refresh_from_db()
        assert (due_order.state, due_order.product.stock) == (Order.State.PAID, 9)

    def test_both_at_once_have_exactly_one_winner(self, product: Product):
        orders = [checkout.place(product.pk, 30) for _ in range(10)]
        start = threading.Barrier(2 * len(orders))

        def run(move: Any, pk: int) -> bool:
            try:
                connection.ensure_connection()
                start.wait()
                return bool(move(pk))
            finally:
                connection.close()

        with ThreadPoolExecutor(2 * len(orders)) as threads:
            moves = [
                (
                    threads.submit(run, checkout.pay, o.pk),
                    threads.submit(run, Order.objects.close, o.pk),
                )
                for o in orders
            ]
        winners = [(pay.result(), close.result()) for pay, close in moves]
        assert all(pay != close for pay, close in winners)
        assert Product.objects.get().stock == sum(close for _, close in winners)

    def test_in_the_worker_it_has_exactly_one_winner(self, browser: Client, due_order: Order):
        browser.post(f"/orders/{due_order.pk}/race/")
        while pay_late.get(key=due_order.key):
            work("orders", "payments")
        due_order.refresh_from_db()
        assert (due_order.paid_at is None) != (due_order.closed_at is None)
        assert -50 <= due_order.race_offset_ms <= 50

    def test_its_payment_comes_within_fifty_milliseconds_of_the_deadline(self, order: Order):
        offset_ms = checkout.race(order)
        assert pay_late.get(key=order.key).due_at == order.due_at + timedelta(
            milliseconds=offset_ms
        )

    def test_it_cannot_start_when_it_is_over(self, browser: Client, due_order: Order):
        close_order(due_order.pk)
        assert "race is over" in told(browser.post(f"/orders/{due_order.pk}/race/"))

    def test_it_needs_a_piece(self, browser: Client, product: Product):
        Product.objects.update(stock=0)
        assert "Sold out" in told(browser.post("/races/"))

    @pytest.mark.usefixtures("order", "without_redis", "raising")
    def test_it_needs_redis(self, browser: Client):
        assert "No race now" in told(browser.post(f"/orders/{Order.objects.get().pk}/race/"))
        assert Order.objects.get().race_offset_ms is None

    def test_ten_of_them_can_be_started_and_are_counted(self, browser: Client, product: Product):
        browser.post("/races/")
        assert (
            topic_stats("payments").delayed
            == Order.objects.exclude(race_offset_ms=None).count()
            == 10
        )
        first, second, *_ = Order.objects.all()
        assert checkout.pay(first.pk)
        assert Order.objects.close(second.pk)
        assert browser.get("/races/").context["tally"] == {"paid": 1, "closed": 1, "both": 0}


class TestTasks:
    def test_half_way_an_unpaid_order_is_reminded(self, order: Order):
        remind_unpaid(order.pk)
        assert len(mail.outbox) == 1
        assert Order.objects.get().reminded_at is not None

    def test_a_paid_order_is_not_reminded(self, order: Order):
        checkout.pay(order.pk)
        remind_unpaid(order.pk)
        assert mail.outbox == []

    def test_a_reminder_is_due_half_way_and_expires_with_the_order(self, order: Order):
        (reminder,) = list_messages("reminders").messages
        assert abs(order.due_at - reminder.due_at - timedelta(seconds=15)) < timedelta(seconds=1)
        assert reminder.expires_at == reminder.due_at + timedelta(seconds=15)

    def test_coupons_expire(self):
        coupon = Coupon.objects.create(code="LAST", valid_until=timezone.now())
        expire_coupon.using(due_at=coupon.valid_until).enqueue(coupon.pk)
        work()
        assert not Coupon.objects.valid().exists()

    def test_silence_after_a_payment_is_five_stars(self, order: Order):
        checkout.pay(order.pk)
        assert topic_stats("reviews").delayed == 1
        auto_review(order.pk)
        assert Order.objects.get().stars == 5

    def test_a_payment_is_reported_along_the_ladder(self, order: Order, settings: Any):
        settings.SHOP_WEBHOOK_URL = "http://127.0.0.1:1/paid"
        checkout.pay(order.pk)
        work("webhooks")
        assert topic_stats("webhooks").counters["retried"] == 1
        wait = topic_stats("webhooks").next_due_at - timezone.now()
        assert timedelta(seconds=110) < wait <= timedelta(seconds=120)

    def test_the_ladder_has_eight_attempts_in_a_day(self):
        assert webhook_retry.max_attempts == 8
        assert [webhook_retry.options.backoff(failure) for failure in range(1, 8)] == LADDER[1:]
