"""What the tests of one message share: its addresses, its form, and who may do everything to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_delayq.client.handle import Handle
from tests.admin.browser import address
from tests.app.tasks import close_order
from tests.hands import DAY, Hands

AsUser = Callable[..., Client]


def path(handle: Handle, name: str = "message") -> str:
    return address(name, topic=handle.topic, message_id=handle.id)


def html_of(client: Client, handle: Handle) -> str:
    response = client.get(path(handle))
    assert response.status_code == 200
    return response.content.decode()


def edited(client: Client, handle: Handle, **changes: str) -> Any:
    """Send the page's form for arguments with these changes."""
    form = client.get(path(handle)).context["edit_form"]
    data = {field.html_name: field.value() or "" for field in form}
    return client.post(
        path(handle, "message_edit"),
        data | {"reason": "a test"} | {f"argument_{name}": text for name, text in changes.items()},
    )


@pytest.fixture
def operator(as_user: AsUser) -> Client:
    return as_user("view_dashboard", "view_payload", "cancel_message", "edit_message")


@pytest.fixture
def waiting(hands: Hands) -> Handle:
    return close_order.using(
        delay=DAY, key="order:1042", headers={"trace": "a<b"}, expires=60
    ).enqueue(1042)
