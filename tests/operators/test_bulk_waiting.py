"""Bulk operations on waiting messages: each message is changed once, whatever happens meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_delayq import list_messages, pause_topic
from django_delayq.client import waiting_changes
from django_delayq.core.encryption import is_sealed
from django_delayq.core.exceptions import InvalidMessage, NotPermitted, UnknownTopic
from django_delayq.core.message import Record, State, decode_body
from django_delayq.models import (
    ArchivedMessage,
    BulkMessage,
    BulkOperation,
    OperatorAction,
    OutboxMessage,
)
from django_delayq.operators import bulk, bulk_run, bulk_waiting, waiting_list
from django_delayq.operators.bulk_run import BulkRun
from django_delayq.operators.bulk_runner import BulkRunner
from django_delayq.operators.operations import edit
from django_delayq.operators.waiting_orders import WaitingChange, change_waiting, start_waiting
from django_delayq.operators.waiting_selection import WaitingSelection, waiting_messages
from django_delayq.outbox.listing import list_outbox
from django_delayq.outbox.outbox import record_of
from django_delayq.tasks.argument_edit import ArgumentEdit
from tests.app.tasks import close_order, record
from tests.bulk_hands import OPERATOR, Killed, Operator, at, be_silent, die
from tests.hands import DAY, ORDERS, Hands, apart, together

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True)]

DEFAULT = WaitingSelection(topic="default")
#: An edit that makes another message if it is made twice: each number becomes the next one.
NEXT = ArgumentEdit(
    task="tests.app.tasks.record",
    argument="value",
    how="map",
    pairs=tuple((n, n + 1) for n in range(40)),
)
#: Seconds within the horizon: a durable message is in the outbox and in Redis.
NEAR = 1_800


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of ten messages."""
    monkeypatch.setattr(bulk_waiting, "BATCH", 10)


def ordered(
    kind: str, selection: WaitingSelection = DEFAULT, *, dry_run: bool = False, **change: Any
) -> BulkOperation:
    """An operation that waits for a worker."""
    asked = WaitingChange(kind=kind, **change)
    return start_waiting(OPERATOR, asked, selection, reason="wrong", dry_run=dry_run)


def enqueue(count: int = 35, *, delay: float = DAY, **options: Any) -> list[bytes]:
    """Messages of record, in Redis unless the options say otherwise."""
    prepared = [record.using(delay=delay + n, **options).prepare(n) for n in range(count)]
    return [handle.identity for handle in record.enqueue_many(prepared)]


def dues(topic: str = "default") -> dict[str, int]:
    """Due times of what waits, in ms, by id."""
    found = waiting_messages(WaitingSelection(topic=topic))
    return {message.id: round(message.due_at.timestamp() * 1000) for message in found}


def values() -> list[Any]:
    """The arguments of what waits."""
    found = waiting_messages(WaitingSelection(topic="default"))
    return sorted(message.args[0] for message in found)


def kept_values() -> list[Any]:
    """The arguments that the outbox has, as it would send them."""
    records = [Record.decode(record_of(row)) for row in OutboxMessage.objects.all()]
    return sorted(decode_body(one.flags, one.body, b"").args[0] for one in records)


def end(operation: BulkOperation) -> tuple[str, int | None, int, dict[str, int]]:
    operation.refresh_from_db()
    assert operation.action is None or operation.action.count == operation.count
    skipped = json.loads(operation.skipped)
    listed = BulkMessage.objects.filter(operation=operation)
    assert listed.exclude(skipped="").count() == sum(skipped.values())
    return operation.status, operation.total, operation.count, skipped


# What each does


