"""What Redis cannot take goes to the outbox, and from there to Redis when it is back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from django_delayq import topic_stats
from django_delayq.core import exceptions
from django_delayq.models import OutboxMessage, OutboxStatus
from django_delayq.outbox import outbox
from django_delayq.outbox.relay import Relay
from django_delayq.store import breaker
from django_delayq.store.store import RedisStore
from tests.app.tasks import noop, record
from tests.faults import lost_answers, scripts_run, unreachable
from tests.sending import Undo, kept, sent, with_transactions
from tests.servers import wait_until

pytestmark = with_transactions
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def never_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open breaker stays open."""
    monkeypatch.setattr(breaker, "PROBE_INTERVAL", 3600.0)


def when_redis_is_back(store: RedisStore) -> None:
    """One round of the relay, once the breaker has seen it."""
    wait_until(lambda: not store.breaker.open, "the breaker is closed")
    Relay(store).run_once()


def test_one_is_kept_and_sent_when_redis_is_back(delayq: RedisStore) -> None:
    with unreachable():
        handle = record.using(delay=60, key="k").enqueue("x")
    assert (handle.outcome, kept(), sent()) == ("outbox", [handle.id], [])
    when_redis_is_back(delayq)
    message = record.get(key="k")
    assert message is not None
    assert (message.id, message.args, message.due_at) == (handle.id, ["x"], handle.due_at)
    assert set(OutboxMessage.objects.values_list("status", flat=True)) == {OutboxStatus.SENT}


