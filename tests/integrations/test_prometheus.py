"""What Prometheus gets, on the health port and from the view."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.db import OperationalError
from django.test import RequestFactory
from prometheus_client.parser import text_string_to_metric_families

from django_delayq import pause_topic
from django_delayq.integrations import prometheus
from django_delayq.integrations.prometheus import METRICS, WorkerMetrics, metrics
from django_delayq.integrations.run_counts import LATENESS_S, RunFigures
from django_delayq.stats import figures
from django_delayq.store.keys import Partition
from tests.app.tasks import act, close_order, crowd, record
from tests.faults import unreachable
from tests.hands import Hands
from tests.stats.test_unserved import beat

pytestmark = pytest.mark.databases

MODES = Partition("modes", 0)


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(prometheus, "KEPT", 0.0)
    prometheus._topics_in.cache_clear()
    prometheus._database._until = 0.0
    monkeypatch.setattr(prometheus._database, "_kept", lambda took: 0.0)
    yield
    prometheus._topics_in.cache_clear()


def read(text: bytes) -> dict[str, float]:
    """`name{label="value"}` -> value, as a scraper understands it."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={label}" for name, label in sorted(sample.labels.items()))
            assert f"{sample.name} {labels}" not in samples, "a sample comes twice"
            samples[f"{sample.name} {labels}".strip()] = sample.value
    return samples


def samples() -> dict[str, float]:
    return read(prometheus.page(has_database=True))


def test_sizes_and_counters_come_by_topic(hands: Hands) -> None:
    record.using(delay=60).enqueue(1)
    record.enqueue_many([(n,) for n in range(3)])
    hands.run(*hands.claim()[:1])
    close_order.using(delay=timedelta(hours=2), durable=True).enqueue(1)
    found = samples()
    assert found["delayq_messages state=delayed,topic=default"] == 1
    assert found["delayq_messages state=ready,topic=default"] == 0
    assert found["delayq_messages state=leased,topic=default"] == 2
    assert found["delayq_enqueued_total topic=default"] == 4
    assert found["delayq_ended_total state=acked,topic=default"] == 1
    assert found["delayq_unarchived_messages topic=default"] == 1
    assert found["delayq_outbox_messages topic=orders"] == 1
    assert found["delayq_redis_up"] == found["delayq_database_up"] == 1


def test_a_topic_that_nobody_has_used_is_there_with_zeros(hands: Hands) -> None:
    found = samples()
    assert found["delayq_messages state=ready,topic=orders"] == 0
    assert found["delayq_dead_letters topic=orders"] == 0


def test_lag_grows_from_the_due_time(hands: Hands) -> None:
    assert samples()["delayq_lag_seconds topic=default"] == 0
    record.using(due_at=datetime.now(tz=timezone.utc) - timedelta(seconds=90)).enqueue(1)
    assert 90 <= samples()["delayq_lag_seconds topic=default"] < 120


def test_archive_lag_is_the_age_of_the_oldest_ended_message(hands: Hands) -> None:
    assert samples()["delayq_archive_lag_seconds topic=default"] == 0
    record.enqueue(1)
    hands.work()
    hands._next_millisecond()
    assert 0 < samples()["delayq_archive_lag_seconds topic=default"] < 60
    hands.archive()
    found = samples()
    assert found["delayq_archive_lag_seconds topic=default"] == 0
    assert found["delayq_unarchived_messages topic=default"] == 0


def test_dead_letters_workers_and_pauses_are_there(hands: Hands) -> None:
    act.enqueue("reject")
    hands.work(MODES)
    hands.archive()
    beat("default", "orders")
    pause_topic("orders")
    found = samples()
    assert found["delayq_dead_letters topic=modes"] == 1
    assert found["delayq_workers topic=orders"] == 1
    assert found["delayq_workers topic=crowd"] == 0
    assert found["delayq_paused topic=orders"] == 1
    assert found["delayq_paused topic=default"] == 0


def test_counters_are_those_of_the_archive(hands: Hands) -> None:
    record.enqueue_many([(n,) for n in range(50)])
    act.enqueue_many([("reject",)] * 7)
    record.using(delay=60).enqueue(1).cancel()
    hands.work()
    hands.work(MODES)
    rows = Counter((row.topic, row.state) for row in hands.archive())
    assert rows == {("default", "acked"): 50, ("modes", "dead"): 7, ("default", "cancelled"): 1}
    found = samples()
    for topic in ("default", "modes"):
        for state in ("acked", "dead", "cancelled", "expired"):
            name = f"delayq_ended_total state={state},topic={topic}"
            assert found[name] == rows[topic, state]


def test_topics_beyond_the_limit_are_one_row(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "METRICS_MAX_TOPICS": 2}
    record.enqueue(1)
    close_order.enqueue(1)
    crowd.using(delay=60).enqueue(1)
    found = samples()
    topics = {name.rpartition("topic=")[2] for name in found if "delayq_messages" in name}
    assert len(topics) == 3 and "other" in topics
    enqueued = [value for name, value in found.items() if name.startswith("delayq_enqueued")]
    assert sum(enqueued) == 3
    assert len([name for name in found if name.startswith("delayq_dead_letters")]) <= 3


