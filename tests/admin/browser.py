"""A real browser, driven by Playwright, that misses nothing: whatever it complains about fails the
test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.test.utils import override_settings
from django.urls import reverse
from pytest_django.live_server_helper import LiveServer

#: The strictest policy that the pages promise to work under.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'"
)

_ARGUMENTS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

_REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} blocked ${event.blockedURI || "inline"} at ${event.sourceFile}`));
"""


def strict_policy(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: every page but the shop's own is under POLICY."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if request.resolver_match and "shop" not in request.resolver_match.namespaces:
            response.headers["Content-Security-Policy"] = POLICY
        return response

    return middleware


def address(name: str, site: str = "admin", /, **arguments: Any) -> str:
    """The path of one of our pages, on the default admin site or another: address("topic",
    topic="orders")."""
    return reverse(f"{site}:django_delayq_dashboard_{name}", kwargs=arguments)


@contextmanager
def live_server() -> Iterator[LiveServer]:
    """The site of tests.settings on a free port of 127.0.0.1, with static files and the strict
    policy."""
    with override_settings(MIDDLEWARE=["tests.admin.browser.strict_policy", *settings.MIDDLEWARE]):
        server = LiveServer("127.0.0.1")
    yield server
    server.stop()


def chromium() -> str:
    """The system's Chromium. Without one the test is skipped; in CI, where nothing may be skipped
    unseen, it fails."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        reason = "no Chromium: apt-get install chromium, or name one in CHROMIUM"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    return str(found)


@contextmanager
def launched() -> Iterator[Any]:
    """A browser. While it is there, its event loop counts as running in this thread, and Django has
    to allow that."""
    program = chromium()
    from playwright.sync_api import sync_playwright

    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
            yield browser
            browser.close()
    finally:
        os.environ.pop("DJANGO_ALLOW_ASYNC_UNSAFE")
        if before is not None:
            os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before


def log_in(context: Any, site: str, who: Any) -> None:
    """Give a browser context the session of a user, or of a logged in django.test.Client."""
    client = who
    if not isinstance(who, Client):
        client = Client()
        client.force_login(who)
    name = settings.SESSION_COOKIE_NAME
    context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": site}])


def watch(page: Any, problems: list[str]) -> None:
    """Note in `problems` whatever goes wrong on the page from now on."""

    def on_console(message: Any) -> None:
        # That a resource failed to load is noted by on_response, which knows more.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            problems.append(f"{page.url}: console: {message.text}")

    def on_response(response: Any) -> None:
        if response.status >= 400:
            problems.append(
                f"{page.url}: {response.status} for {response.request.method} {response.url}"
            )

    def on_failed(request: Any) -> None:
        # Aborted: leaving the page ended it, or it turned out to be a download.
        if request.failure != "net::ERR_ABORTED":
            problems.append(f"{page.url}: {request.failure} for {request.url}")

    def on_dialog(dialog: Any) -> None:
        problems.append(f"{page.url}: a dialog said {dialog.message!r}")
        dialog.dismiss()

    page.add_init_script(_REPORT_VIOLATIONS)
    page.on("console", on_console)
    page.on("pageerror", lambda error: problems.append(f"{page.url}: script error: {error}"))
    page.on("response", on_response)
    page.on("requestfailed", on_failed)
    page.on("dialog", on_dialog)
