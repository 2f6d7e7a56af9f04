"""The pages on an admin site that is not the default one, and under django-unfold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import Client

from django_delayq.admin import site as pages
from tests.admin.browser import address
from tests.admin.world import World

ROOT = Path(__file__).parents[2]
HERE = "/back-office/queue/"


class Addresses(HTMLParser):
    """Collects where the links and forms inside our part of a page lead to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._depth = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "div":
            self._depth += bool(self._depth or "delayq" in (given.get("class") or "").split())
        if self._depth:
            self.found += [value for name, value in attrs if name in ("href", "action") and value]

    def handle_endtag(self, tag: str) -> None:
        if tag == "div" and self._depth:
            self._depth -= 1


@pytest.fixture
def elsewhere(settings: Any) -> None:
    """The project of urls.py."""
    settings.ROOT_URLCONF = "tests.admin.urls"


def opened(client: Client, world: World, site: str) -> dict[str, Any]:
    """Every page but the picture's figures, and the one that only leads to others."""
    names = [page for page in pages._pages if "GET" in page.methods and page.name != "find"]
    return {page.name: client.get(address(page.name, site, **world.fill(page))) for page in names}


def test_every_page_opens(world: World, as_user: Callable[..., Client]):
    answers = opened(as_user(superuser=True), world, "admin")
    assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(
        answers, 200
    )
    html = {
        name: answer.content.decode()
        for name, answer in answers.items()
        if "html" in answer["Content-Type"]
    }
    assert [name for name, text in html.items() if text.count('class="delayq"') != 1] == []
    assert len(html) > 8


@pytest.mark.long
def test_every_page_stays_on_its_own_site(
    elsewhere: None, world: World, as_user: Callable[..., Client]
):
    client = as_user(superuser=True)
    for name, answer in opened(client, world, "operators").items():
        assert answer.status_code == 200, name
        if "html" in answer["Content-Type"]:
            found = Addresses(answer.content.decode()).found
            assert found, name
            assert [one for one in found if one[0] == "/" and not one.startswith(HERE)] == [], name


def test_an_action_leads_back_to_its_own_site(
    elsewhere: None, world: World, as_user: Callable[..., Client]
):
    answer = as_user(superuser=True).post(address("topic_resume", "operators", topic="orders"))
    assert answer.status_code == 302
    assert answer.url.startswith(HERE)


def test_the_index_leads_to_the_overview(
    elsewhere: None, world: World, as_user: Callable[..., Client]
):
    assert (
        address("changelist", "operators") in as_user("view_dashboard").get(HERE).content.decode()
    )
    assert address("changelist", "operators") not in as_user().get(HERE).content.decode()


@pytest.mark.long
def test_every_page_opens_under_unfold():
    pytest.importorskip("unfold")
    if "unfold" in django_settings.INSTALLED_APPS:
        return
    tests = f"{Path(__file__).relative_to(ROOT)}::{test_every_page_opens.__name__}"
    command = [
        sys.executable,
        "-m",
        "pytest",
        tests,
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not re.match("PYTEST_|DELAYQ_TEST_", name)
    }
    done = subprocess.run(
        [*command, "--ds", "tests.admin.unfold_settings"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
