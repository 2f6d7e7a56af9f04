"""replay() and discard() run a bulk operation themselves: it is followed and cancelled as any other,
and no worker takes it over."""

from __future__ import annotations

import json

import pytest

from django_delayq.core.exceptions import InvalidMessage
from django_delayq.models import ArchivedMessage, BulkOperation, OperatorAction
from django_delayq.operators import bulk
from django_delayq.operators.bulk_run import BulkRun, Replayed, Stopped
from django_delayq.operators.bulk_runner import BulkRunner
from django_delayq.operators.replay import discard, replay
from tests.bulk_hands import BATCH, OPERATOR, Killed, at, be_silent, die
from tests.hands import apart, stored
from tests.operators.test_replay import LONG_AGO, dead, origins

pytestmark = [pytest.mark.databases, pytest.mark.usefixtures("small_batches", "runner")]


def test_a_replay_is_stored_as_an_operation_that_has_ended() -> None:
    pks = dead(BATCH + 3)
    done = replay(topic="default", by="ada", reason="mended", delay=5, rate=2)
    operation = BulkOperation.objects.get()
    assert (operation.kind, operation.status, operation.count) == ("replay", "done", len(pks))
    assert (operation.operator, operation.reason, operation.position) == ("ada", "mended", pks[-1])
    assert {"delay": 5, "rate": 2}.items() <= json.loads(operation.options).items()
    assert operation.action == done.action
    assert operation.finished_at == done.action.finished_at
    assert "topic" in bulk.progress(operation).words


def test_a_discard_says_what_it_has_skipped() -> None:
    dead(3)
    discard(topic="default", reason="old", limit=1)
    discard(topic="default", reason="old")
    assert json.loads(BulkOperation.objects.latest("pk").skipped) == {"discarded": 1}


def test_a_replay_that_is_cancelled_ends_after_the_batch_that_runs() -> None:
    pks = dead(3 * BATCH)

    def cancel(done: Replayed) -> None:
        if done.count == BATCH:
            apart(lambda: bulk.cancel(OPERATOR, BulkOperation.objects.get().pk))

    with pytest.raises(Stopped, match="cancelled"):
        replay(topic="default", progress=cancel)
    operation = BulkOperation.objects.get()
    assert (operation.status, operation.count) == ("cancelled", BATCH)
    assert origins() == pks[:BATCH]


def test_no_worker_takes_over_a_replay_that_was_killed(runner: BulkRunner) -> None:
    pks = dead(3 * BATCH)
    with at(BulkRun, "enter", die, after=True), pytest.raises(Killed):
        replay(topic="default")
    # As kill -9 leaves it.
    BulkOperation.objects.update(status="running", created_at=stored(LONG_AGO))
    be_silent()
    assert runner.run_once() == runner.interval
    assert origins() == pks[:BATCH]
    assert bulk.progress(BulkOperation.objects.get()).is_silent
    replay(topic="default")
    assert origins() == pks


def test_an_interrupted_replay_says_so() -> None:
    dead(BATCH + 1)

    def interrupt(row: ArchivedMessage) -> None:
        if origins():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(topic="default", edit=interrupt)
    operation = BulkOperation.objects.get()
    assert (operation.status, operation.count) == ("cancelled", BATCH)
    assert "interrupted" in operation.error


def test_a_replay_that_fails_before_it_has_changed_anything_leaves_no_record() -> None:
    dead(2)
    with pytest.raises(InvalidMessage):
        replay(topic="default", edit=lambda row: ([1], {"no": object()}))
    assert not BulkOperation.objects.exists()
    assert not OperatorAction.objects.exists()


def test_a_replay_that_fails_later_keeps_its_record() -> None:
    pks = dead(2 * BATCH)

    def edit(row: ArchivedMessage) -> tuple[list[object], dict[str, object]] | None:
        return ([object()], {}) if row.pk == pks[-1] else None

    with pytest.raises(InvalidMessage):
        replay(topic="default", edit=edit)
    operation, action = BulkOperation.objects.get(), OperatorAction.objects.get()
    assert (operation.status, operation.count, action.count) == ("failed", BATCH, BATCH)
    assert "edited arguments are refused" in operation.error
    assert action.finished_at is None
