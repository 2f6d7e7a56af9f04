"""on_duplicate="extend" and "earliest", and max_wait: which due time counts, wherever the message
is."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_delayq import topic_stats
from django_delayq.core.exceptions import InvalidMessage
from django_delayq.core.times import from_ms
from django_delayq.models import OutboxMessage
from django_delayq.outbox.relay import Relay
from django_delayq.store.store import RedisStore
from tests.app.tasks import record
from tests.faults import unreachable
from tests.sending import LONG_AGO, ack, claim, sent, with_transactions
from tests.servers import wait_until

pytestmark = with_transactions

NOW = timezone.now().replace(microsecond=0)
SOON, LATE = NOW + timedelta(minutes=20), NOW + timedelta(minutes=40)
#: Mode, and which of SOON and LATE it chooses.
CHOICES = [("extend", LATE), ("earliest", SOON)]
chooses = pytest.mark.parametrize(("mode", "chosen"), CHOICES)
#: In which order the two are enqueued.
in_order = pytest.mark.parametrize("times", [(SOON, LATE), (LATE, SOON)])
kinds = pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])


def choosing(mode: Any, **options: Any) -> Any:
    return record.using(key="k", on_duplicate=mode, **options)


def when_redis_is_back(store: RedisStore) -> None:
    wait_until(lambda: not store.breaker.open, "the breaker is closed")
    Relay(store).run_once()


def the_message() -> tuple[Any, Any]:
    """The argument and the due time of the message with the key."""
    message = record.get(key="k")
    assert message is not None
    return message.args[0], message.due_at


def rows() -> list[Any]:
    """The due times in the outbox."""
    return [from_ms(row.due_at_ms) for row in OutboxMessage.objects.all()]


@chooses
@in_order
@kinds
def test_the_due_time_is_chosen_and_the_arguments_are_the_newest(
    delayq: RedisStore, mode: str, chosen: Any, times: Any, durable: bool
) -> None:
    first, second = times
    task = choosing(mode, durable=durable)
    task.using(due_at=first).enqueue("a")
    handle = task.using(due_at=second).enqueue("b")
    assert (handle.outcome, handle.due_at) == ("replaced", chosen)
    assert the_message() == ("b", chosen)
    assert topic_stats("default").delayed == 1
    if durable:
        assert rows() == [chosen]


@chooses
@in_order
def test_in_one_transaction_it_is_the_same(
    delayq: RedisStore, mode: str, chosen: Any, times: Any
) -> None:
    with transaction.atomic():
        for value, due_at in zip("ab", times, strict=True):
            handle = choosing(mode, due_at=due_at).enqueue(value)
    assert (the_message(), handle.due_at) == (("b", chosen), chosen)


@chooses
@in_order
@kinds
def test_while_it_runs_the_followers_choose_among_themselves(
    delayq: RedisStore, mode: str, chosen: Any, times: Any, durable: bool
) -> None:
    task = choosing(mode, durable=durable)
    task.using(due_at=LONG_AGO).enqueue("runs")
    lease = claim()[0]
    assert task.using(due_at=times[0]).enqueue("a").outcome == "follows"
    assert task.using(due_at=times[1]).enqueue("b").due_at == chosen
    ack(lease)
    assert the_message() == ("b", chosen)


@pytest.mark.parametrize("mode", ["extend", "earliest"])
def test_what_has_ended_has_no_say(delayq: RedisStore, mode: str) -> None:
    task = choosing(mode, durable=True)
    task.using(due_at=LONG_AGO).enqueue("a")
    ack(claim()[0])
    assert task.using(due_at=SOON).enqueue("b").outcome == "stored"
    assert the_message() == ("b", SOON)


@chooses
@in_order
@kinds
def test_while_redis_is_away_the_outbox_chooses(
    delayq: RedisStore, mode: str, chosen: Any, times: Any, durable: bool
) -> None:
    task = choosing(mode, durable=durable)
    with unreachable():
        task.using(due_at=times[0]).enqueue("a")
        handle = task.using(due_at=times[1]).enqueue("b")
        assert (handle.outcome, handle.due_at) == ("outbox", chosen)
    when_redis_is_back(delayq)
    assert the_message() == ("b", chosen)


@chooses
@in_order
@kinds
def test_after_an_outage_redis_chooses_and_the_row_follows(
    delayq: RedisStore, mode: str, chosen: Any, times: Any, durable: bool
) -> None:
    task = choosing(mode, durable=durable)
    task.using(due_at=times[0]).enqueue("a")
    with unreachable():
        task.using(due_at=times[1]).enqueue("b")
    when_redis_is_back(delayq)
    assert the_message() == ("b", chosen)
    assert rows() == [chosen]


@chooses
@in_order
@kinds
def test_when_redis_goes_away_before_the_commit_the_outbox_chooses(
    delayq: RedisStore, mode: str, chosen: Any, times: Any, durable: bool
) -> None:
    task = choosing(mode, durable=durable)
    with ExitStack() as away, transaction.atomic():
        for value, due_at in zip("ab", times, strict=True):
            task.using(due_at=due_at).enqueue(value)
        away.enter_context(unreachable())
    when_redis_is_back(delayq)
    assert the_message() == ("b", chosen)


@chooses
@in_order
def test_what_one_transaction_enqueues_chooses_in_redis_one_by_one(
    delayq: RedisStore, mode: str, chosen: Any, times: Any
) -> None:
    between = NOW + timedelta(minutes=30)
    choosing("replace", due_at=between).enqueue("before")
    other = "earliest" if mode == "extend" else "extend"
    with transaction.atomic():
        choosing(mode, due_at=times[0], durable=True).enqueue("a")
        choosing(other, due_at=times[1], durable=True).enqueue("b")
    first = (max if mode == "extend" else min)(between, times[0])
    second = (min if mode == "extend" else max)(first, times[1])
    assert the_message() == ("b", second)
    assert rows() == [second]


@chooses
@in_order
@kinds
@pytest.mark.parametrize("before", [True, False], ids=["in redis", "in the outbox"])
def test_the_time_to_which_it_was_moved_during_an_outage_is_what_counts(
    delayq: RedisStore, mode: str, chosen: Any, times: Any, durable: bool, before: bool
) -> None:
    task = choosing(mode, durable=durable)
    elsewhere = NOW + timedelta(minutes=10 if mode == "earliest" else 50)
    if before:
        task.using(due_at=elsewhere).enqueue("a")
    with unreachable():
        if not before:
            task.using(due_at=elsewhere).enqueue("a")
        task.reschedule(key="k", due_at=times[0])
        task.using(due_at=times[1]).enqueue("b")
    for _ in range(3):
        when_redis_is_back(delayq)
    assert the_message() == ("b", chosen)


@chooses
@in_order
@pytest.mark.parametrize("beyond", [True, False])
def test_beyond_the_horizon_the_outbox_chooses(
    settings: Any, delayq: RedisStore, mode: str, chosen: Any, times: Any, beyond: bool
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "HORIZON": 60 if beyond else 1800}
    task = choosing(mode, durable=True)
    for value, due_at in zip("ab", times, strict=True):
        task.using(due_at=due_at).enqueue(value)
    assert rows() == [chosen]
    Relay(delayq).run_once()
    in_redis = sent()
    assert in_redis == ([] if beyond or (chosen == LATE and times[0] == LATE) else ["b"])
    assert the_message() == ("b", chosen)


@chooses
@in_order
def test_an_expiry_counts_from_the_chosen_time(
    delayq: RedisStore, mode: str, chosen: Any, times: Any
) -> None:
    for durable in (False, True):
        task = choosing(mode, expires=60, durable=durable)
        for due_at in times:
            task.using(due_at=due_at).enqueue("x")
        message = record.get(key="k")
        assert message is not None
        assert message.expires_at == message.due_at + timedelta(seconds=60)
        record.cancel(key="k")


@chooses
def test_a_new_due_time_in_the_transaction_counts_whatever_the_mode(
    delayq: RedisStore, mode: str, chosen: Any
) -> None:
    middle = NOW + timedelta(minutes=30)
    for durable in (False, True):
        task = choosing(mode, durable=durable)
        task.using(due_at=SOON).enqueue("a")
        with transaction.atomic():
            task.using(due_at=LATE).enqueue("b")
            record.reschedule(key="k", due_at=middle)
        assert the_message() == ("b", middle)
        record.cancel(key="k")


# max_wait


def first_at() -> Any:
    """When the message that is live was enqueued."""
    message = record.get(key="k")
    assert message is not None
    return message.enqueued_at


@pytest.mark.parametrize("mode", ["replace", "extend"])
@kinds
def test_no_replacement_is_due_later_than_max_wait_after_the_first(
    delayq: RedisStore, mode: str, durable: bool
) -> None:
    task = choosing(mode, max_wait=600, durable=durable)
    task.using(delay=300).enqueue("a")
    limit = first_at() + timedelta(seconds=600)
    assert task.using(delay=400).enqueue("b").due_at < limit
    for value in "cd":
        handle = task.using(due_at=LATE).enqueue(value)
        assert abs(handle.due_at - limit) < timedelta(milliseconds=2)
    assert the_message() == ("d", handle.due_at)
    if durable:
        assert rows() == [handle.due_at]
    claim_at(handle)
    assert sent() == []


def claim_at(handle: Any) -> None:
    """A worker takes the message; nothing of the wait is left."""
    record.reschedule(key="k", due_at=LONG_AGO)
    (lease,) = claim()
    assert (lease.attempts.attempt, lease.attempts.first_claimed_at_ms > 0) == (1, True)
    ack(lease)


def test_after_its_run_a_key_waits_anew(delayq: RedisStore) -> None:
    task = choosing("replace", max_wait=600)
    for value in "ab":
        handle = task.using(delay=300).enqueue(value)
    claim_at(handle)
    task.using(delay=300).enqueue("c")
    limit = first_at() + timedelta(seconds=600)
    assert abs(task.using(due_at=LATE).enqueue("d").due_at - limit) < timedelta(milliseconds=2)


def test_a_retry_that_is_replaced_waits_anew(delayq: RedisStore) -> None:
    task = choosing("replace", max_wait=600)
    task.using(due_at=LONG_AGO).enqueue("a")
    (lease,) = claim()
    delayq.nack(lease.partition, [(lease, 60_000, True, b"{}")])
    before = timezone.now()
    due_at = task.using(due_at=LATE).enqueue("b").due_at
    assert due_at is not None
    assert due_at >= before + timedelta(seconds=599)


def test_a_follower_is_not_limited_while_the_run_goes_on(delayq: RedisStore) -> None:
    task = choosing("replace", max_wait=600)
    task.using(due_at=LONG_AGO).enqueue("a")
    (lease,) = claim()
    for value in "bc":
        assert task.using(due_at=LATE).enqueue(value).due_at == LATE
    ack(lease)
    limit = first_at() + timedelta(seconds=600)
    assert abs(task.using(due_at=LATE).enqueue("d").due_at - limit) < timedelta(milliseconds=2)


@kinds
def test_while_redis_is_away_the_outbox_keeps_the_limit(delayq: RedisStore, durable: bool) -> None:
    task = choosing("extend", max_wait=600, durable=durable)
    with unreachable():
        first = task.using(delay=300).enqueue("a")
        limit = first.due_at + timedelta(seconds=300)
        for value in "bc":
            handle = task.using(due_at=LATE).enqueue(value)
            assert abs(handle.due_at - limit) < timedelta(milliseconds=2)
    when_redis_is_back(delayq)
    assert the_message() == ("c", handle.due_at)


@kinds
def test_a_wait_that_began_before_the_outage_is_limited_by_its_beginning(
    delayq: RedisStore, durable: bool
) -> None:
    task = choosing("replace", max_wait=600, durable=durable)
    for value in "ab":
        task.using(delay=300).enqueue(value)
        if value == "a":
            limit = first_at() + timedelta(seconds=600)
    with unreachable():
        task.using(due_at=LATE).enqueue("c")
    when_redis_is_back(delayq)
    value, due_at = the_message()
    assert value == "c"
    assert abs(due_at - limit) < timedelta(milliseconds=2)
    assert rows() == [due_at]


@pytest.mark.parametrize("options", [{}, {"on_duplicate": "keep"}, {"on_duplicate": "earliest"}])
def test_max_wait_is_refused_where_nothing_is_put_off(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="max_wait goes with"):
        record.using(max_wait=60, **options)


def test_a_delay_beyond_max_wait_is_refused(delayq: RedisStore) -> None:
    with pytest.raises(InvalidMessage, match="longer than max_wait"):
        choosing("replace", max_wait=60, delay=61).enqueue("x")


def test_a_call_with_another_mode_has_no_limit(delayq: RedisStore) -> None:
    task = choosing("replace", max_wait=60).using(on_duplicate="keep", due_at=LATE)
    assert [task.enqueue(value).outcome for value in "ab"] == ["stored", "kept"]
