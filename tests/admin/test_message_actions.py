"""What can be done to a message while it waits: cancel, run now, reschedule, edit."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock

import pytest
from django.conf import settings as django_settings
from django.test import Client

from django_delayq.client import changes as producer
from django_delayq.client import topics
from django_delayq.client.handle import Handle
from django_delayq.core import exceptions
from django_delayq.models import OperatorAction
from django_delayq.operators import operations
from tests.admin.browser import address
from tests.admin.messages import AsUser, edited, html_of, operator, path, waiting
from tests.admin.world import heartbeat
from tests.app.tasks import close_order
from tests.hands import DAY, ORDERS, PAST, Hands

__all__ = ["operator", "waiting"]  # fixtures

WHY = {"reason": "a test"}


def test_cancel_takes_it_back_and_records_why(
    operator: Client, waiting: Handle, hands: Hands
) -> None:
    response = operator.post(path(waiting, "message_cancel"), {"reason": "paid twice"})
    assert response.url == address("topic", topic="orders")
    assert waiting.get() is None
    action = OperatorAction.objects.get()
    assert (action.action, action.reason, action.count) == ("cancel", "paid twice", 1)
    assert action.message_id is not None
    assert (action.message_id.hex, action.topic) == (waiting.id, "orders")


def test_a_running_message_is_cancelled_from_its_page(operator: Client, hands: Hands) -> None:
    handle = close_order.enqueue(1)
    (lease,) = hands.claim(ORDERS)
    assert path(handle, "message_cancel_running") in html_of(operator, handle)
    refused = operator.post(path(handle, "message_cancel_running"), {"reason": ""})
    assert refused.status_code == 200 and handle.get() is not None
    response = operator.post(path(handle, "message_cancel_running"), {"reason": "it hangs"})
    assert response.url == address("topic", topic="orders")
    assert hands.store.ack(ORDERS, [(lease, b"{}")]) == [lease]
    action = OperatorAction.objects.get()
    assert (action.action, action.reason) == ("cancel running", "it hangs")
    (row,) = hands.archive()
    page = operator.get(address("archived", pk=row.pk)).content.decode()
    assert "cancelled while it ran" in page and "without a run" not in page


def test_who_may_not_cancel_sees_no_button_on_a_running_message(
    as_user: AsUser, hands: Hands
) -> None:
    handle = close_order.enqueue(1)
    hands.claim(ORDERS)
    client = as_user("view_dashboard", "view_payload", "edit_message")
    assert path(handle, "message_cancel_running") not in html_of(client, handle)
    sent = client.post(path(handle, "message_cancel_running"), {"reason": "it hangs"})
    assert sent.status_code == 403 and handle.get() is not None


@pytest.mark.parametrize("reason", ["", "  ", "a\0b", "x" * 501])
def test_cancel_wants_a_reason(operator: Client, waiting: Handle, reason: str) -> None:
    response = operator.post(path(waiting, "message_cancel"), {"reason": reason})
    html = response.content.decode()
    assert response.status_code == 200 and "errorlist" in html
    assert re.search(r"<details open>\s*<summary>Cancel</summary>", html)
    assert waiting.get() and not OperatorAction.objects.exists()


@pytest.mark.parametrize(
    ("until", "served", "words"),
    [
        (None, True, "It runs as soon as a worker is free"),
        (None, False, "no worker serves its topic"),
        ("", True, "It runs when somebody resumes the topic"),
        ("2030-01-01 09:00", True, "paused until 2030-01-01 09:00:00"),
    ],
)
def test_run_now_promises_only_what_is_true(
    operator: Client, waiting: Handle, hands: Hands, until: str | None, served: bool, words: str
) -> None:
    if served:
        heartbeat(hands.store)
    if until is not None:
        end = datetime.fromisoformat(f"{until}+00:00") if until else None
        topics.pause_topic("orders", by="ada", reason="x", until=end)
    html = operator.post(path(waiting, "message_run_now"), WHY, follow=True).content.decode()
    told = re.search(r'<ul class="messagelist">.*?</ul>', html, re.DOTALL)
    assert told and words in told[0]
    assert ("as soon as a worker is free" in html) == (until is None and served)


def test_run_now_makes_it_due(operator: Client, waiting: Handle, hands: Hands) -> None:
    here = f"{path(waiting)}?moment=1"
    assert operator.post(path(waiting, "message_run_now"), {**WHY, "next": here}).url == here
    assert hands.work(ORDERS) == 1
    assert OperatorAction.objects.get().action == "run now"


@pytest.mark.parametrize(
    ("data", "due_in"),
    [
        ({"delay": "900", "delay_unit": "1"}, timedelta(minutes=15)),
        ({"delay": "1.5", "delay_unit": "3600"}, timedelta(minutes=90)),
        ({"delay": "0", "delay_unit": "60"}, timedelta(0)),
    ],
)
def test_reschedule_moves_it_by_a_time_from_now(
    operator: Client, waiting: Handle, data: dict[str, str], due_in: timedelta
) -> None:
    assert (
        operator.post(path(waiting, "message_reschedule"), {**data, **WHY, "at": ""}).status_code
        == 302
    )
    message = waiting.get()
    assert message
    assert abs(message.due_at - datetime.now(tz=timezone.utc) - due_in) < timedelta(seconds=10)


def test_reschedule_moves_it_to_an_instant_of_the_projects_time_zone(
    operator: Client, waiting: Handle, settings: Any
) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    assert "Time zone Asia/Tokyo" in html_of(operator, waiting)
    operator.post(
        path(waiting, "message_reschedule"),
        {"delay": "", "delay_unit": "60", "at": "2030-01-01T09:00:01", **WHY},
    )
    message = waiting.get()
    assert message and message.due_at == datetime(2030, 1, 1, 0, 0, 1, tzinfo=timezone.utc)


def test_a_button_has_a_time_of_its_own(operator: Client, waiting: Handle) -> None:
    data = {"quick": "900", "delay": "", "delay_unit": "60", "at": "", **WHY}
    assert operator.post(path(waiting, "message_reschedule"), data).status_code == 302
    message = waiting.get()
    due_in = message.due_at - datetime.now(tz=timezone.utc) if message else timedelta()
    assert abs(due_in - timedelta(minutes=15)) < timedelta(seconds=10)


@pytest.mark.parametrize("name", ["message_run_now", "message_reschedule"])
def test_an_action_wants_a_reason(operator: Client, waiting: Handle, name: str) -> None:
    before = waiting.get()
    data = {"delay": "900", "delay_unit": "1", "reason": " "}
    html = operator.post(path(waiting, name), data, follow=True).content.decode()
    assert "Write a reason for those who look at it later" in html
    assert waiting.get() == before and not OperatorAction.objects.exists()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "Fill in one of the two"),
        ({"delay": "5", "at": "2030-01-01T00:00"}, "Fill in one of the two"),
        ({"delay": "-5"}, "greater than or equal to 0"),
        ({"delay": "nan"}, "Enter a number"),
        ({"delay": "inf"}, "Enter a number"),
        ({"delay": "5", "delay_unit": "7"}, "Select a valid choice"),
        ({"delay": "4000", "delay_unit": "86400"}, "more than ten years"),
        ({"at": "2020-01-01T00:00"}, "This time is in the past"),
        ({"at": "2050-01-01T00:00"}, "more than ten years ahead"),
        ({"at": "tomorrow"}, "Write a date and a time"),
    ],
)
def test_a_wrong_time_is_refused_at_its_field(
    operator: Client, waiting: Handle, data: dict[str, str], words: str
) -> None:
    before = waiting.get()
    response = operator.post(path(waiting, "message_reschedule"), {"delay_unit": "60"} | data)
    assert response.status_code == 200
    assert words in response.content.decode() and "<details open>" in response.content.decode()
    assert waiting.get() == before


@pytest.mark.skipif(
    not django_settings.USE_TZ, reason="Django then asks no zone what its clock leaves out"
)
def test_an_hour_that_the_clock_leaves_out_is_refused(
    operator: Client, waiting: Handle, settings: Any
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    response = operator.post(
        path(waiting, "message_reschedule"), {"delay_unit": "60", "at": "2030-03-31T02:30"}
    )
    assert "couldn’t be interpreted in time zone Europe/Berlin" in response.content.decode()


def test_edit_gives_it_other_arguments_and_leaves_the_rest(
    operator: Client, waiting: Handle
) -> None:
    before = waiting.get()
    assert edited(operator, waiting, order_id="7", reason='a "b" \n雪').status_code == 302
    after = waiting.get()
    assert before and after
    assert (list(after.args), dict(after.kwargs)) == ([7], {"reason": 'a "b" \n雪'})
    for name in ("key", "headers", "due_at", "enqueued_at", "expires_at", "priority"):
        assert getattr(before, name) == getattr(after, name)
    assert OperatorAction.objects.get().action == "edit"


def test_wrong_arguments_are_refused_at_their_field(operator: Client, waiting: Handle) -> None:
    response = edited(operator, waiting, order_id="NaN")
    html = response.content.decode()
    assert (
        response.status_code == 200
        and "JSON has no NaN" in html
        and '<details id="delayq-edit" open>' in html
    )
    message = waiting.get()
    assert message and list(message.args) == [1042]
    assert not OperatorAction.objects.exists()


def test_what_the_service_refuses_is_said_at_the_form(operator: Client, waiting: Handle) -> None:
    with mock.patch.object(
        operations.changes, "edit", side_effect=exceptions.BodyTooLarge("too large by far")
    ):
        response = edited(operator, waiting, order_id="7")
    assert response.status_code == 200 and "too large by far" in response.content.decode()


def test_an_edit_over_the_edit_of_another_is_refused(operator: Client, waiting: Handle) -> None:
    form = operator.get(path(waiting)).context["edit_form"]
    data = {field.html_name: field.value() or "" for field in form}
    producer.edit("orders", waiting.id, [5], {})
    response = operator.post(path(waiting, "message_edit"), data)
    assert "have changed since this page was opened" in response.content.decode()
    message = waiting.get()
    assert message and list(message.args) == [5]


ACTIONS: list[tuple[str, dict[str, str]]] = [
    ("message_cancel", {"reason": "paid twice"}),
    ("message_run_now", WHY),
    ("message_reschedule", {"delay": "60", "delay_unit": "1", **WHY}),
    ("message_edit", {"argument_order_id": "7", **WHY}),
]


@pytest.mark.parametrize(("name", "data"), ACTIONS)
def test_who_may_not_changes_nothing(
    as_user: AsUser, waiting: Handle, name: str, data: dict[str, str]
) -> None:
    before = waiting.get()
    others = {
        "view_dashboard",
        "view_payload",
        "replay_message",
        "discard_message",
        "pause_topic",
        "bulk_operate",
    }
    others |= {"cancel_message"} if name == "message_edit" else {"edit_message"}
    client = as_user(*others)
    assert client.post(path(waiting, name), data).status_code == 403
    assert client.get(path(waiting, name)).status_code in (403, 405)
    assert path(waiting, name) not in html_of(client, waiting)
    assert waiting.get() == before and not OperatorAction.objects.exists()


@pytest.mark.parametrize(("name", "data"), ACTIONS)
def test_a_message_that_fired_between_page_and_click_is_said_in_words(
    operator: Client, hands: Hands, name: str, data: dict[str, str]
) -> None:
    handle = close_order.using(delay=DAY).enqueue(1)
    hands.store.reschedule_in(ORDERS, bytes.fromhex(handle.id), PAST)
    assert hands.work(ORDERS) == 1
    hands.archive()
    response = operator.post(path(handle, name), data | {"next": path(handle)}, follow=False)
    assert response.status_code == 302 and response.url == path(handle)
    page = operator.get(address("topic", topic="orders")).content.decode()
    assert "is not live" in page
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize(("name", "data"), ACTIONS[:3])
def test_a_message_that_a_worker_has_taken_is_said_in_words(
    operator: Client, hands: Hands, name: str, data: dict[str, str]
) -> None:
    handle = close_order.enqueue(1)
    hands.claim(ORDERS)
    html = operator.post(
        path(handle, name), data | {"next": path(handle)}, follow=True
    ).content.decode()
    assert "a worker holds it" in html
    assert not OperatorAction.objects.exists()


def test_edit_of_a_running_message_is_said_in_words(operator: Client, hands: Hands) -> None:
    handle = close_order.enqueue(1)
    form = operator.get(path(handle)).context["edit_form"]
    data = {field.html_name: field.value() or "" for field in form} | {
        "next": path(handle),
        "argument_order_id": "2",
        **WHY,
    }
    hands.claim(ORDERS)
    html = operator.post(path(handle, "message_edit"), data, follow=True).content.decode()
    assert "a worker holds it" in html


# In a browser


@pytest.mark.long
def test_a_message_is_moved_edited_and_cancelled_in_a_browser(
    hands: Hands, as_user: AsUser, browser_page: Callable[..., Any]
) -> None:
    text = 'two\nlines, a "quote" and 雪'
    handle = close_order.using(delay=DAY).enqueue(2**60 + 1, reason=text)
    user = as_user("view_dashboard", "view_payload", "cancel_message", "edit_message")
    page = browser_page(user, width=390, javascript=False)
    page.goto(path(handle))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390

    page.get_by_text("Reschedule", exact=True).first.click()
    page.get_by_label("Delay from now").fill("2")
    page.get_by_label("Unit").select_option("hours")
    page.locator("#delayq-reschedule-reason").fill("the bank is slow")
    page.get_by_role("button", name="Reschedule").click()
    assert (
        "The message is due in 2 h" in page.content()
        or "The message is due in 120 min" in page.content()
    )

    page.get_by_text("Edit arguments", exact=True).click()
    page.get_by_label("order_id").fill("7")
    page.locator("#delayq-edit-reason").fill("a typo")
    page.get_by_role("button", name="Save arguments").click()
    message = handle.get()
    assert message and (list(message.args), dict(message.kwargs)) == ([7], {"reason": text})

    page.get_by_text("Cancel", exact=True).click()
    page.locator("#id_reason").fill("paid twice")
    page.get_by_role("button", name="Cancel this message").click()
    assert f"Message {handle.id} is cancelled" in page.content()
    assert handle.get() is None
