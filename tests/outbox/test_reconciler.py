"""The reconciler sends again what Redis has lost, once, and leaves alone what Redis knows."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.db import connection

from django_delayq.core.exceptions import DatabaseUnavailable, StoreUnavailable
from django_delayq.models import OutboxMessage
from django_delayq.outbox import reconciler as module
from django_delayq.outbox import relay
from django_delayq.outbox.reconciler import Reconciler
from django_delayq.store.keys import Partition, partition_keys
from tests.app.tasks import crowd, record, seen
from tests.database_faults import database_away
from tests.faults import unreachable
from tests.hands import (
    DAY,
    DEFAULT,
    Hands,
    lose_redis,
    messages_in,
    only_row,
    rows,
    statuses,
    together,
)

pytestmark = pytest.mark.databases

durable = record.using(durable=True)


def test_what_redis_has_lost_is_sent_again_as_it_was(hands: Hands) -> None:
    handle = durable.using(key="k", delay=60, headers={"a": "b"}, expires=30).enqueue("x")
    before = handle.get()
    lose_redis(hands.store)
    assert hands.store.queries.find(DEFAULT, [handle.identity]) == [None]
    assert hands.reconcile() == 1
    assert handle.get() == before
    assert statuses() == ["sent"]


def test_everything_that_was_lost_runs_once(hands: Hands) -> None:
    durable.enqueue_many((number,) for number in range(700))
    crowd.using(durable=True).enqueue_many((number,) for number in range(700, 800))
    lose_redis(hands.store)
    assert hands.reconcile() == 800
    assert hands.reconcile() == 0
    hands.work()
    hands.work()
    hands.work(Partition("crowd", 0))
    hands.archive()
    assert (sorted(seen), len(rows()), statuses()) == (list(range(800)), 800, [])


def test_what_redis_knows_is_left_alone(hands: Hands) -> None:
    durable.using(delay=60).enqueue("waits")
    durable.using(key="k").enqueue("runs")
    (lease,) = hands.claim()
    durable.using(key="k", on_duplicate="replace").enqueue("follows")
    before = hands.store.client.redis.hgetall(partition_keys(hands.store.client.prefix, DEFAULT)[4])
    assert hands.reconcile() == 0
    assert (
        hands.store.client.redis.hgetall(partition_keys(hands.store.client.prefix, DEFAULT)[4])
        == before
    )
    hands.run(lease)
    assert hands.reconcile() == 0
    hands.work()
    assert hands.reconcile() == 0
    assert seen == ["runs", "follows"]
    hands.archive()
    assert statuses() == ["sent"]


def test_what_has_ended_and_is_not_archived_is_left_alone(hands: Hands) -> None:
    durable.enqueue(1)
    cancelled = durable.using(delay=60).enqueue(2)
    cancelled.cancel()
    hands.work()
    assert hands.reconcile() == 0
    hands.archive()
    assert (seen, len(rows()), statuses()) == ([1], 2, [])


def test_a_message_that_waits_in_sql_is_the_relays(hands: Hands) -> None:
    durable.using(delay=DAY).enqueue(1)
    assert (hands.reconcile(), statuses()) == (0, ["waiting"])


def test_a_young_one_is_given_time_to_arrive(hands: Hands) -> None:
    durable.using(delay=60).enqueue(1)
    lose_redis(hands.store)
    hands.reconciler.run_once()
    assert hands.reconciler.restored == 0
    row = OutboxMessage.objects.get()
    assert row.relay_at_ms - row.enqueued_at_us / 1000 == pytest.approx(10_000, abs=2)
    assert hands.reconcile() == 1


def test_what_is_lost_again_is_sent_again(hands: Hands) -> None:
    durable.enqueue(1)
    for _ in range(3):
        lose_redis(hands.store)
        assert hands.reconcile() == 1
    hands.work()
    assert seen == [1]


def test_a_running_message_that_is_lost_runs_again_and_ends_once(hands: Hands) -> None:
    durable.enqueue(1)
    (lease,) = hands.claim()
    lose_redis(hands.store)
    assert hands.reconcile() == 1
    hands.run(lease)
    assert statuses() == ["sent"]
    hands.work()
    hands.archive()
    assert (seen, only_row().state, statuses()) == ([1, 1], "acked", [])


def test_what_ended_unarchived_before_redis_was_lost_runs_again(hands: Hands) -> None:
    durable.enqueue(1)
    hands.work()
    lose_redis(hands.store)
    assert hands.reconcile() == 1
    hands.work()
    hands.archive()
    assert (len(rows()), statuses()) == (1, [])


def test_it_pages_through_all_rows(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 10)
    durable.using(delay=60).enqueue_many((number,) for number in range(35))
    lose_redis(hands.store)
    OutboxMessage.objects.update(relay_at_ms=0)
    pauses = [hands.reconciler.run_once() for _ in range(4)]
    assert pauses == [0.0, 0.0, 0.0, module.REST], "where some are lost, more are"
    assert (hands.reconciler.figures, len(messages_in(hands.store))) == ({"restored": 35}, 35)
    OutboxMessage.objects.update(relay_at_ms=0)
    assert (hands.reconciler.run_once(), hands.reconcile()) == (module.PACE, 0)
    lose_redis(hands.store)
    assert hands.reconcile() == 35


def test_two_at_once_restore_each_message_once(hands: Hands) -> None:
    durable.enqueue_many((number,) for number in range(600))
    lose_redis(hands.store)
    OutboxMessage.objects.update(relay_at_ms=0)
    others = [Reconciler(hands.store) for _ in range(2)]
    together(*(other.run_once for other in others))
    assert len(messages_in(hands.store)) == 600 == sum(other.restored for other in others)
    hands.work()
    hands.work()
    hands.archive()
    assert (sorted(seen), len(rows()), statuses()) == (list(range(600)), 600, [])


def test_a_row_that_is_closed_meanwhile_is_not_sent(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the rows and the question to Redis, the archiver closes one of them."""
    durable.enqueue(1)
    hands.work()
    OutboxMessage.objects.update(relay_at_ms=0)
    ask = hands.store.missing

    def missing(lives: Any) -> Any:
        hands.archive()
        return ask(lives)

    monkeypatch.setattr(hands.store, "missing", missing)
    hands.reconciler.run_once()
    assert (hands.reconciler.restored, messages_in(hands.store), statuses()) == (0, set(), [])


