"""window=: for some time after an enqueue a key takes no other message, also after the end."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_delayq import delayed_task
from django_delayq.core.exceptions import DuplicateMessage, EnqueueUnknown, InvalidMessage
from django_delayq.models import OutboxMessage
from django_delayq.outbox.reconciler import Reconciler
from django_delayq.outbox.relay import Relay
from django_delayq.store import get_store
from django_delayq.store.for_tests import travel
from django_delayq.store.store import RedisStore
from tests.app.tasks import record
from tests.faults import unreachable
from tests.proxy import Proxy
from tests.sending import LONG_AGO, ack, claim, sent, with_transactions
from tests.servers import wait_until

pytestmark = with_transactions

HOUR_MS = 3_600_000
once = record.using(key="k", on_duplicate="keep", window=timedelta(hours=1), due_at=LONG_AGO)
strict = once.using(on_duplicate="raise")
kinds = pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])


def ran(task: Any = once, value: str = "a") -> Any:
    """The handle of a message that has run."""
    handle = task.enqueue(value)
    ack(claim()[0])
    return handle


def when_redis_is_back(store: RedisStore) -> None:
    wait_until(lambda: not store.breaker.open, "the breaker is closed")
    Relay(store).run_once()


@kinds
def test_at_most_one_message_per_hour(delayq: RedisStore, durable: bool) -> None:
    task = once.using(durable=durable)
    first = ran(task)
    again = task.enqueue("b")
    assert (again.id, again.outcome, again.due_at) == (first.id, "kept", None)
    assert (sent(), OutboxMessage.objects.filter(record__contains=b"b").count()) == ([], 0)
    travel(delayq.client, HOUR_MS)
    assert task.enqueue("c").outcome in ("stored", "")
    assert sent() == ["c"]


@kinds
@pytest.mark.parametrize("in_transaction", [False, True])
def test_raise_says_that_the_window_goes_on(
    delayq: RedisStore, durable: bool, in_transaction: bool
) -> None:
    ran(strict.using(durable=durable))
    task = strict.using(durable=durable)
    with pytest.raises(DuplicateMessage, match="still in its window"):
        if in_transaction:
            with transaction.atomic():
                task.enqueue("b")
        else:
            task.enqueue("b")
    assert sent() == []


@kinds
def test_a_transaction_that_is_rolled_back_begins_no_window(
    delayq: RedisStore, durable: bool
) -> None:
    with transaction.atomic():
        once.using(durable=durable).enqueue("a")
        transaction.set_rollback(True)
    once.using(durable=durable).enqueue("b")
    assert sent() == ["b"]


@kinds
def test_of_two_in_one_transaction_the_first_counts(delayq: RedisStore, durable: bool) -> None:
    with transaction.atomic():
        first = once.using(durable=durable).enqueue("a")
        second = once.using(durable=durable).enqueue("b")
    assert (first.outcome, second.outcome) == ("stored", "kept")
    assert sent() == ["a"]


@kinds
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_cancelled_message_frees_its_key(
    delayq: RedisStore, durable: bool, in_transaction: bool
) -> None:
    task = strict.using(durable=durable)
    task.enqueue("a").cancel()
    task.enqueue("b")
    with transaction.atomic() if in_transaction else nullcontext():
        task.cancel(key="k")
        task.enqueue("c")
    assert sent() == ["c"]


def test_another_mode_takes_the_key_all_the_same(delayq: RedisStore) -> None:
    ran()
    assert once.using(on_duplicate="replace").enqueue("b").outcome == "stored"
    assert sent() == ["b"]


def test_each_element_of_a_bulk_has_its_own(delayq: RedisStore) -> None:
    task = record.using(on_duplicate="keep", window=3600, due_at=LONG_AGO)
    placed = [task.prepare(v).using(key=v) for v in "ab"]
    task.enqueue_many(placed)
    for lease in claim(limit=2):
        ack(lease)
    handles = task.enqueue_many([*placed, task.prepare("c").using(key="c")])
    assert [handle.outcome for handle in handles] == ["kept", "kept", "stored"]
    assert sent() == ["c"]


def test_for_async_code_it_is_the_same(delayq: RedisStore) -> None:
    ran()
    assert asyncio.run(once.aenqueue("b")).outcome == "kept"
    assert sent() == []


def test_the_handle_says_how_the_earlier_message_has_ended(delayq: RedisStore) -> None:
    ran()
    handle = once.enqueue("b")
    assert handle.get() is None
    assert handle.wait(timeout=1) is None


# An enqueue that is repeated


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_what_is_enqueued_again_after_a_lost_answer_is_no_duplicate_of_itself(
    settings: Any, raising: None, delayq: RedisStore, has_run: bool, in_transaction: bool
) -> None:
    with Proxy(settings.DELAYQ["REDIS"]) as proxy:
        direct = settings.DELAYQ
        settings.DELAYQ = {**direct, "REDIS": proxy.url}
        ran(strict.using(key="warm"))  # Redis knows the script, and we the topic
        proxy.mode = "drop_reply"
        with pytest.raises(EnqueueUnknown) as caught:
            strict.enqueue("a")
        settings.DELAYQ = direct
    if has_run:
        ack(claim()[0])
    (identity,) = caught.value.ids
    with transaction.atomic() if in_transaction else nullcontext():
        again = strict.using(id=identity).enqueue("a")
    assert (again.id, again.outcome) == (identity, "stored")
    assert sent() == ([] if has_run else ["a"])
    with pytest.raises(DuplicateMessage):
        strict.using(id=identity).enqueue("b")  # is another message
    with pytest.raises(DuplicateMessage):
        strict.enqueue("a")  # nobody says that it is the same


def test_a_durable_message_that_is_enqueued_again_runs_once(delayq: RedisStore) -> None:
    task = strict.using(durable=True)
    first = ran(task)
    OutboxMessage.objects.all().delete()
    again = task.using(id=first.id).enqueue("a")
    assert (again.id, again.outcome) == (first.id, "stored")
    assert (sent(), OutboxMessage.objects.count()) == ([], 0)
    with pytest.raises(DuplicateMessage):
        task.using(id=first.id).enqueue("b")


# What the outbox has accepted is never dropped


@kinds
def test_what_was_accepted_while_redis_was_away_is_sent(delayq: RedisStore, durable: bool) -> None:
    task = once.using(durable=durable)
    ran(task)
    OutboxMessage.objects.all().delete()
    with unreachable():
        assert task.enqueue("b").outcome == "outbox"
        assert task.enqueue("c").outcome == "kept"
    when_redis_is_back(delayq)
    assert sent() == ["b"]


def test_a_durable_message_that_comes_after_a_plain_one_is_sent(
    settings: Any, delayq: RedisStore
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "HORIZON": 60}
    store = get_store()
    once.using(durable=True, due_at=None, delay=120).enqueue("durable")
    ran(once, "plain")
    travel(store.client, 90_000)
    Relay(store).run_once()
    assert sent() == ["durable"]


def test_its_window_counts_from_the_enqueue(settings: Any, delayq: RedisStore) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "HORIZON": 60}
    store = get_store()
    task = record.using(key="k", on_duplicate="keep", window=3600, durable=True)
    task.using(delay=1800).enqueue("a")
    travel(store.client, 1_799_000)
    Relay(store).run_once()
    travel(store.client, 1_801_000)
    ack(claim()[0])
    assert task.enqueue("b").outcome == "kept"
    travel(store.client, HOUR_MS)
    task.enqueue("c")
    assert sent() == ["c"]


def test_what_redis_has_lost_is_sent_again(delayq: RedisStore) -> None:
    once.using(durable=True).enqueue("a")
    delayq.client.redis.hdel(f"{delayq.client.prefix}:{{default:0}}:messages", *_ids())
    for lane in ("high", "normal", "low"):
        delayq.client.redis.delete(f"{delayq.client.prefix}:{{default:0}}:delayed:{lane}")
    travel(delayq.client, HOUR_MS // 2)
    Reconciler(delayq).run_once()
    assert sent() == ["a"]


def _ids() -> list[bytes]:
    return [row.message_id.bytes for row in OutboxMessage.objects.all()]


def test_a_cancel_during_an_outage_keeps_the_window_of_what_follows(delayq: RedisStore) -> None:
    task = once.using(durable=True, due_at=None, delay=0)
    task.enqueue("a")
    with unreachable():
        task.cancel(key="k")
        task.enqueue("b")
    when_redis_is_back(delayq)
    assert sent() == ["b"]
    ack(claim()[0])
    assert task.enqueue("c").outcome == "kept"


# At the door


@pytest.mark.parametrize("mode", ["replace", "extend", "earliest"])
def test_a_mode_that_replaces_has_no_window(mode: Any) -> None:
    with pytest.raises(InvalidMessage, match='window goes with on_duplicate="keep" or "raise"'):
        record.using(key="k", on_duplicate=mode, window=60)


@pytest.mark.parametrize("window", [0, 0.5, 367 * 86_400, "1h"])
def test_a_window_has_bounds(window: Any) -> None:
    with pytest.raises(InvalidMessage, match="window must be"):
        record.using(key="k", window=window)


def test_a_window_needs_a_key(delayq: RedisStore) -> None:
    with pytest.raises(InvalidMessage, match="has a window, which is of a key"):
        record.using(window=60).enqueue("a")


def test_a_function_that_makes_no_key_makes_no_window(declared: Any, delayq: RedisStore) -> None:
    def key_of(value: str) -> str | None:
        return None

    task = delayed_task(name="w", key=key_of, window=60)(lambda value: None)
    assert [task.enqueue("a").outcome for _ in range(2)] == ["stored", "stored"]
    assert not delayq.client.redis.exists(f"{delayq.client.prefix}:{{default:0}}:windows")
