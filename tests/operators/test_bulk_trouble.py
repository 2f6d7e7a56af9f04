"""Bulk operations that are cancelled, put down, cut off from their servers, or cannot be run."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from django_delayq.archive.selection import Selection
from django_delayq.core.exceptions import DatabaseUnavailable, InvalidMessage, StoreUnavailable
from django_delayq.models import ArchivedMessage, BulkOperation
from django_delayq.operators import bulk, bulk_run, replayer
from django_delayq.operators.bulk_run import BulkRun
from django_delayq.operators.bulk_runner import BulkRunner
from tests.bulk_hands import BATCH, OPERATOR, at, be_silent, check_agreement, check_done, order
from tests.database_faults import database_away, failing_commits
from tests.faults import unreachable
from tests.hands import Hands, apart, meanwhile
from tests.operators.test_replay import dead, origins
from tests.servers import wait_until

pytestmark = [pytest.mark.databases, pytest.mark.usefixtures("small_batches")]


# Cancel and stop


def test_a_cancelled_operation_that_waits_changes_nothing(runner: BulkRunner) -> None:
    dead(BATCH)
    operation = order()
    bulk.cancel(OPERATOR, operation.pk)
    assert runner.run_once() == runner.interval
    check_agreement(operation)
    assert (operation.status, operation.count) == ("cancelled", 0)


def test_a_cancel_between_two_batches_ends_it_there(runner: BulkRunner) -> None:
    dead(3 * BATCH)
    operation = order()
    with at(BulkRun, "rest", lambda: apart(lambda: bulk.cancel(OPERATOR, operation.pk))):
        runner.run_once()
    check_agreement(operation)
    assert (operation.status, operation.count) == ("cancelled", BATCH)
    assert runner.run_once() == runner.interval
    check_agreement(operation)
    assert operation.status == "cancelled"


def test_of_a_cancelled_operation_at_most_the_batch_that_runs_is_done(runner: BulkRunner) -> None:
    dead(4 * BATCH)
    operation = order()

    def is_cancelled() -> bool:
        return BulkOperation.objects.filter(pk=operation.pk, status="cancelled").exists()

    def let_it_in() -> None:
        wait_until(is_cancelled, "it is cancelled")

    cancel = meanwhile(lambda: bulk.cancel(OPERATOR, operation.pk))
    with (
        cancel as begin,
        at(replayer, "mark_replayed", begin),
        at(BulkRun, "rest", let_it_in, time=3),
    ):
        runner.run_once()
    check_agreement(operation)
    assert (operation.status, operation.count) == ("cancelled", 2 * BATCH)


def test_what_has_ended_cannot_be_cancelled(runner: BulkRunner) -> None:
    dead()
    operation = order()
    runner.run_once()
    with pytest.raises(InvalidMessage, match="has ended already"):
        bulk.cancel(OPERATOR, operation.pk)
    operation.refresh_from_db()
    assert operation.status == "done"


def test_a_worker_that_stops_puts_it_down_at_once(runner: BulkRunner, other: BulkRunner) -> None:
    pks = dead(3 * BATCH)
    operation = order()
    with at(BulkRun, "rest", runner.stop):
        runner.run_once()
    check_agreement(operation)
    assert (operation.status, operation.worker, operation.count) == ("waiting", "", BATCH)
    other.run_once()
    check_done(operation, pks)


def test_a_worker_that_stops_while_it_counts_puts_it_down(
    runner: BulkRunner, other: BulkRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_run, "PAGE", BATCH)
    pks = dead(3 * BATCH)
    operation = order()
    with at(BulkRun, "rest", runner.stop):
        runner.run_once()
    operation.refresh_from_db()
    assert (operation.status, operation.total) == ("waiting", None)
    other.run_once()
    check_done(operation, pks)


# Servers that are away


def test_it_goes_on_when_the_database_is_back(runner: BulkRunner) -> None:
    pks = dead(3 * BATCH)
    operation = order()
    with ExitStack() as outage:
        lose = at(BulkRun, "rest", lambda: outage.enter_context(database_away()))
        with lose, pytest.raises(DatabaseUnavailable):
            runner.run_once()
    runner.run_once()
    check_done(operation, pks)


def test_it_goes_on_after_a_commit_that_failed(runner: BulkRunner) -> None:
    pks = dead(3 * BATCH)
    operation = order()
    with failing_commits(1), pytest.raises(DatabaseUnavailable):
        runner.run_once()
    check_agreement(operation)
    assert (operation.status, operation.count) == ("waiting", 0)
    be_silent()
    runner.run_once()
    check_done(operation, pks)


def test_it_goes_on_when_redis_is_back(hands: Hands, runner: BulkRunner) -> None:
    pks = dead(BATCH) + [dead(key=f"k{number}")[0] for number in range(BATCH)] + dead(BATCH)
    operation = order()
    with unreachable(), pytest.raises(StoreUnavailable):
        runner.run_once()
    check_agreement(operation)
    assert (operation.status, operation.count) == ("waiting", BATCH)
    assert "StoreUnavailable" in operation.error
    be_silent()
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    runner.run_once()
    check_done(operation, pks)


# What cannot go on

FAILURES: dict[str, tuple[dict[str, str], str]] = {
    "no JSON": ({"selection": "?"}, "is not a selection"),
    "a state that does not exist": ({"selection": '{"state":"lost"}'}, "'lost'"),
    "a part that this version does not know": (
        {"selection": '{"topic":"default","shade":"red"}'},
        "shade",
    ),
    "a kind that this version does not know": ({"kind": "recolour"}, "recolour"),
    "a purge of a topic that is gone": ({"kind": "purge", "selection": '{"topic":"gone"}'}, "gone"),
    "options that are not ours": ({"options": '{"delay":"soon"}'}, "delay must be"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_one_that_cannot_be_run_fails_in_words_and_the_next_one_runs(
    what: str, runner: BulkRunner
) -> None:
    values, words = FAILURES[what]
    pks = dead(3, topic="orders")
    untouched = dead(3)
    broken = order()
    BulkOperation.objects.filter(pk=broken.pk).update(**values)
    good = order(selection=Selection(topic="orders"))
    runner.run_once()
    runner.run_once()
    broken.refresh_from_db()
    assert broken.status == "failed"
    assert words in broken.error
    assert broken.finished_at is not None
    assert not ArchivedMessage.objects.filter(pk__in=untouched).exclude(replayed_at=None).exists()
    good.refresh_from_db()
    assert (good.status, good.count, origins()) == ("done", len(pks), pks)


@pytest.mark.parametrize(
    "selection",
    [Selection(topic="a\0b"), Selection(ids=(2**70,))],
    ids=["NUL", "huge id"],
)
def test_one_that_the_database_refuses_does_not_hold_up_the_next(
    selection: Selection, runner: BulkRunner
) -> None:
    pks = dead(3)
    broken = order()
    BulkOperation.objects.filter(pk=broken.pk).update(selection=selection.encode())
    good = order()
    for _ in range(3):
        try:
            runner.run_once()
        except DatabaseUnavailable:
            continue
    broken.refresh_from_db()
    assert broken.status in ("failed", "done")
    good.refresh_from_db()
    assert (good.status, good.count, origins()) == ("done", len(pks), pks)
