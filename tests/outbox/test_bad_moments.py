"""What goes wrong at a bad moment: rollbacks, late commits, a database that is away, rows that
somebody holds."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_delayq import purge_topic
from django_delayq.archive import archive_rows
from django_delayq.core import signals
from django_delayq.core.exceptions import MessageNotFound, StoreUnavailable
from django_delayq.models import ArchivedMessage, OutboxMessage
from django_delayq.outbox import lookup, outbox, postponed
from django_delayq.store.keys import Partition
from tests.app.tasks import crowd, record, seen
from tests.hands import DAY, Hands, apart, lose_redis, messages_in, only_row, rows, statuses
from tests.servers import wait_until

pytestmark = pytest.mark.databases

durable = record.using(durable=True)


class RollBackError(Exception):
    """Ends a transaction."""


def redact_in_place(topic: str, task: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Redacts what it is given."""
    args[:] = ["***"]
    return args, kwargs


def away(*args: Any, **kwargs: Any) -> Any:
    raise OperationalError("away")


def test_a_reschedule_that_is_rolled_back_loses_no_message(hands: Hands) -> None:
    handle = durable.enqueue(1)
    lose_redis(hands.store)
    with pytest.raises(RollBackError), transaction.atomic():
        handle.reschedule(delay=60)
        raise RollBackError
    OutboxMessage.objects.update(relay_at_ms=0)
    assert hands.reconcile() == 1
    hands.work()
    assert seen == [1]


def test_a_message_cancelled_before_a_late_send_stays_cancelled(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "LATE_US", 0)

    def cancel_and_archive() -> None:
        apart(lambda: postponed.cancel("default", handles[0].identity))
        hands.archive()

    handles: list[Any] = []
    with transaction.atomic():
        transaction.on_commit(cancel_and_archive)
        handles.append(durable.enqueue(1))
    assert (messages_in(hands.store), only_row().state, statuses()) == (set(), "cancelled", [])


def test_a_late_send_of_an_open_message_is_sent(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "LATE_US", 0)
    with transaction.atomic():
        handle = durable.enqueue(1)
    assert messages_in(hands.store) == {handle.identity}


def test_redacting_in_place_is_marked_too(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": f"{__name__}.redact_in_place"}
    record.enqueue("secret")
    hands.work()
    hands.archive()
    assert only_row().body == '{"args":["***"],"kwargs":{},"redaction":"done"}'


@pytest.mark.parametrize("call", ["cancel", "reschedule"])
def test_what_redis_has_done_is_done_though_the_database_is_away(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    handle = record.using(delay=DAY).enqueue(1)
    with monkeypatch.context() as patch:
        patch.setattr(lookup, "find", away)
        due = handle.reschedule(delay=2 * DAY) if call == "reschedule" else handle.cancel() and None
    assert "the outbox could not be read" in caplog.text
    found = handle.get()
    assert (found.due_at if found else None) == due


def test_durable_calls_among_others_wait_for_the_commit(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "AFTER_COMMIT": False}
    with pytest.raises(RollBackError), transaction.atomic():
        handles = record.enqueue_many([record.prepare("plain"), durable.prepare("durable")])
        raise RollBackError
    from django_delayq.store import get_store

    assert messages_in(get_store()) == {handles[0].identity}
    assert statuses() == []


def test_a_run_that_the_database_does_not_let_begin_is_no_attempt(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.app.sql_tasks import count

    handle = count.enqueue()
    with monkeypatch.context() as patch:
        patch.setattr(archive_rows, "without_row", away)
        hands.work()
    message = handle.get()
    assert message is not None
    assert (message.state, message.attempt) == ("delayed", 0)


def test_an_error_with_a_line_separator_is_one_line_of_the_history() -> None:
    row = ArchivedMessage(history='{"error":"a\u2028b"}\n{"error":"c\x85d"}\n', worker="")
    assert [run["error"] for run in row.runs] == ["a\u2028b", "c\x85d"]


def test_a_row_that_a_long_transaction_holds_does_not_hold_up_the_archive(hands: Hands) -> None:
    if not connection.features.has_select_for_update_skip_locked:
        pytest.skip("one writer at a time")
    held, free = durable.enqueue("held"), durable.enqueue("free")
    hands.work()
    with transaction.atomic():
        OutboxMessage.objects.select_for_update().get(message_id=held.id)
        apart(hands.archiver.run_once)
        assert [row.message_id.hex for row in OutboxMessage.objects.all()] == [held.id]
    hands.archive()
    assert (statuses(), {row.message_id.hex for row in rows()}) == ([], {held.id, free.id})
    assert hands.reconcile() == 0


def test_a_partition_that_redis_refuses_does_not_stop_the_others(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [one.using(durable=True, delay=DAY).enqueue(1) for one in (crowd, record)]
    OutboxMessage.objects.update(relay_at_ms=0)
    enqueue = type(hands.store).enqueue

    def refuse(store: Any, partition: Partition, *args: Any) -> Any:
        if partition.topic == "crowd":
            raise StoreUnavailable
        return enqueue(store, partition, *args)

    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable):
        patch.setattr(type(hands.store), "enqueue", refuse)
        hands.relay()
    assert sorted(statuses()) == ["sent", "waiting"]
    assert waiting[1].get() is not None
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    with pytest.raises(MessageNotFound):
        crowd.cancel(id="01890000-0000-7000-8000-000000000000")


def test_a_purge_ends_what_waits_only_in_sql_too_and_says_so(hands: Hands) -> None:
    heard: list[str] = []

    def hear(events: Any, **kwargs: Any) -> None:
        heard.extend(event.id for event in events)

    handles = [*record.enqueue_many([durable.using(delay=DAY).prepare(n) for n in range(3)])]
    handles.append(record.using(delay=60).enqueue("in Redis"))
    signals.cancelled.connect(hear)
    try:
        assert purge_topic("default", reason="closed") == 4
    finally:
        signals.cancelled.disconnect(hear)
    assert sorted(heard) == sorted(handle.id for handle in handles)
    hands.archive()
    assert ({(row.state, row.reason) for row in rows()}, statuses()) == (
        {("cancelled", "closed")},
        [],
    )
