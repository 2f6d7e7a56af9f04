"""What people come for, in a real browser against the shop, with a real worker. Also takes the
pictures of the docs: `make screenshots` runs these tests with DELAYQ_SCREENSHOTS set to the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone
from shop.models import Order, Product
from shop.tasks import expire_coupon, remind_unpaid

from django_delayq.models import ArchivedMessage, OperatorAction
from django_delayq.store.store import RedisStore
from django_delayq.tasks import registry
from tests.acceptance.process import WorkerProcess
from tests.admin.browser import address
from tests.admin.world import heartbeat
from tests.app.tasks import act
from tests.databases import VARIABLE
from tests.hands import Hands
from tests.servers import Server

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/shop/tasks.py", line 45, in webhook_retry
    with urlopen(Request(settings.SHOP_WEBHOOK_URL, f"paid={order_id}".encode()), timeout=10) as response:
  File "/usr/lib/python3.12/urllib/request.py", line 215, in urlopen
    return opener.open(url, data, timeout)
  File "/usr/lib/python3.12/urllib/request.py", line 521, in open
    response = meth(req, response)
urllib.error.HTTPError: HTTP Error 502: Bad Gateway
"""


@pytest.fixture
def worker(
    server: Server, prefix: str, delayq: RedisStore, transactional_db: None, tmp_path: Path
) -> Iterator[WorkerProcess]:
    """run_delayq on the test's Redis and database."""
    name = connection.settings_dict["NAME"]
    known = ("ENGINE", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    entry = {key: connection.settings_dict[key] for key in known} | {"NAME": str(name)}
    environment = {
        **os.environ,
        VARIABLE: json.dumps(entry),
        "DJANGO_SETTINGS_MODULE": "tests.admin.worker_settings",
        "DELAYQ_TEST_REDIS": server.url,
        "DELAYQ_TEST_PREFIX": prefix,
    }
    process = WorkerProcess(("--topics", "orders,reminders,modes"), environment, tmp_path)
    yield process.ready()
    process.close()


@pytest.fixture
def picture() -> Callable[[Any, str], None]:
    """Writes a page to a file, in both themes, when pictures are asked for."""
    folder = os.environ.get("DELAYQ_SCREENSHOTS")

    def take(page: Any, name: str) -> None:
        for theme in ("light", "dark") if folder else ():
            page.emulate_media(color_scheme=theme)
            path = Path(str(folder), f"{name}-{theme}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=path, animations="disabled", caret="hide")
            assert path.stat().st_size < 150_000, "too large for a repository"

    return take


def until(page: Any, text: str) -> None:
    """Look again and again until the page says it."""
    for _ in range(60):
        if text in page.locator(".delayq").inner_text():
            return
        page.wait_for_timeout(250)
        page.reload()
    raise AssertionError(f"{page.url} never said {text!r}:\n{page.locator('.delayq').inner_text()}")


def test_an_order_that_nobody_pays_closes_by_itself(
    worker: WorkerProcess, browser_page: Callable[..., Any], as_user: Callable[..., Any]
):
    Product.objects.create(name="Kettle", slug="kettle", price=49, stock=10)
    page = browser_page(as_user("view_dashboard", "view_payload"))
    page.goto("/")
    page.locator("#window").fill("5")
    page.get_by_role("button", name="Buy Kettle").click()
    page.get_by_text("Or do nothing").wait_for()
    order = Order.objects.get()

    page.goto(address("topic", topic="orders"))
    page.get_by_role("link", name=order.message_id[-8:]).first.click()
    assert page.url.endswith(address("message", topic="orders", message_id=order.message_id))
    facts = page.locator(".delayq").inner_text()
    assert "shop.tasks.close_order" in facts
    assert order.key in facts

    page.goto(order.get_absolute_url())
    page.get_by_text("after the deadline").first.wait_for(timeout=15_000)
    order.refresh_from_db()
    assert order.state == Order.State.CLOSED

    page.goto(address("archive") + f"?q=key:{order.key}&topic=orders")
    until(page, "acked")
    page.get_by_role("link", name="shop.tasks.close_order").click()
    assert ArchivedMessage.objects.get(key=order.key).state == "acked"
    until(page, order.message_id)


@pytest.mark.long
def test_a_dead_letter_is_seen_mended_and_replayed(
    worker: WorkerProcess, browser_page: Callable[..., Any], as_user: Callable[..., Any]
):
    act.using(delay=0).enqueue("unworthy")
    permissions = ("view_dashboard", "view_payload", "replay_message", "edit_message")
    page = browser_page(as_user(*permissions))

    page.goto(address("dead_letters"))
    until(page, "TypeError")
    page.locator("tbody tr").filter(has_text="tests.app.tasks.act").get_by_role(
        "link", name="1", exact=True
    ).first.click()
    page.get_by_role("link", name="tests.app.tasks.act, dead").click()
    assert "TypeError: a bug" in page.locator("#delayq-traceback").inner_text()

    page.get_by_role("link", name="Edit and replay").click()
    assert page.get_by_label("mode").input_value() == "unworthy"
    page.get_by_label("mode").fill("return")
    page.get_by_label("Reason").fill("the mode was wrong")
    page.get_by_role("button", name="Replay with these arguments").click()

    origin = ArchivedMessage.objects.get(error_class__endswith="TypeError")
    assert origin.replayed_by
    page.goto(address("find") + f"?q={origin.replayed_by.hex}")
    until(page, "acked")
    again = ArchivedMessage.objects.get(message_id=origin.replayed_by)
    assert (again.state, again.replay_of, json.loads(again.body)["args"]) == (
        "acked",
        origin.pk,
        ["return"],
    )
    action = OperatorAction.objects.get()
    assert (action.action, action.reason, action.count) == ("replay", "the mode was wrong", 1)


# Pictures


@pytest.fixture
def busy(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shop in the middle of a day on which a webhook fails."""
    for name in ("by_name", "by_code"):
        ours = {
            key: task
            for key, task in getattr(registry, name).items()
            if task.name.startswith("shop.")
        }
        monkeypatch.setattr(registry, name, ours)
    for number in range(300):
        expire_coupon.using(delay=60 + number * number / 9).enqueue(number)
    for number in range(40):
        remind_unpaid.using(delay=20 + 7 * number).enqueue(number)
    now = timezone.now()
    common: dict[str, Any] = {
        "partition": 0,
        "ttr_ms": 60_000,
        "max_attempts": 8,
        "worker": "web-3:4711:0",
    }
    rows = [
        ArchivedMessage(
            **common,
            **(_dead(number) if number % 3 == 0 else _acked(number)),
            message_id=uuid4(),
            enqueued_at=now - timedelta(seconds=41 * number + 35),
            due_at=now - timedelta(seconds=41 * number + 5),
            started_at=now - timedelta(seconds=41 * number + 5),
            finished_at=now - timedelta(seconds=41 * number + 4),
            lateness_ms=1.5 + number * number % 23,
            run_ms=12 + number % 40,
        )
        for number in range(240)
    ]
    ArchivedMessage.objects.bulk_create(rows)
    heartbeat(hands.store, "web-3:4711:0", host="web-3", topics=sorted(registry.known_topics()))


def _dead(number: int) -> dict[str, Any]:
    kind, said = [
        ("urllib.error.HTTPError", "HTTP Error 502: Bad Gateway"),
        ("urllib.error.HTTPError", "HTTP Error 502: Bad Gateway"),
        ("TimeoutError", "The read operation timed out"),
    ][number // 3 % 3]
    words = {
        "topic": "webhooks",
        "task": "shop.tasks.webhook_retry",
        "state": "dead",
        "attempts": 8,
    }
    error = {"error_class": kind, "error_message": said, "traceback": TRACEBACK}
    return {**words, **error, "body": json.dumps({"args": [1000 + number], "kwargs": {}})}


def _acked(number: int) -> dict[str, Any]:
    words = {"topic": "orders", "task": "shop.tasks.close_order", "state": "acked", "attempts": 1}
    return {
        **words,
        "key": f"order:{1000 + number}",
        "body": json.dumps({"args": [1000 + number], "kwargs": {}}),
    }


def test_the_pages_of_a_busy_shop(
    busy: None,
    browser_page: Callable[..., Any],
    as_user: Callable[..., Any],
    picture: Callable[[Any, str], None],
):
    operator = User.objects.create(username="ada", is_staff=True, is_superuser=True)
    page = browser_page(operator, width=1200, height=1240)
    page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    page.goto(address("changelist"))
    assert "webhooks" in page.locator(".delayq").inner_text()
    picture(page, "overview")
    page.set_viewport_size({"width": 1200, "height": 860})
    page.goto(address("dead_letters"))
    assert "HTTPError" in page.locator(".delayq").inner_text()
    picture(page, "dead-letters")
    row = ArchivedMessage.objects.filter(error_class__endswith="HTTPError").latest("finished_at")
    page.goto(address("archived", pk=row.pk))
    assert "502: Bad Gateway" in page.locator("#delayq-traceback").inner_text()
    picture(page, "archived")
    operator.delete()  # tests with transactions leave the tables of auth as they are


@pytest.mark.long
def test_a_wrong_campaign_is_cancelled_by_a_filter(
    worker: WorkerProcess,
    browser_page: Callable[..., Any],
    as_user: Callable[..., Any],
    picture: Callable[[Any, str], None],
):
    wrong = [
        remind_unpaid.using(key=f"campaign:{n}", delay=86_400 + n).prepare(n) for n in range(600)
    ]
    remind_unpaid.enqueue_many(wrong)
    kept = remind_unpaid.using(key="order:1", delay=86_400).enqueue(1)
    names = ("view_dashboard", "view_payload", "cancel_message", "bulk_operate")
    page = browser_page(as_user(*names))
    page.goto(address("topic", topic="reminders"))
    page.get_by_role("link", name="Filter, cancel, shift or move many").click()
    page.locator("#id_key_prefix").fill("campaign:")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("heading", name="Change all that fit").wait_for()
    picture(page, "waiting")
    page.locator("#id_reason").fill("The price was wrong")
    page.get_by_role("button", name="Dry run").click()
    until(page, "600 of 600 (100 %)")
    picture(page, "waiting-dry-run")
    page.get_by_role("link", name="Run it for real").click()
    page.locator("#id_reason").fill("The price was wrong")
    page.get_by_role("button", name="Run it for real").click()
    until(page, "600 of 600 (100 %)")
    facts = page.locator(".delayq").inner_text()
    assert "CANCELLED MESSAGES\n600" in facts.upper()
    assert kept.get().key == "order:1"
    action = OperatorAction.objects.get()
    assert (action.action, action.count, action.reason) == ("cancel", 600, "The price was wrong")
