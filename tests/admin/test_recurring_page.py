"""The page of recurring tasks: what it shows, and its buttons."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_delayq import delayed_task
from django_delayq.models import OperatorAction, RecurringTask
from django_delayq.outbox.ticker import Ticker, key_of
from tests.admin.browser import address
from tests.hands import Hands

NAME = "recurring.task"
HOSTILE = "</td><script>alert(1)</script>\u202e"


@pytest.fixture
def task(nothing_recurs: dict[str, Any], hands: Hands) -> Any:
    return delayed_task(name=NAME, cron="0 3 * * *", time_zone="Europe/Berlin", topic="orders")(
        lambda: None
    )


@pytest.fixture
def operator(as_user: Callable[..., Client]) -> Client:
    return as_user("view_dashboard", "pause_topic", "cancel_message")


def read(client: Client) -> str:
    """What is read on the page, without markup."""
    answer = client.get(address("recurring"))
    assert answer.status_code == 200
    body = answer.content.decode().partition('<div class="delayq"')[2]
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", body)))


def test_it_shows_the_rule_the_next_ticks_and_the_last_run(
    task: Any, operator: Client, hands: Hands
) -> None:
    assert "Nobody writes its ticks" in read(operator)
    Ticker(hands.store).run_once()
    tick_ms = int(hands.store.clock_ms()) // 60_000 * 60_000
    RecurringTask.objects.update(last_tick_ms=tick_ms)
    task.using(key=key_of(NAME, tick_ms)).enqueue()
    text = read(operator)
    for words in (
        NAME,
        "orders",
        "0 3 * * * Europe/Berlin",
        "the newest missed tick runs",
        "ready",
    ):
        assert words in text
    assert "Nobody writes its ticks" not in text
    assert text.count(":00:00") >= 3


def test_a_project_without_recurring_tasks_reads_how_to_make_one(
    task: Any, operator: Client, declared: dict[str, Any]
) -> None:
    del declared[NAME]
    assert '@delayed_task(cron="0 3 * * *")' in read(operator)


def test_what_other_code_declares_is_told(
    task: Any, operator: Client, declared: dict[str, Any]
) -> None:
    RecurringTask.objects.create(task=NAME, rule="every 60 s", upto_ms=1)
    RecurringTask.objects.create(task=f"x{HOSTILE}", rule="every 60 s", upto_ms=1)
    text = read(operator)
    assert "The code here has another rule" in text
    assert "No code here declares it" in text
    assert "<script>alert" not in operator.get(address("recurring")).content.decode()


def test_the_buttons_pause_resume_and_run_now(task: Any, operator: Client, hands: Hands) -> None:
    def press(button: str, reason: str = "") -> str:
        given = {"task": NAME, "reason": reason}
        answer = operator.post(address(f"recurring_{button}"), given, follow=True)
        return html.unescape(answer.content.decode())

    assert "Write a reason" in press("pause")
    assert f"{NAME} is paused" in press("pause", HOSTILE)
    assert HOSTILE not in operator.get(address("recurring")).content.decode()
    assert "Paused" in read(operator)
    assert f"{NAME} goes on" in press("resume")
    assert f"{NAME} runs now" in press("run")
    actions = OperatorAction.objects.order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["pause", "resume", "run now"]


def test_who_may_only_look_sees_no_button(task: Any, viewer: Client) -> None:
    page = viewer.get(address("recurring")).content.decode()
    assert NAME in page
    assert "formaction" not in page
    assert viewer.post(address("recurring_run"), {"task": NAME}).status_code == 403
