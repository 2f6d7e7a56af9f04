"""The overview in a browser: themes, narrow screens, keys, and a refresh that changes nothing but
the figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.admin.browser import address


def backlog(page: Any) -> Any:
    return page.locator(".delayq-tile", has_text="Backlog").locator("b")


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_looks_right_and_never_scrolls_sideways(
    opened: Callable[..., Any], width: int, dark: bool
):
    page = opened(width=width, dark=dark)
    expect(page.locator(".delayq-plot canvas")).to_have_count(4)
    expect(page.locator(".delayq-spark canvas")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    small = page.evaluate(
        "[...document.querySelectorAll('.delayq button, .delayq select, .delayq summary, .delayq "
        "td a, .delayq nav a')]"
        ".filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < "
        "24).map((one) => one.outerHTML)"
    )
    assert not small


def test_without_script_the_figures_are_there_and_a_link_to_reload(opened: Callable[..., Any]):
    page = opened(javascript=False)
    expect(backlog(page)).to_have_text("1")
    expect(page.locator(".delayq-chart canvas")).to_have_count(0)
    page.locator("#delayq-minutes-numbers summary").click()
    expect(page.locator("#delayq-minutes-numbers tbody tr")).to_have_count(59)
    expect(page.get_by_label("Refresh every")).to_be_hidden()
    page.get_by_role("link", name="Reload").click()
    expect(backlog(page)).to_have_text("2")


def test_the_figures_are_refreshed_as_often_as_was_chosen_and_that_is_remembered(
    opened: Callable[..., Any],
):
    page = opened()
    expect(backlog(page)).to_have_text("1")
    page.clock.run_for(5_000)
    expect(backlog(page)).to_have_text("2")
    page.get_by_label("Refresh every").select_option("60")
    page.clock.run_for(59_000)
    expect(backlog(page)).to_have_text("2")
    page.clock.run_for(1_000)
    expect(backlog(page)).to_have_text("3")
    page.reload()
    expect(page.get_by_label("Refresh every")).to_have_value("60")
    page.get_by_label("Refresh every").select_option("0")
    page.clock.run_for(600_000)
    expect(backlog(page)).to_have_text("4")


def test_nothing_is_fetched_while_nobody_looks_and_at_once_when_somebody_does(
    opened: Callable[..., Any],
):
    page = opened()
    page.evaluate("document.dispatchEvent(new Event('hide'))")
    page.clock.run_for(600_000)
    expect(backlog(page)).to_have_text("1")
    page.evaluate("document.dispatchEvent(new Event('unhide'))")
    expect(backlog(page)).to_have_text("2")


def test_an_answer_that_comes_when_nobody_looks_any_more_is_the_last(opened: Callable[..., Any]):
    page = opened()
    asked: list[Any] = []
    page.route("**/*part=1*", lambda route: asked.append(route))  # noqa: PLW0108 - Playwright marks what it gets
    with page.expect_request("**/*part=1*"):
        page.keyboard.press("r")
    page.evaluate("document.dispatchEvent(new Event('hide'))")
    asked[0].continue_()
    expect(backlog(page)).to_have_text("2")
    page.clock.run_for(600_000)
    assert len(asked) == 1


def test_a_slow_answer_is_not_asked_for_twice_until_it_is_given_up(opened: Callable[..., Any]):
    page = opened()
    asked: list[Any] = []
    page.route("**/*part=1*", lambda route: asked.append(route))  # noqa: PLW0108 - Playwright marks what it gets
    page.get_by_label("Refresh every").select_option("1")
    page.clock.run_for(10_000)
    page.keyboard.press("r")
    page.clock.run_for(3_000)
    assert len(asked) == 1
    page.clock.run_for(10_000)
    expect(page.locator("[data-delayq-failed]")).to_contain_text("no answer")
    page.clock.run_for(2_000)
    assert len(asked) == 2
    asked[1].continue_()
    expect(backlog(page)).to_have_text("2")


@pytest.mark.long
def test_a_refresh_that_failed_is_said_and_tried_again_with_a_pause(
    opened: Callable[..., Any], browser_problems: list[str]
):
    page = opened()
    page.get_by_label("Refresh every").select_option("1")
    asked: list[Any] = []

    def refuse(route: Any) -> None:
        asked.append(route)
        route.fulfill(status=503)

    page.route("**/*part=1*", refuse)
    failed = page.locator("[data-delayq-failed]")
    page.clock.run_for(1_000)
    expect(failed).to_contain_text("HTTP 503")
    page.clock.run_for(1_500)
    assert len(asked) == 1
    page.clock.run_for(500)
    expect(page.locator(".delayq-stale")).to_be_visible()
    page.unroute("**/*part=1*")
    for _ in range(
        60
    ):  # a second at a time: the server's answer takes real time, and is given up after some of ours
        page.clock.run_for(1_000)
        with suppress(AssertionError):
            expect(failed).to_be_hidden(timeout=500)
            break
    expect(failed).to_be_hidden()
    expect(page.locator(".delayq-stale")).to_have_count(0)
    assert all("503" in problem for problem in browser_problems)
    browser_problems.clear()


def test_a_refresh_leaves_focus_open_tables_and_scrolled_boxes_alone(opened: Callable[..., Any]):
    page = opened(width=390)
    page.locator("#delayq-minutes summary").click()
    page.locator("td a[href*=dead-letters]", has_text="3").focus()
    page.locator("#delayq-minutes .delayq-scroll").evaluate("(box) => (box.scrollTop = 40)")
    page.locator(".delayq-topics").first.locator("..").evaluate("(box) => (box.scrollLeft = 30)")
    page.keyboard.press("r")
    expect(backlog(page)).to_have_text("2")
    expect(page.locator("td a[href*=dead-letters]", has_text="3")).to_be_focused()
    expect(page.locator("#delayq-minutes details")).to_have_attribute("open", "")
    assert page.locator("#delayq-minutes .delayq-scroll").evaluate("(box) => box.scrollTop") == 40
    assert (
        page.locator(".delayq-topics").first.locator("..").evaluate("(box) => box.scrollLeft") == 30
    )


def test_selected_text_is_not_taken_away(opened: Callable[..., Any]):
    page = opened()
    page.locator("#delayq-topics").select_text()
    page.clock.run_for(5_000)
    expect(page.locator("[data-delayq-status]")).to_have_text(
        "Refreshing stops while you select text or fill in a form."
    )
    expect(backlog(page)).to_have_text("1")
    page.evaluate("window.getSelection().empty()")
    page.clock.run_for(5_000)
    expect(backlog(page)).to_have_text("2")


@pytest.mark.long
def test_what_has_changed_is_read_out_once_a_minute(opened: Callable[..., Any]):
    page = opened()
    page.get_by_label("Refresh every").select_option("15")
    read_out = page.locator("[data-delayq-summary]")
    for turn in range(3):
        page.clock.run_for(15_000)
        expect(backlog(page)).to_have_text(str(turn + 2))
    expect(read_out).to_be_empty()
    page.clock.run_for(15_000)
    expect(read_out).to_have_text(
        re.compile("^Backlog 5, lag 250 ms, .* 17 open dead letters, 2 workers.$")
    )


def test_a_chart_stays_while_its_figures_do_and_follows_the_theme(opened: Callable[..., Any]):
    page = opened()
    chart = page.locator("#delayq-throughput .uplot")
    chart.evaluate("(chart) => (chart.id = 'the-same')")
    page.keyboard.press("r")
    expect(backlog(page)).to_have_text("2")
    expect(page.locator(".uplot#the-same canvas")).to_have_count(1)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    expect(page.locator(".uplot#the-same")).to_have_count(0)
    expect(chart).to_have_count(1)


def test_a_bar_says_what_it_is_and_leads_to_its_messages(opened: Callable[..., Any]):
    page = opened()
    over = page.locator("#delayq-minutes .u-over")
    over.hover(position={"x": over.bounding_box()["width"] - 3, "y": 80})
    tip = page.locator("#delayq-minutes .delayq-tip")
    expect(tip).to_contain_text("11:19")
    expect(tip).to_contain_text("orders: 59")
    over.click(position={"x": over.bounding_box()["width"] - 3, "y": 80})
    page.wait_for_url("**/waiting/?topic=orders&since=2026-11-20T11:19Z&until=2026-11-20T11:20Z")


def test_distances_go_on_between_two_refreshes(opened: Callable[..., Any]):
    page = opened()
    page.get_by_label("Refresh every").select_option("0")
    due = page.locator(".delayq-topics [data-delayq-at]").first
    due.evaluate(
        "(one) => { one.dataset.delayqAt = new Date(Date.now() + 4380_000).toISOString(); }"
    )
    page.clock.run_for(1_000)
    expect(due).to_have_text("in 1 h 13 min")
    page.clock.run_for(4_400_000)
    expect(due).to_have_text("overdue")


def test_what_somebody_writes_is_not_taken_away(opened: Callable[..., Any]):
    page = opened()
    page.get_by_label("Name contains").fill("ord")
    page.get_by_label("Name contains").blur()
    page.clock.run_for(5_000)
    expect(page.locator("[data-delayq-status]")).to_contain_text("fill in a form")
    expect(page.get_by_label("Name contains")).to_have_value("ord")
    page.get_by_label("Name contains").press("Enter")
    page.wait_for_url("**/?topic=ord")
    expect(page.locator(".delayq-topics tbody tr")).to_have_count(1)


@pytest.mark.long
def test_keys_lead_everywhere_but_not_while_somebody_types(
    opened: Callable[..., Any], live_site: str
):
    page = opened()
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Keys")).to_be_hidden()
    page.keyboard.press("/")
    find = page.get_by_label("Find messages by id, key or argument")
    expect(find).to_be_focused()
    page.keyboard.type("r?gd")
    expect(find).to_have_value("r?gd")
    assert page.url == live_site + address("changelist")
    find.blur()
    for letter, name in (
        ("d", "dead_letters"),
        ("a", "archive"),
        ("s", "statistics"),
        ("b", "bulk_list"),
        ("w", "workers"),
        ("o", "changelist"),
    ):
        page.keyboard.press("g")
        page.keyboard.press(letter)
        page.wait_for_url(live_site + address(name))


@pytest.mark.long
def test_keys_can_be_switched_off(opened: Callable[..., Any]):
    page = opened()
    page.get_by_role("button", name="Keys").click()
    page.get_by_label("Keys work in this browser").uncheck()
    page.get_by_role("button", name="Close").click()
    page.reload()
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keys")).to_be_hidden()


def test_a_button_copies(opened: Callable[..., Any]):
    page = opened()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate(
        "document.querySelector('.delayq').insertAdjacentHTML('beforeend', '<pre "
        'id="trace">Traceback\\n  line</pre>\''
        '+ \'<button type="button" data-delayq-copy="#trace">Copy</button>\')'
    )
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_focused()
    assert page.evaluate("navigator.clipboard.readText()") == "Traceback\n  line"
    page.clock.run_for(2_000)
    expect(page.get_by_role("button", name="Copy", exact=True)).to_be_visible()