def test_all_that_fits_is_cancelled_and_nothing_else(hands: Hands, runner: BulkRunner) -> None:
    for n in range(6):
        record.using(key=f"user:{n}", delay=DAY).enqueue(n)
        close_order.using(key=f"user:{n}", delay=DAY).enqueue(n)
    record.using(key="order:1", delay=DAY).enqueue(1)
    operation = ordered(
        "cancel", WaitingSelection(task="tests.app.tasks.record", key_prefix="user:")
    )
    runner.run_once()
    assert end(operation) == ("done", 6, 6, {})
    left = [message.key for message in waiting_messages(WaitingSelection())]
    assert sorted(map(str, left)) == ["order:1", *(f"user:{n}" for n in range(6))]
    states = {(row.state, row.reason) for row in hands.archive()}
    assert states == {("cancelled", "wrong")}


@pytest.mark.parametrize("argument", ["args.0", "value"])
def test_messages_are_chosen_by_an_argument(runner: BulkRunner, argument: str) -> None:
    enqueue(20)
    name = argument if argument == "args.0" else next(iter(parameters()))
    operation = ordered("cancel", WaitingSelection(topic="default", argument=name, value="7"))
    runner.run_once()
    assert end(operation)[1:3] == (1, 1)
    assert 7 not in [message.args[0] for message in list_messages("default").messages]


def parameters() -> Any:
    return record.definition.signature.parameters


@pytest.mark.parametrize("hours", [2, -2])
@pytest.mark.parametrize(
    ("durable", "delay"), [(False, DAY), (True, DAY), (True, NEAR)], ids=["redis", "outbox", "both"]
)
def test_a_shift_moves_each_due_time_by_the_same(
    runner: BulkRunner, hands: Hands, hours: float, durable: bool, delay: float
) -> None:
    hours = hours if delay == DAY else hours / 8
    enqueue(durable=durable, delay=delay)
    before = dues()
    operation = ordered("shift", by=timedelta(hours=hours))
    runner.run_once()
    assert end(operation) == ("done", 35, 35, {})
    assert dues() == {name: due + round(hours * 3_600_000) for name, due in before.items()}
    kept = OutboxMessage.objects.values_list("due_at_ms", flat=True)
    assert sorted(kept) == (sorted(dues().values()) if durable else [])


def test_an_earlier_shift_ends_at_now_and_leaves_what_is_due(runner: BulkRunner) -> None:
    enqueue(5, delay=60)
    record.enqueue(1)
    operation = ordered("shift", by=-timedelta(days=9))
    runner.run_once()
    assert end(operation) == ("done", 6, 5, {"due already": 1})
    assert max(dues().values()) <= operation.cutoff // 1000 + 1


def test_an_expiry_that_counts_from_the_due_time_is_shifted_too(runner: BulkRunner) -> None:
    enqueue(3, expires=60)
    ordered("shift", by=timedelta(hours=1))
    runner.run_once()
    for message in list_messages("default").messages:
        assert message.expires_at is not None
        assert message.expires_at - message.due_at == timedelta(seconds=60)


def test_messages_run_now(hands: Hands, runner: BulkRunner) -> None:
    enqueue(12)
    operation = ordered("run now")
    runner.run_once()
    assert end(operation) == ("done", 12, 12, {})
    assert hands.work() == 12


def test_messages_move_to_another_topic_with_due_time_and_key(
    hands: Hands, runner: BulkRunner
) -> None:
    enqueue(3)
    for n in range(4):
        record.using(key=f"k{n}", delay=DAY).enqueue(n)
    record.using(key="far", delay=timedelta(days=3000), durable=True).enqueue(0)
    record.using(key="k1", topic="orders", delay=DAY).enqueue("in the way")
    before = sorted(dues().values())
    dry = ordered("move", to="orders", dry_run=True)
    operation = ordered("move", to="orders")
    runner.run_once()
    runner.run_once()
    assert end(dry) == end(operation) == ("done", 8, 7, {"key live": 1})
    assert [message.key for message in waiting_messages(DEFAULT)] == ["k1"]
    there = dues("orders")
    assert len(there) == 8 and set(there.values()) <= {*before, *there.values()}
    assert not set(before) - {*there.values(), *dues().values()}
    assert list_outbox("orders").messages[0].key == "far"


