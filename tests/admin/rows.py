"""Rows of the archive, made as a test wants them."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from django_delayq.core.message import key_id, new_id
from django_delayq.models import ArchivedMessage
from tests.hands import stored

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)

_numbers = itertools.count()


def make(**values: Any) -> ArchivedMessage:
    """One row. Later ones were enqueued later; with a key it has the key's id."""
    number = next(_numbers)
    fields: dict[str, Any] = {
        "topic": "orders", "partition": 0, "task": "tests.app.tasks.close_order", "state": "acked",
        "body": f'{{"args":[{number}],"kwargs":{{}}}}', "attempts": 1, "enqueued_at": NOON + timedelta(seconds=number),
        "due_at": NOON, "finished_at": NOON, "lateness_ms": 1.5, "run_ms": 20.0, "worker": "host:1:test",
    } | values  # fmt: skip
    key = fields.get("key")
    fields.setdefault("message_id", UUID(bytes=key_id(fields["topic"], key) if key else new_id()))
    fields = {
        name: stored(value) if isinstance(value, datetime) else value
        for name, value in fields.items()
    }
    row: ArchivedMessage = ArchivedMessage.objects.create(**fields)
    return row


def make_dead(**values: Any) -> ArchivedMessage:
    """One open dead letter."""
    said = {
        "error_message": "order is gone",
        "traceback": "Traceback (most recent call last):\nValueError: order is gone",
    }
    return make(**{"state": "dead", "error_class": "shop.errors.PriceMissing", **said, **values})
