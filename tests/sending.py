"""What tests of sending and finding again share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from typing import Any

import pytest
from django.db import transaction

from django_delayq import list_messages
from django_delayq.models import OutboxMessage
from django_delayq.store import get_store
from django_delayq.store.lease import Lease
from tests.app.tasks import record

LONG_AGO = datetime(2001, 9, 9, tzinfo=timezone.utc)
Capture = Callable[..., AbstractContextManager[list[Any]]]
#: Committed for good: inside the transaction that pytest-django rolls back, every enqueue would
#: wait for its commit.
with_transactions = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def sent(topic: str = "default") -> list[Any]:
    """First argument of every waiting message, sorted."""
    return sorted(
        (message.args[0] for message in list_messages(topic, limit=500).messages), key=str
    )


def kept() -> list[str]:
    """Ids of the messages in the outbox, in their order."""
    return [row.message_id.hex for row in OutboxMessage.objects.order_by("pk")]


def claim(topic: str = "default", limit: int = 1) -> list[Lease]:
    store = get_store()
    return [lease for p in store.partitions.all(topic) for lease in store.claim(p, limit).leases]


def ack(lease: Lease) -> None:
    assert get_store().ack(lease.partition, [(lease, b"{}")]) == []


class Undo(Exception):
    """Rolls back."""


def savepoint(*values: str, undo: bool = False) -> None:
    try:
        with transaction.atomic():
            for value in values:
                record.enqueue(value)
            if undo:
                raise Undo
    except Undo:
        return
