"""The night of an incident, eight times: from the overview to the repair in at most five clicks.
Each test is a story that a person can follow; docs/how-to/incidents.md tells them, with these
pictures.

`make screenshots` takes the pictures: DELAYQ_SCREENSHOTS names the folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from django_delayq import topic_stats
from django_delayq.archive.selection import Selection
from django_delayq.core.times import When
from django_delayq.models import ArchivedMessage, BulkOperation, OperatorAction
from django_delayq.operators.bulk_runner import BulkRunner
from django_delayq.operators.waiting_selection import WaitingSelection, waiting_messages
from django_delayq.stats import overview
from tests.admin.browser import address
from tests.admin.test_running_page import beat, claim
from tests.admin.world import heartbeat
from tests.app.tasks import close_order, record
from tests.bulk_hands import order
from tests.hands import DAY, DEFAULT, ORDERS, Hands
from tests.operators.test_replay import dead

pytestmark = [pytest.mark.long, pytest.mark.django_db(transaction=True)]

#: More clicks than these are too many at three in the morning.
MOST_CLICKS = 5
WORKER = "web-7:4711:ab"


class Night:
    """Somebody who was woken: opens the overview, clicks, and counts the clicks."""

    def __init__(self, page: Any, hands: Hands) -> None:
        self.page, self._hands, self.clicks = page, hands, 0
        overview.reader_of.cache_clear()
        page.goto(address("changelist"))

    def sees(self, words: str) -> None:
        """These words are on the page, or appear on it soon."""
        self.page.locator(".delayq").get_by_text(words).first.wait_for()

    def click(self, name: str | re.Pattern[str], role: str = "link") -> None:
        """One click on the link, or the button, of this name."""
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS, f"{name} is the {self.clicks}th click"
        self.page.locator(".delayq").get_by_role(role, name=name).first.click()

    def opens(self, words: str) -> None:
        """One click on what hides a form."""
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS, f"{words} is the {self.clicks}th click"
        self.page.locator("summary").get_by_text(words, exact=True).first.click()

    def writes(self, field: str, text: str) -> None:
        """Text into a field."""
        self.page.locator(field).fill(text)

    def a_worker_does_it(self) -> BulkOperation:
        """A worker runs the operation that was ordered, and the page follows it to its end."""
        BulkRunner(self._hands.store, "web-7:4711:bulk").run_once()
        operation = BulkOperation.objects.latest("pk")
        self.page.locator(".delayq-badge").get_by_text("done").wait_for()
        return operation

    def photograph(self, name: str, down_to: str = "h1") -> None:
        """A picture for the docs, when pictures are asked for."""
        self.page.locator(down_to).first.scroll_into_view_if_needed()
        if folder := os.environ.get("DELAYQ_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=f"{folder}/incident-{name}.png")


@pytest.fixture
def night(
    hands: Hands, browser_page: Callable[..., Any], as_user: Callable[..., Any]
) -> Callable[[], Night]:
    """Begins the night, after the test has set the scene."""

    def begin() -> Night:
        page = browser_page(as_user(superuser=True), width=1100, height=700)
        page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
        return Night(page, hands)

    return begin


def orders_since_two(hands: Hands, count: int = 40) -> None:
    """Orders that should have closed 73 minutes ago."""
    due = When.at(int(hands.store.clock_ms()) - 73 * 60_000)
    for number in range(4700, 4700 + count):
        handle = close_order.using(key=f"order:{number}", delay=DAY).enqueue(number)
        hands.store.reschedule_in(ORDERS, handle.identity, due)


# 1. Orders do not close since 14:00


def test_orders_do_not_close_and_no_worker_is_there(
    night: Callable[[], Night], hands: Hands
) -> None:
    orders_since_two(hands)
    me = night()
    me.sees("no worker")
    me.photograph("no-worker")
    me.click("Workers")
    me.sees("manage.py run_delayq")
    heartbeat(hands.store)  # somebody starts one
    overview.reader_of.cache_clear()
    me.click("Overview")
    assert me.page.locator("#delayq-attention").get_by_text("no worker").count() == 0


def test_orders_do_not_close_because_every_thread_hangs(
    night: Callable[[], Night], hands: Hands
) -> None:
    stuck = [record.using(key=f"report:{n}").enqueue(n) for n in range(4)]
    claim(hands, DEFAULT, WORKER, ago=720)
    since_ms = hands.store.clock_ms() - 720_000
    begun = {handle.id: [since_ms, f"pool-{n}"] for n, handle in enumerate(stuck)}
    tasks = [["default", record.name, 4, since_ms]]
    beat(hands, WORKER, in_flight=4, busy=4, tasks=tasks, begun=begun)
    orders_since_two(hands)
    me = night()
    me.sees("4 of 4 threads busy, 4 of them with record for 12 min")
    me.photograph("saturated")
    me.click("Running messages")
    me.sees("report:0")
    me.click("Select all on this page", "checkbox")
    me.opens("Cancel those that are ticked")
    me.writes("#delayq-cancel-reason", "INC-7: the reports hang, orders wait")
    me.photograph("running", down_to="button:text-is('Cancel these messages')")
    me.click("Cancel these messages", "button")
    me.sees("Nothing runs")
    assert topic_stats("default").leased == 0
    assert OperatorAction.objects.filter(action="cancel running").count() == 4


# 2. The message of order 4711


def test_the_message_of_an_order_is_found_by_its_number(
    night: Callable[[], Night], hands: Hands
) -> None:
    orders_since_two(hands)
    close_order.using(key="order:4750", delay=DAY).enqueue(4750)
    me = night()
    me.writes("#delayq-find", "4750")
    me.click("Find", "button")
    me.sees("Did you mean one of these?")
    me.photograph("find")
    me.page.locator(".delayq-table").get_by_role("link").first.click()
    me.sees("order:4750")
    me.sees("close_order")


# 3. Replay the dead letters, with another URL


def test_dead_letters_are_edited_and_replayed(night: Callable[[], Night], hands: Hands) -> None:
    now = timezone.now()
    for host, count in (("http://old.example", 30), ("http://other.example", 3)):
        body = json.dumps({"args": [f"{host}/hook"], "kwargs": {}})
        dead(count, body=body, error_class="GatewayTimeout", finished_at=now)
    heartbeat(hands.store, services=["bulk"])
    me = night()
    me.sees("GatewayTimeout")
    me.click("Dead letters")
    me.click("Replay these: tests.app.tasks.record, GatewayTimeout")
    me.opens("Edit one argument before the replay")
    me.writes("#id_edit_argument", "value")
    me.page.locator("#id_edit_how").select_option("replace")
    me.writes("#id_edit_values", "http://old.example -> https://new.example")
    me.writes("#id_reason", "INC-8: the provider has moved")
    me.click("Show before and after", "button")
    me.sees("https://new.example/hook")
    me.photograph("edit-and-replay", down_to="#id_edit_argument")
    me.click("Replay 33 messages", "button")
    operation = me.a_worker_does_it()
    me.sees("done, 3 skipped")
    me.photograph("replayed")
    assert (operation.count, operation.reason) == (30, "INC-8: the provider has moved")
    hands.relay()
    values = [message.args[0] for message in waiting_messages(WaitingSelection(topic="default"))]
    assert values == ["https://new.example/hook"] * 30


# 4. Pause a topic for ten minutes


def test_a_topic_is_paused_for_ten_minutes(night: Callable[[], Night], hands: Hands) -> None:
    orders_since_two(hands)
    me = night()
    me.click("orders")
    me.opens("Pause this topic")
    me.writes("#id_reason", "INC-9: the bank asks for ten minutes")
    me.page.locator("#id_hold").select_option("600")
    me.photograph("pause", down_to="button:text-is('Pause')")
    me.click("Pause", "button")
    me.sees("INC-9")
    pause = topic_stats("orders").paused
    assert pause is not None and pause.until is not None
    assert timedelta(minutes=9) < pause.until - timezone.now() < timedelta(minutes=10, seconds=5)


# 5. What fires tonight


def test_what_fires_tonight_is_listed(night: Callable[[], Night]) -> None:
    for hours in (2, 9, 30):
        record.using(key=f"at:{hours}", delay=hours * 3600).enqueue(hours)
    me = night()
    me.click("default")
    me.click("Filter, cancel, shift or move many …")
    since = timezone.localtime() + timedelta(hours=8)
    me.writes("#id_since", f"{since:%Y-%m-%dT%H:%M:%S}")
    me.writes("#id_until", f"{since + timedelta(hours=4):%Y-%m-%dT%H:%M:%S}")
    me.click("Filter", "button")
    me.sees("at:9")
    me.photograph("tonight")
    text = me.page.locator(".delayq-table").inner_text()
    assert "at:9" in text and "at:2" not in text and "at:30" not in text


# 6. Who has replayed what, and why


def test_who_has_replayed_a_letter_and_why(night: Callable[[], Night], hands: Hands) -> None:
    (pk, *_) = dead(5, key="order:4711", error_class="GatewayTimeout")
    order("replay", Selection(topic="default"))
    BulkRunner(hands.store, "x").run_once()
    me = night()
    me.click("Operator actions")
    me.sees("it works again")
    me.photograph("who")
    me.click("bulk operation")
    me.sees("olga")
    newest = ArchivedMessage.objects.exclude(replayed_at=None).get()
    me.click("Archive")
    me.click(re.compile(newest.message_id.hex[-8:]))
    me.sees("Handled by")
    me.sees("it works again")
    assert pk <= newest.pk


# 7. Is a worker stuck?


def test_a_stuck_worker_is_seen_with_what_it_holds(
    night: Callable[[], Night], hands: Hands
) -> None:
    handle = record.using(key="report:1").enqueue(1)
    claim(hands, DEFAULT, WORKER, ago=1_900)
    begun = {handle.id: [hands.store.clock_ms() - 1_900_000, "pool-1"]}
    beat(hands, WORKER, in_flight=1, begun=begun)
    me = night()
    me.click("Workers")
    me.click("1")
    me.sees("report:1")
    me.sees("pool-1")
    me.photograph("stuck")
    me.page.locator("input[name=message]").check()
    me.opens("Cancel those that are ticked")
    me.writes("#delayq-cancel-reason", "INC-10: it hangs")
    me.click("Cancel these messages", "button")
    me.sees("Nothing that runs fits")
    assert topic_stats("default").leased == 0


# 8. A wrong campaign


def test_a_wrong_campaign_is_cancelled(night: Callable[[], Night], hands: Hands) -> None:
    record.enqueue_many(
        [record.using(key=f"campaign:{n}", delay=DAY).prepare(n) for n in range(120)]
    )
    kept = [record.using(key=f"order:{n}", delay=DAY).enqueue(n).id for n in range(80)]
    heartbeat(hands.store, services=["bulk"])
    me = night()
    me.click("default")
    me.click("Filter, cancel, shift or move many …")
    me.writes("#id_key_prefix", "campaign:")
    me.click("Filter", "button")
    me.sees("120")
    me.writes("#id_reason", "INC-11: the price was wrong")
    me.click("Run it for real", "button")
    operation = me.a_worker_does_it()
    me.photograph("campaign-cancelled")
    assert operation.count == 120
    left = {message.id for message in waiting_messages(WaitingSelection(topic="default"))}
    assert left == set(kept)
