"""Durable messages: rows of the caller's transaction that end with their messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq.core.exceptions import InvalidMessage
from django_delayq.models import ArchivedMessage, OutboxMessage
from django_delayq.store import get_store
from django_delayq.store.keys import Partition, meta_key
from django_delayq.store.store import RedisStore
from tests.app.sql_tasks import count
from tests.app.tasks import act, record, seen
from tests.hands import (
    DAY,
    DEFAULT,
    PAST,
    Hands,
    lose_redis,
    make_due,
    messages_in,
    only_row,
    outbox,
    prefix_keys,
    rows,
    statuses,
    together,
)

pytestmark = pytest.mark.databases

durable = record.using(durable=True)


class Undo(Exception):
    pass


@pytest.fixture
def other(hands: Hands, settings: Any) -> Iterator[str]:
    """DELAYQ["DATABASE"] is another alias."""
    settings.DELAYQ = {**settings.DELAYQ, "DATABASE": "other"}
    yield "other"


def stamp_of(lease: Any) -> int:
    return int.from_bytes(lease.record[:8], "big")


# Writing


@pytest.mark.parametrize("delay", [0, DAY])
def test_it_is_one_statement_in_the_callers_transaction(hands: Hands, delay: int) -> None:
    with transaction.atomic():
        with CaptureQueriesContext(connection) as queries:
            durable.using(delay=delay).enqueue(1)
        (query,) = queries
        assert query["sql"].startswith("INSERT INTO")
        assert statuses() == ["waiting" if delay else "sent"]
        assert messages_in(hands.store) == set()


@pytest.mark.parametrize("delay", [0, DAY])
def test_a_rollback_leaves_nothing(hands: Hands, delay: int) -> None:
    with pytest.raises(Undo), transaction.atomic():
        durable.using(delay=delay).enqueue(1)
        raise Undo
    assert (statuses(), messages_in(hands.store), hands.relay(), hands.reconcile()) == (
        [],
        set(),
        0,
        0,
    )


def test_a_savepoint_takes_back_its_own_only(hands: Hands) -> None:
    with transaction.atomic():
        kept = durable.enqueue("kept")
        with pytest.raises(Undo), transaction.atomic():
            durable.enqueue("undone")
            durable.using(delay=DAY).enqueue("undone, far")
            raise Undo
    assert (messages_in(hands.store), statuses()) == ({kept.identity}, ["sent"])


def test_the_commit_sends_it_under_the_stamp_of_its_row(hands: Hands) -> None:
    with transaction.atomic():
        handle = durable.using(headers={"trace": "x"}, priority="high").enqueue(1)
        assert handle.due_at is not None
        row = OutboxMessage.objects.get()
    (lease,) = hands.claim()
    assert (lease.id, stamp_of(lease)) == (row.message_id.bytes, row.enqueued_at_us)
    assert (lease.record[14:], row.status, handle.outcome) == (bytes(row.record), "sent", "stored")
    assert lease.attempts.due_at_ms == row.due_at_ms
    hands.run(lease)
    hands.archive()
    assert (seen, statuses(), only_row().state) == ([1], [], "acked")
    assert only_row().enqueued_at.timestamp() == pytest.approx(row.enqueued_at_us / 1e6, abs=1e-6)


def test_outside_a_transaction_it_is_sent_at_once(hands: Hands) -> None:
    assert durable.enqueue(1).outcome == "stored"
    assert statuses() == ["sent"]


def test_far_from_due_it_waits_in_sql_and_redis_holds_nothing(hands: Hands) -> None:
    lose_redis(hands.store)
    handle = durable.using(delay=DAY).enqueue(1)
    assert (handle.outcome, statuses(), prefix_keys(hands.store)) == ("outbox", ["waiting"], [])
    assert hands.relay() == 0
    row = OutboxMessage.objects.get()
    assert row.relay_at_ms == row.due_at_ms - 3_600_000


def test_the_horizon_says_how_far_that_is(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "HORIZON": 2 * DAY}
    durable.using(delay=DAY).enqueue(1)
    assert statuses() == ["sent"]


def test_many_far_ones_come_in_their_time(hands: Hands) -> None:
    durable.using(delay=DAY).enqueue_many((number,) for number in range(1_100))
    assert set(statuses()) == {"waiting"}
    OutboxMessage.objects.filter(id__lte=OutboxMessage.objects.order_by("id")[599].id).update(
        relay_at_ms=0
    )
    assert [hands.relay(), hands.relay(), hands.relay()] == [500, 100, 0]


def test_mixed_messages_of_one_call_go_where_they_belong(hands: Hands) -> None:
    calls = [
        record.prepare("plain"),
        durable.prepare("durable"),
        durable.using(delay=DAY).prepare("far"),
    ]
    with transaction.atomic():
        handles = record.enqueue_many(calls)
    assert [handle.outcome for handle in handles] == ["stored", "stored", "outbox"]
    assert statuses() == ["sent", "waiting"]
    assert messages_in(hands.store) == {handles[0].identity, handles[1].identity}


@pytest.mark.parametrize("options", [{"database": "other"}, {"after_commit": False}], ids=repr)
def test_a_durable_message_of_another_transaction_is_refused(hands: Hands, options: Any) -> None:
    with pytest.raises(InvalidMessage):
        durable.using(**options).enqueue(1)
    assert statuses() == []


def test_a_transaction_that_commits_late_is_found_in_spite_of_its_small_ids(hands: Hands) -> None:
    if not connection.features.has_select_for_update:
        pytest.skip("one writer at a time")
    with transaction.atomic():
        durable.using(delay=DAY).enqueue("late")
        OutboxMessage.objects.update(relay_at_ms=0)
        together(lambda: durable.using(delay=DAY).enqueue("early"))
        together(lambda: OutboxMessage.objects.update(relay_at_ms=0))
        assert together(hands.relay) == [1]
    assert hands.relay() == 1


# Ending


@pytest.mark.parametrize(
    "task", [durable, act.using(durable=True, max_attempts=1)], ids=["acked", "dead"]
)
def test_its_row_goes_with_the_row_of_the_archive(hands: Hands, task: Any) -> None:
    task.enqueue("fail")
    partition = Partition(task.options.topic, 0)
    hands.work(partition)
    assert (statuses(), rows()) == (["sent"], [])
    hands.archive()
    assert (statuses(), len(rows())) == ([], 1)


def test_an_expired_one_ends_too(hands: Hands) -> None:
    handle = durable.using(delay=60, expires=0.001).enqueue(1)
    hands.store.reschedule_in(DEFAULT, handle.identity, PAST)
    assert hands.claim() == []
    hands.archive()
    assert (only_row().state, statuses()) == ("expired", [])


@pytest.mark.parametrize("archive", ["none", "dead"])
def test_it_ends_also_where_nothing_is_archived(hands: Hands, settings: Any, archive: str) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ARCHIVE": archive}
    durable.enqueue(1)
    hands.work()
    hands.archive()
    assert (statuses(), rows()) == ([], [])
    assert not [name for name in _meta(hands.store) if name.startswith(b"done:")]


def test_a_retried_one_stays_open(hands: Hands) -> None:
    act.using(durable=True).enqueue("fail")
    hands.work(Partition("modes", 0))
    hands.archive()
    assert (statuses(), rows(), hands.reconcile()) == (["sent"], [], 0)


def _meta(store: RedisStore) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = store.client.redis.hgetall(meta_key(store.client.prefix, DEFAULT))
    return found


# Another database


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_all_of_it_works_in_another_database(other: str) -> None:
    hands = Hands(get_store())
    lost, far = durable.enqueue("lost"), durable.using(delay=DAY).enqueue("far")
    with pytest.raises(Undo), transaction.atomic(using=other):
        durable.enqueue("undone")
        raise Undo
    lose_redis(hands.store)
    assert hands.reconcile() == 1
    OutboxMessage.objects.update(relay_at_ms=0)
    assert hands.relay() == 1
    make_due(far)
    count.using(durable=True).enqueue()
    hands.work()
    assert sorted(map(str, seen)) == ["True", "far", "lost"]
    durable.using(delay=DAY).enqueue("cancelled").cancel()
    hands.archive()
    assert sorted(row.state for row in rows()) == ["acked", "acked", "acked", "cancelled"]
    assert outbox() == []
    assert ArchivedMessage.objects.using("default").count() == 0
    assert lost.get() is None
    assert connections[other].vendor


def test_expiry_moves_with_the_due_time(hands: Hands) -> None:
    handle = durable.using(delay=DAY, expires=60).enqueue(1)
    assert handle.due_at is not None
    due = handle.reschedule(delay=2 * DAY)
    message = handle.get()
    assert message is not None and message.expires_at is not None
    assert message.expires_at - due == timedelta(seconds=60)
    OutboxMessage.objects.update(relay_at_ms=0)
    hands.relay()
    due = handle.reschedule(delay=3 * DAY)
    row = OutboxMessage.objects.get()
    assert (row.due_at_ms, row.expires_at_ms) == (
        int(due.timestamp() * 1000),
        int(due.timestamp() * 1000) + 60_000,
    )
