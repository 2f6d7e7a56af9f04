"""Replaying and discarding dead letters: what is selected, what is refused, and the record of
it."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core.exceptions import InvalidMessage
from django_delayq.models import ArchivedMessage, BulkOperation, OperatorAction, OutboxMessage
from django_delayq.operators import walk as module
from django_delayq.operators.replay import (
    Replayed,
    discard,
    preview_discard,
    preview_replay,
    replay,
)
from tests.operators.test_replay import dead, origins

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("delayq"),
]


# Selecting


def test_limit_takes_the_oldest() -> None:
    pks = dead(700)
    replay(pk=pks[0])
    assert replay(topic="default", limit=600).count == 600
    assert origins() == pks[:601]


def test_the_order_of_the_selection_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 250)
    pks = dead(600)
    rows = ArchivedMessage.objects.order_by("-finished_at", "task").reverse()
    assert replay(rows.distinct(), task__startswith="tests.").count == 600
    assert origins() == pks


@pytest.mark.parametrize(
    ("selection", "options", "words"),
    [
        (None, {}, "Say which: a queryset or field lookups"),
        (OutboxMessage.objects.none, {}, "a queryset of ArchivedMessage"),
        (lambda: [1], {}, "a queryset of ArchivedMessage"),
        (lambda: ArchivedMessage.objects.all()[:5], {}, "use filter() and limit="),
        (
            lambda: ArchivedMessage.objects.all().union(ArchivedMessage.objects.all()),
            {},
            "use filter() and limit=",
        ),
        (None, {"tpic": "x"}, "Cannot resolve keyword 'tpic'"),
        (None, {"pk": "x"}, "These lookups do not fit"),
        (None, {"topic": "default", "limit": 0}, "limit is a whole number"),
        (None, {"topic": "default", "limit": True}, "limit is a whole number"),
        (None, {"topic": "default", "rate": 0}, "rate is a number of messages per second"),
        (None, {"topic": "default", "rate": float("inf")}, "rate is a number"),
        (None, {"topic": "default", "delay": -1}, "delay must be zero or more"),
    ],
)
def test_wrong_requests_change_nothing(selection: Any, options: Any, words: str) -> None:
    dead()
    with pytest.raises(InvalidMessage, match=words.replace("(", r"\(").replace(")", r"\)")):
        replay(selection() if selection else None, **options)
    assert origins() == []
    assert not OperatorAction.objects.exists()


def test_a_preview_counts_and_shows_the_oldest_and_changes_nothing() -> None:
    pks = dead(12)
    replay(pk=pks[0])
    found = preview_replay(topic="default")
    assert (found.count, [row.pk for row in found.first], found.skipped) == (
        11,
        pks[1:11],
        {"already replayed": 1},
    )
    assert (
        preview_replay(topic="default", force=True).count,
        preview_replay(topic="default", limit=3).count,
    ) == (12, 3)
    assert ArchivedMessage.objects.filter(replayed_at=None).count() == 11
    assert not BulkOperation.objects.filter(dry_run=True).exists()


def test_a_preview_makes_the_checks_of_the_real_one() -> None:
    good = dead(2)
    dead(task="gone")
    dead(body='{"args": [1, 2, 3, 4], "kwargs": {"no": 1}}')
    assert preview_discard(topic="default").count == 4
    found = preview_replay(topic="default")
    done = replay(topic="default")
    assert (found.count, found.skipped) == (done.count, done.skipped) == (2, done.skipped)
    assert [row.pk for row in found.first] == good
    assert done.skipped == {"unknown task": 1, "arguments refused": 1}


# Discarding, and the record of it all


def test_discarding_marks_open_dead_letters() -> None:
    replayed, first, second = dead(3)
    replay(pk=replayed)
    dead(state="acked")
    done = discard(ArchivedMessage.objects.all(), reason="old prices", by="ada", limit=1)
    assert (done.count, done.skipped) == (1, {"already replayed": 1})
    assert discard(ArchivedMessage.objects.all(), reason="x").skipped == {
        "already replayed": 1,
        "discarded": 1,
        "not dead": 1,
    }
    marked = ArchivedMessage.objects.exclude(discarded_at=None).values_list("pk", flat=True)
    assert sorted(marked) == [first, second]


def test_discarding_needs_a_reason() -> None:
    with pytest.raises(InvalidMessage, match="Say why"):
        discard(topic="default", reason=" ")


def test_the_record_says_who_what_why_and_how_many() -> None:
    dead(3)
    done = replay(
        topic="default",
        task__contains="record",
        by="ada" * 100,
        reason="mended",
        force=True,
        limit=2,
    )
    action = OperatorAction.objects.get()
    assert action == done.action
    assert (action.action, action.operator, action.reason, action.count) == (
        "replay",
        ("ada" * 100)[:150],
        "mended",
        2,
    )
    for word in ("topic", "default", "%record%", "force, limit 2"):
        assert word in action.selection
    assert action.finished_at is not None
    assert action.finished_at >= action.started_at


def test_the_record_of_a_huge_selection_is_cut() -> None:
    discard(pk__in=range(1_000), reason="x")
    assert len(OperatorAction.objects.get().selection) == 2_000


@pytest.mark.parametrize(("rows", "words"), [("all", "everything"), ("none", "nothing")])
def test_the_record_names_everything_and_nothing(rows: str, words: str) -> None:
    assert replay(getattr(ArchivedMessage.objects, rows)()).action.selection == words


@pytest.mark.long
def test_progress_is_told_first_and_after_each_transaction() -> None:
    dead(501)
    dead(task="gone")
    told: list[Replayed] = []
    replay(state="dead", progress=told.append)
    assert [(now.count, dict(now.skipped)) for now in told] == [
        (0, {}),
        (500, {}),
        (501, {"unknown task": 1}),
    ]
    assert told[0].action.pk == OperatorAction.objects.get().pk
