"""Taking back and moving what the open transaction has enqueued and not yet sent, also around
savepoints."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import transaction

from django_delayq import topic_stats
from django_delayq.client.handle import Handle
from django_delayq.core import exceptions
from django_delayq.models import ArchivedMessage
from django_delayq.store.store import RedisStore
from tests.app.tasks import record
from tests.faults import unreachable
from tests.sending import Undo, kept, savepoint, sent, with_transactions

pytestmark = with_transactions
DUE = datetime(2030, 1, 1, tzinfo=timezone.utc)
later = record.using(delay=60)


@pytest.fixture(params=["key", "id"])
def named(request: pytest.FixtureRequest) -> Callable[[Handle], dict[str, Any]]:
    """How a message is named."""
    return lambda handle: {"key": handle.key} if request.param == "key" else {"id": handle.id}


def rolled_back(change: Callable[[], object]) -> None:
    """The change, in a savepoint that is rolled back."""
    with suppress(Undo), transaction.atomic():
        change()
        raise Undo


# Cancel


def test_cancelled_before_the_commit_it_is_never_sent(delayq: RedisStore, named: Any) -> None:
    with transaction.atomic():
        handle = later.using(key="k").enqueue("x")
        later.cancel(**named(handle))
    assert (sent(), handle.outcome) == ([], "")
    assert topic_stats("default").counters["enqueued"] == 0


def test_others_of_the_transaction_are_sent(delayq: RedisStore) -> None:
    with transaction.atomic():
        record.enqueue("a")
        handle = record.enqueue("b")
        record.enqueue("c")
        handle.cancel()
    assert sent() == ["a", "c"]


def test_one_of_many_may_be_cancelled(delayq: RedisStore) -> None:
    with transaction.atomic():
        handles = record.enqueue_many([(n,) for n in range(5)])
        handles[3].cancel()
        handles[0].cancel()
    assert sent() == [1, 2, 4]


def test_second_cancel_finds_nothing(delayq: RedisStore) -> None:
    with transaction.atomic():
        handle = later.enqueue("x")
        handle.cancel()
        with pytest.raises(exceptions.MessageNotFound, match="not live in topic 'default'"):
            handle.cancel()
    assert sent() == []


def test_after_the_commit_it_is_not_live(delayq: RedisStore) -> None:
    with transaction.atomic():
        handle = later.enqueue("x")
        handle.cancel()
    assert handle.get() is None
    with pytest.raises(exceptions.MessageNotFound):
        handle.cancel()


def test_same_key_may_be_enqueued_again_in_the_same_transaction(delayq: RedisStore) -> None:
    keyed = later.using(key="k")
    with transaction.atomic():
        keyed.enqueue("first")
        keyed.cancel(key="k")
        keyed.enqueue("second")
    assert sent() == ["second"]


def test_live_message_and_the_one_that_would_replace_it_are_both_cancelled(
    delayq: RedisStore,
) -> None:
    keyed = later.using(key="k", on_duplicate="replace")
    keyed.enqueue("live")
    with transaction.atomic():
        keyed.enqueue("pending")
        keyed.cancel(key="k")
    assert sent() == []
    assert topic_stats("default").counters["cancelled"] == 1


def test_same_key_of_another_topic_stays(delayq: RedisStore) -> None:
    with transaction.atomic():
        later.using(key="k").enqueue("default")
        later.using(key="k", topic="orders").enqueue("orders")
        later.using(topic="orders").cancel(key="k")
    assert (sent(), sent("orders")) == (["default"], [])


def test_cancel_needs_no_redis(delayq: RedisStore) -> None:
    with unreachable(), transaction.atomic():
        handle = later.enqueue("x")
        handle.cancel()
    assert (sent(), kept()) == ([], [])


def test_cancel_in_a_savepoint_that_is_rolled_back_restores_the_message(
    delayq: RedisStore, named: Any
) -> None:
    with transaction.atomic():
        handle = later.using(key="k").enqueue("x")
        rolled_back(lambda: later.cancel(**named(handle)))
    assert sent() == ["x"]
    assert handle.outcome == "stored"


def test_cancel_in_a_savepoint_that_holds_takes_it_back(delayq: RedisStore) -> None:
    with transaction.atomic():
        handle = later.enqueue("x")
        with transaction.atomic():
            handle.cancel()
    assert sent() == []


def test_message_restored_by_a_rollback_can_be_cancelled_again(delayq: RedisStore) -> None:
    with transaction.atomic():
        handle = later.enqueue("x")
        rolled_back(handle.cancel)
        handle.cancel()
    assert sent() == []


def test_enqueue_in_a_savepoint_that_is_rolled_back_leaves_nothing_to_cancel(
    delayq: RedisStore,
) -> None:
    keyed = later.using(key="k")
    with transaction.atomic():
        rolled_back(lambda: keyed.enqueue("lost"))
        with pytest.raises(exceptions.MessageNotFound):
            keyed.cancel(key="k")
        savepoint("kept")
    assert sent() == ["kept"]


def test_enqueue_and_cancel_in_one_savepoint(delayq: RedisStore) -> None:
    keyed = later.using(key="k")
    for undo in (False, True):
        with transaction.atomic(), suppress(Undo), transaction.atomic():
            keyed.enqueue("x")
            keyed.cancel(key="k")
            if undo:
                raise Undo
        assert sent() == []


def test_transaction_that_is_rolled_back_cancels_nothing_of_its_own(delayq: RedisStore) -> None:
    with suppress(Undo), transaction.atomic():
        handle = later.enqueue("x")
        handle.cancel()
        raise Undo
    record.enqueue("next")
    assert sent() == ["next"]


def test_durable_one_is_taken_back_with_its_row(delayq: RedisStore) -> None:
    with transaction.atomic():
        handle = later.using(durable=True).enqueue("x")
        assert kept() == [handle.id]
        handle.cancel()
        assert kept() == []
    assert (sent(), kept()) == ([], [])


def test_row_of_a_durable_one_is_back_after_a_rollback_of_its_cancel(delayq: RedisStore) -> None:
    with transaction.atomic():
        handle = later.using(durable=True).enqueue("x")
        rolled_back(handle.cancel)
        assert kept() == [handle.id]
    assert (sent(), kept()) == (["x"], [handle.id])
    assert not ArchivedMessage.objects.exists()


# Reschedule


def test_moved_before_the_commit_it_is_sent_with_the_new_time(
    delayq: RedisStore, named: Any
) -> None:
    with transaction.atomic():
        handle = later.using(key="k").enqueue("x")
        assert later.reschedule(due_at=DUE, **named(handle)) == DUE
    message = handle.get()
    assert message is not None
    assert (message.due_at, handle.due_at, message.args) == (DUE, DUE, ["x"])


def test_delay_of_a_move_counts_from_the_commit(delayq: RedisStore) -> None:
    with transaction.atomic():
        handle = record.enqueue("x")
        promised = handle.reschedule(delay=3600)
    message = handle.get()
    assert message is not None
    assert message.due_at - message.enqueued_at == pytest.approx(
        timedelta(hours=1), abs=timedelta(milliseconds=1)
    )
    assert timedelta(0) <= message.due_at - promised < timedelta(seconds=5)


def test_last_of_several_moves_counts(delayq: RedisStore) -> None:
    with transaction.atomic():
        handle = record.enqueue("x")
        for days in (3, 1, 2):
            handle.reschedule(due_at=DUE + timedelta(days=days))
    assert handle.get().due_at == DUE + timedelta(days=2)  # type: ignore[union-attr]
    assert sent() == ["x"]


def test_move_in_a_savepoint_that_is_rolled_back_is_forgotten(delayq: RedisStore) -> None:
    first, second = DUE, DUE + timedelta(days=1)
    with transaction.atomic():
        handle = record.using(due_at=first).enqueue("x")
        rolled_back(lambda: handle.reschedule(due_at=second))
    assert handle.get().due_at == first  # type: ignore[union-attr]


def test_moved_and_then_cancelled_it_is_not_sent(delayq: RedisStore) -> None:
    with transaction.atomic():
        handle = record.enqueue("x")
        handle.reschedule(due_at=DUE)
        handle.cancel()
        with pytest.raises(exceptions.MessageNotFound):
            handle.reschedule(due_at=DUE)
    assert sent() == []


def test_enqueue_in_a_savepoint_that_is_rolled_back_leaves_nothing_to_move(
    delayq: RedisStore,
) -> None:
    with transaction.atomic():
        rolled_back(lambda: later.using(key="k").enqueue("lost"))
        with pytest.raises(exceptions.MessageNotFound):
            later.reschedule(key="k", due_at=DUE)
    assert sent() == []


def test_durable_one_is_moved_with_its_row(delayq: RedisStore) -> None:
    with transaction.atomic():
        handle = later.using(durable=True).enqueue("x")
        assert handle.reschedule(due_at=DUE) == DUE
    message = handle.get()
    assert message is not None
    assert (message.due_at, kept()) == (DUE, [handle.id])
    assert sent() == []  # beyond the horizon: the relay brings it to Redis in time
