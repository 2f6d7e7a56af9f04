"""Sending: at once, or when the right transaction commits; finding again by key and by id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import transaction

from django_delayq import exceptions, list_messages, topic_stats
from django_delayq.conf import get_settings
from django_delayq.message import State
from django_delayq.store import get_store
from django_delayq.store.lease import Lease
from django_delayq.store.redis import RedisStore
from django_delayq.tasks import Handle
from tests.faults import lost_answers, scripts_run
from tests.tasks import close_order, crowd, noop, record, remind

LONG_AGO = datetime(2001, 9, 9, tzinfo=timezone.utc)
Capture = Callable[..., AbstractContextManager[list[Any]]]
with_transactions = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def sent(topic: str = "default") -> list[Any]:
    """First argument of every waiting message, sorted."""
    return sorted((message.args[0] for message in list_messages(topic, limit=500).messages), key=str)


def claim(topic: str = "default", limit: int = 1) -> list[Lease]:
    store = get_store()
    return [lease for p in store.partitions.all(topic) for lease in store.claim(p, limit).leases]


def ack(lease: Lease) -> None:
    assert get_store().ack(lease.partition, [(lease, b"{}")]) == []


@pytest.fixture
def split(settings: Any, delayq: RedisStore) -> Callable[[int], RedisStore]:
    """Gives the topic "crowd" another number of partitions, as a deploy would."""

    def raise_to(count: int) -> RedisStore:
        settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": count}}}
        return get_store()

    return raise_to


class Undo(Exception):
    """Rolls back."""


# Transactions


@with_transactions
def test_outside_a_transaction_it_is_sent_at_once(delayq: RedisStore) -> None:
    handle = record.enqueue("now")
    assert sent() == ["now"]
    assert handle.outcome == "stored"
    assert handle.due_at is not None


@with_transactions
def test_inside_a_transaction_it_is_sent_by_the_commit(delayq: RedisStore) -> None:
    with transaction.atomic():
        record.enqueue("later")
        assert sent() == []
    assert sent() == ["later"]


@with_transactions
def test_handle_has_its_id_before_the_commit(delayq: RedisStore) -> None:
    with transaction.atomic():
        handle = record.using(delay=60).enqueue("x")
        known = handle.id
        assert (handle.outcome, handle.due_at, handle.get()) == ("", None, None)
    message = handle.get()
    assert message is not None
    assert (handle.id, message.id, message.due_at) == (known, known, handle.due_at)
    assert handle.outcome == "stored"


@with_transactions
def test_rollback_sends_nothing(delayq: RedisStore) -> None:
    with pytest.raises(Undo), transaction.atomic():
        record.enqueue("lost")
        raise Undo
    record.enqueue("next")
    assert sent() == ["next"]


@with_transactions
def test_next_transaction_knows_nothing_of_one_that_was_rolled_back(delayq: RedisStore) -> None:
    with pytest.raises(Undo), transaction.atomic():
        record.enqueue("lost")
        raise Undo
    with transaction.atomic():
        record.enqueue("kept")
    assert sent() == ["kept"]


def savepoint(*values: str, undo: bool = False) -> None:
    try:
        with transaction.atomic():
            for value in values:
                record.enqueue(value)
            if undo:
                raise Undo
    except Undo:
        return


@with_transactions
def test_savepoint_that_is_rolled_back_takes_only_its_own(delayq: RedisStore) -> None:
    with transaction.atomic():
        record.enqueue("before")
        savepoint("inside", undo=True)
        record.enqueue("after")
    assert sent() == ["after", "before"]


@with_transactions
def test_savepoint_that_holds_sends_with_the_rest(delayq: RedisStore) -> None:
    with transaction.atomic():
        savepoint("first")
        savepoint("second", undo=True)
        savepoint("third")
    assert sent() == ["first", "third"]


@with_transactions
def test_savepoint_that_came_first_and_was_rolled_back_does_not_take_what_follows(delayq: RedisStore) -> None:
    with transaction.atomic():
        savepoint("inside", undo=True)
        record.enqueue("after")
    assert sent() == ["after"]


@with_transactions
def test_savepoint_that_came_last_and_was_rolled_back_does_not_take_what_was_before(delayq: RedisStore) -> None:
    with transaction.atomic():
        record.enqueue("before")
        savepoint("inside", "inside too", undo=True)
    assert sent() == ["before"]


@with_transactions
def test_savepoints_in_savepoints(delayq: RedisStore) -> None:
    with transaction.atomic():
        record.enqueue("1")
        with pytest.raises(Undo), transaction.atomic():
            record.enqueue("2")
            savepoint("3")
            savepoint("4", undo=True)
            raise Undo
        with transaction.atomic():
            savepoint("5", undo=True)
            record.enqueue("6")
            with transaction.atomic():
                savepoint("7", undo=True)
                record.enqueue("8")
        record.enqueue("9")
    assert sent() == ["1", "6", "8", "9"]


@with_transactions
def test_messages_of_one_transaction_leave_in_one_call(delayq: RedisStore) -> None:
    record.using(delay=60).enqueue("warm")
    before = scripts_run(delayq)
    with transaction.atomic():
        for number in range(100):
            record.enqueue(number)
            if number % 10 == 0:
                savepoint("lost", undo=True)
            if number == 50:
                record.using(delay=5).enqueue("delayed")
        assert scripts_run(delayq) == before
    assert scripts_run(delayq) == before + 1
    assert len(sent()) == 102


@with_transactions
def test_every_partition_gets_one_call(split: Callable[[int], RedisStore]) -> None:
    store = split(4)
    crowd.enqueue_many([(n,) for n in range(50)])
    before = scripts_run(store)
    with transaction.atomic():
        for number in range(50):
            crowd.enqueue(number)
    assert scripts_run(store) == before + 4


@with_transactions
def test_transaction_that_holds_nothing_of_ours_calls_nothing(delayq: RedisStore) -> None:
    record.enqueue("warm")
    before = scripts_run(delayq)
    with transaction.atomic():
        savepoint("lost", undo=True)
    assert scripts_run(delayq) == before


@with_transactions
def test_database_that_is_named_decides(delayq: RedisStore) -> None:
    with transaction.atomic(using="other"):
        record.enqueue("default is in no transaction")
        record.using(database="other").enqueue("waits")
        assert sent() == ["default is in no transaction"]
        with pytest.raises(Undo), transaction.atomic():
            record.using(database="other").enqueue("waits too")
            record.enqueue("lost")
            raise Undo
    assert sent() == ["default is in no transaction", "waits", "waits too"]


@with_transactions
def test_database_of_the_settings_decides(settings: Any, delayq: RedisStore) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "DATABASE": "other"}
    with transaction.atomic():
        record.enqueue("at once")
        assert sent() == ["at once"]
    with transaction.atomic(using="other"):
        record.enqueue("by the commit")
        assert sent() == ["at once"]
    assert sent() == ["at once", "by the commit"]


@with_transactions
@pytest.mark.parametrize("by", ["call", "setting"])
def test_after_commit_false_sends_at_once_whatever_happens(settings: Any, delayq: RedisStore, by: str) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "AFTER_COMMIT": by == "call"}
    task = record.using(after_commit=False) if by == "call" else record
    with pytest.raises(Undo), transaction.atomic():
        handle = task.enqueue("sent")
        assert handle.outcome == "stored"
        raise Undo
    assert sent() == ["sent"]


@with_transactions
def test_bad_input_is_refused_inside_the_transaction(delayq: RedisStore) -> None:
    with transaction.atomic():
        with pytest.raises(exceptions.InvalidArguments):
            close_order.enqueue()
        record.enqueue("fine")
    assert sent() == ["fine"]


@with_transactions
def test_duplicate_is_raised_by_the_commit_and_does_not_take_the_others(delayq: RedisStore) -> None:
    record.using(key="k", delay=60).enqueue("first")
    with pytest.raises(exceptions.DuplicateMessage, match="'k': already live"), transaction.atomic():
        record.enqueue("a")
        record.using(key="k").enqueue("second")
        record.enqueue("b")
    assert sorted(sent()) == ["a", "b", "first"]


@with_transactions
def test_async_code_enqueues_too(delayq: RedisStore) -> None:
    handle = asyncio.run(remind.using(delay=60).aenqueue(5))
    assert handle.outcome == "stored"
    assert sent("orders") == [5]


# Tests of a project: everything in one transaction that is rolled back


@pytest.mark.django_db
def test_captured_callbacks_send(delayq: RedisStore, django_capture_on_commit_callbacks: Capture) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        record.enqueue("a")
        record.enqueue("b")
        assert sent() == []
    assert sent() == ["a", "b"]


@pytest.mark.django_db
def test_capture_sends_only_what_was_enqueued_in_it(
    delayq: RedisStore, django_capture_on_commit_callbacks: Capture
) -> None:
    record.enqueue("before")
    for value in ("first", "second"):
        with django_capture_on_commit_callbacks(execute=True):
            record.enqueue(value)
        record.enqueue("between")
    assert sent() == ["first", "second"]


@pytest.mark.django_db
def test_capture_works_with_savepoints(delayq: RedisStore, django_capture_on_commit_callbacks: Capture) -> None:
    record.enqueue("before")
    with django_capture_on_commit_callbacks(execute=True):
        savepoint("lost", undo=True)
        savepoint("kept")
        transaction.on_commit(lambda: record.enqueue("by a callback") and None)
    assert sent() == ["by a callback", "kept"]


@pytest.mark.django_db
def test_uncommitted_test_sends_nothing(delayq: RedisStore) -> None:
    record.enqueue("x")
    assert sent() == []


# Many


def test_many_of_all_kinds(delayq: RedisStore) -> None:
    elements: list[Any] = [(n,) for n in range(600)]
    elements += [{"value": n} for n in range(600, 1200)]
    elements += [record.using(delay=60, key=f"k{n}").prepare(n) for n in range(1200, 1233)] + [[1233]]
    handles = record.enqueue_many(iter(elements))
    assert len({handle.id for handle in handles}) == len(handles) == 1234
    assert topic_stats("default").counters["enqueued"] == 1234
    assert topic_stats("default").delayed == 33
    assert {handle.outcome for handle in handles} == {"stored"}
    first, last, keyed = handles[0].get(), handles[-1].get(), record.get(key="k1200")
    assert first and last and keyed
    assert (first.args, last.args, keyed.args, keyed.id) == ([0], [1233], [1200], handles[1200].id)
    middle = handles[700].get()
    assert middle is not None
    assert middle.kwargs == {"value": 700}


def test_many_leave_in_batches_of_500(delayq: RedisStore) -> None:
    noop.enqueue()
    before = scripts_run(delayq)
    noop.enqueue_many(() for _ in range(1234))
    assert scripts_run(delayq) == before + 3


def test_many_of_nothing_is_nothing(delayq: RedisStore) -> None:
    assert noop.enqueue_many([]) == []


def test_many_go_to_the_topics_of_their_copies(delayq: RedisStore) -> None:
    record.enqueue_many([("a",), close_order.prepare(5), ("b",), record.using(topic="orders").prepare("c")])
    assert (sent(), sent("orders")) == (["a", "b"], [5, "c"])


@with_transactions
def test_many_wait_for_the_commit_and_leave_together(delayq: RedisStore) -> None:
    record.enqueue("warm")
    before = scripts_run(delayq)
    with transaction.atomic():
        record.enqueue_many([(n,) for n in range(400)])
        record.enqueue_many([(n,) for n in range(400, 700)])
        assert scripts_run(delayq) == before
    assert scripts_run(delayq) == before + 2


def test_duplicates_in_a_batch_do_not_lose_the_others(delayq: RedisStore) -> None:
    keyed = record.using(key="k", delay=60)
    calls = [keyed.prepare("a"), record.prepare("b"), keyed.prepare("c"), record.prepare("d"), keyed.prepare("e")]
    with pytest.raises(exceptions.DuplicateMessage) as caught:
        record.enqueue_many(calls)
    assert sorted(sent()) == ["a", "b", "d"]
    assert caught.value.keys == ("k", "k")


def test_duplicate_in_the_first_500_does_not_lose_those_behind(delayq: RedisStore) -> None:
    record.using(key="k", delay=60).enqueue("live")
    with pytest.raises(exceptions.DuplicateMessage, match="'k': already live"):
        record.enqueue_many([record.using(key="k").prepare("x"), *((n,) for n in range(1200))])
    assert topic_stats("default").counters["enqueued"] == 1201


def test_last_of_one_key_wins_when_a_batch_replaces(delayq: RedisStore) -> None:
    keyed = record.using(key="k", delay=60, on_duplicate="replace")
    handles = record.enqueue_many([keyed.prepare(n) for n in range(3)])
    assert [handle.outcome for handle in handles] == ["stored", "replaced", "replaced"]
    assert sent() == [2]


def test_first_of_one_key_wins_when_a_batch_keeps(delayq: RedisStore) -> None:
    keyed = record.using(key="k", delay=60, on_duplicate="keep")
    handles = record.enqueue_many([keyed.prepare(n) for n in range(3)])
    assert [handle.outcome for handle in handles] == ["stored", "kept", "kept"]
    assert sent() == [0]


def test_error_half_way_tells_what_was_sent(delayq: RedisStore) -> None:
    with pytest.raises(exceptions.UnserialisableArguments) as caught:
        record.enqueue_many([*((n,) for n in range(700)), (object(),)])
    assert len(caught.value.enqueued) == topic_stats("default").counters["enqueued"] == 500


def test_element_that_is_no_call_tells_what_was_sent(delayq: RedisStore) -> None:
    with pytest.raises(exceptions.InvalidArguments) as caught:
        record.enqueue_many([*((n,) for n in range(700)), "text"])
    assert len(caught.value.enqueued) == topic_stats("default").counters["enqueued"]


# Duplicates


def test_live_key_is_refused_by_default(delayq: RedisStore) -> None:
    record.using(key="k", delay=60).enqueue("a")
    with pytest.raises(exceptions.DuplicateMessage, match=r"already live\. Pass on_duplicate=\"keep\"") as caught:
        record.using(key="k").enqueue("a")
    assert caught.value.keys == ("k",)
    assert sent() == ["a"]


def test_key_belongs_to_its_topic(delayq: RedisStore) -> None:
    record.using(key="k", delay=60).enqueue("a")
    record.using(key="k", topic="orders", delay=60).enqueue("b")
    assert (sent(), sent("orders")) == (["a"], ["b"])


def test_key_is_free_again_when_its_message_is_done(delayq: RedisStore) -> None:
    record.using(key="k", due_at=LONG_AGO).enqueue("a")
    ack(claim()[0])
    assert record.using(key="k").enqueue("b").outcome == "stored"


def test_keep_leaves_the_waiting_message_and_its_time(delayq: RedisStore) -> None:
    keyed = record.using(key="k", on_duplicate="keep")
    first = keyed.using(delay=60).enqueue("a")
    second = keyed.using(delay=5).enqueue("b")
    assert (second.id, second.outcome, second.due_at) == (first.id, "kept", None)
    message = keyed.get(key="k")
    assert message is not None
    assert (message.args, message.due_at) == (["a"], first.due_at)


def test_replace_gives_new_arguments_and_time(delayq: RedisStore) -> None:
    keyed = record.using(key="k", on_duplicate="replace")
    keyed.using(delay=5).enqueue("a")
    second = keyed.using(delay=60).enqueue("b")
    message = second.get()
    assert message is not None
    assert (second.outcome, message.args, message.due_at) == ("replaced", ["b"], second.due_at)
    assert topic_stats("default").delayed == 1


def test_replace_while_it_runs_follows_the_run(delayq: RedisStore) -> None:
    keyed = record.using(key="k", on_duplicate="replace", due_at=LONG_AGO)
    keyed.enqueue("a")
    lease = claim()[0]
    assert [keyed.enqueue(value).outcome for value in ("b", "c")] == ["follows", "follows"]
    assert sent() == []
    ack(lease)
    assert sent() == ["c"]


def test_raise_and_keep_while_it_runs(delayq: RedisStore) -> None:
    keyed = record.using(key="k", due_at=LONG_AGO)
    keyed.enqueue("a")
    lease = claim()[0]
    with pytest.raises(exceptions.DuplicateMessage):
        keyed.enqueue("b")
    assert keyed.using(on_duplicate="keep").enqueue("c").outcome == "kept"
    ack(lease)
    assert sent() == []


# Unknown outcomes


@pytest.mark.parametrize("key", [None, "k"])
def test_repeating_an_unknown_enqueue_by_its_id_stores_it_once(delayq: RedisStore, key: str | None) -> None:
    task = record.using(delay=60, key=key)
    with lost_answers() as lost, pytest.raises(exceptions.EnqueueUnknown, match=r"again with using\(id=") as caught:
        task.enqueue("x")
    assert len(lost) == 1
    handle = task.using(id=caught.value.ids[0]).enqueue("x")
    assert (handle.id, handle.outcome) == (caught.value.ids[0], "stored")
    assert sent() == ["x"]
    assert topic_stats("default").counters["enqueued"] == 1


def test_repeating_a_whole_unknown_batch_is_safe(delayq: RedisStore) -> None:
    with lost_answers(), pytest.raises(exceptions.EnqueueUnknown) as caught:
        record.enqueue_many([(n,) for n in range(5)])
    record.enqueue_many([record.using(id=i).prepare(n) for n, i in enumerate(caught.value.ids)])
    assert sent() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_unknown_part_of_many_is_told_apart_from_what_was_sent(delayq: RedisStore, lost: int) -> None:
    noop.enqueue()
    with lost_answers(times=lost), pytest.raises(exceptions.EnqueueUnknown) as caught:
        record.enqueue_many([(n,) for n in range(1234)])
    sent_ids = {handle.id for handle in caught.value.enqueued}
    assert not sent_ids & set(caught.value.ids)
    assert len(caught.value.ids) == 500
    stored = topic_stats("default").counters["enqueued"] - 1
    assert len(sent_ids) + 500 <= stored <= 1234


def test_other_message_under_the_same_id_is_refused(delayq: RedisStore) -> None:
    handle = record.using(delay=60).enqueue("a")
    with pytest.raises(exceptions.DuplicateMessage):
        record.using(id=handle.id).enqueue("b")
    assert sent() == ["a"]


def test_unreachable_redis_says_that_nothing_was_sent(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": "redis://:secret@127.0.0.1:1/0"}
    with pytest.raises(exceptions.StoreUnavailable, match=r"Cannot reach Redis at redis://:\*\*\*@127.0.0.1:1/0"):
        noop.enqueue()


# Finding again


@pytest.fixture(params=["key", "id"])
def live(request: pytest.FixtureRequest, delayq: RedisStore) -> Iterator[tuple[Handle, dict[str, Any]]]:
    """A waiting message, and the way to name it."""
    handle = close_order.using(key="order:5", delay=60).enqueue(5)
    yield handle, {"key": "order:5"} if request.param == "key" else {"id": handle.id}


def test_cancel_takes_it_back(live: tuple[Handle, dict[str, Any]]) -> None:
    handle, name = live
    close_order.cancel(**name)
    assert handle.get() is None
    assert topic_stats("orders").counters["cancelled"] == 1


def test_second_cancel_says_that_it_is_not_live(live: tuple[Handle, dict[str, Any]]) -> None:
    close_order.cancel(**live[1])
    with pytest.raises(exceptions.MessageNotFound, match=r"not live in topic 'orders': never sent, finished or cancel"):
        close_order.cancel(**live[1])


def test_cancel_while_it_runs_is_refused(live: tuple[Handle, dict[str, Any]]) -> None:
    close_order.reschedule(due_at=LONG_AGO, **live[1])
    lease = claim("orders")[0]
    with pytest.raises(exceptions.MessageRunning, match="a worker holds it, so it can no longer be cancelled"):
        close_order.cancel(**live[1])
    ack(lease)


def test_reschedule_moves_it(live: tuple[Handle, dict[str, Any]]) -> None:
    handle, name = live
    due_at = datetime(2030, 1, 1, 12, 0, 0, 500, tzinfo=timezone.utc)
    assert close_order.reschedule(due_at=due_at, **name) == due_at.replace(microsecond=1000)
    message = handle.get()
    assert message is not None
    assert (message.due_at, message.args) == (due_at.replace(microsecond=1000), [5])
    moved = close_order.reschedule(delay=timedelta(hours=1), **name)
    assert moved - message.enqueued_at > timedelta(minutes=59)


def test_reschedule_while_it_runs_is_refused(live: tuple[Handle, dict[str, Any]]) -> None:
    close_order.reschedule(due_at=LONG_AGO, **live[1])
    lease = claim("orders")[0]
    with pytest.raises(exceptions.MessageRunning, match="can no longer be moved"):
        close_order.reschedule(delay=60, **live[1])
    assert live[0].get().state == State.LEASED  # type: ignore[union-attr]
    ack(lease)


@pytest.mark.parametrize("name", [{"key": "never"}, {"id": "0" * 32}])
def test_unknown_message(delayq: RedisStore, name: dict[str, Any]) -> None:
    assert close_order.get(**name) is None
    with pytest.raises(exceptions.MessageNotFound, match="not live"):
        close_order.cancel(**name)
    with pytest.raises(exceptions.MessageNotFound, match="not live"):
        close_order.reschedule(delay=1, **name)


def test_handle_cancels_its_message(delayq: RedisStore) -> None:
    handle = noop.using(delay=60).enqueue()
    handle.cancel()
    assert handle.get() is None
    with pytest.raises(exceptions.MessageNotFound):
        handle.cancel()


def test_unknown_topic_is_refused_when_finding(delayq: RedisStore) -> None:
    with pytest.raises(exceptions.UnknownTopic):
        noop.using(topic="nowhere").cancel(key="k")


# Raising the number of partitions


def test_messages_from_before_are_still_there(split: Callable[[int], RedisStore]) -> None:
    crowd.using(delay=60).enqueue_many([(n,) for n in range(20)])
    split(4)
    crowd.using(delay=60).enqueue_many([(n,) for n in range(20, 60)])
    assert sorted(sent("crowd")) == list(range(60))
    assert topic_stats("crowd").delayed == 60
    assert len(get_store().partitions.all("crowd")) == 4


def test_messages_from_before_are_served(split: Callable[[int], RedisStore]) -> None:
    task = crowd.using(due_at=LONG_AGO)
    task.enqueue_many([(n,) for n in range(20)])
    split(4)
    task.enqueue_many([(n,) for n in range(20, 60)])
    leases = claim("crowd", 100)
    assert len(leases) == 60
    assert {lease.partition.number for lease in leases} == {0, 1, 2, 3}


def test_keys_from_before_are_found(split: Callable[[int], RedisStore]) -> None:
    keyed = [crowd.using(key=f"k{n}", delay=60) for n in range(20)]
    crowd.enqueue_many(task.prepare(n) for n, task in enumerate(keyed))
    split(4)
    assert [crowd.get(key=f"k{n}").args for n in range(20)] == [[n] for n in range(20)]  # type: ignore[union-attr]
    for n in range(10):
        crowd.reschedule(key=f"k{n}", delay=90)
        crowd.cancel(key=f"k{n}")
    assert topic_stats("crowd").delayed == 10


@pytest.mark.parametrize("mode", ["raise", "keep", "replace"])
def test_keys_from_before_are_not_stored_twice(split: Callable[[int], RedisStore], mode: Any) -> None:
    keyed = [crowd.using(key=f"k{n}", delay=60, on_duplicate=mode) for n in range(20)]
    crowd.enqueue_many(task.prepare(0) for task in keyed)
    split(4)
    try:
        crowd.enqueue_many(task.prepare(1) for task in keyed)
    except exceptions.DuplicateMessage as error:
        assert mode == "raise"
        assert len(error.keys) == 20
    assert sent("crowd") == [int(mode == "replace")] * 20


def test_id_from_before_is_not_stored_twice(split: Callable[[int], RedisStore]) -> None:
    """An unknown enqueue that is repeated after a deploy with more partitions."""
    handles = crowd.using(delay=60).enqueue_many([(n,) for n in range(20)])
    split(4)
    crowd.enqueue_many(crowd.using(delay=60, id=handle.id).prepare(n) for n, handle in enumerate(handles))
    assert topic_stats("crowd").delayed == 20


def test_process_with_the_old_number_finds_what_a_new_one_sends(split: Callable[[int], RedisStore]) -> None:
    crowd.enqueue(0)
    new = split(4)
    crowd.using(delay=60).enqueue_many(crowd.using(key=f"k{n}", delay=60).prepare(n) for n in range(20))
    old = split(1)
    assert old is not new
    assert get_settings().topics["crowd"].partitions == 1
    assert all(crowd.get(key=f"k{n}") for n in range(20))
