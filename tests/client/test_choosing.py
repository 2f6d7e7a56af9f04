"""on_duplicate="extend" and "earliest": which of two due times counts, wherever the message is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_delayq import topic_stats
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
