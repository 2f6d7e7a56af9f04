"""Races between producers, the relay, the reconciler, the archiver and workers, each at its worst
moment."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction

from django_delayq.client import changes
from django_delayq.core.exceptions import DuplicateMessage, MessageNotFound
from django_delayq.models import OutboxMessage
from django_delayq.outbox import outbox
from django_delayq.store.keys import Partition, partition_of
from tests.app.tasks import crowd, record, seen
from tests.database_faults import before
from tests.hands import (
    DAY,
    DEFAULT,
    Hands,
    apart,
    lose_redis,
    meanwhile,
    messages_in,
    only_row,
    rows,
    statuses,
)

pytestmark = pytest.mark.databases

durable = record.using(durable=True)


def locks_rows() -> bool:
    return bool(connection.features.has_select_for_update)


def test_a_key_enqueued_while_the_archiver_closes_its_last_life_stays_open(hands: Hands) -> None:
    if not locks_rows():
        pytest.skip("one writer at a time")
    durable.using(key="k").enqueue(1)
    hands.work()
    enqueue_again = meanwhile(lambda: durable.using(key="k", delay=DAY).enqueue(2))
    with enqueue_again as begin, before("DELETE", begin):
        hands.archive()
    assert statuses() == ["waiting"]


def test_a_key_whose_row_is_closed_while_it_is_enqueued_again_is_not_kept_from_it(
    hands: Hands,
) -> None:
    durable.using(key="k").enqueue(1)
    hands.work()
    with before("SELECT", lambda: apart(hands.archive)):
        again = durable.using(key="k", on_duplicate="keep").enqueue(2)
    assert again.outcome == "stored"
    assert messages_in(hands.store) == {again.identity}


def relay_after(hands: Hands, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The relay sends the message when the producer has just not found it in Redis."""
    real = getattr(hands.store, name)

    def fall_asleep_after(*args: Any) -> Any:
        try:
            return real(*args)
        finally:
            hands.relay()

    monkeypatch.setattr(hands.store, name, fall_asleep_after)


def test_a_reschedule_is_not_lost_when_the_relay_is_quicker(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = durable.using(delay=DAY).enqueue(1)
    OutboxMessage.objects.update(relay_at_ms=0)
    relay_after(hands, monkeypatch, "reschedule")
    due = handle.reschedule(delay=2 * DAY)
    hands.relay()
    message = handle.get()
    assert message is not None
    assert message.due_at == due


def test_a_cancel_is_not_lost_when_the_relay_is_quicker(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = durable.using(delay=DAY).enqueue(1)
    OutboxMessage.objects.update(relay_at_ms=0)
    relay_after(hands, monkeypatch, "cancel")
    handle.cancel()
    assert messages_in(hands.store) == set()
    hands.archive()
    assert (only_row().state, statuses()) == ("cancelled", [])


def test_a_reschedule_whose_message_ends_meanwhile_succeeds(hands: Hands) -> None:
    handle = durable.using(delay=DAY).enqueue(1)
    OutboxMessage.objects.update(relay_at_ms=0)
    hands.relay()

    def finish() -> None:
        hands.work()
        hands.archive()

    with before("UPDATE", lambda: apart(finish)):
        handle.reschedule(delay=0)
    assert seen == [1]


def test_a_key_twice_in_one_call_is_refused(hands: Hands) -> None:
    with pytest.raises(DuplicateMessage):
        record.enqueue_many([durable.using(key="k").prepare(1), durable.using(key="k").prepare(2)])


def test_the_last_of_two_replacements_in_one_call_runs(hands: Hands) -> None:
    newest = durable.using(key="k", on_duplicate="replace")
    with transaction.atomic():
        record.enqueue_many([newest.prepare(1), newest.prepare(2)])
    hands.work()
    assert seen == [2]


def test_what_has_ended_in_an_old_partition_is_not_sent_again(hands: Hands, settings: Any) -> None:
    handles = [crowd.using(durable=True).enqueue(number) for number in range(64)]
    assert any(partition_of("crowd", handle.identity, 2).number for handle in handles)
    hands.work(Partition("crowd", 0))
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 2}}}
    hands = Hands(changes.get_store())
    assert hands.reconcile() == 0


def test_a_cancelled_key_leaves_nothing_that_runs_later(hands: Hands) -> None:
    record.using(key="k", delay=DAY).enqueue("live")
    durable.using(key="k").enqueue("waits for it")
    changes.cancel("default", "k", None)
    OutboxMessage.objects.update(relay_at_ms=0)
    hands.relay()
    hands.work()
    assert seen == []


def test_a_follower_that_takes_the_place_of_a_durable_retry_ends_it(hands: Hands) -> None:
    first = durable.using(key="k").enqueue("old")
    (lease,) = hands.claim()
    record.using(key="k", on_duplicate="replace").enqueue("new")
    hands.store.nack(DEFAULT, [(lease, 0, True, b"{}")])
    hands.archive()
    hands.work()
    hands.archive()
    OutboxMessage.objects.update(relay_at_ms=0)
    assert hands.reconcile() == 0
    hands.work()
    assert seen == ["new"]
    assert first.identity not in messages_in(hands.store)


def test_a_late_send_of_a_cancelled_message_changes_nothing(hands: Hands) -> None:
    with transaction.atomic():
        handle = durable.enqueue(1)
        row = OutboxMessage.objects.get()
    lose_redis(hands.store)
    handle.cancel()
    hands.store.enqueue(DEFAULT, {}, [outbox.stamped(row)])
    assert hands.work() == 0
    hands.archive()
    assert ([row.state for row in rows()], statuses()) == (["cancelled"], [])
    with pytest.raises(MessageNotFound):
        handle.cancel()


def test_who_is_quicker_wins_between_cancel_and_the_commit(hands: Hands) -> None:
    """The row is committed, its message not yet sent: another process cancels."""
    handles: list[Any] = []
    with transaction.atomic():
        transaction.on_commit(lambda: apart(handles[0].cancel))
        handles.append(durable.enqueue(1))
    assert hands.work() == 0
    hands.archive()
    assert (only_row().state, statuses()) == ("cancelled", [])


def test_who_is_quicker_wins_between_reschedule_and_the_commit(hands: Hands) -> None:
    handles: list[Any] = []
    with transaction.atomic():
        transaction.on_commit(lambda: apart(lambda: handles[0].reschedule(delay=DAY)))
        handles.append(durable.enqueue(1))
    hands.relay()
    assert hands.work() == 0
