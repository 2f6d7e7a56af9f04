"""Edits of messages that SQL answers for: the row follows what Redis has, or is edited where only
it exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_delayq.client.changes import edit
from django_delayq.client.handle import Handle
from django_delayq.core.exceptions import (
    BodyTooLarge,
    InvalidMessage,
    MessageChanged,
    MessageNotFound,
    MessageRunning,
    OutcomeUnknown,
    StoreUnavailable,
)
from django_delayq.core.message import DURABLE, PACKED, STAMP, Record
from django_delayq.models import OutboxMessage
from django_delayq.outbox import lookup
from tests.app.tasks import close_order, record, seen
from tests.database_faults import without_table
from tests.faults import lost_answers, unreachable
from tests.hands import DAY, DEFAULT, Hands, lose_redis, make_due, outbox, statuses

pytestmark = pytest.mark.databases

durable = record.using(durable=True)


def args_of(handle: Handle) -> Any:
    message = handle.get()
    assert message is not None
    return message.args


def row_of(handle: Handle) -> OutboxMessage:
    """The only row."""
    row: OutboxMessage = OutboxMessage.objects.get()
    assert row.message_id.bytes == handle.identity
    return row


def fields_of(row: OutboxMessage) -> dict[str, Any]:
    """All of it but the record."""
    return {
        field.attname: getattr(row, field.attname)
        for field in row._meta.fields
        if field.attname != "record"
    }


def run(hands: Hands) -> list[Any]:
    """What has run when everything that is due has."""
    hands.work()
    return list(seen)


# Redis has it


def test_the_row_follows(hands: Hands) -> None:
    handle = durable.using(delay=60, key="k", headers={"a": "b"}).enqueue(1)
    before = row_of(handle)
    edit("default", handle.id, [2], {})
    after = row_of(handle)
    assert fields_of(after) == fields_of(before)
    (found,) = hands.store.queries.find(DEFAULT, [handle.identity])
    assert found and bytes(after.record) == found.record[STAMP.size :]
    assert Record.decode(found.record).flags & DURABLE


@pytest.mark.parametrize("value", ["short", "x" * 5_000], ids=["plain", "compressed"])
def test_what_redis_has_lost_is_sent_again_as_it_was_edited(hands: Hands, value: str) -> None:
    handle = durable.using(delay=60, key="k", headers={"a": "b"}).enqueue(1)
    edit("default", handle.id, [value], {})
    before = handle.get()
    lose_redis(hands.store)
    assert hands.reconcile() == 1
    assert handle.get() == before
    make_due(handle)
    assert run(hands) == [value]


def test_it_is_still_one_message(hands: Hands) -> None:
    handle = durable.using(delay=60).enqueue(1)
    edit("default", handle.id, [2], {})
    assert (hands.reconcile(), hands.relay()) == (0, 0)
    make_due(handle)
    assert run(hands) == [2]
    hands.archive()
    assert (outbox(), hands.reconcile()) == ([], 0)


def test_a_plain_message_with_no_row_needs_none(hands: Hands) -> None:
    handle = record.using(delay=60).enqueue(1)
    edit("default", handle.id, [2], {})
    assert (args_of(handle), outbox()) == ([2], [])


def test_a_row_of_another_life_is_left_alone(hands: Hands) -> None:
    """It waits for the message in Redis to end, and has other arguments."""
    handle = record.using(delay=60, key="k").enqueue("in Redis")
    (found,) = hands.store.queries.find(DEFAULT, [handle.identity])
    assert found
    OutboxMessage.objects.create(
        message_id=handle.identity.hex(), enqueued_at_us=5, topic="default", task=record.name, key="k",
        on_duplicate="raise", due_at_ms=9_000_000_000_000, record=found.record[STAMP.size :], status="waiting",
        relay_at_ms=9_000_000_000_000,
    )  # fmt: skip
    edit("default", handle.id, ["edited"], {})
    assert bytes(row_of(handle).record) == found.record[STAMP.size :]
    assert args_of(handle) == ["edited"]


def test_an_outbox_that_cannot_be_reached_is_no_error(
    hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    handle = durable.using(delay=60).enqueue(1)
    with without_table(OutboxMessage):
        edit("default", handle.id, [2], {})
    assert args_of(handle) == [2]
    assert "Redis has done it, but the outbox could not be read" in caplog.text


def test_a_running_one_is_refused_and_so_is_its_row(hands: Hands) -> None:
    handle = durable.enqueue(1)
    (lease,) = hands.claim()
    before = bytes(row_of(handle).record)
    with pytest.raises(MessageRunning):
        edit("default", handle.id, [2], {})
    assert bytes(row_of(handle).record) == before
    hands.run(lease)
    assert seen == [1]


# Only SQL has it


def test_one_that_is_far_from_due_is_edited_in_sql(hands: Hands) -> None:
    handle = durable.using(delay=DAY, key="k", headers={"a": "b"}).enqueue(1)
    before = row_of(handle)
    edit("default", handle.id, ["x" * 5_000], {})
    after = row_of(handle)
    assert fields_of(after) == fields_of(before)
    assert bytes(after.record)[0] & PACKED
    assert (args_of(handle), handle.get().headers) == (["x" * 5_000], {"a": "b"})  # type: ignore[union-attr]
    OutboxMessage.objects.update(relay_at_ms=0)
    assert hands.relay() == 1
    make_due(handle)
    assert run(hands) == ["x" * 5_000]


def test_one_that_redis_has_lost_is_edited_in_sql(hands: Hands) -> None:
    handle = durable.using(delay=60).enqueue(1)
    lose_redis(hands.store)
    edit("default", handle.id, [2], {})
    assert hands.relay() == 1
    make_due(handle)
    assert run(hands) == [2]


def test_one_that_has_ended_is_not_found(hands: Hands) -> None:
    handle = durable.enqueue(1)
    hands.work()
    before = bytes(row_of(handle).record)
    with pytest.raises(MessageNotFound):
        edit("default", handle.id, [2], {})
    assert bytes(row_of(handle).record) == before  # ended, but not yet archived
    hands.archive()
    with pytest.raises(MessageNotFound):
        edit("default", handle.id, [2], {})


def test_one_whose_end_redis_has_lost_is_not_found(hands: Hands) -> None:
    handle = durable.enqueue(1)
    row = row_of(handle)
    hands.work()
    hands.archive()
    row.save(force_insert=True)  # as if the archiver had died between its commit and the removal
    lose_redis(hands.store)
    with pytest.raises(MessageNotFound):
        edit("default", handle.id, [2], {})


def test_one_that_the_relay_sends_meanwhile_is_not_edited_behind_its_back(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = durable.using(delay=DAY).enqueue(1)
    OutboxMessage.objects.update(relay_at_ms=0)
    real = lookup.edit

    def send_first(*args: Any, **kwargs: Any) -> bool:
        assert hands.relay() == 1
        return real(*args, **kwargs)

    monkeypatch.setattr(lookup, "edit", send_first)
    with pytest.raises(MessageChanged):
        edit("default", handle.id, [2], {})
    monkeypatch.setattr(lookup, "edit", real)
    assert args_of(handle) == [1]
    edit("default", handle.id, [2], {})
    assert args_of(handle) == [2]


def test_an_edit_between_the_commit_and_the_send_is_not_lost(hands: Hands) -> None:
    with transaction.atomic():
        transaction.on_commit(lambda: edit("default", handle.id, ["edited"], {}))
        handle = durable.using(delay=60).enqueue("first")
    assert args_of(handle) == ["edited"]


# Redis is away


@pytest.mark.parametrize(
    "fault", [unreachable, lambda: lost_answers(times=99)], ids=["away", "answers lost"]
)
def test_what_waits_only_in_sql_is_edited_without_redis(
    hands: Hands, fault: Callable[[], Any]
) -> None:
    handle = durable.using(delay=DAY).enqueue(1)
    with fault():
        edit("default", handle.id, [2], {})
    assert args_of(handle) == [2]


def test_what_redis_may_have_cannot_be_edited_without_it(hands: Hands) -> None:
    handle = durable.using(delay=60).enqueue(1)
    before = bytes(row_of(handle).record)
    with unreachable(), pytest.raises(StoreUnavailable):
        edit("default", handle.id, [2], {})
    assert bytes(row_of(handle).record) == before
    assert args_of(handle) == [1]


def test_an_edit_whose_answer_is_lost_is_said_to_be_unknown_and_may_be_repeated(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = durable.using(delay=60).enqueue(1)
    real = hands.store.edit_in

    def lose_answer(*args: Any) -> str:
        with lost_answers():
            return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(hands.store, "edit_in", lose_answer)
        with pytest.raises(OutcomeUnknown):
            edit("default", handle.id, [2], {})
    edit("default", handle.id, [2], {})
    lose_redis(hands.store)
    assert hands.reconcile() == 1
    assert args_of(handle) == [2]


# Refused, with nothing changed


@pytest.mark.parametrize("delay", [60, DAY], ids=["in Redis", "in SQL"])
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (([], {}), InvalidMessage),
        (([1, 2], {}), InvalidMessage),
        (([{1}], {}), InvalidMessage),
        (([5], {"reason": "x" * 70_000}), BodyTooLarge),
    ],
    ids=["too few", "too many", "no JSON", "too large"],
)
def test_arguments_that_do_not_fit_are_refused(
    hands: Hands, delay: int, call: Any, error: Any
) -> None:
    handle = close_order.using(durable=True, delay=delay).enqueue(5)
    before, shown = row_of(handle), handle.get()
    with pytest.raises(error):
        edit("orders", handle.id, *call)
    assert (bytes(row_of(handle).record), fields_of(row_of(handle))) == (
        bytes(before.record),
        fields_of(before),
    )
    assert handle.get() == shown
    assert statuses() == ["sent" if delay == 60 else "waiting"]


def test_a_row_of_another_topic_is_not_found(hands: Hands) -> None:
    handle = durable.using(delay=DAY).enqueue(1)
    with pytest.raises(MessageNotFound):
        edit("orders", handle.id, [2], {})
    assert args_of(handle) == [1]
