"""The shop's pages: strict about what they load, careful with GET, and open even when Redis is
not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from shop import checkout
from shop.models import Order, Product
from shop.seed import seed

from django_delayq.models import OutboxMessage

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq")]


@pytest.fixture
def browser() -> Client:
    return Client()


@pytest.fixture
def order(delayq: Any) -> Order:
    product = Product.objects.create(name="Kettle", slug="kettle", price=49, stock=10)
    return checkout.place(product.pk, 30)


@pytest.fixture
def pages(browser: Client) -> list[Any]:
    unpaid, paid = seed(coupons=3)
    Order.objects.close(unpaid[0].pk)
    addresses = ["/", "/races/", *(order.get_absolute_url() for order in (*unpaid, paid))]
    return [browser.get(address) for address in addresses]


def test_nothing_on_them_is_inline(pages: list[Any]):
    for page in pages:
        assert page.status_code == 200
        assert not re.search(
            r"<style|\sstyle=|\son\w+=|<script(?![^>]* src=)", page.content.decode()
        )
        assert page.headers["Content-Security-Policy"].startswith("default-src 'self';")


def test_the_countdown_is_also_a_text(browser: Client, order: Order):
    page = browser.get(order.get_absolute_url()).content.decode()
    assert f'<time datetime="{order.due_at.isoformat()}">' in page
    assert re.search(r'data-due="(\d+\.\d+)"', page)[1] == f"{order.due_at.timestamp():.6f}"


def test_they_open_without_redis(browser: Client, delayq: Any, settings: Any):
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "redis://127.0.0.1:1/0"}
    assert "The queue does not answer" in browser.get("/").content.decode()


def test_without_redis_orders_are_taken_and_the_outbox_keeps_what_closes_them(
    browser: Client, order: Order, settings: Any
):
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "redis://127.0.0.1:1/0"}
    response = browser.post("/buy/", {"product": order.product_id, "window": 30})
    bought = Order.objects.exclude(pk=order.pk).get()
    assert response.headers["Location"] == bought.get_absolute_url()
    assert {row.key for row in OutboxMessage.objects.all()} == {
        bought.key,
        "",
    }  # its deadline, and a reminder
    assert bought.state == Order.State.PENDING and bought.due_at is not None
    page = browser.get(bought.get_absolute_url()).content.decode()
    assert f'<time datetime="{bought.due_at.isoformat()}">' in page, (
        "the outbox says when it closes"
    )


@pytest.mark.parametrize("action", ["pay", "extend", "race"])
def test_only_a_post_changes_an_order(browser: Client, order: Order, action: str):
    assert browser.get(f"/orders/{order.pk}/{action}/").status_code == 405


@pytest.mark.parametrize(
    "address", ["/buy/", "/races/", "/orders/1/pay/", "/orders/1/extend/", "/orders/1/race/"]
)
def test_every_post_needs_the_csrf_token(address: str):
    assert Client(enforce_csrf_checks=True).post(address).status_code == 403


def test_an_unknown_order_is_not_found(browser: Client):
    assert (
        browser.get("/orders/999/").status_code
        == browser.post("/orders/999/pay/").status_code
        == 404
    )