@pytest.mark.parametrize("kind", ["cancel", "shift", "run now", "move"])
def test_a_dry_run_makes_the_same_checks_and_changes_nothing(
    hands: Hands, runner: BulkRunner, kind: str
) -> None:
    enqueue(12)
    enqueue(5, delay=300 * DAY, durable=True)
    change = {"shift": {"by": timedelta(hours=1)}, "move": {"to": "orders"}}.get(kind, {})
    before = dues()
    dry = ordered(kind, dry_run=True, **change)
    runner.run_once()
    assert dues() == before and not OperatorAction.objects.exists()
    real = ordered(kind, **change)
    runner.run_once()
    assert end(dry) == end(real) == ("done", 17, 17, {})
    assert dues() != before


def test_messages_of_the_outbox_are_cancelled_too(hands: Hands, runner: BulkRunner) -> None:
    enqueue(12, delay=300 * DAY, durable=True)
    enqueue(12, delay=NEAR, durable=True)
    operation = ordered("cancel")
    runner.run_once()
    assert end(operation) == ("done", 24, 24, {})
    hands.archive()
    assert dues() == {} and not OutboxMessage.objects.exists()
    assert ArchivedMessage.objects.filter(state="cancelled").count() == 24


def test_a_paused_topic_is_changed_as_any_other(runner: BulkRunner) -> None:
    enqueue(12)
    pause_topic("default", reason="outage")
    operation = ordered("cancel")
    runner.run_once()
    assert end(operation) == ("done", 12, 12, {})


# What happens meanwhile


def meanwhile(then: Callable[[], object], *, time: int = 1) -> Any:
    """Between the list and a batch."""
    return at(bulk_waiting, "_deal_with", lambda: apart(then), time=time)


def test_a_message_that_starts_meanwhile_goes_on(hands: Hands, runner: BulkRunner) -> None:
    enqueue(3)
    record.using(delay=0.001).enqueue("busy")
    operation = ordered("cancel")
    with meanwhile(hands.claim):
        runner.run_once()
    assert end(operation) == ("done", 4, 3, {"started": 1})


def test_a_message_that_was_rescheduled_meanwhile_is_not_shifted(
    hands: Hands, runner: BulkRunner
) -> None:
    enqueue(3)
    handle = record.using(key="k", delay=DAY).enqueue(1)
    operation = ordered("shift", by=timedelta(hours=1))
    with meanwhile(lambda: handle.reschedule(delay=5)):
        runner.run_once()
    assert end(operation) == ("done", 4, 3, {"changed meanwhile": 1})


def test_what_no_longer_fits_is_left(runner: BulkRunner) -> None:
    enqueue(3)
    handle = record.using(key="k", delay=DAY).enqueue(1)
    until = waiting_messages(DEFAULT).__next__().due_at + timedelta(hours=1)
    operation = ordered("cancel", WaitingSelection(topic="default", until=until))
    with meanwhile(lambda: handle.reschedule(delay=5 * DAY)):
        runner.run_once()
    assert end(operation) == ("done", 4, 3, {"changed meanwhile": 1})


def test_what_is_enqueued_after_the_order_is_left(runner: BulkRunner) -> None:
    enqueue(3)
    handle = record.using(key="k", delay=DAY).enqueue(1)

    def again() -> None:
        handle.cancel()
        record.using(key="k", delay=DAY).enqueue(2)

    operation = ordered("cancel")
    record.using(delay=DAY).enqueue("later")
    with meanwhile(again):
        runner.run_once()
    assert end(operation) == ("done", 4, 3, {"changed meanwhile": 1})
    assert sorted(str(m.args[0]) for m in list_messages("default").messages) == ["2", "later"]


