"""Cancels and moves of what SQL answers for, and of what Redis cannot be told: kept, and said
later."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from django.db import connection, transaction

from django_delayq import purge_topic
from django_delayq.client import changes
from django_delayq.core import signals
from django_delayq.core.exceptions import (
    ConfigurationError,
    DuplicateMessage,
    InvalidMessage,
    MessageChanged,
    MessageNotFound,
    StoreUnavailable,
)
from django_delayq.core.times import When
from django_delayq.models import ArchivedMessage, OutboxMessage
from django_delayq.outbox import outbox, postponed
from django_delayq.store import breaker
from django_delayq.store.keys import meta_key
from tests.app.tasks import record, seen
from tests.database_faults import without_table
from tests.faults import lost_answers, unreachable
from tests.hands import (
    DAY,
    DEFAULT,
    PAST,
    Hands,
    apart,
    lose_redis,
    messages_in,
    only_row,
    rows,
    statuses,
    together,
)
from tests.hands import outbox as rows_of_outbox
from tests.servers import wait_until

pytestmark = pytest.mark.databases

durable = record.using(durable=True)
near, far = durable.using(delay=600), durable.using(delay=DAY)
keyed = record.using(key="k", delay=600)


class Undo(Exception):
    pass


def back(hands: Hands) -> None:
    """Redis is back: the relay says and sends what waits."""
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    OutboxMessage.objects.exclude(status="sent").update(relay_at_ms=0)
    hands.relay()


def end_all(hands: Hands) -> list[tuple[str, str]]:
    """Everything falls due and runs. State and reason of the rows of the archive."""
    for identity in messages_in(hands.store):
        hands.store.reschedule_in(DEFAULT, identity, PAST)
    hands.work()
    hands.archive()
    return sorted((row.state, row.reason) for row in rows())


@pytest.fixture(autouse=True)
def known_partitions(hands: Hands) -> None:
    hands.store.partitions.counts("default")


# In a transaction


@pytest.mark.parametrize("task", [near, far, keyed], ids=["near", "far", "plain"])
@pytest.mark.parametrize("call", ["cancel", "reschedule"])
def test_a_rollback_undoes_it_wherever_the_message_is(hands: Hands, task: Any, call: str) -> None:
    handle = task.enqueue("x")
    before = handle.get(), statuses()
    with suppress(Undo), transaction.atomic():
        _ = handle.cancel() if call == "cancel" else handle.reschedule(delay=5)
        raise Undo
    back(hands)
    assert (handle.get(), len(statuses()), rows()) == (before[0], len(before[1]), [])


@pytest.mark.parametrize("task", [near, far, keyed], ids=["near", "far", "plain"])
def test_the_commit_ends_it_wherever_the_message_is(hands: Hands, task: Any) -> None:
    handle = task.enqueue("x")
    with transaction.atomic():
        handle.cancel()
    hands.archive()
    assert (only_row().state, statuses(), messages_in(hands.store)) == ("cancelled", [], set())
    assert only_row().due_at == handle.due_at


@pytest.mark.parametrize("task", [near, far, keyed], ids=["near", "far", "plain"])
def test_the_commit_moves_it_wherever_the_message_is(hands: Hands, task: Any) -> None:
    handle = task.enqueue("x")
    with transaction.atomic():
        due = handle.reschedule(delay=700)
    back(hands)
    message = handle.get()
    assert message is not None
    assert abs((message.due_at - due).total_seconds()) < (2 if task is keyed else 0.001)
    assert set(statuses()) <= {"sent"}


@pytest.mark.parametrize("block", [transaction.atomic, nullcontext], ids=["transaction", ""])
def test_what_is_enqueued_right_after_a_cancel_outlives_an_archiver_that_lags(
    hands: Hands, block: Any
) -> None:
    """The row of the first is cancelled until the archiver closes it; the relay goes on telling
    Redis so."""
    near.using(key="k").enqueue("old")
    with block():
        keyed.cancel(key="k")
        keyed.enqueue("new")
    for _ in range(2):
        back(hands)
        assert [message.args for message in [keyed.get(key="k")] if message] == [["new"]]
    assert end_all(hands) == [("acked", ""), ("cancelled", "cancelled")]
    assert (seen, statuses()) == (["new"], [])


@pytest.mark.parametrize("mode", ["raise", "keep"])
def test_a_cancelled_row_that_the_archiver_has_not_closed_lets_nothing_replace_a_live_message(
    hands: Hands, mode: str
) -> None:
    """Redis has obeyed: what is live under that key in an outage is not what was cancelled."""
    near.using(key="k").enqueue("old")
    keyed.cancel(key="k")
    keyed.enqueue("live")
    with unreachable(), transaction.atomic():
        keyed.using(on_duplicate=mode).enqueue("other")
    back(hands)
    assert [message.args for message in [keyed.get(key="k")] if message] == [["live"]]


@pytest.mark.parametrize("call", ["cancel", "reschedule"])
def test_in_an_outage_a_cancelled_row_does_not_hide_what_was_enqueued_since(
    hands: Hands, call: str
) -> None:
    near.using(key="k").enqueue("old")
    keyed.cancel(key="k")
    handle = keyed.enqueue("live")
    with unreachable():
        assert handle.cancel() if call == "cancel" else handle.reschedule(delay=5_000)
    hands.store.client.clock.sync(
        int((hands.store.clock_ms() + 200) * 1000)
    )  # said well after the enqueue
    back(hands)
    message = keyed.get(key="k")
    if call == "cancel":
        assert message is None
    else:
        assert message is not None
        assert (message.due_at - handle.due_at).total_seconds() > 4_000


@pytest.mark.parametrize("task", [near, keyed], ids=["durable", "plain"])
def test_a_move_at_the_commit_is_not_one_of_what_replaces_it_in_the_same_transaction(
    hands: Hands, task: Any
) -> None:
    task.using(key="k").enqueue("old")
    with transaction.atomic():
        with unreachable():
            keyed.reschedule(key="k", delay=60)
            near.using(key="k", delay=3_000, on_duplicate="replace").enqueue("new")
        wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    back(hands)
    message = keyed.get(key="k")
    assert message is not None
    assert (message.args, (message.due_at - message.enqueued_at).total_seconds()) == (
        ["new"],
        pytest.approx(3_000, abs=5),
    )


def test_of_two_moves_in_one_transaction_the_second_counts_though_redis_hears_only_the_first(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = near.enqueue("x")
    reschedule, told = hands.store.reschedule, list[str]()

    def only_once(topic: str, identity: bytes, when: When) -> int:
        if told:
            raise StoreUnavailable
        told.append(when)
        return reschedule(topic, identity, when)

    with monkeypatch.context() as patch:
        patch.setattr(hands.store, "reschedule", only_once)
        with transaction.atomic():
            handle.reschedule(delay=60)
            due = handle.reschedule(delay=5_000)
    back(hands)
    message = handle.get()
    assert (len(told), message and message.due_at) == (1, due)


def test_what_would_follow_a_run_is_cancelled_for_good_by_the_transaction_that_replaced_it(
    hands: Hands,
) -> None:
    task = durable.using(key="k", on_duplicate="replace")
    task.enqueue("runs")
    leases = hands.claim()
    task.using(delay=600).enqueue("follows")
    with transaction.atomic():
        task.using(delay=600).enqueue("later")
        task.cancel(key="k", missing_ok=True)
    hands.run(*leases)
    for _ in range(2):
        back(hands)
        hands.reconcile()
    assert (seen, keyed.get(key="k")) == (["runs"], None)


def test_a_durable_message_replaces_a_plain_one_that_waits_for_the_same_commit(
    hands: Hands,
) -> None:
    with transaction.atomic():
        keyed.enqueue("plain")
        with suppress(Undo), transaction.atomic():
            near.using(key="k", on_duplicate="replace").enqueue("rolled back")
            raise Undo
        near.using(key="k", on_duplicate="replace").enqueue("durable")
    back(hands)
    assert [message.args for message in [keyed.get(key="k")] if message] == [["durable"]]
    assert end_all(hands) == [("acked", "")]


def test_a_duplicate_is_told_at_the_call_after_the_relay_has_said_a_move(hands: Hands) -> None:
    handle = keyed.enqueue("x")
    with unreachable():
        handle.reschedule(delay=700)
    back(hands)
    with transaction.atomic(), pytest.raises(DuplicateMessage):
        keyed.enqueue("y")


@pytest.mark.parametrize("call", ["cancel", "reschedule"])
def test_a_durable_one_is_cancelled_or_moved_with_its_transaction_though_the_process_dies(
    hands: Hands, call: str
) -> None:
    handle = near.enqueue("x")

    def die() -> None:
        raise Undo

    with suppress(Undo), transaction.atomic():
        transaction.on_commit(die)  # and with it every later hook
        due = handle.cancel() if call == "cancel" else handle.reschedule(delay=700)
    assert statuses() == ["cancelled" if call == "cancel" else "moved"]
    back(hands)
    hands.archive()
    message = handle.get()
    assert (message.due_at if message else True) == due
    assert statuses() == ([] if call == "cancel" else ["sent"])


def test_what_redis_loses_after_a_cancel_does_not_come_back(hands: Hands) -> None:
    handle = near.enqueue("x")
    near.enqueue("y").cancel()
    with transaction.atomic():
        handle.cancel()
    lose_redis(hands.store)
    assert hands.reconcile() == 0
    back(hands)
    assert end_all(hands) == [("cancelled", "cancelled")] * 2
    assert (seen, statuses()) == ([], [])


def test_a_durable_one_that_runs_by_then_goes_on_with_its_row(hands: Hands) -> None:
    handle = durable.enqueue("x")
    with transaction.atomic():
        handle.cancel()
        leases = hands.claim()
    assert statuses() == ["sent"]
    hands.run(*leases)
    assert (end_all(hands), statuses()) == ([("acked", "")], [])


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_durable_message_in_a_transaction_of_another_alias_is_refused(hands: Hands) -> None:
    with (
        transaction.atomic(using="other"),
        pytest.raises(InvalidMessage, match=r"atomic\(using='default'\)"),
    ):
        durable.enqueue("x")
    with transaction.atomic(using="other"), transaction.atomic():
        durable.enqueue("in both")
    assert statuses() == ["sent"]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize("task", [near, far], ids=["near", "far"])
def test_a_transaction_of_another_alias_undoes_a_cancel_of_a_durable_one(
    hands: Hands, task: Any
) -> None:
    handle = task.enqueue("x")
    with suppress(Undo), transaction.atomic(using="other"):
        handle.cancel()
        raise Undo
    assert handle.get() is not None
    with transaction.atomic(using="other"):
        handle.cancel()
    hands.archive()
    assert (only_row().state, statuses()) == ("cancelled", [])


# While Redis is away


@pytest.mark.parametrize("task", [near, keyed], ids=["durable", "plain"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_cancel_is_kept_and_said_when_redis_is_back(
    hands: Hands, task: Any, inside: bool
) -> None:
    handle = task.enqueue("x")
    with unreachable():
        if inside:
            with transaction.atomic():
                assert handle.cancel() is True
        else:
            assert handle.cancel() is True
        assert handle.get() is None
    assert statuses() == ["cancelled"]
    back(hands)
    assert (messages_in(hands.store), end_all(hands), statuses()) == (
        set(),
        [("cancelled", "cancelled")],
        [],
    )


@pytest.mark.parametrize("task", [near, keyed], ids=["durable", "plain"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_move_is_kept_and_said_when_redis_is_back(hands: Hands, task: Any, inside: bool) -> None:
    handle = task.enqueue("x")
    with unreachable():
        if inside:
            with transaction.atomic():
                due = handle.reschedule(delay=7_000)
        else:
            due = handle.reschedule(delay=7_000)
    back(hands)
    message = handle.get()
    assert message is not None
    assert abs((message.due_at - due).total_seconds()) < 2
    assert statuses() == (["sent"] if task is near else [])


@pytest.mark.parametrize("inside", [True, False])
def test_of_two_moves_in_an_outage_the_later_counts_though_another_message_was_offered_between(
    hands: Hands, inside: bool
) -> None:
    keyed.enqueue("first")
    with unreachable():
        record.reschedule(key="k", delay=7_000)
        keyed.using(on_duplicate="keep", delay=1).enqueue("second")
        with transaction.atomic() if inside else nullcontext():
            due = record.reschedule(key="k", delay=9_000)
    back(hands)
    back(hands)
    message = record.get(key="k")
    assert message is not None and due is not None
    assert message.args == ["first"]
    assert abs((message.due_at - due).total_seconds()) < 2
    assert statuses() == []


@pytest.mark.parametrize(
    "task", [near, record.using(delay=600), keyed], ids=["durable", "spilled", "spilled key"]
)
def test_a_cancel_of_what_may_have_been_stored_is_not_ignored(hands: Hands, task: Any) -> None:
    task.enqueue("warm").cancel()
    hands.archive()
    ArchivedMessage.objects.all().delete()
    with lost_answers() as lost:
        handle = task.enqueue("x")
    with unreachable():
        handle.cancel()
    assert (len(lost), handle.outcome, statuses()) == (1, "outbox", ["cancelled"])
    back(hands)
    assert (end_all(hands), seen, statuses()) == ([("cancelled", "cancelled")], [], [])


@pytest.mark.parametrize("task", [near, record.using(delay=600)], ids=["durable", "spilled"])
def test_a_move_of_what_may_have_been_stored_is_not_ignored(hands: Hands, task: Any) -> None:
    task.enqueue("warm").cancel()
    hands.archive()
    with lost_answers():
        handle = task.enqueue("x")
    with unreachable():
        due = handle.reschedule(delay=1_800)
        with pytest.raises(StoreUnavailable):
            changes.edit("default", handle.id, ["y"], {})
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    with pytest.raises(MessageChanged):
        changes.edit("default", handle.id, ["y"], {})
    back(hands)
    back(hands)
    message = handle.get()
    assert message is not None
    assert (message.due_at, message.args, statuses()) == (due, ["x"], ["sent"])
    assert OutboxMessage.objects.get().due_at_ms == int(due.timestamp() * 1000)
    changes.edit("default", handle.id, ["y"], {})
    assert len(messages_in(hands.store)) == 1


def test_what_was_cancelled_while_redis_was_away_may_be_enqueued_again(hands: Hands) -> None:
    for task in (keyed, keyed.using(durable=True)):
        task.enqueue("old")
        with unreachable():
            record.cancel(key="k")
            with pytest.raises(MessageNotFound):
                record.cancel(key="k")
            with pytest.raises(MessageNotFound):
                record.reschedule(key="k", delay=5)
            assert record.get(key="k") is None
            task.enqueue("new")
            with pytest.raises(DuplicateMessage):
                task.enqueue("newer")
        back(hands)
        message = record.get(key="k")
        assert message is not None and message.args == ["new"]
        record.cancel(key="k")
        hands.archive()
    assert statuses() == []


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("mode", ["raise", "replace"])
def test_an_enqueue_does_not_overtake_what_this_process_has_kept(
    hands: Hands, mode: Any, inside: bool
) -> None:
    keyed.enqueue("old")
    with unreachable():
        record.cancel(key="k")
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    with transaction.atomic() if inside else nullcontext():
        handle = keyed.using(on_duplicate=mode).enqueue("new")
    assert handle.outcome == "stored"
    back(hands)
    message = record.get(key="k")
    assert message is not None
    assert (message.args, statuses()) == (["new"], [])


@pytest.mark.parametrize("task", [near, keyed], ids=["durable", "plain"])
def test_a_cancel_whose_answer_is_lost_is_no_news_when_it_is_said_again(
    hands: Hands, task: Any
) -> None:
    heard: list[Any] = []

    def hear(events: Any, **kwargs: Any) -> None:
        heard.extend(events)

    task.enqueue("warm").cancel()
    handle = task.enqueue("x")
    signals.refused.connect(hear)
    try:
        with lost_answers() as lost:
            assert handle.cancel() is True
        back(hands)
    finally:
        signals.refused.disconnect(hear)
    assert (len(lost), heard) == (1, [])
    assert (end_all(hands), statuses()) == ([("cancelled", "cancelled")] * 2, [])


def test_a_message_enqueued_by_others_after_the_cancel_is_not_meant(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.outbox.postponed.CLOCK_ERROR_US", 0)
    keyed.enqueue("old")
    with unreachable():
        record.cancel(key="k")
    hands.store.cancel_in(DEFAULT, [changes.Target.of("default", "k", None).identity])
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    postponed.pending.clear()  # this process is another one
    hands.store.breaker.after_outage = False
    keyed.enqueue("new")
    back(hands)
    message = record.get(key="k")
    assert message is not None
    assert (message.args, statuses()) == (["new"], [])


def test_a_move_of_what_is_to_follow_another_life_sends_it_and_not_only_the_reconciler(
    hands: Hands,
) -> None:
    keyed.using(delay=0).enqueue("runs")
    (lease,) = hands.claim()
    with unreachable():
        handle = keyed.using(on_duplicate="replace").enqueue("follows")
        due_at = keyed.reschedule(key="k", delay=800)
    back(hands)
    hands.relay()
    hands.run(lease)
    assert messages_in(hands.store) == {handle.identity}
    message = keyed.get(key="k")
    assert message is not None
    assert (message.args, message.due_at, statuses()) == (["follows"], due_at, ["sent"])


def test_what_was_not_there_after_all_is_told_by_a_signal(hands: Hands) -> None:
    heard: list[tuple[str, str]] = []

    def hear(events: Any, action: str, **kwargs: Any) -> None:
        heard.extend((action, event.reason) for event in events)

    record.using(key="runs").enqueue("x")
    hands.claim()
    with unreachable():
        for key in ("nobody", "runs"):
            assert record.cancel(key=key) is True
        assert record.reschedule(key="nothing", delay=5)
    signals.refused.connect(hear)
    try:
        back(hands)
    finally:
        signals.refused.disconnect(hear)
    assert sorted(heard) == [
        ("cancel", "not found"),
        ("cancel", "running"),
        ("reschedule", "not found"),
    ]
    assert statuses() == []


def test_in_a_transaction_that_may_be_rolled_back_nothing_is_kept_at_once(hands: Hands) -> None:
    handle = keyed.enqueue("x")
    with unreachable(), transaction.atomic(), pytest.raises(StoreUnavailable):
        handle.cancel(after_commit=False)
    assert statuses() == []


def test_nobody_waits_for_a_redis_that_is_known_to_be_away(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "PROBE_INTERVAL", 3_600.0)
    handle = keyed.enqueue("x")
    with unreachable():
        record.enqueue("trips the breaker")
    sent = hands.store.client.redis.info("commandstats")
    with transaction.atomic():
        handle.reschedule(delay=5)
        handle.cancel()
    again = hands.store.client.redis.info("commandstats")
    assert {name: sent.get(name) for name in again if "eval" in name} == {
        name: again[name] for name in again if "eval" in name
    }


def test_a_purge_reaches_what_may_have_been_stored(hands: Hands) -> None:
    record.using(delay=600).enqueue("warm").cancel()
    with lost_answers():
        record.using(delay=600).enqueue("x")
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    purge_topic("default", reason="closed")
    back(hands)
    hands.archive()
    assert (messages_in(hands.store), statuses(), seen) == (set(), [], [])


# Replacing what Redis has


def sent_first(hands: Hands) -> None:
    near.using(key="k").enqueue("first")


def relayed_first(hands: Hands) -> None:
    far.using(key="k").enqueue("first")
    back(hands)


def unknown_first(hands: Hands) -> None:
    near.enqueue("warm").cancel()
    with lost_answers():
        near.using(key="k").enqueue("first")
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")


@pytest.mark.parametrize("place", [sent_first, relayed_first, unknown_first])
@pytest.mark.parametrize("is_away", [False, True])
def test_a_replacement_beyond_the_horizon_replaces_too(
    hands: Hands, place: Callable[[Hands], None], is_away: bool
) -> None:
    place(hands)
    with unreachable() if is_away else suppress(ZeroDivisionError):
        far.using(key="k", on_duplicate="replace").enqueue("second")
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    hands.relay()  # what is to be sent by now, and no more
    message = record.get(key="k")
    assert message is not None and message.args == ["second"]
    end_all(hands)
    assert (seen, statuses()) == (["second"], [])


def test_a_replacement_that_is_moved_beyond_the_horizon_before_its_commit_replaces_too(
    hands: Hands,
) -> None:
    near.using(key="k").enqueue("first")
    with transaction.atomic():
        handle = near.using(key="k", on_duplicate="replace").enqueue("second")
        handle.reschedule(delay=DAY)
    end_all(hands)
    assert (seen, statuses()) == (["second"], [])


def test_a_replacement_taken_back_before_its_commit_takes_back_the_first_too(hands: Hands) -> None:
    near.using(key="k").enqueue("first")
    with transaction.atomic():
        near.using(key="k", on_duplicate="replace").enqueue("second").cancel()
    end_all(hands)
    back(hands)
    hands.archive()
    assert (seen, statuses(), messages_in(hands.store)) == ([], [], set())


def test_of_two_replacements_the_later_one_is_newer_though_its_clock_is_behind(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = near.using(key="k", on_duplicate="replace")
    task.enqueue("first")
    now_us = type(hands.store).now_us
    monkeypatch.setattr(type(hands.store), "now_us", lambda store: now_us(store) - 20_000_000)
    task.enqueue("second")
    back(hands)
    hands.reconcile()
    message = record.get(key="k")
    assert message is not None and message.args == ["second"]
    assert rows_of_outbox() == [("sent", "k")]


@pytest.mark.long
def test_many_keys_in_opposite_orders_do_not_deadlock(hands: Hands) -> None:
    if not connection.features.has_select_for_update:
        pytest.skip("one writer at a time")
    calls = [
        far.using(key=f"order:{number}", on_duplicate="replace").prepare(number)
        for number in range(60)
    ]
    for _ in range(3):
        together(lambda: record.enqueue_many(calls), lambda: record.enqueue_many(calls[::-1]))
    assert len(statuses()) == 60


@pytest.mark.parametrize("mode", ["raise", "keep"])
def test_a_key_that_the_snapshot_does_not_show_is_not_overwritten(hands: Hands, mode: Any) -> None:
    if connection.vendor != "mysql":
        pytest.skip("here REPEATABLE READ fails instead")
    task = far.using(key="k")
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        with transaction.atomic():
            assert OutboxMessage.objects.count() == 0
            apart(lambda: task.enqueue("first"))
            with suppress(DuplicateMessage):
                assert task.using(on_duplicate=mode).enqueue("second").outcome == "kept"
    finally:
        connection.close()
    message = record.get(key="k")
    assert message is not None and message.args == ["first"]


def test_what_another_life_has_taken_over_is_not_put_back_or_adopted(hands: Hands) -> None:
    with transaction.atomic():
        near.using(key="k").enqueue("first")
        (item,) = [
            item for hook in connection.run_on_commit for item in getattr(hook[1], "items", ())
        ]
    near.using(key="k", on_duplicate="replace").enqueue("second")
    row = OutboxMessage.objects.get()
    outbox.put_back([item])
    outbox.adopt(item, "ADOPTED:17")
    again = OutboxMessage.objects.get()
    assert (again.status, again.enqueued_at_us) == ("sent", row.enqueued_at_us)


# What is left behind


@pytest.mark.parametrize("archive", ["none", "dead", "all"])
@pytest.mark.parametrize("how", ["cancel", "purge"])
def test_the_setting_of_the_archive_holds_for_what_ends_in_the_outbox(
    hands: Hands, settings: Any, archive: str, how: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ARCHIVE": archive}
    handle = far.enqueue("secret")
    _ = handle.cancel() if how == "cancel" else purge_topic("default")
    assert (len(rows()), statuses()) == (1 if archive == "all" else 0, [])


def test_a_lost_message_that_is_moved_away_and_cancelled_leaves_nothing_in_redis(
    hands: Hands,
) -> None:
    handle = near.enqueue("x")
    lose_redis(hands.store)
    handle.reschedule(delay=2 * DAY)
    handle.cancel()
    assert end_all(hands) == [("cancelled", "cancelled")]
    meta = hands.store.client.redis.hgetall(meta_key(hands.store.client.prefix, DEFAULT))
    assert ([name for name in meta if name.startswith(b"done:")], statuses()) == ([], [])


def marks(hands: Hands) -> list[bytes]:
    meta = hands.store.client.redis.hgetall(meta_key(hands.store.client.prefix, DEFAULT))
    return [name for name in meta if name.startswith(b"done:")]


@pytest.mark.parametrize("mode", ["replace", "keep"])
def test_a_spilled_message_that_was_moved_and_gives_way_leaves_nothing_in_redis(
    hands: Hands, mode: Any
) -> None:
    with unreachable():
        handle = keyed.using(on_duplicate=mode).enqueue("first")
        handle.reschedule(delay=7_000)
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    OutboxMessage.objects.update(relay_at_ms=0)
    postponed.apply_all()
    assert len(marks(hands)) == 1  # what was accepted first is not to be sent any more
    hands.store.breaker.after_outage = False  # as in a process that has not noticed
    keyed.using(on_duplicate="replace").enqueue("second")
    back(hands)
    assert (marks(hands), statuses()) == ([], [])
    assert [(row.state, row.reason) for row in rows()] == [
        ("cancelled", "replaced" if mode == "replace" else "duplicate")
    ]


def test_what_waits_for_the_archiver_is_not_forgotten_when_another_message_is_kept(
    hands: Hands,
) -> None:
    durable.using(key="k").enqueue("durable")
    hands.work()
    assert len(marks(hands)) == 1
    keyed.enqueue("plain")
    assert keyed.using(on_duplicate="keep").enqueue("another").outcome == "kept"
    assert len(marks(hands)) == 1
    hands.archive()
    assert (marks(hands), statuses()) == ([], [])


def test_a_message_that_waited_in_the_outbox_while_another_was_moved_is_not_taken_for_sent(
    hands: Hands,
) -> None:
    with unreachable():
        keyed.using(on_duplicate="replace").enqueue("first")
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    hands.store.breaker.after_outage = False  # as in a process that has not noticed
    keyed.using(on_duplicate="replace").enqueue("second")
    with transaction.atomic():
        record.reschedule(key="k", delay=7_000)
    assert statuses() == ["waiting"]
    back(hands)
    message = record.get(key="k")
    assert message is not None
    assert (message.args, statuses()) == (["second"], [])
    assert end_all(hands) == [("acked", ""), ("cancelled", "replaced")]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("mode", ["raise", "keep", "replace"])
def test_after_an_outage_a_key_counts_that_is_still_in_the_outbox(
    hands: Hands, mode: Any, inside: bool
) -> None:
    with unreachable():
        keyed.enqueue("first")
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    refused = pytest.raises(DuplicateMessage) if mode == "raise" and not inside else nullcontext()
    with refused, transaction.atomic() if inside else nullcontext():
        handle = keyed.using(on_duplicate=mode).enqueue("second")
        record.using(key="another", delay=600).enqueue("unconcerned")
    if mode != "raise":
        assert handle.outcome == ("kept" if mode == "keep" else "outbox")
    assert len(messages_in(hands.store)) == (0 if mode == "raise" and not inside else 1)
    back(hands)
    message = record.get(key="k")
    assert message is not None
    assert message.args == ["second" if mode == "replace" else "first"]


@pytest.mark.parametrize("mode", ["raise", "keep", "replace"])
def test_after_an_outage_a_key_counts_whose_message_was_moved_in_the_outbox(
    hands: Hands, mode: Any
) -> None:
    with unreachable():
        keyed.enqueue("first")
        with transaction.atomic():
            record.reschedule(key="k", delay=7_000)
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    assert statuses() == ["moved"]
    with pytest.raises(DuplicateMessage) if mode == "raise" else nullcontext():
        keyed.using(on_duplicate=mode).enqueue("second")
    back(hands)
    back(hands)
    message = record.get(key="k")
    assert message is not None
    assert message.args == ["second" if mode == "replace" else "first"]
    assert len(messages_in(hands.store)) == len(statuses()) == 1


def test_after_an_outage_a_message_outlives_a_cancel_that_was_kept_right_before(
    hands: Hands,
) -> None:
    keyed.enqueue("first")
    with unreachable(), transaction.atomic():
        record.cancel(key="k")
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    keyed.enqueue("second")
    back(hands)
    message = record.get(key="k")
    assert message is not None
    assert message.args == ["second"]
    assert end_all(hands) == [("acked", ""), ("cancelled", "cancelled")]


def test_after_an_outage_redis_is_asked_again_as_soon_as_the_outbox_is_empty(hands: Hands) -> None:
    with unreachable():
        keyed.enqueue("first")
    back(hands)
    assert hands.store.breaker.after_outage
    assert record.using(key="another", delay=600).enqueue("x").outcome == "stored"
    assert not hands.store.breaker.after_outage


def test_after_an_outage_a_database_that_fails_holds_up_nothing(hands: Hands) -> None:
    with unreachable():
        keyed.enqueue("first")
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    with without_table(OutboxMessage):
        assert record.using(key="another", delay=600).enqueue("x").outcome == "stored"


def test_a_missing_table_is_said_with_what_to_do(
    hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    plain = keyed.enqueue("x")
    with without_table(OutboxMessage):
        with pytest.raises(
            ConfigurationError, match=r"has no table .*manage.py migrate --database default"
        ):
            durable.enqueue("y")
        with transaction.atomic():
            plain.reschedule(delay=5)
            plain.cancel()
        assert messages_in(hands.store) == set()
        with (
            unreachable(),
            pytest.raises(StoreUnavailable, match=r"could not keep it either: .*manage.py migrate"),
        ):
            record.enqueue("z")
    assert "wait" not in caplog.text


@pytest.mark.parametrize("inside", [False, True], ids=["at once", "in a transaction"])
def test_what_follows_a_cancel_that_redis_has_applied_is_not_meant_by_its_row(
    hands: Hands, inside: bool
) -> None:
    with unreachable():
        keyed.enqueue("first")
    back(hands)
    assert statuses() == ["sent"]
    with transaction.atomic() if inside else nullcontext():
        assert keyed.cancel(key="k")
    keyed.enqueue("second")
    back(hands)  # the archiver is not as quick as the relay
    message = keyed.get(key="k")
    assert message is not None and message.args == ["second"]
    assert end_all(hands) == [("acked", ""), ("cancelled", "cancelled")]
    assert rows_of_outbox() == []
