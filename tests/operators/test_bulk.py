"""What bulk operations do: exactly what their selection says, as of when they were ordered."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from django_delayq.archive.selection import Selection
from django_delayq.core.exceptions import InvalidMessage, NotPermitted, UnknownTopic
from django_delayq.core.message import key_id
from django_delayq.models import ArchivedMessage, BulkOperation, OperatorAction, OutboxMessage
from django_delayq.operators import bulk, bulk_run
from django_delayq.operators.bulk_runner import BulkRunner
from django_delayq.operators.replay import discard, replay
from tests.app.tasks import close_order, record, seen
from tests.bulk_hands import OPERATOR, Operator, check_done, order
from tests.hands import DAY, ORDERS, Hands, messages_in, rows
from tests.operators.test_replay import LONG_AGO, dead, origins

pytestmark = pytest.mark.databases


def run(
    runner: BulkRunner, kind: str = "replay", selection: Selection | None = None, **options: Any
) -> BulkOperation:
    """The operation at its end."""
    operation = order(kind, selection, **options)
    runner.run_once()
    operation.refresh_from_db()
    return operation


def skipped(operation: BulkOperation) -> dict[str, int]:
    counts: dict[str, int] = json.loads(operation.skipped)
    return counts


# Selections

SELECTIONS: dict[str, tuple[Selection, dict[str, Any]]] = {
    "topic": (Selection(topic="orders"), {"topic": "orders"}),
    "task": (Selection(task="tests.app.tasks.noop"), {"task": "tests.app.tasks.noop"}),
    "class of the error": (Selection(error="KeyError"), {"error_class": "KeyError"}),
    "last part of the error": (
        Selection(error="Timeout"),
        {"error_class": "requests.exceptions.Timeout"},
    ),
    "reason": (Selection(error="poison"), {"reason": "poison"}),
    "since": (
        Selection(since=LONG_AGO + timedelta(days=1)),
        {"finished_at": LONG_AGO + timedelta(days=1)},
    ),
    "until": (Selection(until=LONG_AGO), {"finished_at": LONG_AGO - timedelta(seconds=1)}),
    "key": (Selection(key="k"), {"key": "k"}),
    "key in a topic": (Selection(key="k", topic="orders"), {"key": "k", "topic": "orders"}),
}


@pytest.mark.parametrize("kind", ["replay", "discard"])
@pytest.mark.parametrize("what", SELECTIONS)
def test_only_what_is_selected_is_changed(what: str, kind: str, runner: BulkRunner) -> None:
    selection, values = SELECTIONS[what]
    dead(2)
    pks = dead(1, **values)
    dead(2, error_class="SomeTimeout")
    operation = run(runner, kind, selection)
    assert (operation.status, operation.total, operation.count) == ("done", 1, 1)
    field = "replayed_at" if kind == "replay" else "discarded_at"
    assert (
        list(ArchivedMessage.objects.exclude(**{field: None}).values_list("pk", flat=True)) == pks
    )
    assert origins() == (pks if kind == "replay" else [])


def test_rows_are_named_one_by_one(runner: BulkRunner) -> None:
    first, _, third = dead(3)
    check_done(run(runner, selection=Selection(ids=(first, third))), [first, third])


def test_of_any_selection_only_dead_letters_are_replayed(runner: BulkRunner) -> None:
    dead(2, state="acked")
    pks = dead(2)
    check_done(run(runner), pks)
    assert run(runner, selection=Selection(state="acked")).total == 0


@pytest.mark.parametrize("kind", ["replay", "discard"])
def test_what_dies_after_the_order_is_not_touched(kind: str, runner: BulkRunner) -> None:
    before = dead(3)
    operation = order(kind)
    after = dead(3)
    runner.run_once()
    operation.refresh_from_db()
    assert (operation.status, operation.total, operation.count, operation.cutoff) == (
        "done",
        3,
        3,
        before[-1],
    )
    untouched = ArchivedMessage.objects.filter(replayed_at=None, discarded_at=None).values_list(
        "pk", flat=True
    )
    assert sorted(untouched) == after


def test_nothing_is_done_when_nothing_is_selected(runner: BulkRunner) -> None:
    operation = run(runner)
    assert (operation.status, operation.total, operation.count) == ("done", 0, 0)


# Kinds


def test_what_is_replayed_runs(hands: Hands, runner: BulkRunner) -> None:
    dead(3)
    run(runner)
    hands.relay()
    hands.work()
    assert seen == ["x"] * 3


def test_delay_and_rate_are_those_of_a_replay(runner: BulkRunner) -> None:
    dead(5)
    run(runner, delay=3_600, rate=0.5)
    due = list(OutboxMessage.objects.order_by("due_at_ms").values_list("due_at_ms", flat=True))
    assert [later - due[0] for later in due] == [0, 2_000, 4_000, 6_000, 8_000]
    assert due[0] >= OutboxMessage.objects.earliest("pk").enqueued_at_us // 1000 + 3_599_000


def test_what_is_discarded_is_sent_nowhere(runner: BulkRunner) -> None:
    pks = dead(3)
    run(runner, "discard")
    assert not OutboxMessage.objects.exists()
    assert ArchivedMessage.objects.filter(pk__in=pks).exclude(discarded_at=None).count() == 3


def test_a_purge_ends_what_waits_in_redis_and_in_the_outbox(
    hands: Hands, runner: BulkRunner
) -> None:
    close_order.using(delay=DAY).enqueue(1)
    close_order.using(delay=400 * DAY, durable=True).enqueue(2)
    other = record.using(delay=DAY).enqueue(3)
    running = close_order.enqueue(4)
    hands.claim(ORDERS)
    operation = run(runner, "purge", Selection(topic="orders"))
    assert (operation.status, operation.total, operation.count) == ("done", 2, 2)
    assert operation.action is not None
    assert operation.action.count == 2
    hands.archive()
    assert {(row.state, row.reason) for row in rows()} == {("cancelled", "it works again")}
    assert messages_in(hands.store, ORDERS) == {running.identity}
    assert messages_in(hands.store) == {other.identity}


def test_a_purge_of_an_empty_topic_is_done(runner: BulkRunner) -> None:
    operation = run(runner, "purge", Selection(topic="orders"))
    assert (operation.status, operation.total, operation.count) == ("done", 0, 0)


# Dry runs


@pytest.mark.parametrize("kind", ["replay", "discard", "purge"])
def test_a_dry_run_counts_and_changes_nothing(kind: str, hands: Hands, runner: BulkRunner) -> None:
    dead(3)
    record.using(delay=DAY).enqueue_many([(1,), (2,), (3,)])
    operation = run(runner, kind, dry_run=True)
    assert (operation.status, operation.total) == ("done", 3)
    assert bulk.progress(operation).changed == 3
    assert not OperatorAction.objects.exists()
    assert not OutboxMessage.objects.exists()
    assert not ArchivedMessage.objects.exclude(replayed_at=None, discarded_at=None).exists()
    assert len(messages_in(hands.store)) == 3


def test_a_dry_run_counts_as_the_real_one_does(runner: BulkRunner) -> None:
    replayed, discarded, *_ = dead(5)
    replay(pk=replayed)
    discard(pk=discarded, reason="no")
    assert run(runner, dry_run=True).total == 3
    assert run(runner).count == 3


def test_a_dry_run_tells_what_would_be_skipped(runner: BulkRunner) -> None:
    replayed, discarded, *_ = dead(5)
    replay(pk=replayed)
    discard(pk=discarded, reason="no")
    assert skipped(run(runner, dry_run=True)) == {"already replayed": 1, "discarded": 1}


def test_a_dry_run_makes_the_checks_of_the_real_one(
    hands: Hands, runner: BulkRunner, settings: Any
) -> None:
    fine = dead(3)
    dead(2, body='{"args":[1,2,3,4],"kwargs":{}}')
    dead(body="{no json")
    for day in range(1, 4):
        (pk,) = dead(key="k1")
        at = LONG_AGO + timedelta(days=day)
        ArchivedMessage.objects.filter(pk=pk).update(enqueued_at=at)  # one life each
    dead(key="live")
    dead(key="outbox")
    dead(task="tests.gone")
    dead(body='{"args":["' + "x" * 70_000 + '"],"kwargs":{}}')
    record.using(key="live", delay=DAY).enqueue(1)
    record.using(key="outbox", delay=DAY * 300, durable=True).enqueue(1)
    dry = run(runner, dry_run=True)
    foreseen = list(
        dry.messages.order_by("pk").values_list("message_id", "enqueued_at_us", "skipped")
    )
    real = run(runner)
    assert (dry.count, skipped(dry)) == (real.count, skipped(real))
    assert real.count == len(fine) + 1
    assert skipped(real) == {
        "arguments refused": 3, "undecodable": 1, "newer one with this key": 2, "key live": 2,
        "unknown task": 1,
    }  # fmt: skip
    assert foreseen == list(
        real.messages.order_by("pk").values_list("message_id", "enqueued_at_us", "skipped")
    )
    assert len(foreseen) == 13


def test_the_list_of_dead_letters_has_an_end(
    runner: BulkRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_run, "MOST_LISTED", 4)
    dead(6)
    operation = run(runner)
    assert (operation.count, operation.messages.count()) == (6, 4)


def test_a_message_of_any_key_is_replayed(hands: Hands, runner: BulkRunner) -> None:
    """Their ids have each of the 63 ninth bytes that MariaDB takes: not 0x80."""
    keys = {key_id("default", key)[8]: key for key in map(str, range(1_000))}
    assert sorted(keys) == list(range(0x81, 0xC0))
    pks = [dead(key=key)[0] for key in keys.values()]
    check_done(run(runner), pks)


# What is skipped


def test_what_cannot_be_replayed_is_skipped_by_reason(hands: Hands, runner: BulkRunner) -> None:
    pks = dead(2)
    dead(1, task="gone.task")
    dead(2, body="?")
    dead(1, body='{"args":[],"kwargs":{"no":1}}')
    dead(2, key="k")
    dead(1, key="live")
    record.using(key="live", delay=DAY).enqueue()
    replay(pk=pks[0])
    operation = run(runner)
    assert (operation.status, operation.total, operation.count) == ("done", 8, 2)
    assert skipped(operation) == {
        "already replayed": 1, "unknown task": 1, "undecodable": 2, "arguments refused": 1,
        "newer one with this key": 1, "key live": 1,
    }  # fmt: skip


def test_a_topic_that_is_no_longer_declared_is_skipped(runner: BulkRunner) -> None:
    dead(2, topic="gone")
    operation = run(runner, selection=Selection(topic="gone"))
    assert (operation.status, operation.total, operation.count) == ("done", 2, 0)
    assert skipped(operation) == {"unknown topic": 2}


# Orders


def test_an_order_is_stored_with_one_record(runner: BulkRunner) -> None:
    operation = order(selection=Selection(topic="default", error="ValueError"), delay=5, rate=2)
    action = OperatorAction.objects.get()
    assert operation.action == action
    assert (action.action, action.operator, action.reason) == ("replay", "olga", "it works again")
    assert (action.topic, action.selection) == ("default", "error ValueError")
    assert (action.count, action.finished_at) == (0, None)
    assert (operation.status, operation.total, json.loads(operation.options)) == (
        "waiting",
        None,
        {"delay": 5, "rate": 2},
    )


TOPIC = Selection(topic="default")
REFUSED: dict[str, tuple[str, Selection, dict[str, Any], str]] = {
    "an unknown kind": ("recolour", TOPIC, {}, "'recolour' is not a bulk operation"),
    "no reason": ("replay", TOPIC, {"reason": " "}, "Write a reason"),
    "everything": ("replay", Selection(), {}, "Say which"),
    "a search in arguments": (
        "replay",
        Selection(topic="default", argument="a", value="1"),
        {},
        "argument",
    ),
    "a purge of more than a topic says": (
        "purge",
        Selection(topic="default", task="x"),
        {},
        "all that waits",
    ),
    "a negative delay": ("replay", TOPIC, {"delay": -1}, "delay is 0 to ten years"),
    "a delay that is no number": (
        "replay",
        TOPIC,
        {"delay": float("nan")},
        "delay is 0 to ten years",
    ),
    "a delay of eleven years": ("replay", TOPIC, {"delay": 4_000 * DAY}, "delay is 0 to ten years"),
    "no rate at all": ("replay", TOPIC, {"rate": 0}, "above 0"),
    "an endless rate": ("replay", TOPIC, {"rate": float("inf")}, "above 0"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.django_db
def test_an_order_that_makes_no_sense_is_refused_in_words(what: str, delayq: object) -> None:
    kind, selection, options, words = REFUSED[what]
    with pytest.raises(InvalidMessage, match=words):
        bulk.start(OPERATOR, kind, selection, **{"reason": "why not", **options})
    assert not BulkOperation.objects.exists()
    assert not OperatorAction.objects.exists()


@pytest.mark.django_db
def test_a_purge_of_an_unknown_topic_is_refused(delayq: object) -> None:
    with pytest.raises(UnknownTopic):
        order("purge", Selection(topic="gone"))
    assert not BulkOperation.objects.exists()


@pytest.mark.parametrize("kind", ["replay", "discard", "purge"])
@pytest.mark.django_db
def test_who_may_not_do_it_to_one_may_not_do_it_to_many(kind: str, delayq: object) -> None:
    operation = order(kind)
    needed = {"replay": "replay_message", "discard": "discard_message", "purge": "cancel_message"}[
        kind
    ]
    for codename in ("bulk_operate", needed):
        nobody = Operator("nora", frozenset({codename}))
        with pytest.raises(NotPermitted, match=codename):
            bulk.start(nobody, kind, TOPIC, reason="why not")
        with pytest.raises(NotPermitted, match=codename):
            bulk.cancel(nobody, operation.pk)
    assert list(BulkOperation.objects.values_list("pk", "status")) == [(operation.pk, "waiting")]
    assert OperatorAction.objects.count() == 1


@pytest.mark.django_db
def test_what_does_not_exist_cannot_be_cancelled(delayq: object) -> None:
    with pytest.raises(InvalidMessage, match="no bulk operation 7"):
        bulk.cancel(OPERATOR, 7)