def test_a_message_that_the_relay_sends_meanwhile_is_changed_once(
    hands: Hands, runner: BulkRunner
) -> None:
    enqueue(12, delay=300 * DAY, durable=True)
    before = dues()

    def relay() -> None:
        OutboxMessage.objects.update(relay_at_ms=0)
        hands.relay()

    operation = ordered("shift", by=timedelta(hours=1))
    with meanwhile(relay):
        runner.run_once()
    assert end(operation) == ("done", 12, 12, {})
    assert dues() == {name: due + 3_600_000 for name, due in before.items()}


def test_a_message_that_the_relay_sends_in_the_very_moment_is_changed_all_the_same(
    hands: Hands, runner: BulkRunner
) -> None:
    enqueue(3, delay=300 * DAY, durable=True)
    before = dues()

    def relay() -> None:
        OutboxMessage.objects.update(relay_at_ms=0)
        hands.relay()

    operation = ordered("shift", by=timedelta(hours=1))
    with at(waiting_changes.Shifting, "change_in_redis", lambda: apart(relay), time=1):
        runner.run_once()
    assert end(operation) == ("done", 3, 3, {})
    assert dues() == {name: due + 3_600_000 for name, due in before.items()}


# Edits


@pytest.mark.parametrize(
    ("durable", "delay"), [(False, DAY), (True, DAY), (True, NEAR)], ids=["redis", "outbox", "both"]
)
def test_an_edit_changes_the_argument_and_nothing_else(
    runner: BulkRunner, durable: bool, delay: float
) -> None:
    enqueue(durable=durable, delay=delay)
    before = dues()
    operation, dry = ordered("edit", edit=NEXT), ordered("edit", edit=NEXT, dry_run=True)
    dry_first(runner, dry)
    assert end(dry) == ("done", 35, 35, {})
    assert values() == list(range(35))
    runner.run_once()
    assert end(operation) == ("done", 35, 35, {})
    assert (values(), dues()) == (list(range(1, 36)), before)
    assert kept_values() == (values() if durable else [])


def dry_first(runner: BulkRunner, dry: BulkOperation) -> None:
    runner.run_this(dry.pk, lambda: None)


def test_a_message_that_an_edit_does_not_fit_says_why(runner: BulkRunner) -> None:
    for value in (1, 2, "text", {"deep": 1}):
        record.using(delay=DAY).enqueue(value)
    close_order.using(delay=DAY).enqueue(1)
    some = ArgumentEdit(task=NEXT.task, argument="value", how="map", pairs=((1, 1), (2, 3)))
    operation = ordered("edit", WaitingSelection(), edit=some)
    dry = ordered("edit", WaitingSelection(), edit=some, dry_run=True)
    dry_first(runner, dry)
    runner.run_once()
    expected = ("done", 4, 1, {"has it already": 1, "nothing to edit": 2})
    assert end(operation) == end(dry) == expected


def test_a_message_that_somebody_edits_meanwhile_is_left(runner: BulkRunner) -> None:
    enqueue(3)
    handle = record.using(key="k", delay=DAY).enqueue(20)
    operation = ordered("edit", edit=NEXT)
    with meanwhile(lambda: edit(OPERATOR, "default", handle.id, ([30], {}))):
        runner.run_once()
    assert end(operation) == ("done", 4, 3, {"changed meanwhile": 1})
    assert values() == [1, 2, 3, 30]


def test_a_message_that_ran_with_its_new_argument_counts_after_a_kill(
    hands: Hands, runner: BulkRunner, other: BulkRunner
) -> None:
    record.enqueue_many([record.using(delay=0.001).prepare(n) for n in range(3)])
    operation = ordered("edit", edit=NEXT)
    with at(bulk_waiting, "_change", die, after=True, time=1), pytest.raises(Killed):
        runner.run_once()
    hands.work()
    hands.archive()
    be_silent()
    other.run_once()
    assert end(operation) == ("done", 3, 3, {})