def test_a_worker_adds_its_runs_and_what_the_project_counts(hands: Hands) -> None:
    worker = WorkerMetrics(1, has_database=True)
    with worker.counting(0):
        record.enqueue(1)
        hands.work()
        found = read(worker.page())
    name = "task=tests.app.tasks.record,topic=default"
    assert found[f"delayq_runs_total result=acked,{name}"] == 1
    assert found[f"delayq_lateness_seconds_count {name}"] == 1
    assert found[f"delayq_run_seconds_bucket le=+Inf,{name}"] == 1
    assert found["process_resident_memory_bytes"] > 0


def test_each_scrape_has_the_rows_and_the_numbers_of_now(hands: Hands) -> None:
    def of(task: str, count: int) -> RunFigures:
        buckets = [count, *[0] * len(LATENESS_S)]
        return RunFigures("orders", task, [count, 0, 0, 0, 0], buckets, 0.5, buckets, 0.25)

    odd = '50%d "off"\\ü'
    for runs in ([of(odd, 1)], [of(odd, 2)], [of("plain", 4), of(odd, 3)], [of("plain", 5)]):
        found = read(prometheus.page(False, runs))
        counts = {name: found[name] for name in found if name.startswith("delayq_run_seconds_c")}
        assert counts == {
            f"delayq_run_seconds_count task={one.task},topic=orders": one.results[0] for one in runs
        }
        results = sum(found[name] for name in found if name.startswith("delayq_runs_total"))
        assert results == sum(one.results[0] for one in runs)


def test_a_worker_without_a_database_does_not_ask_it(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus._database, "_read", lambda: pytest.fail("it asked"))
    assert "delayq_database_up" not in read(WorkerMetrics(1, has_database=False).page())


def test_redis_that_is_away_is_a_figure(hands: Hands) -> None:
    with unreachable():
        found = samples()
    assert found["delayq_redis_up"] == 0 and found["delayq_database_up"] == 1
    assert not any(name.startswith("delayq_messages") for name in found)


def test_a_database_that_is_away_is_a_figure(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(prometheus._database, "_read", away)
    found = samples()
    assert found["delayq_redis_up"] == 1 and found["delayq_database_up"] == 0


def test_answers_are_kept_for_a_moment(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "KEPT", 60.0)
    samples()
    monkeypatch.setattr(prometheus, "read_topics", lambda store: pytest.fail("read again"))
    samples()


def test_each_metric_has_a_text_and_each_text_a_metric(hands: Hands) -> None:
    worker = WorkerMetrics(1, has_database=True)
    with worker.counting(0):
        record.enqueue(1)
        hands.work()
        text = worker.page().decode()
    found = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE delayq_")}
    assert found == set(METRICS)


def test_names_of_tasks_are_escaped() -> None:
    assert prometheus._escaped('a"b\\c\nd') == 'a\\"b\\\\c\\nd'


# The view


def ask(user: Any = None, **headers: str) -> Any:
    request = RequestFactory().get("/metrics", headers=headers or None)
    request.user = user or AnonymousUser()
    return metrics(request)


def test_the_view_answers_who_has_the_token(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "METRICS_TOKEN": "let-me-in"}
    answer = ask(authorization="Bearer let-me-in")
    assert answer.status_code == 200
    assert answer["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "delayq_messages topic=orders,state=ready" not in read(answer.content)
    assert read(answer.content)["delayq_redis_up"] == 1


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer other", "let-me-in", "Basic let-me-in"])
def test_the_view_refuses_all_others(hands: Hands, settings: Any, header: str) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "METRICS_TOKEN": "let-me-in"}
    answer = ask(authorization=header)
    assert answer.status_code == 403 and b"delayq_" not in answer.content


def test_without_a_token_the_view_asks_for_the_permission_of_the_overview(hands: Hands) -> None:
    user = User.objects.create_user("kim")
    assert ask().status_code == ask(user).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_dashboard"))
    assert ask(User.objects.get(pk=user.pk)).status_code == 200


def test_a_token_does_not_let_in_who_sends_none_though_he_may_see_the_pages(
    hands: Hands, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "METRICS_TOKEN": "let-me-in"}
    assert ask(User(is_active=True, is_superuser=True)).status_code == 403


def test_reading_costs_a_few_round_trips(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    record.enqueue(1)
    calls: list[int] = []
    read_all = hands.store.client.read_all
    monkeypatch.setattr(
        hands.store.client,
        "read_all",
        lambda reads: (calls.append(len(reads)), read_all(reads))[1],
    )
    figures.read_topics(hands.store)
    assert len(calls) <= 2


def test_logging_of_a_scrape_is_silent(hands: Hands, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        samples()
    assert not caplog.records
