"""The pages edit typed arguments as JSON, and check them when they are saved."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.test import Client

from django_delayq import delayed_task, list_messages
from django_delayq.models import OutboxMessage
from tests.admin.browser import address
from tests.admin.messages import AsUser, edited, html_of, operator
from tests.admin.test_schedule import filled, send
from tests.app import typed
from tests.app.typed import Order
from tests.hands import DAY, Hands
from tests.operators.test_replay import dead

__all__ = ["operator"]  # a fixture

AT = datetime(2026, 11, 20, 9, tzinfo=timezone.utc)
SOME_ID = UUID("0190a5f0-0000-7000-8000-000000000001")
ORDER = Order(SOME_ID, AT, [])
ORDER_JSON = {"id": str(SOME_ID), "placed": "2026-11-20T09:00:00Z", "lines": [], "status": "paid"}


@pytest.fixture
def settle(declared: dict[str, Any], hands: Hands) -> Any:
    return delayed_task(name="tests.settle", topic="orders", key="order:{order.id}")(typed.settle)


def only_message() -> Any:
    (message,) = list_messages("orders").messages
    return message


def errors_of(form: Any) -> dict[str, str]:
    """First error of each field that has one."""
    return {name: str(errors[0]) for name, errors in form.errors.items()}


def test_arguments_of_a_waiting_message_are_edited(operator: Client, settle: Any) -> None:
    handle = settle.using(delay=DAY).enqueue(ORDER, Decimal(1))
    assert "2026-11-20T09:00:00Z" in html_of(operator, handle)
    assert edited(operator, handle, order=json.dumps(ORDER_JSON), paid='"2.50"').status_code == 302
    assert only_message().args == [ORDER_JSON, "2.50"]


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"paid": '"much"'}, "argument_paid", "tests.settle, paid: Invalid decimal string"),
        ({"order": "{}"}, "argument_order", "Object missing required field `id`"),
        ({"at": '"noon"'}, "argument_at", "Invalid RFC3339 encoded datetime"),
    ],
)
def test_what_does_not_fit_is_said_at_its_field(
    operator: Client, settle: Any, changes: dict[str, str], field: str, words: str
) -> None:
    handle = settle.using(delay=DAY).enqueue(ORDER, Decimal(1))
    form = edited(operator, handle, **changes).context["edit_form"]
    assert list(form.errors) == [field]
    assert words in errors_of(form)[field]


def test_a_message_is_scheduled_with_the_key_that_its_arguments_make(
    as_user: AsUser, settle: Any
) -> None:
    client = as_user("view_dashboard", "view_payload", "edit_message")
    refused = send(client, filled(client, "tests.settle", argument_order="5"), "tests.settle")
    assert (
        "Expected `object`, got `int`" in errors_of(refused.context["arguments"])["argument_order"]
    )
    assert (
        send(
            client,
            filled(client, "tests.settle", argument_order=json.dumps(ORDER_JSON)),
            "tests.settle",
        ).status_code
        == 302
    )
    assert only_message().key == f"order:{SOME_ID}"


def test_arguments_of_a_dead_letter_are_edited(as_user: AsUser, settle: Any) -> None:
    client = as_user("view_dashboard", "view_payload", "edit_message", "replay_message")
    (pk,) = dead(task="tests.settle", topic="orders", body='{"args":[5],"kwargs":{}}')
    form = client.get(address("archived", pk=pk) + "?edit=1").context["form"]
    data = {field.html_name: field.value() or "" for field in form} | {"edited": "1", "reason": "x"}
    answer = client.post(address("archived_replay", pk=pk), data)
    assert "Expected `object`, got `int`" in errors_of(answer.context["form"])["argument_order"]
    data["argument_order"] = json.dumps(ORDER_JSON)
    assert client.post(address("archived_replay", pk=pk), data).status_code == 302
    assert b'"status":"paid"' in bytes(OutboxMessage.objects.get().record)