def test_an_edit_of_encrypted_messages_leaves_them_encrypted(
    runner: BulkRunner, other: BulkRunner, settings: Any
) -> None:
    keys = ["QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY"]
    settings.DELAYQ = {**settings.DELAYQ, "ENCRYPTION_KEYS": keys}
    enqueue(15, delay=NEAR, durable=True)
    operation = ordered("edit", edit=NEXT)
    with at(bulk_waiting, "_change", die, after=True), pytest.raises(Killed):
        runner.run_once()
    be_silent()
    other.run_once()
    assert end(operation) == ("done", 15, 15, {})
    assert values() == list(range(1, 16))
    for row in OutboxMessage.objects.all():
        assert is_sealed(Record.decode(record_of(row)).body)


def test_a_row_that_somebody_edits_in_the_very_moment_is_left(
    runner: BulkRunner, hands: Hands
) -> None:
    handles = enqueue(3, delay=300 * DAY, durable=True)
    operation = ordered("edit", edit=NEXT)

    def somebody_else() -> None:
        apart(lambda: edit(OPERATOR, "default", handles[1].hex(), ([30], {})))

    with at(waiting_changes.Editing, "change_in_redis", somebody_else, time=1):
        runner.run_once()
    assert end(operation) == ("done", 3, 2, {"changed meanwhile": 1})
    assert values() == [1, 3, 30]


def test_an_edit_that_makes_a_body_too_large_is_foreseen(runner: BulkRunner) -> None:
    record.using(delay=DAY).enqueue("x" * 40_000)
    large = ArgumentEdit(task=NEXT.task, argument="value", how="replace", pairs=(("x", "yz"),))
    operation, dry = ordered("edit", edit=large), ordered("edit", edit=large, dry_run=True)
    dry_first(runner, dry)
    runner.run_once()
    assert end(operation) == end(dry) == ("done", 1, 0, {"arguments refused": 1})


def test_an_edit_needs_the_permission_to_see_and_write_arguments() -> None:
    for missing in ("edit_message", "view_payload", "bulk_operate"):
        user = Operator(forbidden=frozenset({missing}))
        with pytest.raises(NotPermitted, match=missing):
            start_waiting(user, WaitingChange(kind="edit", edit=NEXT), DEFAULT, reason="wrong")


# Kills

STEPS: dict[str, tuple[Any, str, bool, int]] = {
    "before the list": (bulk_waiting, "_list_messages", False, 1),
    "after the first page of the list": (BulkRun, "rest", False, 1),
    "before the total is stored": (BulkRun, "counted", False, 1),
    "after the total is stored": (BulkRun, "counted", True, 1),
    "before a batch": (bulk_waiting, "_deal_with", False, 2),
    "before Redis is changed": (waiting_changes.WaitingBatch, "locate", True, 2),
    "after Redis is changed": (bulk_waiting, "_change", True, 2),
    "before it says how far it is": (BulkRun, "enter", False, 2),
    "before the commit": (BulkRun, "enter", True, 2),
    "after a batch": (bulk_waiting, "_deal_with", True, 2),
    "before it is closed": (BulkRun, "close", False, 1),
}


@pytest.mark.parametrize(
    "kind", ["cancel", "shift", pytest.param("run now", marks=pytest.mark.long), "move", "edit"]
)
@pytest.mark.parametrize("step", STEPS)
def test_after_a_kill_another_worker_goes_on_and_each_is_changed_once(
    step: str, kind: str, hands: Hands, runner: BulkRunner, other: BulkRunner
) -> None:
    owner, name, after, time = STEPS[step]
    enqueue(15)
    enqueue(10, delay=NEAR, durable=True)
    enqueue(10, delay=300 * DAY, durable=True)
    before = dues()
    change: dict[str, Any] = {
        "shift": {"by": timedelta(hours=1)},
        "move": {"to": "orders"},
        "edit": {"edit": NEXT},
    }.get(kind, {})
    operation = ordered(kind, **change)
    with at(owner, name, die, after=after, time=time), pytest.raises(Killed):
        runner.run_once()
    be_silent()
    hands.store.workers.release_lock("move:default")
    other.run_once()
    assert end(operation) == ("done", 35, 35, {})
    check_each_is_changed_once(kind, operation, before, hands)


