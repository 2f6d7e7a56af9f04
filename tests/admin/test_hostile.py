"""Whatever a producer, a worker or an operator writes is text on the pages: it is there to read,
and does nothing."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client

from django_delayq import pause_topic
from django_delayq.admin import site
from django_delayq.models import ArchivedMessage, BulkOperation, OperatorAction
from tests.admin.browser import address
from tests.admin.test_csp import shown_pages
from tests.admin.world import MODES, World, heartbeat
from tests.app.tasks import act, close_order
from tests.hands import DAY, end_lease

MARKUP = (
    "<img src=x onerror=hit()><script>hit()</script>'\"</pre></textarea></script>--><!--{{ 7|add:7 "
    "}}"
)
#: Escape sequences, right-to-left override, isolates, zero width, line separator.
UNSEEN = "\x1b[2J\x07\u202e\u2066\u200b\u2028"
FORMULA = "=cmd|'/C calc'!A0"
LONG = "long " * 12_000


def hostile(field: str) -> str:
    """Text that would do harm, with the name of the field so that a test can find it."""
    return f"{field}:{MARKUP}{UNSEEN}"


def shown(field: str) -> str:
    """What a reader has to see of it."""
    return f"{field}:<img src=x onerror=hit()>"


@pytest.fixture
def attacked(world: World) -> World:
    """Everything is hostile that can be written from outside."""
    options: dict[str, Any] = {
        "key": hostile("key"),
        "headers": {hostile("header"): hostile("value")},
    }
    arguments = {"reason": hostile("argument") + LONG}
    waiting = close_order.using(delay=DAY, **options).enqueue(1, **arguments)
    world.arguments_of["message_id"] = waiting.id
    end_lease(world.hands.store, _leased(world))
    _spoil_the_archive(arguments)
    OperatorAction.objects.update(
        operator=hostile("operator"), reason=hostile("why") + LONG, selection=hostile("selection")
    )
    BulkOperation.objects.update(
        operator=hostile("operator"),
        reason=hostile("why") + LONG,
        error=hostile("failure"),
        worker=hostile("worker"),
        status="failed",
        skipped=json.dumps({hostile("skipped"): 3}),
    )
    figures = {"host": hostile("host"), "version": hostile("version"), "topics": [hostile("topic")]}
    heartbeat(world.hands.store, hostile("worker"), **figures)
    until = datetime.now(tz=timezone.utc) + timedelta(hours=1)
    pause_topic("orders", by=hostile("operator"), reason=hostile("pause"), until=until)
    return world


def _leased(world: World) -> Any:
    act.using(delay=0).enqueue(hostile("mode"))
    (lease,) = world.hands.claim(MODES)
    return lease


def _spoil_the_archive(arguments: dict[str, Any]) -> None:
    run = {
        "worker": hostile("worker"),
        "started_ms": 1.7e12,
        "ended_ms": 1.7e12 + 5,
        "outcome": "retried",
    }
    ArchivedMessage.objects.update(
        key=hostile("key"),
        body=json.dumps({"args": [FORMULA, hostile("argument")], "kwargs": arguments}),
        headers=json.dumps({hostile("header"): hostile("value")}),
        error_class=hostile("class"),
        error_message=hostile("message") + LONG,
        traceback=hostile("traceback") + LONG,
        reason=hostile("word"),
        worker=hostile("worker"),
        history=json.dumps({**run, "error": hostile("run") + LONG[:4000]}),
    )


#: What has to be there to read, by page.
TEXTS = {
    "changelist": ["pause", "operator"],
    "topic": ["pause", "operator", "key"],
    "message": ["key", "header", "value"],
    "dead_letters": ["class"],
    "archive": ["key", "class"],
    "archived": [
        "key",
        "header",
        "value",
        "class",
        "message",
        "traceback",
        "word",
        "worker",
        "run",
    ],
    "bulk_list": ["operator", "why"],
    "bulk": ["operator", "why", "failure", "skipped"],
    "workers": ["worker", "version", "topic"],
    "operator_actions": ["operator", "why", "selection"],
}


@pytest.mark.long
@pytest.mark.parametrize(
    "javascript",
    [
        pytest.param(True, id="with scripts"),
        pytest.param(False, id="without scripts", marks=pytest.mark.long),
    ],
)
def test_hostile_data_is_text(
    javascript: bool,
    attacked: World,
    browser_page: Callable[..., Any],
    as_user: Callable[..., Client],
):
    tab = browser_page(as_user(superuser=True), javascript=javascript)
    tab.add_init_script("window.hit = () => { window.wasHit = true; }")
    for page in shown_pages():
        assert tab.goto(address(page.name, **attacked.fill(page))).status == 200, page.name
        tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        text = tab.locator(".delayq").inner_text()
        for field in TEXTS.get(page.name, []):
            assert shown(field) in text, (page.name, field)
        assert [c for c in UNSEEN if c in text and not c.isprintable()] == [], page.name
        assert tab.locator("img[src=x]").count() == 0, page.name
        if javascript:
            assert tab.evaluate("() => window.wasHit") is None, page.name


def test_lists_stay_small_whatever_they_list(attacked: World, as_user: Callable[..., Client]):
    client = as_user(superuser=True)
    for name in (
        "changelist",
        "topic",
        "dead_letters",
        "archive",
        "bulk_list",
        "operator_actions",
        "workers",
    ):
        page = next(page for page in site._pages if page.name == name)
        assert len(client.get(address(name, **attacked.fill(page))).content) < 60_000, name


def test_the_live_figures_are_escaped_too(attacked: World, as_user: Callable[..., Client]):
    answer = as_user(superuser=True).get(address("changelist") + "?part=1")
    assert b"<script>hit()" not in answer.content
    assert b"pause:&lt;img src=x" in answer.content


def test_a_spreadsheet_takes_nothing_in_the_csv_for_a_formula(
    attacked: World, as_user: Callable[..., Client]
):
    ArchivedMessage.objects.update(
        key=FORMULA,
        error_class="+1",
        reason="-1",
        worker="@SUM(1)",
        error_message="\t=1",
        lateness_ms=1.5,
    )
    answer = as_user(superuser=True).get(address("archive_csv"))
    lines = list(csv.reader(StringIO(answer.getvalue().decode("utf-8-sig"))))
    assert len(lines) == 1 + ArchivedMessage.objects.count()
    cells = [cell for line in lines for cell in line]
    assert any("cmd|" in cell for cell in cells)
    assert [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))] == []


#: What each page reads of its address, and one word that it does not know.
QUESTIONS = {
    "archive": "q state topic task error since until id key before after open period ids page",
    "dead_letters": "q topic task error since until key before after open page",
    "find": "q topic key kind page",
    "bulk_new": "q state topic task error since until id key open period ids kind page",
    "topic": "q key before after in page",
    "operator_actions": "q action topic before after operator kind worker page",
    "waiting": "topic task key_prefix since until argument change by to page",
}


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize(
    "value",
    [
        MARKUP,
        UNSEEN,
        "\x00",
        "9" * 40,
        "-1",
        "a" * 5000,
        "2025-13-41T99:99",
        "args.x:\x00",
        b"\xed\xa0\x80",
    ],
)
def test_hostile_questions_are_answered(
    name: str, value: str | bytes, world: World, as_user: Callable[..., Client]
):
    """Never with an error of the server, and never with the question as markup."""
    page = next(page for page in site._pages if page.name == name)
    client = as_user(superuser=True)
    path = address(name, **world.fill(page))
    fields = QUESTIONS[name].split()
    answers = [client.get(f"{path}?{urlencode({field: value})}") for field in fields]
    assert [answer.status_code for answer in answers if answer.status_code >= 500] == []
    assert not any(b"<script>hit()" in answer.getvalue() for answer in answers)
