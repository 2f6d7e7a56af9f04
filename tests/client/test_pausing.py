"""A pause that ends by itself."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_delayq import InvalidMessage, pause_topic, resume_topic, topic_stats
from django_delayq.store import get_store, keys
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.app.tasks import crowd, record

DEFAULT = Partition("default", 0)
LONG_AGO = datetime(2001, 9, 9, tzinfo=timezone.utc)
SOON = timedelta(hours=1)
due = record.using(due_at=LONG_AGO)


@pytest.fixture
def split(settings: Any, delayq: RedisStore) -> RedisStore:
    """The topic "crowd" has four partitions."""
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 4}}}
    return get_store()


def in_an_hour() -> datetime:
    return datetime.now(tz=timezone.utc) + SOON


def pass_end(store: RedisStore, *partitions: Partition) -> None:
    """As if the pause, its note too, had ended a moment ago."""
    ended_ms = int(store.clock_ms()) - 1
    for partition in partitions or (DEFAULT,):
        meta = keys.meta_key(store.client.prefix, partition)
        note = json.loads(store.client.command("HGET", meta, "paused")) | {"until": ended_ms}
        store.client.command("HSET", meta, "paused", json.dumps(note), "paused_until", ended_ms)


def test_pause_says_when_it_ends(delayq: RedisStore) -> None:
    until = in_an_hour()
    pause_topic("default", by="ops", reason="SMTP is down", until=until)
    paused = topic_stats("default").paused
    assert paused is not None
    assert (paused.by, paused.reason) == ("ops", "SMTP is down")
    assert paused.until is not None
    until_ms = int(paused.until.timestamp() * 1000)
    assert until_ms == -(-int(until.timestamp() * 1_000_000) // 1000)
    assert delayq.claim(DEFAULT, 1).next_due_ms == until_ms


def test_pause_without_an_end_says_so(delayq: RedisStore) -> None:
    pause_topic("default")
    paused = topic_stats("default").paused
    assert paused is not None and paused.until is None


def test_topic_goes_on_by_itself_at_the_end(split: RedisStore) -> None:
    crowd.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(40)])
    pause_topic("crowd", until=in_an_hour())
    partitions = split.partitions.all("crowd")
    assert [split.claim(p, 10).leases for p in partitions] == [[], [], [], []]
    pass_end(split, *partitions)
    assert sum(len(split.claim(p, 100).leases) for p in partitions) == 40


def test_topic_is_shown_as_running_once_it_is_over_although_nobody_has_claimed_yet(
    delayq: RedisStore,
) -> None:
    pause_topic("default", until=in_an_hour())
    pass_end(delayq)
    assert topic_stats("default").paused is None
    assert delayq.queries.stats(DEFAULT).meta["paused"]  # its note goes with the next claim
    assert not delayq.claim(DEFAULT, 1).paused
    assert "paused" not in delayq.queries.stats(DEFAULT).meta


def test_second_pause_replaces_the_end(delayq: RedisStore) -> None:
    pause_topic("default", until=in_an_hour())
    pause_topic("default", until=in_an_hour() + SOON, reason="longer")
    paused = topic_stats("default").paused
    assert paused is not None and paused.reason == "longer"
    until_ms = delayq.claim(DEFAULT, 1).next_due_ms
    assert until_ms == paused.until.timestamp() * 1000 > in_an_hour().timestamp() * 1000
    pause_topic("default")
    assert delayq.claim(DEFAULT, 1).next_due_ms is None


def test_topic_is_resumed_before_the_end(delayq: RedisStore) -> None:
    pause_topic("default", until=in_an_hour())
    resume_topic("default")
    due.enqueue(1)
    assert topic_stats("default").paused is None
    assert len(delayq.claim(DEFAULT, 1).leases) == 1


def test_partitions_that_come_later_are_paused_up_to_the_same_instant(
    settings: Any, delayq: RedisStore
) -> None:
    pause_topic("crowd", until=in_an_hour())
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 4}}}
    crowd.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(40)])
    paused, store = topic_stats("crowd").paused, get_store()
    until = int(paused.until.timestamp() * 1000)  # type: ignore[union-attr]
    assert [store.claim(p, 10).next_due_ms for p in store.partitions.all("crowd")] == [until] * 4


@pytest.mark.parametrize(
    ("until", "why"),
    [
        (datetime(2040, 1, 1), "without a time zone"),
        (LONG_AGO, "that has passed"),
        (datetime(2990, 1, 1, tzinfo=timezone.utc), "more than ten years ahead"),
        (3600, "must be an aware datetime, not int"),
    ],
    ids=["naive", "past", "too far", "no datetime"],
)
def test_end_that_makes_no_sense_is_refused_and_nothing_changes(
    delayq: RedisStore, until: Any, why: str
) -> None:
    due.enqueue(1)
    with pytest.raises(InvalidMessage, match=f"until .*{why}"):
        pause_topic("default", until=until)
    assert topic_stats("default").paused is None
    assert len(delayq.claim(DEFAULT, 1).leases) == 1


def test_end_that_is_now_has_passed(delayq: RedisStore) -> None:
    with pytest.raises(InvalidMessage, match="that has passed"):
        pause_topic(
            "default", until=datetime.fromtimestamp(delayq.now_us() // 1000 / 1000, tz=timezone.utc)
        )


def test_end_of_another_time_zone_is_the_same_instant(delayq: RedisStore) -> None:
    until = in_an_hour().replace(microsecond=0)
    pause_topic("default", until=until.astimezone(timezone(timedelta(hours=5, minutes=30))))
    assert delayq.claim(DEFAULT, 1).next_due_ms == until.timestamp() * 1000