def check_each_is_changed_once(
    kind: str, operation: BulkOperation, before: dict[str, int], hands: Hands
) -> None:
    """What is there after an operation on all that enqueue() has made."""
    if kind == "cancel":
        assert dues() == {}
        hands.archive()
        assert ArchivedMessage.objects.filter(state="cancelled").count() == 35
    elif kind == "shift":
        kept = set(OutboxMessage.objects.values_list("due_at_ms", flat=True))
        assert len(kept) == 20 and kept < set(dues().values())
        assert dues() == {name: due + 3_600_000 for name, due in before.items()}
    elif kind == "edit":
        assert dues() == before
        assert values() == sorted([*range(1, 16), *range(1, 11), *range(1, 11)])
        assert kept_values() == sorted([*range(1, 11)] * 2)
    elif kind == "run now":
        assert set(dues().values()) == {-(-operation.cutoff // 1000)}
    else:
        assert dues() == {}
        assert sorted(dues("orders").values()) == sorted(before.values())


def test_a_message_that_ran_after_a_kill_is_not_counted_as_cancelled(
    hands: Hands, runner: BulkRunner, other: BulkRunner
) -> None:
    record.enqueue_many([record.using(delay=0.001).prepare(n) for n in range(3)])
    operation = ordered("cancel")
    with at(waiting_changes.Cancelling, "change_in_redis", die, time=1), pytest.raises(Killed):
        runner.run_once()
    hands.work()
    be_silent()
    other.run_once()
    assert end(operation) == ("done", 3, 0, {"ended": 3})


def test_of_two_runners_one_runs_it(hands: Hands, runner: BulkRunner, other: BulkRunner) -> None:
    enqueue()
    before = dues()
    operation = ordered("shift", by=timedelta(hours=1))
    together(runner.run_once, other.run_once)
    assert sorted([runner.ended, other.ended]) == [0, 1]
    assert end(operation) == ("done", 35, 35, {})
    assert dues() == {name: due + 3_600_000 for name, due in before.items()}


def test_one_that_wakes_up_after_another_has_taken_over_shifts_nothing_twice(
    hands: Hands, runner: BulkRunner, other: BulkRunner
) -> None:
    enqueue()
    before = dues()
    operation = ordered("shift", by=timedelta(hours=1))

    def sleep_too_long() -> None:
        be_silent()
        apart(other.run_once)

    with at(waiting_changes.Shifting, "change_in_redis", sleep_too_long):
        runner.run_once()
    assert end(operation) == ("done", 35, 35, {})
    assert dues() == {name: due + 3_600_000 for name, due in before.items()}


@pytest.mark.parametrize("durable", [False, True])
def test_of_two_equal_shifts_in_the_very_moment_one_counts(
    hands: Hands, runner: BulkRunner, other: BulkRunner, durable: bool
) -> None:
    enqueue(15, durable=durable, delay=NEAR)
    before = dues()
    late, early = (ordered("shift", by=timedelta(hours=1)) for _ in range(2))

    def somebody_else() -> None:
        apart(lambda: other.run_this(early.pk, lambda: None))

    with at(waiting_changes.Shifting, "change_in_redis", somebody_else, time=1):
        runner.run_this(late.pk, lambda: None)
    assert end(early) == ("done", 15, 15, {})
    assert end(late) == ("done", 15, 0, {"changed meanwhile": 15})
    assert {after - before[name] for name, after in dues().items()} == {3_600_000}


def test_a_cancelled_operation_stops(hands: Hands, runner: BulkRunner) -> None:
    enqueue()
    operation = ordered("cancel")
    with at(BulkRun, "rest", lambda: apart(lambda: bulk.cancel(OPERATOR, operation.pk)), time=4):
        runner.run_once()
    status, total, count, _ = end(operation)
    assert (status, total) == ("cancelled", 35)
    assert len(dues()) == 35 - count > 0


def test_what_redis_has_done_is_counted_when_it_is_cancelled_in_between(
    hands: Hands, runner: BulkRunner
) -> None:
    enqueue()
    enqueue(5, delay=300 * DAY, durable=True)
    operation = ordered("cancel")

    def stop() -> None:
        apart(lambda: bulk.cancel(OPERATOR, operation.pk))

    with at(waiting_changes.Cancelling, "change_in_redis", stop, after=True):
        runner.run_once()
    status, _, count, _ = end(operation)
    assert (status, count, len(dues())) == ("cancelled", 20, 20)


def test_a_runner_that_waits_does_not_spin(hands: Hands, runner: BulkRunner) -> None:
    with at(type(runner.sleeper), "wait", lambda: None, time=1):
        runner._rest(0.0, least=0.01)


def test_a_durable_message_that_redis_has_yet_to_hear_of_is_not_moved(
    hands: Hands, runner: BulkRunner
) -> None:
    enqueue(3, delay=NEAR, durable=True)
    operation, dry = ordered("move", to="orders"), ordered("move", to="orders", dry_run=True)
    pk = OutboxMessage.objects.order_by("pk").values_list("pk", flat=True)[0]

    def unsettle() -> None:
        OutboxMessage.objects.filter(pk=pk).update(status="moved", relay_at_ms=2**60)

    with meanwhile(unsettle):
        runner.run_once()
    runner.run_once()
    assert end(operation) == ("done", 3, 2, {"Redis has yet to hear of a change": 1})
    assert end(dry) == ("done", 1, 0, {"Redis has yet to hear of a change": 1})


def test_a_move_waits_for_another_move_of_the_topic(
    hands: Hands, runner: BulkRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(3)
    hands.store.workers.acquire_lock("move:default", 60_000)
    operation = ordered("move", to="orders")
    monkeypatch.setattr(bulk_run, "FULL_STREAM_PAUSE", 0.01)

    def release() -> None:
        hands.store.workers.release_lock("move:default")

    with at(BulkRun, "wait", release, time=1):
        runner.run_once()
    assert end(operation) == ("done", 3, 3, {})
    assert len(hands.store.queries.find(ORDERS, [bytes.fromhex(i) for i in dues("orders")])) == 3


# Orders


def test_the_call_in_code_stores_an_operation_and_says_what_it_did(hands: Hands) -> None:
    enqueue(12)
    dry = change_waiting("cancel", DEFAULT, dry_run=True)
    assert (dry.count, dry.skipped, len(dues())) == (12, {}, 12)
    done = change_waiting("cancel", DEFAULT, reason="wrong", operator="deploy")
    assert (done.count, len(dues())) == (12, 0)
    action = OperatorAction.objects.get()
    assert (action.action, action.operator, action.count) == ("cancel", "deploy", 12)
    assert action.bulk_operation == done.operation


@pytest.mark.parametrize(
    ("kind", "selection", "change", "error"),
    [
        ("cancel", WaitingSelection(), {}, InvalidMessage),
        ("shift", DEFAULT, {}, InvalidMessage),
        ("shift", DEFAULT, {"by": timedelta(days=9000)}, InvalidMessage),
        ("cancel", DEFAULT, {"by": timedelta(1)}, InvalidMessage),
        ("move", DEFAULT, {}, InvalidMessage),
        ("move", DEFAULT, {"to": "default"}, InvalidMessage),
        ("move", DEFAULT, {"to": "nowhere"}, UnknownTopic),
        ("cancel", WaitingSelection(topic="nowhere"), {}, UnknownTopic),
        ("replay", DEFAULT, {}, InvalidMessage),
        ("edit", DEFAULT, {}, InvalidMessage),
        ("cancel", DEFAULT, {"edit": NEXT}, InvalidMessage),
        ("edit", DEFAULT.narrowed(task="tests.app.tasks.noop"), {"edit": NEXT}, InvalidMessage),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(
    hands: Hands, kind: str, selection: WaitingSelection, change: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        change_waiting(kind, selection, reason="wrong", **change)
    assert not BulkOperation.objects.exists()


def test_an_order_needs_a_reason_and_the_permissions(hands: Hands) -> None:
    with pytest.raises(InvalidMessage, match="reason"):
        change_waiting("cancel", DEFAULT)
    by_argument = DEFAULT.narrowed(argument="args.0", value="1")
    for missing, selection in [
        ("bulk_operate", DEFAULT),
        ("cancel_message", DEFAULT),
        ("view_payload", by_argument),
    ]:
        user = Operator(forbidden=frozenset({missing}))
        with pytest.raises(NotPermitted, match=missing):
            start_waiting(user, WaitingChange(kind="cancel"), selection, reason="wrong")


def test_old_lists_are_forgotten(
    hands: Hands, runner: BulkRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(12)
    first = ordered("shift", by=timedelta(hours=1))
    runner.run_once()
    monkeypatch.setattr(bulk_run, "KEPT", -timedelta(hours=1))
    second = ordered("shift", by=timedelta(hours=1))
    runner.run_once()
    assert BulkMessage.objects.filter(operation=first).count() == 0
    assert BulkMessage.objects.filter(operation=second).count() == 12


def test_a_preview_counts_up_to_a_bound(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    record.enqueue_many([record.using(delay=DAY).prepare(n) for n in range(1_100)])
    found = waiting_list.preview_waiting(OPERATOR, DEFAULT)
    assert (found.count, found.more, len(found.first.messages)) == (1_100, False, 50)
    monkeypatch.setattr(waiting_list, "MANY", 500)
    some = DEFAULT.narrowed(task="tests.app.tasks.record")
    assert (waiting_list.preview_waiting(OPERATOR, some).more, found.count) == (True, 1_100)
    assert waiting_list.preview_waiting(OPERATOR, some, seconds=60).count == 1_100
    whole = waiting_list.preview_waiting(OPERATOR, DEFAULT)
    assert (whole.count, whole.more) == (1_100, False)
    assert found.first.messages[0].state == State.DELAYED


def test_what_a_page_of_the_list_reads_has_a_bound_in_thousands_of_topics_too(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = ["coupons", "crowd", "default", "orders", "payments", "reviews"]
    for topic in topics:
        record.using(topic=topic, key=f"rare:{topic}", delay=DAY).enqueue(1)
    for name in ("LEAST", "LOOKS_FOR"):
        monkeypatch.setattr(waiting_list, name, 0)
    rare, pages = WaitingSelection(key_prefix="rare:"), list[list[str]]()
    found = waiting_list.preview_waiting(OPERATOR, rare).first
    while found.further:
        pages.append([message.topic for message in found.messages])
        found = waiting_list.list_waiting(OPERATOR, rare, found.further)
    pages.append([message.topic for message in found.messages])
    assert max(map(len, pages)) == 1, "a topic is read, and no other one"
    assert [topic for page in pages for topic in page] == topics


def test_no_message_becomes_due_after_more_than_ten_years(runner: BulkRunner) -> None:
    enqueue(1, delay=300 * DAY, durable=True)
    enqueue(1)
    before = dues()
    operation = ordered("shift", by=timedelta(days=3660 - 200))
    runner.run_once()
    assert end(operation) == ("done", 2, 1, {"more than ten years ahead": 1})
    assert len(set(before.items()) & set(dues().items())) == 1