def test_a_row_that_another_has_sent_again_meanwhile_is_not_sent(hands: Hands) -> None:
    durable.enqueue(1)
    OutboxMessage.objects.update(relay_at_ms=0)
    lose_redis(hands.store)
    lost = list(OutboxMessage.objects.all())
    assert relay.send_again(hands.store, lost) == {lost[0].pk}
    assert relay.send_again(hands.store, lost) == set()


def test_it_says_what_it_has_found(hands: Hands, caplog: pytest.LogCaptureFixture) -> None:
    durable.enqueue(1)
    lose_redis(hands.store)
    with caplog.at_level(logging.WARNING, "delayq.worker"):
        hands.reconcile()
    assert "1 durable messages were not in Redis any more and are sent again" in caplog.text


def test_it_waits_for_redis_and_for_the_database(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable.enqueue(1)
    lose_redis(hands.store)
    OutboxMessage.objects.update(relay_at_ms=0)
    with unreachable(), pytest.raises(StoreUnavailable):
        hands.reconciler.run_once()
    if connection.vendor != "sqlite":
        with database_away(), pytest.raises(DatabaseUnavailable):
            hands.reconciler.run_once()
    monkeypatch.setattr("django_delayq.store.breaker.PROBE_INTERVAL", 3_600)
    hands.store.breaker.trip()
    assert hands.reconciler.run_once() == module.REST
    assert messages_in(hands.store) == set()
    hands.store.breaker.stop()
    hands.reconciler.run_once()
    assert len(messages_in(hands.store)) == 1
