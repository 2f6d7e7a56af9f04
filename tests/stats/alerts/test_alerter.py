"""An alert is told once, and its end once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_delayq import purge_topic
from django_delayq.core.alert_rules import AlertRule
from django_delayq.management.sql_services import sql_services
from django_delayq.models import Alert, AlertDelivery
from django_delayq.stats.alerts import alerter
from django_delayq.stats.alerts.alerter import Alerter
from tests.app.tasks import record
from tests.faults import unreachable
from tests.hands import Hands
from tests.stats.alerts.conftest import Webhook, notices

pytestmark = pytest.mark.databases

Rules = Callable[..., Sequence[AlertRule]]
Move = Callable[[float], None]


class Clock:
    """Django's clock, which a test moves."""

    def __init__(self) -> None:
        self.now_at = timezone.now()

    def now(self) -> datetime:
        return self.now_at


@pytest.fixture(autouse=True)
def move(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Move]:
    clock = Clock()
    monkeypatch.setattr(alerter, "timezone", clock)

    def move(seconds: float) -> None:
        clock.now_at += timedelta(seconds=seconds)

    yield move


def look(hands: Hands, times: int = 1) -> None:
    """So many workers look at it and deliver, one after the other."""
    hands._next_millisecond()  # what is due now is ready then
    for _ in range(times):
        hands.store.workers.release_lock("alerts")
        Alerter(hands.store).run_once()


def told() -> list[str]:
    return [f"{notice.event} {notice.rule}" for notice in notices]


def fill(count: int = 3) -> None:
    record.enqueue_many([(n,) for n in range(count)])


def test_it_begins_once_and_ends_once_however_many_look(hands: Hands, rules: Rules) -> None:
    rules({"kind": "backlog", "limit": 3})
    look(hands, 3)
    assert told() == []
    fill()
    look(hands, 8)
    assert told() == ["begun backlog"]
    purge_topic("default")
    look(hands, 8)
    assert told() == ["begun backlog", "ended backlog"]
    fill()
    look(hands, 2)
    assert told() == ["begun backlog", "ended backlog", "begun backlog"]


def test_each_topic_has_an_alert_of_its_own(hands: Hands, rules: Rules) -> None:
    from tests.app.tasks import close_order

    rules({"kind": "backlog", "limit": 1})
    fill(1)
    look(hands)
    close_order.enqueue(1)
    look(hands, 2)
    assert [(notice.event, notice.topic) for notice in notices] == [
        ("begun", "default"),
        ("begun", "orders"),
    ]