def test_redis_that_was_never_there_is_no_reason_to_fail(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": NOWHERE}
    handle = record.enqueue("x")
    assert (handle.outcome, kept()) == ("outbox", [handle.id])


def test_many_are_kept_in_their_order(delayq: RedisStore) -> None:
    with unreachable():
        handles = record.enqueue_many([(n,) for n in range(700)])
    assert {handle.outcome for handle in handles} == {"outbox"}
    assert kept() == [handle.id for handle in handles]
    assert topic_stats("default").delayed + topic_stats("default").backlog == 0


def test_part_of_many_that_redis_did_not_take_is_kept(delayq: RedisStore) -> None:
    with ExitStack() as stack:

        def calls() -> Iterator[tuple[int]]:
            for number in range(1200):
                if number == 500:
                    stack.enter_context(unreachable())
                yield (number,)

        handles = record.enqueue_many(calls())
    assert [handle.outcome for handle in handles] == ["stored"] * 500 + ["outbox"] * 700
    assert kept() == [handle.id for handle in handles[500:]]
    assert topic_stats("default").counters["enqueued"] == 500


def test_each_of_many_says_whether_it_spills(delayq: RedisStore) -> None:
    strict = record.using(on_redis_error="raise")
    with unreachable(), pytest.raises(exceptions.StoreUnavailable) as caught:
        record.enqueue_many([record.prepare("a"), strict.prepare("b"), record.prepare("c")])
    assert kept() == [handle.id for handle in caught.value.enqueued]
    assert len(kept()) == 2


@pytest.mark.parametrize("setting", ["raise", "spill"])
def test_call_decides_against_the_setting(settings: Any, delayq: RedisStore, setting: str) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": NOWHERE, "ON_REDIS_ERROR": setting}
    if setting == "spill":
        with pytest.raises(exceptions.StoreUnavailable):
            record.using(on_redis_error="raise").enqueue("x")
        assert kept() == []
    else:
        handle = record.using(on_redis_error="spill").enqueue("x")
        assert kept() == [handle.id]


# Transactions


def test_commit_that_cannot_send_keeps(delayq: RedisStore) -> None:
    with unreachable(), transaction.atomic():
        handles = [record.enqueue(n) for n in range(3)]
        assert kept() == []
    assert {handle.outcome for handle in handles} == {"outbox"}
    assert kept() == [handle.id for handle in handles]


@pytest.mark.usefixtures("raising")
def test_commit_that_may_not_keep_says_so_and_drops_nobody_elses_hook(
    delayq: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    others: list[int] = []
    with unreachable(), transaction.atomic():
        OutboxMessage.objects.create(
            enqueued_at_us=1, due_at_ms=1, relay_at_ms=1, record=b"", **_names()
        )
        handle = record.enqueue("x")
        transaction.on_commit(lambda: others.append(1))
    assert (handle.outcome, others) == ("failed", [1])
    assert [line.levelname for line in caplog.records if handle.id in line.message] == ["ERROR"]
    assert len(kept()) == 1  # the row of the transaction itself
    assert sent() == []


def test_rolled_back_transaction_keeps_nothing(delayq: RedisStore) -> None:
    with unreachable(), suppress(Undo), transaction.atomic():
        handle = record.enqueue("lost")
        raise Undo
    assert (handle.outcome, kept(), sent()) == ("", [], [])


def test_savepoint_that_is_rolled_back_keeps_nothing(delayq: RedisStore) -> None:
    with unreachable(), transaction.atomic():
        with suppress(Undo), transaction.atomic():
            record.enqueue("lost")
            raise Undo
        handle = record.enqueue("x")
    assert kept() == [handle.id]


def test_what_does_not_wait_for_the_commit_is_not_kept_in_a_transaction_that_may_be_rolled_back(
    delayq: RedisStore,
) -> None:
    with unreachable(), suppress(Undo), transaction.atomic():
        with pytest.raises(exceptions.StoreUnavailable):
            record.using(after_commit=False).enqueue("x")
        with pytest.raises(exceptions.StoreUnavailable):
            record.using(after_commit=False).enqueue_many([("y",)])
        raise Undo
    assert (kept(), sent()) == ([], [])


def test_nor_is_what_another_database_has_committed_inside_of_it(delayq: RedisStore) -> None:
    with unreachable(), transaction.atomic():
        with transaction.atomic(using="other"):
            lost = record.using(database="other").enqueue("x")
        handle = record.enqueue("y")
    assert (lost.outcome, kept()) == ("failed", [handle.id])


# The circuit breaker


@pytest.mark.usefixtures("never_probed")
def test_after_one_failure_nobody_tries_redis(delayq: RedisStore) -> None:
    with unreachable():
        record.enqueue("first")
    before = scripts_run(delayq)
    one, (two, three) = record.enqueue("second"), record.enqueue_many([("third",), ("fourth",)])
    with transaction.atomic():
        four = record.enqueue("fifth")
    assert scripts_run(delayq) == before
    assert {handle.outcome for handle in (one, two, three, four)} == {"outbox"}
    assert len(kept()) == 5


@pytest.mark.usefixtures("never_probed")
def test_what_may_not_be_kept_is_tried_all_the_same(delayq: RedisStore) -> None:
    with unreachable():
        record.enqueue("first")
    assert record.using(on_redis_error="raise").enqueue("second").outcome == "stored"
    assert sent() == ["second"]


def test_probe_closes_it_when_redis_is_back(delayq: RedisStore) -> None:
    with unreachable():
        record.enqueue("first")
        assert delayq.breaker.open
    wait_until(lambda: not delayq.breaker.open, "the breaker is closed")
    assert record.enqueue("second").outcome == "stored"


def test_it_is_said_once(delayq: RedisStore, caplog: pytest.LogCaptureFixture) -> None:
    with unreachable():
        for number in range(3):
            record.enqueue(number)
    assert caplog.text.count("1 message waits in the outbox until Redis takes them") == 1


# Nobody knows, or nobody takes it


@pytest.mark.parametrize("count", [1, 3])
def test_enqueue_whose_outcome_is_unknown_is_kept_and_runs_once(
    delayq: RedisStore, count: int
) -> None:
    with lost_answers() as lost:
        handles = record.using(delay=60).enqueue_many([(n,) for n in range(count)])
    assert len(lost) == 1
    assert {handle.outcome for handle in handles} == {"outbox"}
    when_redis_is_back(delayq)
    assert sent() == list(range(count))
    assert topic_stats("default").delayed == count


def test_database_that_fails_too_leaves_the_error_of_redis(
    delayq: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise DatabaseError("disk I/O error")

    monkeypatch.setattr(outbox, "spill", fail)
    with unreachable(), pytest.raises(exceptions.StoreUnavailable) as caught:
        record.enqueue("x")
    assert isinstance(caught.value.__cause__, DatabaseError)


# Operations on what is kept


@pytest.mark.usefixtures("never_probed")
def test_kept_message_is_found_moved_and_cancelled(delayq: RedisStore) -> None:
    with unreachable():
        handle = record.using(delay=60, key="k").enqueue("x")
    message = record.get(key="k")
    assert message is not None
    assert (message.id, message.args, message.state, message.task) == (
        handle.id,
        ["x"],
        "delayed",
        record.name,
    )
    moved = record.reschedule(key="k", delay=3600)
    assert record.get(key="k").due_at == moved  # type: ignore[union-attr]
    record.cancel(key="k")
    assert (record.get(key="k"), OutboxMessage.objects.get().status) == (None, "cancelled")
    with pytest.raises(exceptions.MessageNotFound):
        record.cancel(key="k")


def test_key_of_a_kept_message_is_taken(delayq: RedisStore) -> None:
    with unreachable():
        record.using(key="k").enqueue("first")
        with pytest.raises(exceptions.DuplicateMessage, match="'k': already live"):
            record.using(key="k").enqueue("second")
        assert record.using(key="k", on_duplicate="keep").enqueue("third").outcome == "kept"
        assert (
            record.using(key="k", on_duplicate="replace", delay=60).enqueue("fourth").outcome
            == "outbox"
        )
    when_redis_is_back(delayq)
    assert sent() == ["fourth"]


def _names() -> dict[str, Any]:
    return {"message_id": "0" * 32, "topic": "default", "task": noop.name}
