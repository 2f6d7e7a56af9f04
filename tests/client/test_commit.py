"""Cancel and reschedule inside transactions: at the commit, in the order of the calls, and never
out of its hook."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from django_delayq import MessageNotFound, MessageRunning, list_messages
from django_delayq.client.handle import Handle
from django_delayq.core import exceptions, signals
from django_delayq.core.signals import Event
from django_delayq.store.store import RedisStore
from tests.app.tasks import crowd, record
from tests.faults import lost_answers, scripts_run, unreachable
from tests.hands import apart
from tests.sending import LONG_AGO, Capture, Undo, ack, claim, sent, with_transactions

pytestmark = with_transactions
DUE = datetime(2030, 1, 1, tzinfo=timezone.utc)
keyed = record.using(key="k", delay=60)


def rolled_back(*changes: Callable[[], object]) -> None:
    """The changes, in a transaction or savepoint that is rolled back."""
    with suppress(Undo), transaction.atomic():
        for change in changes:
            change()
        raise Undo


def due() -> datetime:
    message = keyed.get(key="k")
    assert message is not None
    return message.due_at


@pytest.fixture
def refused() -> Iterator[list[tuple[str, Event]]]:
    """What the signal says: the action and the event."""
    heard: list[tuple[str, Event]] = []

    def hear(events: Any, action: str, **kwargs: Any) -> None:
        heard.extend((action, event) for event in events)

    signals.refused.connect(hear)
    yield heard
    signals.refused.disconnect(hear)


# At the commit


def test_cancel_takes_effect_when_the_transaction_commits(delayq: RedisStore) -> None:
    keyed.enqueue("x")
    with transaction.atomic():
        assert keyed.cancel(key="k") is True
        assert sent() == ["x"]
    assert sent() == []


def test_reschedule_takes_effect_when_the_transaction_commits(delayq: RedisStore) -> None:
    keyed.enqueue("x")
    before = due()
    with transaction.atomic():
        assert keyed.reschedule(key="k", due_at=DUE) == DUE
        assert due() == before
    assert due() == DUE


@pytest.mark.parametrize("around", ["transaction", "savepoint"])
def test_a_rollback_undoes_them(delayq: RedisStore, around: str) -> None:
    other = record.using(delay=60).enqueue("other")
    keyed.enqueue("x")
    before = due()

    def change() -> None:
        rolled_back(other.cancel, lambda: keyed.reschedule(key="k", due_at=DUE))

    if around == "savepoint":
        with transaction.atomic():
            change()
    else:
        change()
    assert (sent(), due()) == (["other", "x"], before)


def test_after_commit_false_acts_at_once(delayq: RedisStore) -> None:
    other = record.using(delay=60).enqueue("other")
    keyed.enqueue("x")
    rolled_back(
        lambda: other.cancel(after_commit=False),
        lambda: keyed.reschedule(key="k", due_at=DUE, after_commit=False),
        lambda: keyed.using(after_commit=False).reschedule(key="k", due_at=DUE),
    )
    assert (sent(), due()) == (["x"], DUE)


def test_calls_count_in_their_order(delayq: RedisStore) -> None:
    keyed.enqueue("live")
    with transaction.atomic():
        keyed.reschedule(key="k", delay=3600)
        keyed.cancel(key="k")
        with pytest.raises(MessageNotFound):
            keyed.cancel(key="k")
        with pytest.raises(MessageNotFound):
            keyed.reschedule(key="k", delay=5)
        assert keyed.cancel(key="k", missing_ok=True) is False
        first = keyed.enqueue("first")
        with pytest.raises(exceptions.DuplicateMessage):
            keyed.enqueue("second")
        keyed.cancel(key="k")
        third = keyed.enqueue("third")
        keyed.reschedule(key="k", due_at=DUE)
    assert (sent(), due()) == (["third"], DUE)
    assert (first.outcome, third.outcome) == ("", "stored")


@pytest.mark.parametrize(
    "order", ["cancel, enqueue", "enqueue, cancel", "enqueue, reschedule", "reschedule, enqueue"]
)
@pytest.mark.parametrize("live", [False, True])
def test_one_key_in_one_transaction_is_as_the_sequence(
    delayq: RedisStore, order: str, live: bool
) -> None:
    newest = keyed.using(on_duplicate="replace")
    calls: dict[str, Callable[[], object]] = {
        "cancel": lambda: keyed.cancel(key="k", missing_ok=True),
        "enqueue": lambda: newest.enqueue("new"),
        "reschedule": lambda: keyed.reschedule(key="k", due_at=DUE, missing_ok=True),
    }
    if live:
        keyed.enqueue("live")
    with transaction.atomic():
        for name in order.split(", "):
            calls[name]()
    assert sent() == ([] if order == "enqueue, cancel" else ["new"])
    if order == "enqueue, reschedule":
        assert due() == DUE


def test_what_waits_for_the_commit_of_a_message_that_would_be_refused_moves_the_live_one(
    delayq: RedisStore,
) -> None:
    with transaction.atomic():
        handle = keyed.enqueue("mine")
        apart(lambda: keyed.enqueue("theirs"))
        keyed.reschedule(key="k", due_at=DUE)
    assert (sent(), due(), handle.outcome) == (["theirs"], DUE, "duplicate")


def test_delay_of_a_move_counts_from_the_commit(delayq: RedisStore) -> None:
    keyed.enqueue("x")
    with transaction.atomic():
        promised = keyed.reschedule(key="k", delay=3600)
        time.sleep(0.05)
    assert due() - promised >= timedelta(milliseconds=45)


def test_transaction_on_another_alias_is_waited_for_too(delayq: RedisStore) -> None:
    keyed.enqueue("x")
    with suppress(Undo), transaction.atomic(using="other"):
        keyed.cancel(key="k")
        raise Undo
    assert sent() == ["x"]
    with transaction.atomic(using="other"):
        keyed.cancel(key="k")
        assert sent() == ["x"]
    assert sent() == []


@pytest.mark.django_db
def test_captured_callbacks_of_a_testcase_do_them(
    delayq: RedisStore, django_capture_on_commit_callbacks: Capture
) -> None:
    newest = keyed.using(on_duplicate="replace")
    with django_capture_on_commit_callbacks(execute=True):
        newest.enqueue("x")
    with django_capture_on_commit_callbacks(execute=True):
        newest.reschedule(key="k", due_at=DUE)
    assert due() == DUE
    with django_capture_on_commit_callbacks(execute=True):
        newest.cancel(key="k")
    assert sent() == []


@pytest.mark.django_db(databases=["default", "other"])
def test_in_a_testcase_the_transaction_of_the_code_is_waited_for(delayq: RedisStore) -> None:
    with transaction.atomic(using="other"):
        record.enqueue("x")
    assert len(connections["other"].run_on_commit) == 2
    assert connections["default"].run_on_commit == []


# What is known at the call


def test_what_runs_is_told_at_the_call(delayq: RedisStore) -> None:
    keyed.using(due_at=LONG_AGO).enqueue("x")
    (lease,) = claim()
    with transaction.atomic():
        for call in (keyed.cancel, lambda key: keyed.reschedule(key=key, delay=5)):
            with pytest.raises(MessageRunning, match="a worker holds it"):
                call(key="k")
        assert keyed.cancel(key="k", missing_ok=True) is False
        assert keyed.reschedule(key="k", delay=5, missing_ok=True) is None
    ack(lease)


def test_what_follows_a_run_is_moved_and_with_missing_ok_cancelled(delayq: RedisStore) -> None:
    newest = record.using(key="k", on_duplicate="replace", due_at=LONG_AGO)
    newest.enqueue("runs")
    (lease,) = claim()
    newest.enqueue("follows")
    with transaction.atomic():
        assert newest.reschedule(key="k", due_at=DUE) == DUE
    assert newest.reschedule(key="k", due_at=DUE + timedelta(days=1)) == DUE + timedelta(days=1)
    ack(lease)
    assert due() == DUE + timedelta(days=1)
    newest.enqueue("runs")
    (lease,) = claim()
    newest.enqueue("follows")
    with transaction.atomic():
        newest.cancel(key="k", missing_ok=True)
    ack(lease)
    assert sent() == []


@pytest.mark.parametrize("inside", [True, False])
def test_what_is_nowhere_is_told_unless_it_may_be_missing(delayq: RedisStore, inside: bool) -> None:
    with transaction.atomic() if inside else nullcontext():
        with pytest.raises(MessageNotFound, match="never sent, finished or cancelled"):
            keyed.cancel(key="k")
        with pytest.raises(MessageNotFound):
            keyed.reschedule(key="k", delay=5)
        assert keyed.cancel(key="k", missing_ok=True) is False
        assert keyed.reschedule(key="k", delay=5, missing_ok=True) is None


def test_twins_for_async_code_take_the_same(delayq: RedisStore) -> None:
    async def story() -> None:
        handle = await keyed.aenqueue("x")
        assert await keyed.areschedule(key="k", due_at=DUE) == DUE
        assert await handle.areschedule(due_at=DUE, missing_ok=True) == DUE
        assert [
            found.args for found in (await handle.aget(), await keyed.aget(key="k")) if found
        ] == [
            ["x"],
            ["x"],
        ]
        assert await handle.acancel() is True
        assert await keyed.acancel(key="k", missing_ok=True) is False
        assert await keyed.aget(key="k") is None
        await sync_to_async(connections.close_all)()

    asyncio.run(story())


# What is found at the commit


def test_duplicate_that_came_meanwhile_raises_nothing_and_drops_nobody_elses_hook(
    delayq: RedisStore, refused: list[tuple[str, Event]], caplog: pytest.LogCaptureFixture
) -> None:
    others: list[str] = []
    with transaction.atomic():
        handle = keyed.enqueue("mine")
        transaction.on_commit(lambda: others.append("ran"))
        apart(lambda: keyed.enqueue("theirs"))
    assert (others, handle.outcome, sent()) == (["ran"], "duplicate", ["theirs"])
    assert [(action, event.id, event.reason) for action, event in refused] == [
        ("enqueue", handle.id, "duplicate")
    ]
    assert "'k' not enqueued: another message with its key is live" in caplog.text


@pytest.mark.usefixtures("raising")
def test_unknown_outcome_at_the_commit_is_told_by_the_handle(
    delayq: RedisStore, refused: list[tuple[str, Event]]
) -> None:
    record.using(delay=60).enqueue("warm")
    with lost_answers() as lost, transaction.atomic():
        handle = record.using(delay=60).enqueue("x")
    assert (len(lost), handle.outcome, sent()) == (1, "unknown", ["warm", "x"])
    assert refused[0][1].reason.startswith("EnqueueUnknown: ")


@pytest.mark.parametrize("call", ["cancel", "reschedule"])
def test_what_has_begun_or_ended_meanwhile_is_told_by_a_signal(
    delayq: RedisStore, refused: list[tuple[str, Event]], call: str
) -> None:
    for number, ends in enumerate((False, True)):
        task = record.using(key=f"k{number}", due_at=LONG_AGO)
        handle = task.enqueue("x")
        with transaction.atomic():
            _ = handle.cancel() if call == "cancel" else handle.reschedule(delay=5)
            (lease,) = claim()
            if ends:
                ack(lease)
    assert [(action, event.reason) for action, event in refused] == [
        (call, "running"),
        (call, "not found"),
    ]


def test_who_said_that_it_may_be_missing_is_not_told(
    delayq: RedisStore, refused: list[tuple[str, Event]]
) -> None:
    handle = record.using(due_at=LONG_AGO).enqueue("x")
    with transaction.atomic():
        handle.cancel(missing_ok=True)
        claim()
    assert refused == []


@pytest.mark.usefixtures("raising")
def test_where_nothing_may_be_kept_redis_that_is_away_is_an_error_at_the_call(
    delayq: RedisStore,
) -> None:
    handle = keyed.enqueue("x")
    with unreachable(), transaction.atomic():
        with pytest.raises(exceptions.StoreUnavailable, match="Nothing was changed"):
            handle.cancel()
        with pytest.raises(exceptions.StoreUnavailable):
            keyed.reschedule(key="k", delay=5)


@pytest.mark.parametrize("inside", [False, True])
def test_cancel_and_reschedule_reach_a_key_in_every_partition(
    split: Callable[[int], RedisStore], inside: bool
) -> None:
    """For 30 s after the number was raised an old and a new process may both accept one key."""
    calls = [crowd.using(key=f"k{number}", delay=60).prepare(number) for number in range(12)]
    split(1)
    crowd.enqueue_many(calls)
    store = split(4)
    store.partitions._counts["crowd"], store.partitions._read_at = {4}, time.monotonic()
    with suppress(exceptions.DuplicateMessage):  # some keys have the same place in both
        crowd.enqueue_many(calls)
    store.partitions.forget()
    assert len(list_messages("crowd").messages) > 12
    with transaction.atomic() if inside else nullcontext():
        for call in calls:
            crowd.reschedule(key=call.task.options.key, due_at=DUE)
    assert {message.due_at for message in list_messages("crowd").messages} == {DUE}
    with transaction.atomic() if inside else nullcontext():
        for call in calls:
            crowd.cancel(key=call.task.options.key)
    assert list_messages("crowd").messages == []


def test_a_handle_shows_the_id_that_one_can_search_for(delayq: RedisStore) -> None:
    handle = keyed.enqueue("x")
    assert f"id={handle.id!r}" in repr(handle)
    assert "key='k', outcome='stored', due_at=" in repr(handle)


# Costs


def test_a_lone_message_without_a_key_asks_nothing_inside_a_transaction(delayq: RedisStore) -> None:
    record.using(delay=60).enqueue("warm")
    before = scripts_run(delayq)
    with transaction.atomic():
        record.enqueue("x")
        assert scripts_run(delayq) == before
        record.enqueue_many([keyed.using(key=f"k{n}").prepare(n) for n in range(100)])
        assert scripts_run(delayq) == before + 1


@pytest.mark.long
def test_many_in_one_transaction_cost_as_much_each_as_few(delayq: RedisStore) -> None:
    """Nobody looks through all hooks for each of them: that took 3 ms for the last of 8,000."""
    others = transaction.on_commit

    def enqueue_and_move(count: int) -> float:
        handles: list[Handle] = []
        began = time.thread_time()
        with suppress(Undo), transaction.atomic():
            for number in range(count):
                others(lambda: None)
                handles.append(record.using(delay=60).enqueue(number))
            for handle in handles:
                handle.reschedule(due_at=DUE)
            raise Undo
        return (time.thread_time() - began) / count

    enqueue_and_move(10)
    few = min(enqueue_and_move(100) for _ in range(3))
    assert min(enqueue_and_move(2_000) for _ in range(2)) < 5 * few