def test_what_two_processes_see_at_once_is_one_alert(
    hands: Hands, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules({"kind": "backlog", "limit": 3})
    fill()

    def filter_nothing(self: Any, *args: Any, **fields: Any) -> Any:
        """The other has not made its row yet when this one looks for open alerts."""
        return self.none() if "rule__in" in fields else filtered(self, *args, **fields)

    look_of_the_other = Alert(
        rule="backlog", kind="backlog", topic="default", open_key="backlog|default", value=3,
        words="3 due messages", changed_at=alerter.timezone.now(), seen_at=alerter.timezone.now(),
    )  # fmt: skip
    look_of_the_other.save()
    filtered = type(Alert.objects).filter
    with monkeypatch.context() as patch:
        patch.setattr(type(Alert.objects), "filter", filter_nothing)
        look(hands)
    assert (told(), Alert.objects.count()) == ([], 1)  # only the row of the other one
    look(hands, 2)
    assert told() == ["begun backlog"]


def test_it_has_to_last_for_as_long_as_the_rule_says(
    hands: Hands, rules: Rules, move: Move
) -> None:
    rules({"kind": "backlog", "limit": 3, "after": 60})
    fill()
    look(hands)
    move(59)
    look(hands)
    assert told() == []
    move(2)
    look(hands)
    assert told() == ["begun backlog"]
    purge_topic("default")
    look(hands)
    move(59)
    look(hands)
    assert told() == ["begun backlog"]
    move(2)
    look(hands)
    assert told() == ["begun backlog", "ended backlog"]


def test_what_is_over_before_that_is_told_to_nobody(hands: Hands, rules: Rules, move: Move) -> None:
    rules({"kind": "backlog", "limit": 3, "after": 60})
    fill()
    look(hands)
    purge_topic("default")
    look(hands)
    assert not Alert.objects.exists()
    fill()
    look(hands)
    move(59)
    look(hands)
    assert told() == []


def test_one_that_comes_back_before_its_end_goes_on(hands: Hands, rules: Rules, move: Move) -> None:
    rules({"kind": "backlog", "limit": 3, "after": 60})
    fill()
    look(hands)
    move(61)
    look(hands)
    purge_topic("default")
    look(hands)
    move(30)
    fill()
    look(hands)
    move(61)
    look(hands)
    assert told() == ["begun backlog"]


def test_the_highest_value_is_kept(hands: Hands, rules: Rules) -> None:
    rules({"kind": "backlog", "limit": 3})
    fill(3)
    look(hands)
    fill(4)
    look(hands)
    hands.work()
    look(hands)
    assert (notices[-1].event, notices[-1].value) == ("ended", 7)
    assert notices[-1].ended_at is not None


def test_a_delivery_that_fails_is_tried_again_and_others_are_not_held_up(
    hands: Hands, rules: Rules, webhook: Webhook, move: Move
) -> None:
    rules(
        {
            "kind": "backlog",
            "limit": 3,
            "to": [webhook.url, "tests.stats.alerts.conftest.remember"],
        }
    )
    webhook.status = 503
    fill()
    look(hands, 3)
    assert (len(webhook.posts), told()) == (1, ["begun backlog"])
    assert "503" in AlertDelivery.objects.get(delivered_at=None).error
    move(11)
    look(hands, 3)
    assert len(webhook.posts) == 2
    webhook.status = 200
    move(11)
    look(hands, 3)
    assert len(webhook.posts) == 2  # the wait doubles
    move(11)
    look(hands, 3)
    assert (len(webhook.posts), told()) == (3, ["begun backlog"])
    assert not AlertDelivery.objects.filter(delivered_at=None).exists()


def test_the_end_waits_for_the_beginning(
    hands: Hands, rules: Rules, webhook: Webhook, move: Move
) -> None:
    rules({"kind": "backlog", "limit": 3, "to": webhook.url})
    webhook.status = 503
    fill()
    look(hands)
    purge_topic("default")
    look(hands)
    webhook.status = 200
    move(3600)
    look(hands, 2)
    assert [content["event"] for content in webhook.contents] == ["begun", "begun", "ended"]


@pytest.mark.long
def test_after_a_day_of_failures_it_is_given_up(
    hands: Hands, rules: Rules, move: Move, caplog: pytest.LogCaptureFixture
) -> None:
    rules({"kind": "backlog", "limit": 3, "to": "tests.stats.alerts.conftest.refuse"})
    fill()
    look(hands)
    for _ in range(60):
        move(1801)
        look(hands)
    delivery = AlertDelivery.objects.get()
    assert delivery.next_try_at is None and delivery.delivered_at is None
    assert "given up: ValueError: nobody is on call" in caplog.text


def test_a_process_that_dies_while_it_delivers_leaves_it_to_another(
    hands: Hands, rules: Rules, move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules({"kind": "backlog", "limit": 3})
    fill()

    def die(target: str, notice: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(alerter, "deliver", die)
        with pytest.raises(KeyboardInterrupt):
            look(hands)
    look(hands, 3)
    assert told() == []
    move(61)
    look(hands, 3)
    assert told() == ["begun backlog"]


def test_it_survives_a_restart_of_all_workers_and_of_redis(hands: Hands, rules: Rules) -> None:
    rules({"kind": "backlog", "limit": 3})
    fill()
    look(hands)
    for key in hands.store.client.redis.scan_iter(f"{hands.store.client.prefix}:*"):
        hands.store.client.redis.delete(key)
    look(hands)
    assert told() == ["begun backlog", "ended backlog"]


def test_redis_that_is_away_is_told_and_ends_no_other_alert(hands: Hands, rules: Rules) -> None:
    rules({"kind": "redis", "after": 0}, {"kind": "backlog", "limit": 3})
    fill()
    look(hands)
    with unreachable():
        for _ in range(8):
            Alerter(hands.store).run_once()
    look(hands, 2)
    assert told() == ["begun backlog", "begun redis", "ended redis"]


def test_one_of_all_processes_looks(hands: Hands, rules: Rules) -> None:
    rules({"kind": "backlog", "limit": 3})
    first, second = Alerter(hands.store), Alerter(hands.store)
    assert first._is_my_turn() and not second._is_my_turn()


def test_a_rule_that_is_gone_is_forgotten_after_a_day_without_a_word(
    hands: Hands, rules: Rules, move: Move
) -> None:
    rules({"kind": "backlog", "limit": 3})
    fill()
    look(hands)
    rules({"kind": "dead"})
    move(3600)
    look(hands)
    assert Alert.objects.count() == 1  # the next deploy may bring it back
    notices.clear()
    move(86_400)
    look(hands)
    assert (Alert.objects.count(), told()) == (0, [])


def test_ended_alerts_are_kept_for_a_month(hands: Hands, rules: Rules, move: Move) -> None:
    rules({"kind": "backlog", "limit": 3})
    fill()
    look(hands)
    purge_topic("default")
    look(hands)
    move(29 * 86_400)
    look(hands)
    assert Alert.objects.count() == 1
    move(2 * 86_400)
    look(hands)
    assert not Alert.objects.exists() and not AlertDelivery.objects.exists()


def test_the_service_runs_where_there_are_rules(hands: Hands, rules: Rules) -> None:
    assert "alerts" not in [service.name for service in sql_services(hands.store, "host:1:x")]
    rules({"kind": "dead"})
    assert "alerts" in [service.name for service in sql_services(hands.store, "host:1:x")]
