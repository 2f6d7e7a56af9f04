"""The pages in a real browser, under the strictest policy they promise to work under, as people
come to them: in both themes, on a telephone, by keyboard. And that the fixtures of these tests see
what they are there to see."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.urls import URLResolver, get_resolver

from django_delayq.admin import site
from tests.admin.browser import POLICY, address
from tests.admin.world import World

#: What a page says of itself. Inputs that are hidden, or that the admin's own frame brings along,
#: do not count.
_REPORT = """() => {
  const frame = document.querySelector(".delayq");
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  const shown = (one) => one.checkVisibility();
  const all = (selector) => [...frame.querySelectorAll(selector)].filter(shown);
  const say = (one) => one.outerHTML.slice(0, 200);
  const named = (one) => one.labels?.length || one.ariaLabel || one.getAttribute("aria-labelledby");
  const inText = (one) => one.tagName == "A" && getComputedStyle(one).display == "inline";
  const small = (one) => {
    const box = (one.labels?.length && one.type?.match(/checkbox|radio/) ? one.labels[0] : one).getBoundingClientRect();
    return box.height < 23.5 || box.width < 23.5;
  };
  const controls = all("a[href], button, input:not([type=hidden]), select, textarea, summary");
  const levels = all("h1, h2, h3, h4").map((one) => Number(one.tagName[1]));
  return {
    tooWide: document.scrollingElement.scrollWidth - innerWidth,
    unnamed: all("input:not([type=hidden]), select, textarea").filter((one) => !named(one)).map(say),
    wordless: all("a, button, summary").filter((one) => !one.innerText.trim() && !named(one)).map(say),
    untitled: all("svg").filter((one) => !one.ariaHidden && !one.querySelector("title")).map(say),
    small: controls.filter((one) => !inText(one) && small(one)).map(say),
    unreachable: controls.filter((one) => one.tabIndex < 0 && !one.disabled && one.type != "radio").map(say),
    inline: [...document.querySelectorAll("*")].filter((one) =>
      [...one.attributes].some((a) => a.name.startsWith("on"))).map(say),
    skipped: levels.filter((level, i) => level > (i ? levels[i - 1] : 1) + 1),
    unstyledScripts: [...document.querySelectorAll("script:not([src]):not([type='application/json'])")].map(say),
  };
}"""

_SOUND: dict[str, Any] = {
    "tooWide": 0,
    "unnamed": [],
    "wordless": [],
    "untitled": [],
    "small": [],
    "unreachable": [],
    "inline": [],
    "skipped": [],
    "unstyledScripts": [],
}


def shown_pages() -> Iterator[site.PageRoute]:
    """All that are no files and have an address of their own."""
    return (
        page
        for page in site._pages
        if "GET" in page.methods and "download_messages" not in page.permissions
    )


def shown_addresses(world: World) -> dict[str, str]:
    """The address of each, and of those that are asked for more."""
    addresses = {page.name: address(page.name, **world.fill(page)) for page in shown_pages()}
    more = {
        "waiting, with its form": ("waiting", "task=tests.app.tasks.close_order"),
        "find, with offers": ("find", "q=1042"),
        "find, by an argument": ("find", "q=args.*:1042"),
        "bulk_new, with an edit": ("bulk_new", f"kind=replay&id={world.dead}"),
        "bulk_new, a purge": ("bulk_new", "kind=purge&topic=orders"),
        "archived, with its form": ("archived", "edit=1"),
        "schedule, with its form": ("schedule", "task=tests.app.tasks.close_order"),
        "topic, by task": ("topic", "by=task"),
        "changelist, all-time": ("changelist", "columns=totals"),
        "archive, refused": ("archive", "q=args.x:1"),
    }
    return addresses | {name: f"{addresses[page]}?{query}" for name, (page, query) in more.items()}


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_is_sound(
    width: int,
    dark: bool,
    world: World,
    browser_page: Callable[..., Any],
    as_user: Callable[..., Any],
):
    tab = browser_page(as_user(superuser=True), width=width, dark=dark)
    unsound = {}
    for name, where in shown_addresses(world).items():
        answer = tab.goto(where)
        assert answer.status == 200, name
        assert answer.headers["content-security-policy"] == POLICY
        found = tab.evaluate(_REPORT)
        if found != _SOUND:
            unsound[name] = {name: value for name, value in found.items() if value != _SOUND[name]}
    assert not unsound, json.dumps(unsound, indent=1)


@pytest.mark.long
def test_every_page_says_the_same_without_scripts(
    world: World, browser_page: Callable[..., Any], as_user: Callable[..., Any]
):
    tab = browser_page(as_user(superuser=True), javascript=False)
    for page in shown_pages():
        assert tab.goto(address(page.name, **world.fill(page))).status == 200
        assert tab.locator(".delayq").inner_text().strip(), page.name


@pytest.mark.long
def test_the_tab_key_reaches_every_control(
    world: World, browser_page: Callable[..., Any], as_user: Callable[..., Any]
):
    tab = browser_page(as_user(superuser=True))
    # A page that is not seen is not refreshed: that would bring controls without our numbers.
    tab.add_init_script("Object.defineProperty(document, 'hidden', { get: () => true })")
    for page in shown_pages():
        tab.goto(address(page.name, **world.fill(page)))
        wanted = tab.evaluate(_NOTE_CONTROLS)
        assert wanted, page.name
        missing = wanted
        for _ in range(8):
            for _ in range(max(10, missing)):  # a date has a stop for each of its parts
                tab.keyboard.press("Tab")
            missing = tab.evaluate("() => controls.size")
            if not missing:
                break
        assert not missing, page.name


#: Notes the controls which have not had the focus. The first press leads into our part of the page.
_NOTE_CONTROLS = """() => {
  const frame = document.querySelector(".delayq");
  const shown = (one) => one.checkVisibility() && !one.disabled && one.type != "radio";
  const controls = "a[href], button, input:not([type=hidden]), select, textarea, summary";
  window.controls = new Set([...frame.querySelectorAll(controls)].filter(shown));
  document.addEventListener("focusin", (event) => window.controls.delete(event.target));
  frame.tabIndex = -1;
  frame.focus();
  return window.controls.size;
}"""


def test_every_address_of_the_urlconf_is_among_the_pages():
    """The tests of policy, accessibility, languages and permissions go through these."""
    patterns = list(addresses_under("admin/django_delayq/"))
    assert patterns == [f"admin/django_delayq/dashboard/{page.route}" for page in site._pages]


def addresses_under(prefix: str) -> Iterator[str]:
    """The patterns of all views whose address begins so."""

    def walk(patterns: list[Any], base: str) -> Iterator[str]:
        for one in patterns:
            whole = f"{base}{one.pattern}"
            if isinstance(one, URLResolver):
                yield from walk(one.url_patterns, whole)
            else:
                yield whole

    return (one for one in walk(get_resolver().url_patterns, "") if one.startswith(prefix))


# What the fixtures see


def test_whatever_the_browser_complains_about_is_noted(
    browser_page: Callable[..., Any], as_user: Callable[..., Any], browser_problems: list[str]
):
    tab = browser_page(as_user(superuser=True))
    tab.goto("/admin/")
    assert browser_problems == []
    with tab.expect_response("**/gone.png"):
        tab.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\"><img "
            "src=/gone.png>')"
        )
    with tab.expect_event("pageerror"):
        tab.evaluate("setTimeout(() => { throw new Error('a bug') })")
    with tab.expect_event("dialog"):
        tab.evaluate("setTimeout(() => alert('a dialog'))")
    tab.goto("/admin/")
    said = "\n".join(browser_problems)
    assert all(
        word in said for word in ("404 for GET", "gone.png", "CSP: style-src", "a bug", "a dialog")
    )
    browser_problems.clear()
