"""The figures of a period: sums of what is stored, also of spans in which nothing finished."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq.models import ArchivedMessage, BusiestTask, TaskDay, TopicHour
from django_delayq.stats import busiest
from django_delayq.stats import history as module
from django_delayq.stats.busiest import keep_busiest
from django_delayq.stats.history import PERIODS, PeriodFigures, history
from django_delayq.stats.hourly import DAY, HOUR, compute_day, compute_hour, day_of, hour_of
from tests.stats.test_hourly import NOON, finish

pytestmark = [pytest.mark.databases, pytest.mark.django_db]

NOW = NOON + timedelta(minutes=30)


@pytest.fixture(autouse=True)
def standing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is half past noon."""

    class Calendar(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return NOW.astimezone(tz)

    monkeypatch.setattr(module, "datetime", Calendar)


@pytest.fixture
def counted(settings: Any) -> Callable[[], None]:
    """Computes the figures of all that has finished."""

    def count() -> None:
        whens = list(ArchivedMessage.objects.values_list("finished_at", flat=True))
        for hour in {hour_of(when) for when in whens}:
            compute_hour(hour)
        for day in {day_of(when) for when in whens}:
            compute_day(day)

    return count


def messages(figures: PeriodFigures) -> dict[str, int]:
    """What has finished, by state, without zeros."""
    return {state: count for state, count in figures.states.items() if count}


# Spans


def test_hours_are_the_last_twenty_four_with_the_present_one_last() -> None:
    found = history("24h")
    assert found.step == HOUR
    assert [step.at for step in found.steps] == [NOON - HOUR * n for n in range(23, -1, -1)]


@pytest.mark.parametrize(("period", "days"), [("7d", 7), ("30d", 30), ("90d", 90)])
def test_days_are_whole_ones_with_the_present_one_last(period: str, days: int) -> None:
    found = history(period)
    midnight = NOON - 12 * HOUR
    assert found.step == DAY
    assert [step.at for step in found.steps] == [
        midnight - DAY * n for n in range(days - 1, -1, -1)
    ]


def test_periods_are_what_may_be_asked_for() -> None:
    assert list(PERIODS) == ["24h", "7d", "30d", "90d"]
    with pytest.raises(KeyError):
        history("1y")


@pytest.mark.parametrize("period", PERIODS)
def test_without_figures_everything_is_zero_and_no_time_is_known(period: str) -> None:
    found = history(period)
    assert {step.figures.messages for step in found.steps} == {0}
    assert (
        found.total.messages,
        messages(found.total),
        found.total.retried,
        found.total.dead_share,
    ) == (0, {}, 0, 0.0)
    times = ("late_p50_ms", "late_p99_ms", "late_max_ms", "run_p50_ms", "run_p99_ms", "run_max_ms")
    assert {getattr(found.total, name) for name in times} == {None}
    assert (list(found.tasks), found.more_tasks) == ([], False)


def test_each_message_is_in_the_span_in_which_it_finished(counted: Callable[[], None]) -> None:
    finish(NOW, count=2)
    finish(NOON - timedelta(microseconds=1), count=3)
    finish(NOON - 23 * HOUR, count=4)
    finish(NOON - 23 * HOUR - timedelta(microseconds=1), count=100)
    counted()
    by_hour = [step.figures.messages for step in history("24h").steps]
    assert by_hour == [4, *[0] * 21, 3, 2]
    assert history("24h").total.messages == 9
    by_day = [step.figures.messages for step in history("7d").steps]
    assert by_day == [*[0] * 5, 104, 5]


def test_a_period_of_days_ends_where_its_first_day_begins(counted: Callable[[], None]) -> None:
    begin = NOON - 12 * HOUR - 6 * DAY
    finish(begin, topic="first")
    finish(begin - timedelta(microseconds=1), topic="before", count=10)
    counted()
    assert history("7d").total.messages == 1
    assert [one.topic for one in history("7d").tasks] == ["first"]
    assert history("30d").total.messages == 11


def test_without_use_tz_spans_are_still_those_of_utc(
    counted: Callable[[], None], settings: Any
) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kolkata"
    finish(NOW, count=2)
    finish(NOON - 23 * HOUR)
    finish(NOON - 24 * HOUR, count=7)
    counted()
    steps = history("24h").steps
    assert [step.figures.messages for step in steps] == [1, *[0] * 22, 2]
    assert steps[-1].at == NOON
    assert [step.figures.messages for step in history("7d").steps][-2:] == [8, 2]


# Figures


def test_states_and_retries_are_sums_of_all_rows(counted: Callable[[], None]) -> None:
    finish(NOW, count=3)
    finish(NOON - HOUR, topic="orders", attempts=4, state="dead", error_class="ValueError")
    finish(NOON - HOUR, topic="mail", attempts=2)
    finish(NOON - HOUR, topic="mail", attempts=0, state="cancelled", lateness_ms=None, run_ms=None)
    finish(NOON - 2 * HOUR, attempts=0, state="expired", lateness_ms=None, run_ms=None)
    counted()
    for period in PERIODS:
        total = history(period).total
        assert messages(total) == {"acked": 4, "dead": 1, "cancelled": 1, "expired": 1}
        assert (total.messages, total.retried, total.dead_share) == (7, 2, 0.2)
    assert messages(history("24h").steps[-2].figures) == {"acked": 1, "dead": 1, "cancelled": 1}


def test_percentiles_of_a_period_are_near_the_exact_ones(counted: Callable[[], None]) -> None:
    random = Random(3)
    late, ran = (
        [round(random.lognormvariate(middle, 2), 3) for _ in range(150)] for middle in (2, 5)
    )
    for number in range(150):
        when = NOW - HOUR * (number % 20)
        finish(when, topic=f"topic{number % 4}", lateness_ms=late[number], run_ms=ran[number])
    counted()
    for period in PERIODS:
        total = history(period).total
        assert total.late_p50_ms == pytest.approx(exact(late, 0.5), rel=0.032)
        assert total.late_p99_ms == pytest.approx(exact(late, 0.99), rel=0.032)
        assert total.run_p50_ms == pytest.approx(exact(ran, 0.5), rel=0.032)
        assert total.run_p99_ms == pytest.approx(exact(ran, 0.99), rel=0.032)
        assert (total.late_max_ms, total.run_max_ms) == (max(late), max(ran))


def test_no_lateness_at_all_is_a_figure_too(counted: Callable[[], None]) -> None:
    finish(NOW, lateness_ms=0.0, run_ms=0.0)
    counted()
    total = history("24h").total
    assert (total.late_p99_ms, total.late_max_ms, total.run_p99_ms, total.run_max_ms) == (
        0,
        0,
        0,
        0,
    )


def exact(values: list[float], share: float) -> float:
    """By nearest rank."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def test_no_percentile_is_above_the_highest_value(counted: Callable[[], None]) -> None:
    finish(NOW, lateness_ms=984.0)
    counted()
    total = history("24h").total
    assert total.late_p99_ms is not None and total.late_max_ms is not None
    assert total.late_p99_ms <= total.late_max_ms


# Topics and tasks


def test_one_topic_may_be_asked_for(counted: Callable[[], None]) -> None:
    finish(NOW, topic="orders", count=2)
    finish(NOW, topic="mail", lateness_ms=500.0)
    finish(NOON - 2 * DAY, topic="webhooks")
    counted()
    for period in ("24h", "7d"):
        found = history(period, "mail")
        assert (
            found.total.messages,
            found.steps[-1].figures.messages,
            found.total.late_max_ms,
        ) == (1, 1, 500.0)
        assert [(one.topic, one.figures.messages) for one in found.tasks] == [("mail", 1)]


@pytest.mark.parametrize("topic", ["never used", "x" * 1000, "'; DROP TABLE", "\u202e", "\\", "%"])
def test_an_unknown_topic_has_no_figures(topic: str, counted: Callable[[], None]) -> None:
    finish(NOW)
    counted()
    assert history("24h", topic).total.messages == history("7d", topic).total.messages == 0


def test_a_topic_with_nul_has_no_figures() -> None:
    assert history("24h", "\0").total.messages == 0


def test_tasks_are_sums_of_their_days_those_with_the_most_messages_first(
    counted: Callable[[], None],
) -> None:
    for days in range(3):
        finish(NOW - DAY * days, task="shop.tasks.close", topic="orders")
    finish(NOW, task="shop.tasks.remind", topic="orders", count=5, attempts=2)
    finish(NOW, task="shop.tasks.close", topic="mail", count=3)
    counted()
    found = [
        (one.task, one.topic, one.figures.messages, one.figures.retried)
        for one in history("7d").tasks
    ]
    assert found == [
        ("shop.tasks.remind", "orders", 5, 5),
        ("shop.tasks.close", "mail", 3, 0),
        ("shop.tasks.close", "orders", 3, 0),
    ]


def test_tasks_of_hours_are_those_of_the_days_that_they_touch(counted: Callable[[], None]) -> None:
    finish(NOON - 23 * HOUR - timedelta(minutes=1), task="shop.tasks.yesterday")
    finish(NOON - 2 * DAY, task="shop.tasks.long_ago")
    counted()
    found = history("24h")
    assert found.total.messages == 0
    assert [one.task for one in found.tasks] == ["shop.tasks.yesterday"]


def test_three_errors_of_a_task_are_shown_the_most_frequent_first(
    counted: Callable[[], None],
) -> None:
    for days, (error, count) in enumerate([("B", 2), ("A", 2), ("C", 3), ("D", 1), ("B", 2)]):
        finish(NOW - DAY * days, state="dead", error_class=error, count=count)
    counted()
    (task,) = history("7d").tasks
    assert list(task.errors) == [("B", 4), ("C", 3), ("A", 2)]
    assert task.figures.states["dead"] == 10


def test_a_task_without_errors_shows_none(counted: Callable[[], None]) -> None:
    finish(NOW)
    counted()
    (task,) = history("24h").tasks
    assert list(task.errors) == []


# Cost


@pytest.mark.parametrize("period", PERIODS)
def test_it_reads_the_figures_and_never_the_archive(
    period: str, counted: Callable[[], None]
) -> None:
    finish(NOW, count=3)
    finish(NOW - DAY)
    counted()
    with CaptureQueriesContext(connection) as queries:
        history(period)
    assert len(queries) <= 2
    assert not any(ArchivedMessage._meta.db_table in one["sql"] for one in queries)


@pytest.mark.parametrize("period", PERIODS)
def test_of_thousands_of_topics_it_reads_one_row_a_step(
    period: str, counted: Callable[[], None]
) -> None:
    for number in range(30):
        finish(NOW, topic=f"topic{number}", task=f"task{number}")
    counted()
    TopicHour.objects.all().delete()
    TaskDay.objects.all().delete()
    assert history(period).total.messages == 30
    assert history(period, topics=["topic1"]).total.messages == 0


def test_of_very_many_tasks_those_with_the_most_messages_are_shown(
    counted: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 5):
        finish(NOW, task=f"task{number}", count=number)
        finish(NOW - DAY, task=f"task{number}")
    counted()
    monkeypatch.setattr(module, "MOST_TASKS", 2)
    found = history("7d")
    assert [(one.task, one.figures.messages) for one in found.tasks] == [("task4", 5), ("task3", 4)]
    assert found.more_tasks
    monkeypatch.setattr(module, "MOST_TASKS", 4)
    assert not history("7d").more_tasks


def test_of_hundreds_of_thousands_of_rows_the_names_of_the_busiest_tasks_are_kept(
    counted: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, days in enumerate((0, 0, 3, 3, 3, 20)):
        finish(NOON - DAY * days, task=f"task{number % 3}", topic=f"t{number % 2}")
    counted()
    summed_up = {period: history(period) for period in PERIODS}
    keep_busiest(NOW)
    assert not BusiestTask.objects.exists()  # few rows: the page sums them up

    monkeypatch.setattr(busiest, "MANY_ROWS", 5)
    for _ in range(2):
        keep_busiest(NOW)
        assert {period: history(period) for period in PERIODS} == summed_up
    # What is kept is what is shown; the figures themselves are those of the days.
    BusiestTask.objects.filter(period="7d").exclude(task="task0").delete()
    assert [one.task for one in history("7d").tasks] == ["task0", "task0"]
    assert history("7d").total == summed_up["7d"].total
    assert history("7d", topic="t0").tasks == [
        one for one in summed_up["7d"].tasks if one.topic == "t0"
    ]
    # An hour that passes takes nothing away, and few rows need no names again.
    monkeypatch.setattr(busiest, "MANY_ROWS", 6)
    keep_busiest(NOW)
    assert history("7d") == summed_up["7d"]


def test_figures_outlive_the_archive(counted: Callable[[], None]) -> None:
    finish(NOW - DAY * 3, count=4)
    counted()
    ArchivedMessage.objects.all().delete()
    assert history("7d").total.messages == 4
    assert TaskDay.objects.get().day == date(2026, 11, 17)


def test_times_are_aware_and_of_utc() -> None:
    assert {step.at.tzinfo for step in history("7d").steps} == {timezone.utc}
