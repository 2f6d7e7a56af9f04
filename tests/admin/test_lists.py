"""The lists of the pages: facets, saved views, and the keys that go through rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_delayq import delayed_task
from django_delayq.outbox.ticker import Ticker
from tests.admin import crowd
from tests.admin.browser import address
from tests.admin.bulk_orders import text_of
from tests.admin.rows import make, make_dead
from tests.admin.world import World

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq")]


def test_a_facet_is_a_link_that_filters_and_one_that_takes_the_filter_away(
    as_user: Callable[..., Client],
) -> None:
    client = as_user("view_dashboard")
    make_dead(error_class="KeyError")
    make_dead(error_class="OSError")
    make()
    page = client.get(address("archive"), {"state": "dead"})
    html = page.content.decode()
    assert "Counted among all messages of the period" in html
    assert 'href="?state=dead&amp;error=%3DKeyError"' in html
    narrowed = client.get(f"{address('archive')}?state=dead&error=%3DKeyError").content.decode()
    assert 'href="?state=dead" aria-current="true"' in narrowed


def test_dead_letters_name_the_topics_with_their_counts(as_user: Callable[..., Client]) -> None:
    for topic in ("orders", "mail", "mail"):
        make_dead(topic=topic, finished_at=timezone.now())
    text = text_of(as_user("view_dashboard").get(address("dead_letters")))
    assert "mail 2" in text and "orders 1" in text


def test_dead_letters_are_narrowed_down_by_their_task_and_error(
    as_user: Callable[..., Client],
) -> None:
    recent = timezone.now()
    make_dead(error_class="KeyError", finished_at=recent)
    make_dead(error_class="OSError", finished_at=recent)
    make_dead(error_class="OSError", task="shop.tasks.mail", finished_at=recent)
    client = as_user("view_dashboard")
    text = text_of(client.get(address("dead_letters")))
    assert "OSError 2" in text and "KeyError 1" in text and "shop.tasks.mail 1" in text
    page = client.get(address("dead_letters"), {"error": "=OSError", "task": "shop.tasks.mail"})
    found = page.context["found"]
    assert [(group.task, group.error) for group in found.groups] == [("shop.tasks.mail", "OSError")]
    assert "error=%3DOSError" in page.context["totals"][0].query


@pytest.mark.long
def test_keys_go_through_the_rows_of_a_list(
    world: World, browser_page: Callable[..., Any], as_user: Callable[..., Any]
) -> None:
    for _ in range(3):
        make_dead()
    tab = browser_page(as_user(superuser=True))
    tab.goto(f"{address('archive')}?state=dead")
    links = tab.locator(".delayq-archive tbody a")
    tab.keyboard.press("j")
    tab.keyboard.press("j")
    assert links.nth(1).evaluate("one => one === document.activeElement")
    tab.keyboard.press("x")
    assert tab.locator("input[name=id]").nth(1).is_checked()
    tab.locator("h1").first.click()
    links.nth(1).focus()
    tab.keyboard.press("k")
    there = links.nth(0).get_attribute("href")
    tab.keyboard.press("Enter")
    tab.wait_for_url(f"**{there}")
    for letter, name in (("r", "recurring"), ("p", "operator_actions"), ("e", "schedule")):
        tab.keyboard.press("g")
        tab.keyboard.press(letter)
        tab.wait_for_url(f"**{address(name)}")


@pytest.mark.long
def test_a_view_is_saved_opened_and_removed(
    world: World, browser_page: Callable[..., Any], as_user: Callable[..., Any]
) -> None:
    tab = browser_page(as_user(superuser=True))
    tab.goto(f"{address('archive')}?state=dead&topic=modes")
    tab.get_by_text("Saved views").click()
    tab.get_by_label("Name of this view").fill("<b>dead modes</b>")
    tab.get_by_role("button", name="Save").click()
    tab.goto(address("archive"))
    tab.get_by_role("link", name="<b>dead modes</b>").click()
    tab.wait_for_url("**state=dead&topic=modes")
    tab.get_by_role("button", name="Remove the view: <b>dead modes</b>").click()
    tab.reload()
    assert tab.get_by_role("link", name="dead modes").count() == 0


#: Rows with a button or a box to tick are a little higher than a line.
_ONE_LINE = 44
_ROWS = """() => ({
  page: document.scrollingElement.scrollWidth - innerWidth,
  boxes: Math.max(0, ...[...document.querySelectorAll(".delayq-scroll")].map((one) => one.scrollWidth - one.clientWidth)),
  rows: Math.max(0, ...[...document.querySelectorAll(".delayq-scroll tbody tr")].map((one) => one.offsetHeight)),
})"""


@pytest.fixture
def crowded(world: World, nothing_recurs: dict[str, Any], shown: Callable[..., None]) -> None:
    """Rows with names as long as people give them, on all pages."""
    delayed_task(name="shop.tasks.send_newsletter", cron="0 3 * * *", topic="orders")(lambda: None)
    Ticker(world.hands.store).run_once()
    crowd.fill(world)
    shown(crowd.overview())


@pytest.mark.long
def test_beside_the_sidebar_of_a_usual_screen_rows_have_one_line_and_nothing_scrolls(
    crowded: None, browser_page: Callable[..., Any], as_user: Callable[..., Any]
) -> None:
    tab = browser_page(as_user(superuser=True), width=1280)
    for name in ("changelist", "workers", "recurring"):
        tab.goto(address(name))
        assert tab.locator("#nav-sidebar").is_visible()
        found = tab.evaluate(_ROWS)
        assert found["rows"] <= _ONE_LINE, name
        assert (found["page"], found["boxes"]) == (0, 0), name
    for name in (
        "archive",
        "dead_letters",
        "operator_actions",
    ):  # their texts may need a second line
        tab.goto(address(name))
        found = tab.evaluate(_ROWS)
        assert (found["page"], found["boxes"]) == (0, 0), name


@pytest.mark.long
def test_on_a_telephone_dead_letters_are_blocks_and_the_refresh_is_one_line(
    crowded: None, browser_page: Callable[..., Any], as_user: Callable[..., Any]
) -> None:
    tab = browser_page(as_user(superuser=True), width=390)
    tab.goto(address("dead_letters"))
    tab.get_by_text("Updated at").wait_for()
    found = tab.evaluate(_ROWS)
    assert (found["page"], found["boxes"]) == (0, 0)
    assert tab.locator("#delayq-refresh").bounding_box()["height"] <= _ONE_LINE
