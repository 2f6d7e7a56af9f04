"""A worker whose topics have limits: it claims what may start, and sleeps until more may."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.test import override_settings

from django_delayq import delayed_task, topic_stats
from django_delayq.core.conf import TopicSettings, get_settings
from django_delayq.core.limits import LimitRule, TopicLimits
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from django_delayq.worker.claims import Claims, limits_by_topic
from django_delayq.worker.dispatcher import Dispatcher
from django_delayq.worker.fleet import Fleet
from django_delayq.worker.shared import Shared
from tests.app.tasks import record
from tests.faults import scripts_run
from tests.store.factories import rewind
from tests.worker.moving import LONG_AGO
from tests.worker.test_dispatcher import Takes, no_batches, settle_down

DEFAULT = Partition("default", 0)


def serve(customer_id: int) -> None:
    """A task with a limit."""


@pytest.fixture
def per_customer(declared: Any, shared: Shared) -> Any:
    """One at a time for each customer, in a topic of its own."""
    return delayed_task(name="serve", topic="served", limit_by="{customer_id}", concurrency=1)(
        serve
    )


@pytest.fixture
def limited(settings: Any, shared: Shared) -> Iterator[Shared]:
    """A worker of a topic with a rate."""
    with override_settings(DELAYQ={**settings.DELAYQ, "TOPICS": {"default": {"rate": "1/m"}}}):
        yield replace(shared, topics=("default",), settings=get_settings())


def dispatcher_of(shared: Shared) -> tuple[Dispatcher, Takes]:
    pool = Takes()
    return Dispatcher(shared, Fleet(shared), pool, Takes(), lambda leases: None, no_batches), pool  # type: ignore[arg-type]


def test_a_dispatcher_sleeps_until_the_next_may_start(limited: Shared) -> None:
    dispatcher, pool = dispatcher_of(limited)
    record.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(5)])
    settle_down(dispatcher)
    assert len(pool.fed) == 1
    assert 50 < (dispatcher.agenda.next_due_ms() or 0) / 1000 - limited.clock.now_ms() / 1000 <= 60
    assert topic_stats("default").backlog == 4


def test_it_does_not_ask_again_before(limited: Shared) -> None:
    dispatcher, _ = dispatcher_of(limited)
    record.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(5)])
    settle_down(dispatcher)
    before = scripts_run(limited.store)
    for _ in range(5):
        dispatcher.run_once()
    assert scripts_run(limited.store) == before


def test_a_topic_without_limits_is_claimed_from_as_ever(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(RedisStore, "claim_limited")
    dispatcher, pool = dispatcher_of(replace(shared, topics=("default",)))
    record.using(due_at=LONG_AGO).enqueue(1)
    settle_down(dispatcher)
    assert len(pool.fed) == 1


def test_one_message_of_each_key_runs(per_customer: Any, shared: Shared) -> None:
    dispatcher, pool = dispatcher_of(replace(shared, topics=("served",)))
    per_customer.using(due_at=LONG_AGO).enqueue_many([(n % 3,) for n in range(9)])
    settle_down(dispatcher)
    assert len(pool.fed) == 3
    stats = shared.store.queries.stats(Partition("served", 0))
    assert (stats.ready, stats.held) == (6, 6)


def test_the_limits_are_those_of_the_settings_and_of_the_tasks(per_customer: Any) -> None:
    settings = replace(
        get_settings(), topics={"mail": TopicSettings(rate="1/s"), "plain": TopicSettings()}
    )
    found = limits_by_topic(settings)  # and those of tasks that other tests have imported
    assert found["mail"] == TopicLimits(LimitRule("1/s"))
    rule = LimitRule(concurrency=1)
    assert found["served"] == TopicLimits(tasks={per_customer.definition.code: rule})
    assert "plain" not in found


def test_what_waits_for_a_limit_that_is_no_more_goes(
    per_customer: Any, shared: Shared, declared: Any
) -> None:
    """A deploy takes the limit away."""
    here = Partition("served", 0)
    per_customer.using(due_at=LONG_AGO).enqueue_many([(1,)] * 3)
    Claims(shared.store, shared.settings).claim(here, 10, bytes(16))
    del declared["serve"]
    claims = Claims(shared.store, shared.settings)
    assert claims.claim(here, 10, b"1" * 16).leases == []
    claims.find_held_back([here])
    rewind(shared.store, here, 3000)
    assert len(claims.claim(here, 10, b"2" * 16).leases) == 2


def test_the_partitions_of_before_are_left_out_and_that_is_told(
    limited: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    limited.store.topics.register("default", 3)
    limited.store.partitions.forget()
    dispatcher, _ = dispatcher_of(limited)
    with caplog.at_level(logging.ERROR, "delayq.worker"):
        dispatcher.run_once()
    assert list(dispatcher.agenda.visits) == [DEFAULT]
    (told,) = [each.getMessage() for each in caplog.records if "partitions" in each.getMessage()]
    assert "Topic default has a limit, and had 3 partitions before." in told
