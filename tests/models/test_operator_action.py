"""The record of what an operator does: there before anything changes, and only if something does."""

from __future__ import annotations

import pytest

from django_delayq.core.exceptions import OutcomeUnknown
from django_delayq.models import OperatorAction

pytestmark = pytest.mark.django_db


def test_it_is_there_before_anything_changes_and_ends_with_it() -> None:
    with OperatorAction.recorded("prune", "ada" * 100, "old", topic="orders") as action:
        stored = OperatorAction.objects.get()
        assert (stored.operator, stored.topic, stored.finished_at) == (
            ("ada" * 100)[:150],
            "orders",
            None,
        )
        action.add(3)
        action.add(4)
    action.refresh_from_db()
    assert (action.count, action.finished_at is None) == (7, False)


def test_it_goes_when_an_error_says_that_nothing_was_changed() -> None:
    with pytest.raises(ValueError, match="no"), OperatorAction.recorded("prune", "ada"):
        raise ValueError("no")
    assert not OperatorAction.objects.exists()


def test_it_stays_without_an_end_when_an_error_comes_later() -> None:
    with pytest.raises(ValueError, match="no"), OperatorAction.recorded("prune", "ada") as action:
        action.add(1)
        raise ValueError("no")
    assert OperatorAction.objects.get().finished_at is None


def test_it_stays_when_nobody_knows_whether_something_was_changed() -> None:
    with pytest.raises(OutcomeUnknown), OperatorAction.recorded("cancel", "ada", selection="all"):
        raise OutcomeUnknown
    assert OperatorAction.objects.get().selection == (
        "all, the answer was lost, it may have been done"
    )
