"""In a browser: what the overview says while Redis is away, what needs a script, and what fits the
screen."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from django_delayq.stats import overview
from tests.admin import by_hand
from tests.admin.browser import address
from tests.admin.test_script import backlog, expect
from tests.admin.world import World


@pytest.mark.long
def test_redis_away_is_read_out_once_and_its_figures_are_called_old(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    page = opened()
    status, alerts = page.locator("[data-delayq-status]"), page.locator("[data-delayq-alert]")
    expect(status).to_contain_text("Updated at")
    numbers = count(1)

    def read() -> overview.Overview:
        topics = [by_hand.topic(backlog=100 + next(numbers))]
        return by_hand.overview(topics=topics, problem="Connection refused", stale=True)

    monkeypatch.setattr(overview, "overview", read)
    page.keyboard.press("r")
    expect(alerts).to_contain_text("Connection refused")
    expect(status).to_have_text("Not updated since 10:20:11.")
    expect(page.locator(".delayq-stale .delayq-tiles")).to_be_visible()
    page.locator("#delayq-problem").evaluate("(problem) => (problem.title = 'the same')")
    page.keyboard.press("r")
    expect(backlog(page)).to_have_text("102")
    expect(alerts.locator("[title='the same']")).to_have_count(1)
    expect(page.locator("#delayq-problem")).to_have_count(1)
    monkeypatch.setattr(overview, "overview", by_hand.overview)
    page.keyboard.press("r")
    expect(status).to_contain_text("Updated at")
    expect(alerts).to_be_empty()
    expect(page.locator(".delayq-stale")).to_have_count(0)


def test_redis_is_away_from_the_start(opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    page = opened()
    monkeypatch.setattr(
        overview, "overview", lambda: by_hand.empty(problem="Connection refused", stale=True)
    )
    page.reload()
    expect(page.locator("[data-delayq-alert]")).to_contain_text("No figures are known yet")
    expect(page.locator("[data-delayq-status]")).to_be_empty()


def test_buttons_that_need_a_script_are_not_there_without(
    world: World, browser_page: Callable[..., Any], as_user: Callable[..., Any]
):
    for javascript in (True, False):
        page = browser_page(as_user(superuser=True), javascript=javascript)
        page.goto(address("archived", pk=world.dead))
        button = page.locator("[data-delayq-copy]").first
        expect(button).to_be_visible() if javascript else expect(button).to_be_hidden()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_find_box_is_wide_enough_for_what_it_asks_for(opened: Callable[..., Any], width: int):
    page = opened(width=width)
    rest = page.evaluate(
        "(() => { const box = document.querySelector('#delayq-find');"
        " const text = document.createElement('canvas').getContext('2d');"
        " const style = getComputedStyle(box); text.font = style.font;"
        " return box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)"
        " - text.measureText(box.placeholder).width; })()"
    )
    assert rest >= 0


def test_the_find_box_stands_beside_the_tabs_where_there_is_room(opened: Callable[..., Any]):
    page = opened(width=1600)
    ends = page.evaluate(
        "[...document.querySelectorAll('.delayq-tabs, .delayq-find')].map((one) => "
        "one.getBoundingClientRect().bottom)"
    )
    assert abs(ends[0] - ends[1]) < 20


def test_the_tables_of_the_overview_fit_a_wide_screen(opened: Callable[..., Any]):
    page = opened(width=1280)
    assert page.evaluate(
        "[...document.querySelectorAll('[role=region].delayq-scroll')]"
        ".every((box) => box.scrollWidth <= box.clientWidth)"
    )
