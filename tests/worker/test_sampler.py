"""The history behind the chart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import topic_stats
from django_delayq.store import get_store, keys
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from django_delayq.worker.sampler import Sampler
from tests.app.tasks import crowd, record
from tests.hands import lose_redis
from tests.worker.moving import LONG_AGO

DEFAULT = Partition("default", 0)


@pytest.fixture
def sampler(delayq: RedisStore) -> Sampler:
    return Sampler(delayq)


def samples(store: RedisStore) -> list[dict[str, Any]]:
    """What was kept, the oldest first."""
    key = keys.newest_samples_key(store.client.prefix)
    found = store.client.command("XRANGE", key, "-", "+")
    return [
        {"at_ms": int(entry.split(b"-")[0]), "topics": json.loads(fields[b"topics"])}
        for entry, fields in found
    ]


def next_minute(store: RedisStore) -> None:
    """As if the time of the newest sample were over."""
    store.client.command("DEL", keys.lock_key(store.client.prefix, "sample"))


def test_sample_tells_of_each_topic_what_waits_and_what_has_finished(
    sampler: Sampler, delayq: RedisStore
) -> None:
    record.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(5)])
    crowd.using(delay=3600).enqueue_many([(n,) for n in range(3)])
    acked, dead, _ = delayq.claim(DEFAULT, 3).leases
    delayq.ack(DEFAULT, [(acked, b"{}")])
    delayq.nack(DEFAULT, [(dead, None, True, b"{}")])
    assert sampler.run_once() == 60.0
    (sample,) = samples(delayq)
    assert sample["at_ms"] == pytest.approx(delayq.clock_ms(), abs=5_000)
    lag = sample["topics"]["default"].pop("lag")
    assert sample["topics"] == {
        "default": {"finished": 2, "waiting": 2},
        "crowd": {"finished": 0, "waiting": 3, "lag": 0.0},
    }
    assert lag == pytest.approx(topic_stats("default").lag, abs=5)


@pytest.mark.django_db(transaction=True)
def test_every_kind_of_end_is_finished(sampler: Sampler, delayq: RedisStore) -> None:
    record.using(delay=60).enqueue(1).cancel()
    record.using(due_at=LONG_AGO, expires=60).enqueue(2)
    delayq.claim(DEFAULT, 1)
    sampler.run_once()
    assert samples(delayq)[0]["topics"]["default"]["finished"] == 2


def test_partitions_of_a_topic_are_one(sampler: Sampler, settings: Any, delayq: RedisStore) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 4}}}
    crowd.using(delay=3600).enqueue_many([(n,) for n in range(40)])
    Sampler(get_store()).run_once()
    assert samples(get_store())[0]["topics"]["crowd"]["waiting"] == 40


def test_one_of_several_workers_takes_it(sampler: Sampler, delayq: RedisStore) -> None:
    others = [Sampler(delayq) for _ in range(3)]
    for one in (*others, sampler, *others):
        one.run_once()
    assert len(samples(delayq)) == 1
    next_minute(delayq)
    for one in (sampler, *others):
        one.run_once()
    assert len(samples(delayq)) == 2


def test_those_that_have_met_the_others_try_seldom(delayq: RedisStore) -> None:
    spread = 1
    third = Sampler(delayq, lambda: spread)
    assert third.run_once() == 60.0
    spread = 4
    for _ in range(3):
        next_minute(delayq)
        third.run_once()
    assert len(samples(delayq)) == 1
    third.run_once()
    assert len(samples(delayq)) == 2


def test_without_topics_it_is_empty(sampler: Sampler, delayq: RedisStore) -> None:
    sampler.run_once()
    assert samples(delayq)[0]["topics"] == {}


def test_counters_go_on_from_sample_to_sample(sampler: Sampler, delayq: RedisStore) -> None:
    for _ in range(3):
        record.using(due_at=LONG_AGO).enqueue(1)
        delayq.ack(DEFAULT, [(delayq.claim(DEFAULT, 1).leases[0], b"{}")])
        next_minute(delayq)
        sampler.run_once()
    assert [sample["topics"]["default"]["finished"] for sample in samples(delayq)] == [1, 2, 3]


def test_a_topic_in_which_nothing_happens_is_not_read_again(
    sampler: Sampler, delayq: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.using(delay=3600).enqueue(1)
    crowd.using(delay=3600).enqueue(1)
    sampler.run_once()
    read: list[Partition] = []
    all_stats = delayq.queries.all_stats
    monkeypatch.setattr(
        delayq.queries, "all_stats", lambda asked: read.extend(asked) or all_stats(asked)
    )
    crowd.using(delay=7200).enqueue(2)
    next_minute(delayq)
    sampler.run_once()
    assert {partition.topic for partition in read} == {"crowd"}
    first, second = samples(delayq)
    assert first["topics"]["default"] == second["topics"]["default"]
    assert second["topics"]["crowd"]["waiting"] == 2


def happenings(store: RedisStore) -> Iterator[str]:
    """All that changes what waits in a topic, each after the word for it."""
    yield "nothing yet"
    handles = [record.using(delay=3600 + n).enqueue(n) for n in range(4)]
    yield "enqueued"
    record.using(delay=9999).enqueue(9)
    yield "enqueued behind the others"
    handles[0].cancel()
    yield "cancelled"
    handles[3].reschedule(delay=9000)
    yield "rescheduled"
    record.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(6)])
    yield "due"
    back, later, dead, acked, *_ = store.claim(DEFAULT, 5).leases
    yield "claimed"
    store.release(DEFAULT, [back])
    yield "released"
    store.nack(DEFAULT, [(later, 60_000, False, b"{}")])
    yield "to be tried again"
    store.nack(DEFAULT, [(dead, None, True, b"{}")])
    store.ack(DEFAULT, [(acked, b"{}")])
    yield "ended"
    store.purge(DEFAULT)
    yield "purged"
    lose_redis(store)
    yield "lost"
    record.using(delay=60).enqueue(1)
    yield "begun again"


@pytest.mark.django_db(transaction=True)
def test_whatever_happens_is_in_the_next_sample(delayq: RedisStore) -> None:
    """Beside a sampler that knows nothing of the minute before."""
    usual = Sampler(delayq)
    for happening in happenings(delayq):
        for one in (usual, Sampler(delayq)):
            next_minute(delayq)
            one.run_once()
        seen, new = (sample["topics"] for sample in samples(delayq)[-2:])
        for topics in (seen, new):
            for topic in topics.values():
                topic["lag"] = round(topic["lag"] / 100)  # the two did not look at one instant
        assert seen == new, happening
