"""Topics that nobody serves are told: by the worker that starts, each minute, and by check
--deploy."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import OperationalError

from django_delayq import (
    UnknownTopic,
    list_messages,
    pause_topic,
    purge_topic,
    resume_topic,
    topic_stats,
)
from django_delayq.client import changes
from django_delayq.core.times import When
from django_delayq.operators import message_search
from django_delayq.outbox.existing import every_topic
from django_delayq.outbox.listing import list_outbox
from django_delayq.stats import unserved
from django_delayq.stats.unserved import UnservedWatch, unserved_topics
from django_delayq.store import get_store, keys
from django_delayq.store.keys import Partition
from tests.app.tasks import close_order, record
from tests.faults import unreachable
from tests.hands import DAY, Hands, lose_redis, messages_in
from tests.undeclared import declared, leave

JOBS = Partition("jobs", 0)


def beat(*topics: str, ago_ms: int = 0) -> None:
    """A worker that serves these."""
    store = get_store()
    store.workers.beat(
        f"host:1:{topics}",
        json.dumps({"at_ms": int(store.clock_ms()) - ago_ms, "topics": list(topics)}),
    )


# What can be done with what no code declares


def test_a_topic_that_no_code_declares_can_be_looked_at_and_emptied(hands: Hands) -> None:
    first, second = leave("jobs", 1, 2, key=None)
    assert (topic_stats("jobs").delayed, len(list_messages("jobs").messages)) == (2, 2)
    changes.reschedule("jobs", None, first.id, When.after(5000))
    changes.cancel("jobs", None, second.id)
    pause_topic("jobs", reason="why")
    resume_topic("jobs")
    assert purge_topic("jobs") == 1
    assert {(row.topic, row.state) for row in hands.archive()} == {("jobs", "cancelled")}


def test_a_topic_that_only_the_outbox_knows_can_be_looked_at_and_emptied(hands: Hands) -> None:
    leave("jobs", 1, 2, durable=True, delay=3 * DAY)
    lose_redis(hands.store)
    assert "jobs" in every_topic()
    assert len(list_outbox("jobs").messages) == 2
    assert purge_topic("jobs") == 2
    hands.archive()
    lose_redis(hands.store)
    with pytest.raises(
        UnknownTopic,
        match=r"'jobs' is not declared.*Neither Redis nor the outbox has messages of it",
    ):
        topic_stats("jobs")


def test_nothing_is_enqueued_into_what_nobody_declares(hands: Hands) -> None:
    leave("jobs", 1)
    with pytest.raises(UnknownTopic, match="'jobs' is not declared"):
        record.using(topic="jobs").enqueue(2)


@pytest.mark.parametrize("delay", [60, 3 * DAY])
def test_its_messages_are_found_by_id_and_by_key(hands: Hands, delay: int) -> None:
    """The later ones are only in the outbox."""
    (handle,) = leave("jobs", 1, key="k", durable=True, delay=delay)
    by_id, (by_key,) = message_search.by_id(handle.id), message_search.by_key("k")
    assert by_id is not None and by_id == by_key
    assert (by_id.topic, by_id.message_id, by_id.state) == ("jobs", handle.id, "delayed")
    assert message_search.live("jobs", handle.id) is not None
    if delay > DAY:
        with unreachable():
            assert (
                message_search.by_key("k", redis=False)
                == message_search.by_key("k", "jobs", redis=False)
                == [by_key]
            )


def test_all_topics_of_the_outbox_are_found_by_one_statement(
    hands: Hands, django_assert_num_queries: Any
) -> None:
    for topic in ("jobs", "later", "z"):
        leave(topic, 1, 2, 3, durable=True, delay=3 * DAY)
    with django_assert_num_queries(1):
        assert {"jobs", "later", "z"} <= set(every_topic(redis=False))


# Who is told


def test_what_nobody_serves_is_found_with_what_waits_in_it(hands: Hands) -> None:
    leave("jobs", 1, 2)
    leave("jobs", 3, delay=0)
    leave("jobs", 4, durable=True, delay=3 * DAY)
    close_order.enqueue(1)
    hands._next_millisecond()
    assert list(map(str, unserved_topics(hands.store))) == [
        "jobs: 3 waiting, 1 of them due, 1 in the outbox; no worker serves it and no code here "
        "declares it",
        "orders: 1 waiting, 1 of them due; no worker serves it",
    ]
    hands.store.claim(JOBS, 1)
    assert str(unserved_topics(hands.store, ["orders"])[0]) == (
        "jobs: 2 waiting, 0 of them due, 1 held, 1 in the outbox; no worker serves it and no code "
        "here declares it"
    )


def test_what_a_living_worker_serves_is_not_told(hands: Hands) -> None:
    leave("jobs", 1)
    leave("later", 1, durable=True, delay=3 * DAY)
    beat("jobs", "later")
    assert unserved_topics(hands.store) == []
    beat("jobs", "later", ago_ms=70_000)
    assert [found.stats.topic for found in unserved_topics(hands.store)] == ["jobs", "later"]
    beat("jobs")
    assert [found.stats.topic for found in unserved_topics(hands.store)] == ["later"]


def test_what_is_held_on_purpose_or_empty_is_not_told(hands: Hands) -> None:
    leave("jobs", 1)
    leave("later", 1, durable=True, delay=3 * DAY)
    pause_topic("jobs")
    pause_topic("later")
    with declared("empty"):
        topic_stats("empty")
    assert unserved_topics(hands.store) == []


def test_a_database_that_is_away_hides_nothing_of_redis(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave("jobs", 1)

    def away() -> None:
        raise OperationalError("away")

    monkeypatch.setattr(unserved, "topics_of_outbox", away)
    (found,) = unserved_topics(hands.store)
    assert (found.stats.topic, found.stats.delayed, found.outbox) == ("jobs", 1, 0)


def test_one_of_all_workers_says_it_once_a_minute(
    hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    leave("jobs", 1)
    watches = [UnservedWatch(get_store()) for _ in range(3)]
    with caplog.at_level(logging.WARNING, "delayq"):
        for watch in watches:
            assert watch.run_once() == 60, "others have not said yet what they serve"
        assert caplog.messages == []
        for watch in watches:
            watch.run_once()
        (said,) = caplog.messages
        assert (
            said
            == "topic jobs: 1 waiting, 0 of them due; no worker serves it and no code here declares it"
        )
        hands.store.client.command(
            "DEL", keys.lock_key(hands.store.client.prefix, "unserved")
        )  # a minute later
        beat("jobs")
        watches[0].run_once()
        assert len(caplog.messages) == 1


def test_check_deploy_says_it(hands: Hands) -> None:
    leave("jobs", 1)
    close_order.using(delay=600).enqueue(1)
    found = {
        str(one.id): one for one in run_checks(tags=["delayq"], include_deployment_checks=True)
    }
    assert "Topic jobs: 1 waiting" in found["delayq.W021"].msg
    assert "delayq move jobs --to another-topic" in str(found["delayq.W021"].hint)
    assert (
        "Topic orders: 1 waiting, 0 of them due; no worker serves it." in found["delayq.W022"].msg
    )
    assert messages_in(hands.store, JOBS)
