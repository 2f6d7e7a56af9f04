"""Figures of hours and days are what the rows of the archive say, however often they are
computed."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone as django_timezone

from django_delayq.core.times import stored, utc
from django_delayq.models import ArchivedMessage, DayTotal, HourTotal, TaskDay, TopicHour
from django_delayq.stats import hourly as statistics
from django_delayq.stats.histogram import decode, encode, merge_histograms, percentile
from django_delayq.stats.hourly import (
    DAY,
    HOUR,
    compute_day,
    compute_hour,
    day_of,
    hour_of,
    replace_each,
)
from tests.hands import together
from tests.stats.histograms import histogram
from tests.stats.overview import archived

pytestmark = [pytest.mark.databases, pytest.mark.django_db]

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
TODAY = NOON.date()
by_collation = pytest.mark.xfail(
    connection.vendor == "mysql",
    reason="MariaDB takes names that differ in case for one; docs/how-to/databases.md says so",
    strict=True,
)
TIMES = {"lateness": "lateness_ms", "run": "run_ms"}


def finish(when: datetime = NOON, count: int = 1, **fields: Any) -> None:
    """Messages that finished then. They were acked after one attempt, 2 ms late, in 20 ms, unless
    told otherwise."""
    instant = stored(when)
    archived(
        count, finished_at=instant, **{"attempts": 1, "lateness_ms": 2.0, "run_ms": 20.0} | fields
    )


def hours() -> dict[str, TopicHour]:
    """The hours that are stored, by topic: of one hour only."""
    return {row.topic: row for row in TopicHour.objects.all()}


def only_hour() -> TopicHour:
    """The only hour that is stored."""
    (row,) = TopicHour.objects.all()
    return row


def only_day() -> TaskDay:
    """The only day that is stored."""
    (row,) = TaskDay.objects.all()
    return row


def figures_in(model: Any) -> list[dict[str, Any]]:
    """All rows, without what changes whenever they are computed."""
    return [
        {name: value for name, value in row.items() if name not in ("id", "computed_at")}
        for row in model.objects.order_by("pk").values()
    ]


# A second computation, as simple as can be


def some_rows(number: int, since: datetime, length: timedelta) -> list[dict[str, Any]]:
    """Random ones, the same in every run. Two in three lie in the span of time, the others before
    and after it."""
    random = Random(5)
    return [_some_row(random, since + length * random.uniform(-0.25, 1.25)) for _ in range(number)]


def _some_row(random: Random, finished_at: datetime) -> dict[str, Any]:
    state = random.choice(["acked"] * 5 + ["dead", "cancelled", "expired"])
    ran = state in ("acked", "dead")
    return {
        "finished_at": finished_at,
        "topic": random.choice(["orders", "mail", "webhooks"]),
        "task": random.choice(["shop.tasks.close", "shop.tasks.remind"]),
        "state": state,
        "attempts": random.choice([1, 1, 1, 2, 5]) if ran else 0,
        "lateness_ms": round(random.lognormvariate(2, 2) - 1, 3) if ran else None,
        "run_ms": round(random.lognormvariate(4, 2), 3) if ran else None,
        "error_class": random.choice(["ValueError", "shop.PriceMissing", ""])
        if state == "dead"
        else "",
        "reason": random.choice(["poison", "unknown_task"]) if state == "dead" else "",
    }


def percentile_of(rows: Any, share: float, metric: str = "lateness") -> float | None:
    """Of several rows together, in milliseconds."""
    return percentile(merge_histograms(decode(getattr(row, metric)) for row in rows), share)


def expected(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of these rows, from the definition of each."""
    wanted: dict[str, Any] = {"messages": len(rows)}
    for state in ("acked", "dead", "cancelled", "expired"):
        wanted[state] = len([row for row in rows if row["state"] == state])
    wanted["attempts"] = sum(row["attempts"] for row in rows)
    wanted["retried"] = len([row for row in rows if row["attempts"] >= 2])
    for name, column in TIMES.items():
        values = [row[column] for row in rows if row[column] is not None]
        wanted[name] = encode(histogram(values))
        wanted[f"{name}_sum"] = pytest.approx(sum(values), abs=0.001)
        wanted[f"{name}_max"] = max(values, default=None)
    return wanted


