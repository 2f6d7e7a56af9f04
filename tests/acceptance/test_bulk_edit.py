"""Thousands of dead letters are edited and replayed by real worker processes, one of which is killed
in the middle: each once, and the dry run has said so before."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from uuid import uuid4

import pytest
from django.utils import timezone

from django_delayq.archive.selection import Selection
from django_delayq.core.message import Record, decode_body
from django_delayq.models import ArchivedMessage, BulkOperation, OutboxMessage
from django_delayq.operators import bulk
from django_delayq.outbox.lookup import found_of
from django_delayq.store.store import RedisStore
from django_delayq.tasks.argument_edit import ArgumentEdit
from tests.acceptance.harness import Figure
from tests.acceptance.process import WorkerProcess
from tests.acceptance.test_bulk_waiting import ended, environment, start_worker
from tests.bulk_hands import OPERATOR, be_silent
from tests.hands import DAY
from tests.servers import wait_until

__all__ = ["environment", "start_worker"]  # fixtures

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.databases,
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
]

LETTERS = 5_000
TASK = "tests.app.tasks.record"
#: An edit that gives another message if it is made twice.
EDIT = ArgumentEdit(
    task=TASK, argument="value", how="replace", pairs=(("http://old", "http://old.new"),)
)


def die(count: int, value: str, **fields: object) -> None:
    """Dead letters with this argument, numbered."""
    now = timezone.now()
    common = {
        "topic": "default", "partition": 0, "task": TASK, "state": "dead", "ttr_ms": 60_000,
        "due_at": now, "finished_at": now, "error_class": "GatewayTimeout",
    }  # fmt: skip
    ArchivedMessage.objects.bulk_create(
        (
            ArchivedMessage(
                message_id=uuid4(),
                enqueued_at=now,
                **{
                    "body": json.dumps({"args": [f"{value}/{n}"], "kwargs": {}}),
                    **common,
                    **fields,
                },
            )
            for n in range(count)
        ),
        batch_size=500,
    )


def sent() -> Counter[str]:
    """The argument of each message that was sent again, wherever it is."""
    found: Counter[str] = Counter()
    for row in OutboxMessage.objects.iterator(chunk_size=500):
        record = Record.decode(found_of(row).record)
        found[decode_body(record.flags, record.body, row.message_id.bytes).args[0]] += 1
    return found


def test_each_letter_is_edited_and_replayed_once_as_the_dry_run_said(
    delayq: RedisStore, start_worker: Callable[[], WorkerProcess], figure: Figure
) -> None:
    die(LETTERS, "http://old")
    die(40, "ftp://other")
    die(30, "http://old", body='{"args":[],"kwargs":{},"redaction":"done"}')
    die(20, "http://old", body='{"args":["http://old"],"kwargs":{"colour":"red"}}')
    selection = Selection(topic="default", open=True)
    victim = start_worker()
    dry = bulk.start(OPERATOR, "replay", selection, reason="", dry_run=True, edit=EDIT)
    wait_until(lambda: ended(dry), "the dry run is done", 120)
    assert not OutboxMessage.objects.exists()
    real = bulk.start(OPERATOR, "replay", selection, reason="moved", delay=DAY, edit=EDIT)
    wait_until(lambda: _count(real) >= 1_000, "it is in the middle", 120)
    victim.kill()
    killed_at = _count(real)
    assert 1_000 <= killed_at < LETTERS
    be_silent()
    begun = time.monotonic()
    start_worker()
    wait_until(lambda: ended(real), "it is done", 180)
    took = time.monotonic() - begun
    expected = {"nothing to edit": 40, "redacted": 30, "arguments refused": 20}
    for operation in (dry, real):
        assert (operation.status, operation.total, operation.count) == ("done", 5_090, LETTERS)
        assert json.loads(operation.skipped) == expected
    assert sent() == Counter({f"http://old.new/{n}": 1 for n in range(LETTERS)})
    figure(
        f"{LETTERS:,} letters edited and replayed once each; killed at {killed_at:,}, the rest in "
        f"{took:.1f} s with the start of a worker"
    )


def _count(operation: BulkOperation) -> int:
    operation.refresh_from_db()
    return operation.count
