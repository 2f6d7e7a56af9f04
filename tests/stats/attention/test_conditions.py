"""What each kind of rule finds wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_delayq import pause_topic
from django_delayq.core.alert_rules import AlertRule
from django_delayq.models import AuditRun
from django_delayq.stats.alerts.alerter import breaches
from django_delayq.stats.attention.conditions import is_known
from django_delayq.stats.attention.situation import read_situation
from tests.app.tasks import close_order, record
from tests.faults import unreachable
from tests.hands import Hands
from tests.operators.test_replay import dead
from tests.stats.test_unserved import beat

pytestmark = pytest.mark.databases

Rules = Callable[..., Sequence[AlertRule]]


def wrong(hands: Hands, rules: Sequence[AlertRule]) -> list[tuple[str, str]]:
    """Topic and words of all that is wrong."""
    return [(one.topic, one.words) for one in breaches(rules, read_situation(hands.store))]


def overdue(task: Any = record, minutes: int = 10) -> None:
    """A message that fell due long ago."""
    at = datetime.now(tz=timezone.utc) - timedelta(minutes=minutes)
    task.using(due_at=at).enqueue(1)


def test_nothing_is_wrong_with_a_queue_that_is_empty(hands: Hands, rules: Rules) -> None:
    found = rules(
        {"kind": "backlog", "limit": 1},
        {"kind": "lag", "limit": 1},
        {"kind": "dead"},
        {"kind": "unserved"},
        {"kind": "archive_lag", "limit": 1},
        {"kind": "outbox", "limit": 1},
        {"kind": "audit"},
        {"kind": "redis"},
    )
    assert wrong(hands, found) == []


def test_backlog_is_what_is_due_and_has_not_started(hands: Hands, rules: Rules) -> None:
    found = rules({"kind": "backlog", "limit": 2})
    record.enqueue(1)
    record.using(delay=60).enqueue(2)
    assert wrong(hands, found) == []
    record.enqueue(3)
    hands._next_millisecond()
    assert wrong(hands, found) == [("default", "2 due messages (limit 2)")]


def test_lag_does_not_count_in_a_topic_that_is_paused(hands: Hands, rules: Rules) -> None:
    found = rules({"kind": "lag", "limit": timedelta(minutes=5)})
    overdue()
    assert wrong(hands, found) == [("default", "lag 10 min (limit 5 min)")]
    pause_topic("default")
    assert wrong(hands, found) == []


def test_dead_letters_count_for_an_hour(hands: Hands, rules: Rules) -> None:
    found = rules({"kind": "dead", "limit": 2, "topics": ["orders"]})
    now = datetime.now(tz=timezone.utc)
    dead(5, topic="orders", finished_at=now - timedelta(minutes=61))
    dead(topic="orders", finished_at=now)
    dead(9, topic="default", finished_at=now)
    assert wrong(hands, found) == []
    dead(topic="orders", finished_at=now)
    assert wrong(hands, found) == [("orders", "2 dead letters in an hour, ValueError (limit 2)")]


def test_a_topic_where_messages_wait_needs_a_worker(hands: Hands, rules: Rules) -> None:
    found = rules({"kind": "unserved"})
    record.using(delay=60).enqueue(1)
    close_order.using(delay=timedelta(hours=9), durable=True).enqueue(1)
    text = "messages wait and no worker serves the topic"
    assert wrong(hands, found) == [("default", text), ("orders", text)]
    beat("default")
    assert wrong(hands, found) == [("orders", text)]


def test_archive_lag_names_the_topic_that_is_furthest_behind(hands: Hands, rules: Rules) -> None:
    found = rules({"kind": "archive_lag", "limit": 0.001})
    record.enqueue(1)
    hands.work()
    hands._next_millisecond()
    ((topic, words),) = wrong(hands, found)
    assert topic == "" and words.startswith("the archive of default is ")
    hands.archive()
    assert wrong(hands, found) == []


def test_the_outbox_counts_as_a_whole(hands: Hands, rules: Rules) -> None:
    found = rules(
        {"kind": "outbox", "limit": 2},
        {"kind": "outbox", "limit": 2, "topics": "default"},
    )
    for _ in range(2):
        close_order.using(delay=timedelta(hours=9), durable=True).enqueue(1)
    assert wrong(hands, found) == [("", "2 messages in the outbox (limit 2)")]


def test_the_newest_audit_counts(hands: Hands, rules: Rules) -> None:
    found = rules({"kind": "audit"})
    AuditRun.objects.create(findings=3)
    assert wrong(hands, found) == [("", "the last audit has 3 findings (limit 1)")]
    AuditRun.objects.create(findings=0)
    assert wrong(hands, found) == []


def test_while_redis_is_away_nothing_is_known_of_topics(hands: Hands, rules: Rules) -> None:
    found = rules({"kind": "redis"}, {"kind": "backlog", "limit": 1}, {"kind": "dead"})
    record.enqueue(1)
    with unreachable():
        situation = read_situation(hands.store)
    ((rule, topic, _, words),) = breaches(found, situation)
    assert (rule.kind, topic, bool(words)) == ("redis", "", True)
    assert [is_known(rule.kind, situation) for rule in found] == [True, False, True]


@pytest.mark.parametrize("kind", ["backlog", "lag"])
def test_a_rule_of_some_topics_leaves_others_alone(hands: Hands, rules: Rules, kind: str) -> None:
    found = rules({"kind": kind, "limit": 1, "topics": ["orders"]})
    overdue()
    assert wrong(hands, found) == []
    overdue(close_order)
    assert [topic for topic, _ in wrong(hands, found)] == ["orders"]