def grouped(
    rows: Iterable[dict[str, Any]], *names: str
) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """The rows by these fields."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return groups


def test_an_hour_is_what_its_rows_say() -> None:
    rows = some_rows(300, NOON, HOUR)
    for row in rows:
        archived(**row)
    inside = [row for row in rows if NOON <= row["finished_at"] < NOON + HOUR]
    assert 150 < len(inside) < 250
    assert compute_hour(NOON) == len(inside)
    for (topic,), group in grouped(inside, "topic").items():
        wanted = {"hour": NOON, "topic": topic, **expected(group)}
        assert {name: getattr(hours()[topic], name) for name in wanted} == wanted
    assert TopicHour.objects.count() == 3
    assert not TaskDay.objects.exists()


def test_a_day_is_what_its_rows_say() -> None:
    begin = NOON - 12 * HOUR
    rows = some_rows(300, begin, DAY)
    for row in rows:
        archived(**row)
    inside = [row for row in rows if begin <= row["finished_at"] < begin + DAY]
    assert compute_day(TODAY) == len(inside)
    days = {(row.topic, row.task): row for row in TaskDay.objects.all()}
    groups = grouped(inside, "topic", "task")
    assert set(days) == set(groups)
    for (topic, task), group in groups.items():
        errors = Counter(
            row["error_class"] or row["reason"] for row in group if row["state"] == "dead"
        )
        wanted = {"day": TODAY, "topic": topic, "task": task, **expected(group)}
        assert {name: getattr(days[topic, task], name) for name in wanted} == wanted
        assert json.loads(days[topic, task].errors) == errors
    assert not TopicHour.objects.exists()


def test_the_hours_of_a_day_add_up_to_the_day() -> None:
    for row in some_rows(200, NOON - 12 * HOUR, DAY):
        archived(**row)
    total = sum(compute_hour(NOON + HOUR * n) for n in range(-12, 12))
    assert compute_day(TODAY) == total
    for name in ("messages", "acked", "dead", "cancelled", "expired", "attempts", "retried"):
        by_hour, by_day = (
            sum(model.objects.values_list(name, flat=True)) for model in (TopicHour, TaskDay)
        )
        assert by_hour == by_day
    for metric in ("lateness", "run"):
        for share in (0.5, 0.99):
            hourly, daily = (
                percentile_of(model.objects.all(), share, metric) for model in (TopicHour, TaskDay)
            )
            assert hourly == daily


def test_percentiles_of_merged_rows_are_near_the_exact_ones() -> None:
    random = Random(11)
    late = [round(random.lognormvariate(3, 2), 3) for _ in range(200)]
    for number, value in enumerate(late):
        finish(NOON + HOUR * (number % 3), topic=("orders", "mail")[number % 2], lateness_ms=value)
    for n in range(3):
        compute_hour(NOON + HOUR * n)
    for share in (0.5, 0.9, 0.99):
        exact = sorted(late)[math.ceil(share * 200) - 1]
        assert percentile_of(TopicHour.objects.all(), share) == pytest.approx(exact, rel=0.032)


# Again


@pytest.mark.parametrize("model", [TopicHour, TaskDay])
def test_twice_is_as_once(model: Any) -> None:
    for row in some_rows(60, NOON, HOUR):
        archived(**row)

    def compute() -> int:
        return compute_hour(NOON) if model is TopicHour else compute_day(TODAY)

    counts, first = compute(), figures_in(model)
    assert compute() == counts
    assert figures_in(model) == first


def test_what_came_later_is_in_the_next_figures() -> None:
    finish(count=2)
    compute_hour(NOON)
    compute_day(TODAY)
    finish(count=3, state="dead", error_class="ValueError")
    compute_hour(NOON)
    compute_day(TODAY)
    for row in (only_hour(), only_day()):
        assert (row.messages, row.acked, row.dead) == (5, 2, 3)


class Interrupted(Exception):
    """The process ends."""


def test_an_interrupted_computation_leaves_the_figures_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "PAGE", 2)
    finish()
    compute_hour(NOON)
    compute_day(TODAY)
    before = figures_in(TopicHour), figures_in(TaskDay)
    finish(count=5)

    def interrupt() -> None:
        raise Interrupted

    for compute in (lambda: compute_hour(NOON, interrupt), lambda: compute_day(TODAY, interrupt)):
        with pytest.raises(Interrupted):
            compute()
    assert (figures_in(TopicHour), figures_in(TaskDay)) == before


@pytest.mark.django_db(transaction=True)
def test_several_at_once_leave_the_figures_of_one() -> None:
    for topic in ("orders", "mail", "webhooks"):
        finish(topic=topic, count=4)

    def compute() -> None:
        for _ in range(5):
            with suppress(
                DatabaseError
            ):  # one of them may be refused, and comes again a minute later
                compute_hour(NOON)
                compute_day(TODAY)

    together(compute, compute, compute)
    for model in (TopicHour, TaskDay):
        assert sorted(row["messages"] for row in figures_in(model)) == [4, 4, 4]


# Bounds


def test_an_hour_begins_with_its_first_microsecond_and_ends_before_the_next() -> None:
    tick = timedelta(microseconds=1)
    for when in (NOON - tick, NOON, NOON + tick, NOON + HOUR - tick, NOON + HOUR):
        finish(when)
    assert [compute_hour(NOON + HOUR * n) for n in (-1, 0, 1)] == [1, 3, 1]


def test_a_day_is_that_of_utc() -> None:
    tick, begin = timedelta(microseconds=1), NOON - 12 * HOUR
    for when in (begin - tick, begin, begin + DAY - tick, begin + DAY):
        finish(when)
    assert [compute_day(TODAY + DAY * n) for n in (-1, 0, 1)] == [1, 2, 1]


@pytest.mark.parametrize("page", [1, 3, 4, 12, 13])
def test_each_row_counts_once_however_the_pages_fall(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "PAGE", page)
    finish(count=9)  # in one instant, across pages
    finish(NOON + timedelta(minutes=1))
    finish(NOON, topic="mail")  # a later row of an earlier instant
    finish(NOON + timedelta(minutes=1), topic="mail")
    pauses: list[int] = []
    assert compute_hour(NOON, lambda: pauses.append(1)) == 12
    assert {topic: row.messages for topic, row in hours().items()} == {"default": 10, "mail": 2}
    assert len(pauses) == math.ceil(12 / page)


def test_a_page_is_one_query_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "PAGE", 5)
    finish(count=12)
    with CaptureQueriesContext(connection) as queries:
        compute_hour(NOON)
    read = [one["sql"] for one in queries if ArchivedMessage._meta.db_table in one["sql"]]
    assert len(read) == 3
    assert all("LIMIT 5" in sql and "OFFSET" not in sql and "body" not in sql for sql in read)


# What is counted


def test_messages_that_never_ran_have_no_times() -> None:
    for state in ("cancelled", "expired"):
        finish(state=state, attempts=0, lateness_ms=None, run_ms=None)
    compute_hour(NOON)
    row = only_hour()
    assert (row.messages, row.acked, row.cancelled, row.expired, row.attempts, row.retried) == (
        2,
        0,
        1,
        1,
        0,
        0,
    )
    assert (
        (row.lateness, row.lateness_sum, row.lateness_max)
        == (row.run, row.run_sum, row.run_max)
        == ("{}", 0, None)
    )
    assert percentile_of([row], 0.5) is None


def test_those_that_never_ran_do_not_change_the_percentiles_of_the_others() -> None:
    finish(lateness_ms=8.0, run_ms=None)
    finish(state="expired", lateness_ms=None, run_ms=None, count=9)
    compute_hour(NOON)
    row = only_hour()
    assert sum(decode(row.lateness).values()) == 1
    assert percentile_of([row], 0.99) == pytest.approx(8, rel=0.032)
    assert (percentile_of([row], 0.99, "run"), row.run_max) == (None, None)


def test_what_began_before_it_was_due_is_not_late() -> None:
    for late in (-5.0, -1.5):  # clocks differ
        finish(lateness_ms=late)
    compute_hour(NOON)
    row = only_hour()
    assert (decode(row.lateness), row.lateness_sum, row.lateness_max) == ({0: 2}, -6.5, -1.5)


def test_errors_are_counted_by_class_or_else_by_reason_and_only_of_the_dead() -> None:
    finish(state="dead", error_class="ValueError", reason="Reject", count=2)
    finish(state="dead", reason="poison")
    finish(state="acked", error_class="TypeError")
    finish(state="expired", reason="expired")
    compute_day(TODAY)
    assert json.loads(only_day().errors) == {"ValueError": 2, "poison": 1}


def test_fifty_kinds_of_errors_are_kept_the_most_frequent_ones() -> None:
    for number in range(60):
        finish(state="dead", error_class=f"Error{number:02}", count=2 if number >= 30 else 1)
    compute_day(TODAY)
    kept = json.loads(only_day().errors)
    assert len(kept) == statistics.MOST_ERRORS == 50
    assert {name for name, count in kept.items() if count == 2} == {
        f"Error{number:02}" for number in range(30, 60)
    }
    assert only_day().dead == 90


@by_collation
@pytest.mark.parametrize(
    "names", [("shop.tasks.Close", "shop.tasks.close"), ("shop.tasks.naïve", "shop.tasks.naive")]
)
def test_names_that_a_collation_may_take_for_equal_are_two(names: tuple[str, str]) -> None:
    for name in names:
        finish(task=name)
    assert compute_day(TODAY) == 2
    assert set(TaskDay.objects.values_list("task", flat=True)) == set(names)


@by_collation
def test_topics_that_differ_in_case_are_two() -> None:
    for topic in ("Orders", "orders"):
        finish(topic=topic)
    assert compute_hour(NOON) == 2
    assert set(hours()) == {"Orders", "orders"}


# Time zones


def test_hours_and_days_are_those_of_utc() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert hour_of(datetime(2026, 11, 21, 7, 59, 59, 999, tzinfo=tokyo)) == datetime(
        2026, 11, 20, 22, tzinfo=timezone.utc
    )
    assert day_of(datetime(2026, 11, 21, 8, 59, tzinfo=tokyo)) == date(2026, 11, 20)


def test_an_activated_time_zone_changes_nothing(settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Kolkata"
    finish(NOON + timedelta(minutes=59))
    assert (compute_hour(NOON), compute_day(TODAY)) == (1, 1)
    assert only_hour().hour == NOON


@pytest.mark.parametrize(
    ("zone", "noon"), [("Asia/Kolkata", (17, 30)), ("America/New_York", (7, 0))]
)
def test_without_use_tz_hours_are_still_those_of_utc(
    zone: str, noon: tuple[int, int], settings: Any
) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, zone
    for minutes in (-1, 0, 59, 60):
        finish(NOON + timedelta(minutes=minutes))
    assert compute_hour(NOON) == 2
    assert only_hour().hour == datetime(2026, 11, 20, *noon)
    assert hour_of(only_hour().hour) == NOON
    assert utc(only_hour().computed_at) == pytest.approx(
        datetime.now(timezone.utc), abs=timedelta(minutes=1)
    )
    finish(NOON - 12 * HOUR)
    finish(NOON + 12 * HOUR)
    assert compute_day(TODAY) == 5
    assert only_day().day == TODAY


def test_without_use_tz_an_activated_time_zone_changes_nothing(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kolkata"
    finish()
    compute_hour(NOON)
    with django_timezone.override("America/New_York"):
        assert hour_of(only_hour().hour) == NOON


# Where


@pytest.mark.django_db(databases=["default", "other"])
def test_the_database_of_the_settings_is_read_and_written(settings: Any) -> None:
    finish()
    settings.DELAYQ = {**settings.DELAYQ, "DATABASE": "other"}
    assert compute_hour(NOON) == 0
    ArchivedMessage.objects.bulk_create(
        ArchivedMessage(**{**row, "id": None})
        for row in ArchivedMessage.objects.using("default").values()
    )
    assert (compute_hour(NOON), compute_day(TODAY)) == (1, 1)
    assert [model.objects.using("default").count() for model in (TopicHour, TaskDay)] == [0, 0]
    assert [model.objects.using("other").count() for model in (TopicHour, TaskDay)] == [1, 1]


# Totals


def test_the_total_of_an_hour_and_of_a_day_is_the_sum_of_their_rows() -> None:
    finish(count=3, topic="orders", lateness_ms=1.0)
    finish(topic="mail", attempts=3, lateness_ms=700.0, run_ms=None)
    finish(topic="mail", state="dead", error_class="ValueError", attempts=2)
    compute_hour(NOON)
    compute_day(day_of(NOON))
    for total, rows in (
        (HourTotal.objects.get(), TopicHour.objects.all()),
        (DayTotal.objects.get(), TaskDay.objects.all()),
    ):
        assert rows.count() > 1
        for name in ("messages", "acked", "dead", "attempts", "retried", "lateness_sum"):
            assert getattr(total, name) == sum(getattr(row, name) for row in rows)
        assert (total.messages, total.retried, total.lateness_max, total.run_max) == (5, 2, 700, 20)
        for metric in ("lateness", "run"):
            summed = merge_histograms(decode(getattr(row, metric)) for row in rows)
            assert decode(getattr(total, metric)) == summed


def test_a_total_is_replaced_with_its_hour_and_stays_with_it() -> None:
    finish(count=2)
    compute_hour(NOON)
    finish(topic="mail")
    compute_hour(NOON)
    assert HourTotal.objects.get().messages == 3
    before = HourTotal.objects.get().computed_at
    ArchivedMessage.objects.all().delete()
    compute_hour(NOON)  # the archive was pruned: the figures stay
    total = HourTotal.objects.get()
    assert (total.messages, total.computed_at > before) == (3, True)
    assert replace_each(TopicHour, {stored(NOON): []}, fewer=True)
    assert not HourTotal.objects.exists()


@pytest.mark.parametrize("damage", ["wrong", "gone"])
def test_a_total_that_is_not_the_sum_of_its_rows_is_mended(damage: str) -> None:
    finish(count=2)
    finish(topic="mail", lateness_ms=0.1)
    compute_hour(NOON)
    if damage == "wrong":
        HourTotal.objects.update(messages=2)
    else:
        HourTotal.objects.all().delete()
    rows = list(TopicHour.objects.values("pk"))
    compute_hour(NOON)
    assert HourTotal.objects.get().messages == 3
    assert list(TopicHour.objects.values("pk")) == rows  # these stay as they are
    before = HourTotal.objects.get().pk
    compute_hour(NOON)
    assert HourTotal.objects.get().pk == before  # and so does a total that is right
