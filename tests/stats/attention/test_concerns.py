"""What is to be looked at now: causes, limits, and what each user may know of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_delayq import pause_topic
from django_delayq.core.alert_rules import AlertRule
from django_delayq.stats import overview
from django_delayq.stats.attention import concerns
from django_delayq.stats.attention.concerns import Urgency, attention
from django_delayq.stats.attention.situation import read_situation
from tests.app.tasks import act, close_order, record
from tests.faults import unreachable
from tests.hands import Hands
from tests.operators.test_replay import dead
from tests.stats.attention.test_conditions import overdue
from tests.stats.overview import beat

pytestmark = pytest.mark.databases

Rules = Callable[..., Sequence[AlertRule]]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    overview.reader_of.cache_clear()


def found(topics: Any = None) -> list[tuple[str, list[str], str]]:
    """Kind, topics and words, read anew."""
    overview.reader_of.cache_clear()
    return [(one.kind, list(one.topics), one.words) for one in attention(topics)]


def busy(hands: Hands, *tasks: tuple[str, str, int, int], **fields: Any) -> None:
    """A worker with six threads that runs these: topic, task, how many, for how many seconds."""
    now_ms = int(hands.store.clock_ms())
    told = [[topic, task, count, now_ms - 1000 * age] for topic, task, count, age in tasks]
    running = sum(count for _, _, count, _ in tasks)
    usual = {"topics": ["default", "orders"], "concurrency": 6, "busy": running, "tasks": told}
    beat(hands.store, **{**usual, "running": running, "in_flight": running, **fields})


def test_with_nothing_wrong_there_is_nothing_to_look_at(hands: Hands) -> None:
    beat(hands.store)
    record.using(delay=60).enqueue(1)
    assert found() == []


def test_workers_that_are_stuck_are_named_with_what_they_run(hands: Hands) -> None:
    overdue(minutes=12)
    busy(hands, ("default", "shop.tasks.build_report", 5, 720), ("orders", "shop.tasks.mail", 1, 3))
    words = "6 of 6 threads busy, 5 of them with build_report for 12 min"
    assert found() == [("saturated", ["default"], words)], "the lag has a cause that is known"
    overdue(close_order, minutes=3)
    assert found() == [("saturated", ["default", "orders"], words)], "one cause is one line"
    (one,) = attention()
    assert one.urgency is Urgency.CRITICAL


def test_a_thread_that_is_free_is_no_saturation(hands: Hands) -> None:
    overdue()
    busy(hands, ("default", "shop.tasks.build_report", 5, 720))
    assert [kind for kind, _, _ in found()] == ["lag"]
    busy(hands, ("default", "shop.tasks.build_report", 6, 720), topics=["orders"])
    assert [kind for kind, _, _ in found()] == ["unserved"]


def test_a_lag_that_grows_is_told_with_what_it_was(hands: Hands) -> None:
    overdue(minutes=10)
    beat(hands.store)
    now_ms = int(hands.store.clock_ms())
    for minute in range(10, 0, -1):
        topics = {"default": {"finished": 0, "waiting": 1, "lag": 125.0 + 10 - minute}}
        hands.store.workers.add_sample(now_ms - 60_000 * minute, topics)
    assert found() == [("lag", ["default"], "lag 10 min, growing: 2 min 5 s ten minutes ago")]


def test_a_worker_that_ended_without_a_word_is_told_for_half_an_hour(hands: Hands) -> None:
    beat(hands.store, "host:1:new")
    beat(hands.store, "host:2:gone", age=720, in_flight=6)
    words = "worker host:2:gone ended without saying so 12 min ago; it held 6 messages"
    assert found() == [("worker_gone", ["default"], words)]


def test_dead_letters_are_told_with_the_error_that_most_have(hands: Hands) -> None:
    beat(hands.store)
    now = datetime.now(tz=timezone.utc)
    dead(3, topic="default", finished_at=now, error_class="shop.GatewayTimeout")
    dead(topic="default", finished_at=now)
    words = "4 dead letters in an hour, 3 of them GatewayTimeout"
    assert found() == [("dead", ["default"], words)]


def test_a_topic_without_a_worker_says_why(hands: Hands) -> None:
    record.using(delay=60).enqueue(1)
    beat(hands.store)
    hands.store.workers.quiet("host:1:ab")
    (line,) = found()
    assert line[2].endswith("serves the topic: an operator made its workers quiet")
    pause_topic("default")
    assert found() == []


def test_a_topic_that_is_consumed_over_http_needs_no_worker(hands: Hands, settings: Any) -> None:
    record.using(delay=60).enqueue(1)
    assert [kind for kind, _, _ in found()] == ["unserved"]
    settings.DELAYQ = {**settings.DELAYQ, "API_TOPICS": ["default"]}
    assert found() == []


def test_an_archiver_that_is_behind_is_told_before_it_holds_up_the_claims(
    hands: Hands, settings: Any
) -> None:
    beat(hands.store)
    settings.DELAYQ = {**settings.DELAYQ, "FINISHED_LIMIT": 500}
    record.enqueue_many([(number,) for number in range(400)])
    hands._next_millisecond()
    for _ in range(400):
        hands.work()
    (line,) = found()
    assert line[:2] == ("archive_limit", ["default"]) and line[2].startswith("80 % of FINISHED")


def test_a_rule_of_alerts_takes_the_place_of_the_limit(hands: Hands, rules: Rules) -> None:
    overdue()
    beat(hands.store)
    rules({"kind": "lag", "limit": timedelta(minutes=5), "name": "late"})
    overview.reader_of.cache_clear()
    (one,) = attention()
    assert (one.kind, one.rule, one.limit) == ("lag", "late", "5 min")


def test_a_user_of_some_topics_learns_nothing_of_others(hands: Hands) -> None:
    at = datetime.now(tz=timezone.utc) - timedelta(minutes=10)
    act.using(due_at=at).enqueue("fail")
    overdue(close_order)
    busy(
        hands,
        ("modes", "hidden.secret_task", 5, 720),
        ("orders", "shop.tasks.mail", 1, 60),
        topics=["orders", "modes"],
    )
    dead(topic="modes", finished_at=datetime.now(tz=timezone.utc))
    assert len(found()) == 2
    words = "6 of 6 threads busy, 1 of them with mail for 1 min"
    assert found(["orders"]) == [("saturated", ["orders"], words)]
    assert found([]) == []


def test_what_needs_no_redis_is_told_without_it(hands: Hands) -> None:
    dead(topic="default", finished_at=datetime.now(tz=timezone.utc))
    overdue()
    with unreachable():
        situation = read_situation(hands.store)
    assert [one.kind for one in concerns.concerns(situation)] == ["dead"]
