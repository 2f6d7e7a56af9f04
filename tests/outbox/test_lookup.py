"""Keys, ids, cancel, reschedule and get of durable messages, wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_delayq.client.handle import Handle
from django_delayq.core.exceptions import (
    DuplicateMessage,
    MessageNotFound,
    MessageRunning,
    StoreUnavailable,
)
from django_delayq.models import OutboxMessage
from django_delayq.store import get_store
from tests.app.tasks import record, seen
from tests.faults import unreachable
from tests.hands import DAY, Hands, lose_redis, make_due, messages_in, only_row, rows, statuses

pytestmark = pytest.mark.databases

durable = record.using(durable=True, key="k")
Place = Callable[[Hands], Handle]


def in_sql(hands: Hands) -> Handle:
    return durable.using(delay=DAY).enqueue("first")


def live(hands: Hands) -> Handle:
    return durable.using(delay=60).enqueue("first")


def relayed(hands: Hands) -> Handle:
    handle = in_sql(hands)
    OutboxMessage.objects.update(relay_at_ms=0)
    hands.relay()
    return handle


def lost(hands: Hands) -> Handle:
    handle = live(hands)
    lose_redis(hands.store)
    return handle


def running(hands: Hands) -> Handle:
    handle = durable.enqueue("first")
    assert hands.claim()
    return handle


def ended(hands: Hands) -> Handle:
    """Ended, and not yet archived."""
    handle = durable.enqueue("first")
    hands.work()
    return handle


WAITING = [in_sql, live, relayed, lost]


@pytest.mark.parametrize("place", [*WAITING, running])
def test_a_key_that_is_live_is_refused(hands: Hands, place: Place) -> None:
    place(hands)
    with pytest.raises(DuplicateMessage) as caught:
        durable.enqueue("second")
    assert caught.value.keys == ("k",)
    assert len(statuses()) == 1


@pytest.mark.parametrize("place", [*WAITING, running])
def test_a_key_that_is_live_is_kept(hands: Hands, place: Place) -> None:
    first = place(hands)
    second = durable.using(on_duplicate="keep").enqueue("second")
    assert (second.outcome, second.id) == ("kept", first.id)
    hands.reconcile()
    found = first.get()
    assert found is not None and found.args == ["first"]


@pytest.mark.parametrize("place", WAITING)
def test_a_key_that_waits_is_replaced(hands: Hands, place: Place) -> None:
    place(hands)
    durable.using(on_duplicate="replace").enqueue("second")
    assert statuses() == ["sent"]
    hands.reconcile()
    hands.work()
    hands.archive()
    assert (seen, statuses()) == (["second"], [])


def test_a_key_that_runs_is_followed(hands: Hands) -> None:
    durable.enqueue("first")
    leases = hands.claim()
    durable.using(on_duplicate="replace").enqueue("second")
    assert hands.reconcile() == 0
    hands.run(*leases)
    hands.archive()
    assert (len(rows()), statuses()) == (1, ["sent"])
    hands.work()
    hands.archive()
    assert (seen, len(rows()), statuses()) == (["first", "second"], 2, [])


@pytest.mark.parametrize("mode", ["raise", "keep", "replace"])
@pytest.mark.parametrize("delay", [0, DAY])
def test_a_key_that_has_ended_is_free_at_once(hands: Hands, mode: Any, delay: int) -> None:
    ended(hands)
    durable.using(on_duplicate=mode, delay=delay).enqueue("second")
    hands.archive()
    assert (len(rows()), statuses()) == (1, ["waiting" if delay else "sent"])
    OutboxMessage.objects.update(relay_at_ms=0)
    hands.relay()
    hands.reconcile()
    if delay:
        make_due(durable.using(on_duplicate="keep").enqueue("third"))
    hands.work()
    hands.archive()
    assert (seen, statuses()) == (["first", "second"], [])


def test_an_accepted_key_waits_for_a_message_of_the_key_that_is_not_durable(hands: Hands) -> None:
    record.using(key="k").enqueue("first")
    handle = durable.enqueue("second")
    assert (handle.outcome, statuses()) == ("outbox", ["waiting"])
    hands.relay()
    assert OutboxMessage.objects.get().relay_at_ms > hands.store.clock_ms() + 5_000
    hands.work()
    OutboxMessage.objects.update(relay_at_ms=0)
    hands.relay()
    hands.work()
    assert seen == ["first", "second"]


def test_an_accepted_key_that_keeps_gives_way_to_one_that_is_not_durable(hands: Hands) -> None:
    record.using(key="k", delay=60).enqueue("first")
    durable.using(on_duplicate="keep").enqueue("second")
    hands.relay()
    assert (statuses(), only_row().state, only_row().reason) == ([], "cancelled", "duplicate")


def test_a_replacement_replaces_one_that_is_not_durable(hands: Hands) -> None:
    record.using(key="k", delay=60).enqueue("first")
    durable.using(on_duplicate="replace").enqueue("second")
    hands.work()
    hands.archive()
    assert (seen, statuses()) == (["second"], [])


def test_one_that_is_not_durable_replaces_it_and_its_row_is_closed(hands: Hands) -> None:
    live(hands)
    record.using(key="k", on_duplicate="replace").enqueue("second")
    hands.archive()
    assert (statuses(), only_row().reason) == ([], "replaced")
    hands.work()
    assert seen == ["second"]


def test_an_older_replacement_gives_way_to_a_newer_message(hands: Hands) -> None:
    with transaction.atomic():
        durable.using(on_duplicate="replace").enqueue("older")
        record.using(key="k", on_duplicate="replace", after_commit=False, delay=60).enqueue("newer")
    hands.relay()
    assert (statuses(), only_row().reason) == ([], "replaced")
    found = record.get(key="k")
    assert found is not None and found.args == ["newer"]


@pytest.mark.parametrize(("place", "outcome"), [(live, "replaced"), (running, "follows")])
def test_the_handle_says_what_has_become_of_it(hands: Hands, place: Place, outcome: str) -> None:
    place(hands)
    assert durable.using(on_duplicate="replace").enqueue("second").outcome == outcome


# Ids


def test_an_enqueue_repeated_under_its_id_is_stored_once(hands: Hands) -> None:
    own = record.using(durable=True, id="1" * 12 + "7" + "1" * 3 + "8" + "1" * 15, delay=60)
    own.enqueue("x")
    own.enqueue("x")
    assert len(messages_in(hands.store)) == 1


def test_an_id_is_taken_once(hands: Hands) -> None:
    own = record.using(
        durable=True, id="1" * 12 + "7" + "1" * 3 + "8" + "1" * 15, on_duplicate="keep", delay=60
    )
    assert [own.enqueue("x").outcome, own.enqueue("y").outcome] == ["stored", "kept"]


# Cancel, reschedule, get


@pytest.mark.parametrize("named", ["key", "id"])
@pytest.mark.parametrize("place", WAITING)
def test_what_waits_is_cancelled_wherever_it_is(hands: Hands, place: Place, named: str) -> None:
    handle = place(hands)
    record.cancel(**{named: "k" if named == "key" else handle.id})
    hands.archive()
    assert (only_row().state, only_row().message_id.hex, only_row().key) == (
        "cancelled",
        handle.id,
        "k",
    )
    assert (statuses(), hands.relay(), hands.reconcile(), hands.work()) == ([], 0, 0, 0)
    with pytest.raises(MessageNotFound):
        record.cancel(key="k")


@pytest.mark.parametrize("place", WAITING)
def test_what_waits_is_rescheduled_wherever_it_is(hands: Hands, place: Place) -> None:
    handle = place(hands)
    due = handle.reschedule(delay=120)
    found = handle.get()
    assert found is not None and (found.due_at, found.args) == (due, ["first"])
    hands.relay()
    hands.reconcile()
    found = handle.get()
    assert found is not None and found.due_at == due
    assert OutboxMessage.objects.get().due_at_ms == int(due.timestamp() * 1000)
    lose_redis(hands.store)
    hands.reconcile()
    found = handle.get()
    assert found is not None and found.due_at == due


@pytest.mark.parametrize("place", WAITING)
def test_what_waits_is_shown_wherever_it_is(hands: Hands, place: Place) -> None:
    handle = place(hands)
    for found in (handle.get(), record.get(key="k"), record.get(id=handle.id)):
        assert found is not None
        assert (found.id, found.key, found.args, found.state) == (
            handle.id,
            "k",
            ["first"],
            "delayed",
        )
        assert found.due_at == handle.due_at


def test_what_runs_is_neither_cancelled_nor_moved(hands: Hands) -> None:
    handle = running(hands)
    with pytest.raises(MessageRunning):
        handle.cancel()
    with pytest.raises(MessageRunning):
        handle.reschedule(delay=60)
    found = handle.get()
    assert found is not None and found.state == "leased"


def test_what_has_ended_is_not_found(hands: Hands) -> None:
    handle = ended(hands)
    assert handle.get() is None
    with pytest.raises(MessageNotFound):
        handle.cancel()
    with pytest.raises(MessageNotFound):
        handle.reschedule(delay=60)
    hands.archive()
    assert (only_row().state, statuses()) == ("acked", [])


@pytest.mark.parametrize("delay", [0, DAY])
def test_what_this_transaction_has_enqueued_is_cancelled_in_it(hands: Hands, delay: int) -> None:
    with transaction.atomic():
        handle = durable.using(delay=delay).enqueue(1)
        assert handle.get() is not None
        handle.cancel()
        assert handle.get() is None
    assert (statuses(), messages_in(hands.store), hands.relay()) == ([], set(), 0)


@pytest.mark.parametrize("delay", [0, DAY])
def test_what_this_transaction_has_enqueued_is_moved_in_it(hands: Hands, delay: int) -> None:
    with transaction.atomic():
        handle = durable.using(delay=delay).enqueue(1)
        due = handle.reschedule(delay=600)
    hands.relay()
    found = handle.get()
    assert found is not None and (found.due_at, statuses()) == (due, ["sent"])


@pytest.mark.parametrize("counted", [True, False], ids=["partitions known", "partitions unknown"])
def test_a_message_in_sql_is_cancelled_while_redis_is_away(hands: Hands, counted: bool) -> None:
    handle = in_sql(hands)
    if counted:
        get_store().partitions.counts("default")
    with unreachable():
        handle.cancel()
    assert (only_row().state, statuses()) == ("cancelled", [])


def test_without_spilling_a_sent_message_is_not_cancelled_while_redis_is_away(
    hands: Hands, settings: Any
) -> None:
    handle = live(hands)
    settings.DELAYQ = {**settings.DELAYQ, "ON_REDIS_ERROR": "raise"}
    get_store().partitions.counts("default")
    with unreachable(), pytest.raises(StoreUnavailable):
        handle.cancel()
    with unreachable(), transaction.atomic(), pytest.raises(StoreUnavailable):
        handle.cancel()
    assert (rows(), statuses()) == ([], ["sent"])
