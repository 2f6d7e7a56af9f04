"""Users with exactly these permissions, the site as a server, and pages in a real browser.

A test in the browser:

    def test_the_topic_is_paused(live_site, browser_page, as_user):
        page = browser_page(as_user("view_dashboard", "pause_topic"))
        page.goto(live_site + address("topic", topic="orders"))
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_text("paused")).to_be_visible()

Whatever the browser complains about (console, script errors, Content-Security-Policy, answers from
400 up, requests that fail, dialogs) fails the test. A test that expects a complaint removes it from
the fixture `browser_problems`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_delayq.stats import overview as figures
from django_delayq.store.store import RedisStore
from tests.admin import by_hand
from tests.admin.browser import address, launched, live_server, log_in, watch
from tests.admin.world import World
from tests.hands import Hands


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A real browser beside everything else on two cores: what it does not manage in time it may
    try again, twice."""
    for item in items:
        if "browser_page" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.flaky(reruns=2))
            item.add_marker(pytest.mark.browser)


@pytest.fixture
def new_user(db: None) -> Iterator[Callable[..., User]]:
    """Makes a user of its own with exactly these permissions of django_delayq; staff unless told
    otherwise."""
    made: list[User] = []

    def make(*codenames: str, superuser: bool = False, staff: bool = True) -> User:
        name = f"user-{secrets.token_hex(4)}"
        user = User.objects.create(
            username=name, is_staff=staff or superuser, is_superuser=superuser
        )
        made.append(user)
        permissions = Permission.objects.filter(
            content_type__app_label="django_delayq", codename__in=codenames
        )
        assert {permission.codename for permission in permissions} == set(codenames)
        user.user_permissions.set(permissions)
        return user

    yield make
    # Tests with transactions leave the tables of auth as they are (quick_flush).
    for user in made:
        user.delete()


@pytest.fixture
def as_user(new_user: Callable[..., User]) -> Callable[..., Client]:
    """A client logged in as such a user: as_user("view_dashboard"), as_user(superuser=True)."""

    def client(*codenames: str, superuser: bool = False, staff: bool = True) -> Client:
        client = Client()
        client.force_login(new_user(*codenames, superuser=superuser, staff=staff))
        return client

    return client


@pytest.fixture
def world(hands: Hands) -> World:
    """One of everything that the pages show (world.py)."""
    return World(hands)


@pytest.fixture(scope="session")
def _live_server(django_db_setup: None) -> Iterator[Any]:
    # After the database: before, it is one in memory, and the threads of a server would share its
    # connection.
    with live_server() as server:
        yield server


@pytest.fixture
def live_site(_live_server: Any, delayq: RedisStore, transactional_db: None) -> Iterator[str]:
    """The address of a server with the admin and the shop, on the test's Redis and database:
    http://127.0.0.1:40001.

    Every page but the shop's is under a strict Content-Security-Policy.
    """
    _live_server._live_server_modified_settings.enable()
    yield _live_server.url
    _live_server._live_server_modified_settings.disable()


@pytest.fixture(scope="package")
def _browser() -> Iterator[Any]:
    """One for the whole package. Not for the session: other tests run event loops of their own in
    this thread."""
    with launched() as browser:
        yield browser


@pytest.fixture
def browser_problems() -> list[str]:
    """What the browser complained about."""
    return []


@pytest.fixture
def browser_page(
    _browser: Any, live_site: str, browser_problems: list[str]
) -> Iterator[Callable[..., Any]]:
    """Opens a Playwright page, logged in as this user or client (None: nobody), in a context of its
    own.

    browser_page(as_user(...), width=390, height=844, dark=True, javascript=False, **options of
    new_context()).
    """
    contexts: list[Any] = []

    def open_page(
        who: Any = None,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        javascript: bool = True,
        **options: Any,
    ) -> Any:
        context = _browser.new_context(
            base_url=live_site,
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            java_script_enabled=javascript,
            **options,
        )
        contexts.append(context)
        context.set_default_timeout(10_000)
        if who is not None:
            log_in(context, live_site, who)
        context.on("page", lambda page: watch(page, browser_problems))
        return context.new_page()

    yield open_page
    for context in contexts:
        context.close()
    assert not browser_problems, "\n".join(browser_problems)


# The overview

#: The events "hide" and "unhide" do what another tab in front of this one does.
HIDE = """
let hidden = false;
Object.defineProperty(document, "hidden", { get: () => hidden });
for (const name of ["hide", "unhide"]) {
  document.addEventListener(name, () => {
    hidden = name === "hide";
    document.dispatchEvent(new Event("visibilitychange"));
  });
}
"""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The figures are these from now on: shown(by_hand.overview())."""
    return lambda overview: monkeypatch.setattr(figures, "overview", lambda: overview)


@pytest.fixture
def viewer(as_user: Callable[..., Client]) -> Client:
    """Who may see the pages, and nothing else."""
    return as_user("view_dashboard")


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read of the figures is a second younger, and has one more message in the backlog than
    the one before."""
    numbers = count(1)

    def read() -> figures.Overview:
        nth = next(numbers)
        return by_hand.overview(
            at=by_hand.AT + timedelta(seconds=nth),
            topics=[
                by_hand.topic(backlog=nth),
                by_hand.topic("mail", backlog=0, dead_letters=3, workers=0),
            ],
        )

    monkeypatch.setattr(figures, "overview", read)


@pytest.fixture
def opened(
    changing: None, browser_page: Callable[..., Any], as_user: Callable[..., Any], live_site: str
) -> Callable[..., Any]:
    """Opens the overview, with a clock that the test moves."""

    def open_page(**options: Any) -> Any:
        page = browser_page(as_user(superuser=True), **options)
        page.add_init_script(HIDE)
        if options.get("javascript", True):
            page.clock.install()
        page.goto(live_site + address("changelist"))
        return page

    return open_page
