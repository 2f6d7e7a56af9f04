"""Sending: at once, or when the right transaction commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction

from django_delayq.core import exceptions
from django_delayq.store.store import RedisStore
from tests.app.tasks import close_order, crowd, record, remind
from tests.faults import scripts_run
from tests.sending import Capture, Undo, savepoint, sent, with_transactions

# Transactions


@with_transactions
def test_outside_a_transaction_it_is_sent_at_once(delayq: RedisStore) -> None:
    handle = record.enqueue("now")
    assert sent() == ["now"]
    assert handle.outcome == "stored"
    assert handle.due_at is not None


@with_transactions
def test_inside_a_transaction_it_is_sent_by_the_commit(delayq: RedisStore) -> None:
    with transaction.atomic():
        record.enqueue("later")
        assert sent() == []
    assert sent() == ["later"]


@with_transactions
def test_handle_has_its_id_before_the_commit(delayq: RedisStore) -> None:
    with transaction.atomic():
        handle = record.using(delay=60).enqueue("x")
        known = handle.id
        assert (handle.outcome, handle.due_at, handle.get()) == ("", None, None)
    message = handle.get()
    assert message is not None
    assert (handle.id, message.id, message.due_at) == (known, known, handle.due_at)
    assert handle.outcome == "stored"


@with_transactions
def test_rollback_sends_nothing(delayq: RedisStore) -> None:
    with pytest.raises(Undo), transaction.atomic():
        record.enqueue("lost")
        raise Undo
    record.enqueue("next")
    assert sent() == ["next"]


@with_transactions
def test_next_transaction_knows_nothing_of_one_that_was_rolled_back(delayq: RedisStore) -> None:
    with pytest.raises(Undo), transaction.atomic():
        record.enqueue("lost")
        raise Undo
    with transaction.atomic():
        record.enqueue("kept")
    assert sent() == ["kept"]


@with_transactions
def test_savepoint_that_is_rolled_back_takes_only_its_own(delayq: RedisStore) -> None:
    with transaction.atomic():
        record.enqueue("before")
        savepoint("inside", undo=True)
        record.enqueue("after")
    assert sent() == ["after", "before"]


@with_transactions
def test_savepoint_that_holds_sends_with_the_rest(delayq: RedisStore) -> None:
    with transaction.atomic():
        savepoint("first")
        savepoint("second", undo=True)
        savepoint("third")
    assert sent() == ["first", "third"]


@with_transactions
def test_savepoint_that_came_first_and_was_rolled_back_does_not_take_what_follows(
    delayq: RedisStore,
) -> None:
    with transaction.atomic():
        savepoint("inside", undo=True)
        record.enqueue("after")
    assert sent() == ["after"]


@with_transactions
def test_savepoint_that_came_last_and_was_rolled_back_does_not_take_what_was_before(
    delayq: RedisStore,
) -> None:
    with transaction.atomic():
        record.enqueue("before")
        savepoint("inside", "inside too", undo=True)
    assert sent() == ["before"]


@with_transactions
def test_savepoints_in_savepoints(delayq: RedisStore) -> None:
    with transaction.atomic():
        record.enqueue("1")
        with pytest.raises(Undo), transaction.atomic():
            record.enqueue("2")
            savepoint("3")
            savepoint("4", undo=True)
            raise Undo
        with transaction.atomic():
            savepoint("5", undo=True)
            record.enqueue("6")
            with transaction.atomic():
                savepoint("7", undo=True)
                record.enqueue("8")
        record.enqueue("9")
    assert sent() == ["1", "6", "8", "9"]


@with_transactions
def test_messages_of_one_transaction_leave_in_one_call(delayq: RedisStore) -> None:
    record.using(delay=60).enqueue("warm")
    before = scripts_run(delayq)
    with transaction.atomic():
        for number in range(100):
            record.enqueue(number)
            if number % 10 == 0:
                savepoint("lost", undo=True)
            if number == 50:
                record.using(delay=5).enqueue("delayed")
        assert scripts_run(delayq) == before
    assert scripts_run(delayq) == before + 1
    assert len(sent()) == 102


@with_transactions
def test_every_partition_gets_one_call(split: Callable[[int], RedisStore]) -> None:
    store = split(4)
    crowd.enqueue_many([(n,) for n in range(50)])
    before = scripts_run(store)
    with transaction.atomic():
        for number in range(50):
            crowd.enqueue(number)
    assert scripts_run(store) == before + 4


@with_transactions
def test_transaction_that_holds_nothing_of_ours_calls_nothing(delayq: RedisStore) -> None:
    record.enqueue("warm")
    before = scripts_run(delayq)
    with transaction.atomic():
        savepoint("lost", undo=True)
    assert scripts_run(delayq) == before


@with_transactions
def test_message_waits_for_the_transaction_that_is_open_whatever_its_alias(
    delayq: RedisStore,
) -> None:
    with suppress(Undo), transaction.atomic(using="other"):
        record.enqueue("lost")
        raise Undo
    with transaction.atomic(using="other"):
        record.enqueue("waits")
        assert sent() == []
    assert sent() == ["waits"]


@with_transactions
def test_of_several_it_is_that_of_the_settings(delayq: RedisStore) -> None:
    with transaction.atomic(using="other"):
        with transaction.atomic():
            record.enqueue("waits for default")
        assert sent() == ["waits for default"]


@with_transactions
def test_database_that_is_named_decides(delayq: RedisStore) -> None:
    with transaction.atomic(using="other"):
        record.using(database="default").enqueue("default is in no transaction")
        assert sent() == ["default is in no transaction"]
        with pytest.raises(Undo), transaction.atomic():
            record.using(database="other").enqueue("waits too")
            record.enqueue("lost")
            raise Undo
    assert sent() == ["default is in no transaction", "waits too"]


@with_transactions
def test_database_of_the_settings_decides(settings: Any, delayq: RedisStore) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "DATABASE": "other"}
    with transaction.atomic():
        with transaction.atomic(using="other"):
            record.enqueue("by the commit of other")
            assert sent() == []
        assert sent() == ["by the commit of other"]


@with_transactions
@pytest.mark.parametrize("call", ["enqueue", "cancel", "reschedule"])
def test_manual_transaction_is_refused_and_says_what_to_do(delayq: RedisStore, call: str) -> None:
    handle = record.using(delay=60).enqueue("live")
    calls: dict[str, Callable[[], object]] = {
        "enqueue": lambda: record.enqueue("x"),
        "cancel": handle.cancel,
        "reschedule": lambda: handle.reschedule(delay=1),
    }
    transaction.set_autocommit(False)
    try:
        with pytest.raises(
            exceptions.InvalidMessage, match=r"'default' is in manual .*use transaction.atomic\(\)"
        ):
            calls[call]()
        record.using(after_commit=False).enqueue("at once")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert sent() == ["at once", "live"]


@with_transactions
@pytest.mark.parametrize("by", ["call", "setting"])
def test_after_commit_false_sends_at_once_whatever_happens(
    settings: Any, delayq: RedisStore, by: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "AFTER_COMMIT": by == "call"}
    task = record.using(after_commit=False) if by == "call" else record
    with pytest.raises(Undo), transaction.atomic():
        handle = task.enqueue("sent")
        assert handle.outcome == "stored"
        raise Undo
    assert sent() == ["sent"]


@with_transactions
def test_bad_input_is_refused_inside_the_transaction(delayq: RedisStore) -> None:
    with transaction.atomic():
        with pytest.raises(exceptions.InvalidArguments):
            close_order.enqueue()
        record.enqueue("fine")
    assert sent() == ["fine"]


@with_transactions
def test_duplicate_is_raised_by_the_call_and_does_not_take_the_others(delayq: RedisStore) -> None:
    record.using(key="k", delay=60).enqueue("first")
    with transaction.atomic():
        record.enqueue("a")
        with pytest.raises(exceptions.DuplicateMessage, match="'k': already live"):
            record.using(key="k").enqueue("second")
        with pytest.raises(exceptions.DuplicateMessage, match="'k': already live"):
            record.enqueue_many(
                [record.prepare("b"), record.using(key="k").prepare("third"), record.prepare("c")]
            )
    assert sent() == ["a", "b", "c", "first"]


@with_transactions
def test_async_code_enqueues_too(delayq: RedisStore) -> None:
    handle = asyncio.run(remind.using(delay=60).aenqueue(5))
    assert handle.outcome == "stored"
    assert sent("orders") == [5]


# Tests of a project: everything in one transaction that is rolled back


@pytest.mark.django_db
def test_captured_callbacks_send(
    delayq: RedisStore, django_capture_on_commit_callbacks: Capture
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        record.enqueue("a")
        record.enqueue("b")
        assert sent() == []
    assert sent() == ["a", "b"]


@pytest.mark.django_db
def test_capture_sends_only_what_was_enqueued_in_it(
    delayq: RedisStore, django_capture_on_commit_callbacks: Capture
) -> None:
    record.enqueue("before")
    for value in ("first", "second"):
        with django_capture_on_commit_callbacks(execute=True):
            record.enqueue(value)
        record.enqueue("between")
    assert sent() == ["first", "second"]


@pytest.mark.django_db
def test_capture_works_with_savepoints(
    delayq: RedisStore, django_capture_on_commit_callbacks: Capture
) -> None:
    record.enqueue("before")
    with django_capture_on_commit_callbacks(execute=True):
        savepoint("lost", undo=True)
        savepoint("kept")
        transaction.on_commit(lambda: record.enqueue("by a callback") and None)
    assert sent() == ["by a callback", "kept"]


@pytest.mark.django_db
def test_uncommitted_test_sends_nothing(delayq: RedisStore) -> None:
    record.enqueue("x")
    assert sent() == []
