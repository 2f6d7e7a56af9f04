"""Sending one message from a form that is made of the task's signature."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock

import pytest
from django.test import Client

from django_delayq import delayed_task
from django_delayq.client import topics
from django_delayq.core import exceptions
from django_delayq.core.message import Message, Priority, key_id
from django_delayq.models import OperatorAction, OutboxMessage
from django_delayq.store.workers import Workers
from django_delayq.tasks import registry
from tests.admin.browser import address
from tests.app.tasks import close_order, seen
from tests.faults import lost_answers, unreachable
from tests.hands import DAY, ORDERS, Hands

AsUser = Callable[..., Client]
TASK = "tests.app.tasks.close_order"
HERE = {"task": TASK}


@pytest.fixture
def client(as_user: AsUser, hands: Hands) -> Client:
    return as_user("view_dashboard", "view_payload", "edit_message")


def filled(client: Client, task: str = TASK, **changes: str) -> dict[str, str]:
    """What a browser sends of the page's form after these changes; off means a box without its
    tick."""
    context = client.get(address("schedule"), {"task": task}).context
    data = {
        f.html_name: f.value() for form in (context["form"], context["arguments"]) for f in form
    }
    data |= {"delay": "60", "delay_unit": "1", "expires": None, "expires_unit": "60"}
    data = {
        name: "on" if value is True else value
        for name, value in data.items()
        if value not in (None, False)
    }
    return {name: value for name, value in (data | changes).items() if value != "off"}


def send(client: Client, data: dict[str, str], task: str = TASK) -> Any:
    return client.post(f"{address('schedule')}?task={task}", data)


def only_message(topic: str = "orders") -> Message:
    (message,) = topics.list_messages(topic).messages
    return message


def due_in(message: Message) -> timedelta:
    return message.due_at - datetime.now(tz=timezone.utc)


def test_every_task_can_be_chosen(client: Client) -> None:
    html = client.get(address("schedule")).content.decode()
    for name in registry.by_name:
        assert f'<option value="{name}">' in html


def test_a_message_is_sent_with_its_arguments_and_options(client: Client) -> None:
    data = filled(
        client,
        argument_order_id="1042",
        argument_reason="by hand",
        delay="1.5",
        delay_unit="3600",
        key="order:1042",
        priority="high",
        expires="2",
        expires_unit="86400",
        headers='{"ticket": "OPS-7"}',
    )
    response = send(client, data)
    message = only_message()
    assert response.url == f"{address('message', topic='orders', message_id=message.id)}?moment=1"
    assert (list(message.args), dict(message.kwargs)) == (
        [],
        {"order_id": 1042, "reason": "by hand"},
    )
    assert (message.key, message.priority, message.headers) == (
        "order:1042",
        Priority.HIGH,
        {"ticket": "OPS-7"},
    )
    assert abs(due_in(message) - timedelta(minutes=90)) < timedelta(seconds=10)
    assert message.expires_at and message.expires_at - message.due_at == timedelta(days=2)
    action = OperatorAction.objects.get()
    assert action.message_id is not None
    assert (action.action, action.message_id.hex, action.count) == ("schedule", message.id, 1)
    assert "The message was enqueued." in client.get(response.url).content.decode()


def test_it_runs(client: Client, hands: Hands) -> None:
    send(client, filled(client, argument_order_id="7", delay="0"))
    hands.work(ORDERS)
    assert seen == [(7, "unpaid")]


def test_an_instant_is_of_the_projects_time_zone(client: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    assert "Time zone Asia/Tokyo" in client.get(address("schedule"), HERE).content.decode()
    send(client, filled(client, argument_order_id="7", delay="", at="2030-01-01T09:00"))
    assert only_message().due_at == datetime(2030, 1, 1, tzinfo=timezone.utc)


def test_a_durable_message_is_kept_by_the_database(client: Client) -> None:
    response = send(client, filled(client, argument_order_id="7", delay=str(2 * DAY), durable="on"))
    assert "yes: the database has it" in client.get(response.url).content.decode()


def test_the_form_begins_with_what_the_task_says(client: Client, declared: dict[str, Any]) -> None:
    @delayed_task(name="t.low", topic="orders", priority="low", durable=True, on_duplicate="keep")
    def low() -> None:
        """Does little.

        And more."""

    page = client.get(address("schedule"), {"task": "t.low"})
    form = page.context["form"]
    assert [form[name].value() for name in ("priority", "durable", "on_duplicate")] == [
        "low",
        True,
        "keep",
    ]
    assert (
        "Does little." in page.content.decode() and "The task takes none." in page.content.decode()
    )
    assert send(client, filled(client, "t.low", durable="off"), "t.low").status_code == 302
    assert only_message().task == "t.low"


BEFORE = "This form was already sent"


@pytest.mark.parametrize("key", ["", "order:7"])
def test_sent_twice_it_counts_once_and_leads_to_its_message(client: Client, key: str) -> None:
    data = filled(client, argument_order_id="7", key=key, on_duplicate="replace")
    assert send(client, data).status_code == 302
    again = send(client, data | {"argument_order_id": "8"})
    assert again.url == address("message", topic="orders", message_id=only_message().id)
    assert BEFORE in client.get(again.url).content.decode()
    assert dict(only_message().kwargs) == {"order_id": 7}
    assert OperatorAction.objects.count() == 1


@pytest.mark.parametrize("key", ["", "order:7"])
def test_sent_again_after_it_has_run_it_does_not_run_again(
    client: Client, hands: Hands, key: str
) -> None:
    data = filled(client, argument_order_id="7", delay="0", key=key)
    send(client, data)
    hands.work(ORDERS)
    not_yet_archived = send(client, data)
    assert not_yet_archived.status_code == 200 and BEFORE in not_yet_archived.content.decode()
    assert "Reset the form" in not_yet_archived.content.decode()
    row = hands.archive()[0]
    assert send(client, data).url == address("archived", pk=row.pk)
    assert seen == [(7, "unpaid")] and not hands.work(ORDERS)


def test_another_form_for_the_same_key_is_not_the_same_form(client: Client, hands: Hands) -> None:
    for _ in range(2):
        send(client, filled(client, argument_order_id="7", delay="0", key="order:7"))
        hands.work(ORDERS)
    assert seen == [(7, "unpaid")] * 2


def test_what_was_refused_for_its_key_may_be_sent_again_as_it_is(client: Client) -> None:
    handle = close_order.using(delay=DAY, key="k").enqueue(1)
    data = filled(client, argument_order_id="7", key="k", on_duplicate="raise")
    assert "already live" in send(client, data).content.decode()
    handle.cancel()
    assert send(client, data).status_code == 302
    assert dict(only_message().kwargs) == {"order_id": 7}


def test_what_is_refused_later_does_not_make_a_form_that_has_counted_count_again(
    client: Client,
) -> None:
    data = filled(client, argument_order_id="7", key="k", on_duplicate="replace")
    send(client, data)
    full = exceptions.StoreFull()
    with (
        mock.patch("django_delayq.operators.operations.schedule", side_effect=full),
        mock.patch.object(Workers, "acquire_lock", side_effect=full),
    ):
        assert "Redis is at maxmemory" in send(client, data).content.decode()
    assert BEFORE in client.get(send(client, data).url).content.decode()


def test_with_redis_away_the_outbox_takes_it_once(client: Client, settings: Any) -> None:
    data = filled(client, argument_order_id="7", delay=str(2 * DAY), durable="on")
    with unreachable():
        assert send(client, data).status_code == 302
        send(client, data)
    assert OutboxMessage.objects.count() == 1


@pytest.mark.parametrize(("mode", "order_id"), [("raise", 1), ("keep", 1), ("replace", 7)])
def test_a_key_that_is_live_is_treated_as_chosen(client: Client, mode: str, order_id: int) -> None:
    close_order.using(delay=DAY, key="k").enqueue(1)
    response = send(client, filled(client, argument_order_id="7", key="k", on_duplicate=mode))
    message = only_message()
    assert [*message.args, *message.kwargs.values()] == [order_id]
    live = address("message", topic="orders", message_id=key_id("orders", "k").hex())
    if mode == "raise":
        assert response.status_code == 200
        assert "already live" in response.content.decode() and live in response.content.decode()
        assert not OperatorAction.objects.exists()
    else:
        words = {"keep": "It was kept", "replace": "It replaced the message"}[mode]
        assert words in client.get(response.url).content.decode()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"argument_order_id": ""}, "Write a value."),
        ({"argument_order_id": "{"}, "This is not JSON"),
        ({"delay": "", "at": ""}, "Fill in one of the two"),
        ({"at": "2030-01-01T00:00"}, "Fill in one of the two"),
        ({"delay": "", "at": "2020-01-01T00:00"}, "This time is in the past"),
        ({"delay": "-1"}, "greater than or equal to 0"),
        ({"delay": "5000", "delay_unit": "86400"}, "more than ten years"),
        ({"expires": "x"}, "Enter a number"),
        ({"key": "x" * 257}, "1 to 256 characters"),
        ({"headers": "[]"}, "Headers are a JSON object of texts"),
        ({"headers": '{"a": 1}'}, "Headers are a JSON object of texts"),
        ({"headers": "{"}, "This is not JSON"),
        ({"headers": '{"a": "\\ud800"}'}, "cannot be written as JSON"),
        ({"priority": "urgent"}, "Select a valid choice"),
        ({"id": "nonsense"}, "is not a message id"),
        ({"id": ""}, "This field is required"),
    ],
)
def test_what_is_wrong_is_refused_at_the_form(
    client: Client, changes: dict[str, str], words: str
) -> None:
    response = send(client, filled(client, **{"argument_order_id": "7", **changes}))
    html = response.content.decode()
    assert response.status_code == 200 and words in html and "Not enqueued" in html
    assert not topics.list_messages("orders").messages
    assert not OperatorAction.objects.exists()


def test_what_was_written_is_still_there_after_an_error(client: Client) -> None:
    html = send(
        client, filled(client, argument_order_id="{", argument_reason="long <words>")
    ).content.decode()
    assert "long &lt;words&gt;" in html


def test_a_task_that_was_removed_is_said_in_words(client: Client, declared: dict[str, Any]) -> None:
    data = filled(client, argument_order_id="7")
    declared.pop(TASK)
    for response in (client.get(address("schedule"), HERE), send(client, data)):
        assert (
            response.status_code == 404 and "It may have been removed" in response.content.decode()
        )


def test_without_redis_nothing_is_sent_and_the_form_stays(client: Client, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ON_REDIS_ERROR": "raise"}
    data = filled(client, argument_order_id="7")
    with unreachable():
        response = send(client, data)
    assert response.status_code == 200 and "Cannot reach Redis" in response.content.decode()
    assert data["id"] in response.content.decode()
    assert send(client, data).status_code == 302


@pytest.mark.parametrize("key", ["", "order:7"])
def test_after_an_answer_that_was_lost_one_is_told_to_look_and_the_form_counts_no_more(
    client: Client, settings: Any, hands: Hands, key: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ON_REDIS_ERROR": "raise"}
    data = filled(client, argument_order_id="7", delay="0", key=key)
    with lost_answers(3):
        html = send(client, data).content.decode()
    assert "Check the topic and the archive before" in html and "Reset the form" in html
    hands.work(ORDERS)
    assert BEFORE in send(client, data).content.decode()
    hands.work(ORDERS)
    assert seen == [(7, "unpaid")]


def test_what_the_service_refuses_is_said_at_the_form(client: Client) -> None:
    data = filled(client, argument_order_id="7")
    with mock.patch(
        "django_delayq.operators.operations.schedule", side_effect=exceptions.StoreFull()
    ):
        assert "Redis is at maxmemory" in send(client, data).content.decode()
    assert send(client, data).status_code == 302


@pytest.mark.parametrize("missing", ["view_payload", "edit_message"])
def test_who_may_not_write_arguments_schedules_nothing(
    as_user: AsUser, client: Client, missing: str
) -> None:
    data = filled(client, argument_order_id="7")
    others = {
        "view_dashboard",
        "view_payload",
        "edit_message",
        "cancel_message",
        "bulk_operate",
    } - {missing}
    stranger = as_user(*others)
    assert send(stranger, data).status_code == 403
    assert stranger.get(address("schedule"), HERE).status_code == 403
    assert not topics.list_messages("orders").messages


@pytest.mark.long
def test_a_message_is_sent_from_a_browser(
    hands: Hands, as_user: AsUser, browser_page: Callable[..., Any]
) -> None:
    page = browser_page(as_user("view_dashboard", "view_payload", "edit_message"), width=390)
    page.goto(address("schedule"))
    page.get_by_label("Task").select_option(TASK)
    page.get_by_role("button", name="Continue").click()
    page.get_by_label("order_id").fill("1042")
    page.get_by_role("button", name="Enqueue").click()
    page.get_by_text("Fill in one of the two").wait_for()
    page.get_by_label("Or due at").fill("2030-01-01T09:30:00")
    page.get_by_role("button", name="Enqueue").click()
    page.get_by_text("The message was enqueued.").wait_for()
    message = only_message()
    assert dict(message.kwargs) == {"order_id": 1042}
    assert message.due_at == datetime(2030, 1, 1, 9, 30, tzinfo=timezone.utc)
