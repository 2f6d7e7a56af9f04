"""Several hours, or days, in one transaction: what becomes of each, in whatever order processes
come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.db.models import QuerySet

from django_delayq.core.conf import get_settings
from django_delayq.models import TaskDay, TopicHour
from django_delayq.pipeline.stats import stats
from django_delayq.pipeline.stats.stats import Chunk, _transactions, write_back
from django_delayq.stats import hourly
from django_delayq.stats.hourly import Replacement, compare_each, replace_each

NOON, HOUR = datetime(2026, 11, 20, 12, tzinfo=timezone.utc), timedelta(hours=1)
HOURS = [NOON + n * HOUR for n in range(4)]
TOPICS = ("mail", "orders")


def figures(hour: datetime, messages: int, topic: str = "orders") -> TopicHour:
    """Of messages that were all acked."""
    return TopicHour(hour=hour, topic=topic, messages=messages, acked=messages, dead=0, cancelled=0, expired=0,
                     attempts=messages, retried=0)  # fmt: skip


def stored() -> dict[datetime, int]:
    return dict(TopicHour.objects.order_by("hour").values_list("hour", "messages"))


@pytest.mark.databases
def test_each_hour_of_a_transaction_is_replaced_or_stays_by_itself(transactional_db: None) -> None:
    replace_each(TopicHour, {hour: [figures(hour, 10)] for hour in HOURS[:3]})
    before = {row.hour: row.pk for row in TopicHour.objects.all()}
    spans = {
        hour: [figures(hour, messages)]
        for hour, messages in zip(HOURS, (10, 11, 9, 7), strict=True)
    }
    wanted = [Replacement.SAME, Replacement.REPLACED, Replacement.KEPT, Replacement.REPLACED]
    assert list(compare_each(TopicHour, spans).items()) == list(zip(HOURS, wanted, strict=True))
    assert list(replace_each(TopicHour, spans).values()) == wanted
    assert list(stored().values()) == [10, 11, 10, 7]
    untouched = {row.hour for row in TopicHour.objects.all() if before.get(row.hour) == row.pk}
    assert untouched == {HOURS[0], HOURS[2]}
    assert (
        replace_each(TopicHour, {HOURS[0]: [], HOURS[1]: []}, fewer=True)[HOURS[0]]
        is Replacement.REPLACED
    )
    assert list(stored()) == HOURS[2:]


@pytest.mark.databases
def test_hours_of_a_transaction_are_written_all_or_none(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_each(TopicHour, {hour: [figures(hour, 10)] for hour in HOURS})

    def interrupt(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(QuerySet, "bulk_create", interrupt)
    with pytest.raises(KeyboardInterrupt):
        replace_each(TopicHour, {HOURS[0]: [figures(HOURS[0], 11)], HOURS[1]: []}, fewer=True)
    assert stored() == dict.fromkeys(HOURS, 10)


@pytest.mark.databases
def test_very_many_rows_are_written_and_one_that_is_there_stays(transactional_db: None) -> None:
    """By COPY where that is possible."""
    topics = [f"topic.{n:04}" for n in range(1_200)]
    rows = [figures(NOON, n + 1, topic) for n, topic in enumerate(topics)]
    rows[7].lateness, rows[7].lateness_max, rows[7].run_max = '{"5":1}', 0.25, None
    assert replace_each(TopicHour, {NOON: rows}) == {NOON: Replacement.REPLACED}
    found = {row.topic: row for row in TopicHour.objects.all()}
    assert {topic: row.messages for topic, row in found.items()} == {
        row.topic: row.messages for row in rows
    }
    some = found["topic.0007"]
    assert (some.lateness, some.lateness_max, some.run_max, some.hour) == (
        '{"5":1}', 0.25, None, NOON,
    )  # fmt: skip
    assert replace_each(TopicHour, {NOON: rows}) == {NOON: Replacement.SAME}
    # Another process is quicker with one of them.
    days = [
        TaskDay(day=NOON.date(), topic=topic, task="t", messages=1, acked=1, dead=0, cancelled=0,
                expired=0, attempts=1, retried=0)
        for topic in topics
    ]  # fmt: skip
    first = TaskDay.objects.create(
        day=NOON.date(), topic=topics[3], task="t", messages=9, acked=9, dead=0, cancelled=0,
        expired=0, attempts=9, retried=0,
    )  # fmt: skip
    hourly._insert(TaskDay, days)
    assert TaskDay.objects.count() == len(topics)
    assert TaskDay.objects.get(topic=topics[3]) == first


def pipeline(hours: Sequence[datetime], messages: int) -> None:
    """Writes these hours in one transaction."""
    chunks = [
        Chunk(TopicHour, hour, hour, [figures(hour, messages, topic) for topic in TOPICS])
        for hour in hours
    ]
    write_back(chunks, bool)


def service(messages: int) -> None:
    """Writes each hour. What fails is tried again at its next turn."""
    for hour in HOURS:
        with suppress(OperationalError):
            replace_each(TopicHour, {hour: [figures(hour, messages, topic) for topic in TOPICS]})


@pytest.mark.databases
def test_processes_that_replace_the_same_hours_at_once_all_get_through(
    transactional_db: None,
) -> None:
    def work(write: Callable[[int], None]) -> bool:
        try:
            for messages in range(1, 13):
                write(messages)
        finally:
            connections[get_settings().database].close()
        return True

    works = (partial(pipeline, HOURS[:3]), partial(pipeline, HOURS[1:]), service)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(work, works)) == [True] * 3
    assert stored() == dict.fromkeys(HOURS, 12)
    assert TopicHour.objects.count() == 8


def test_a_transaction_that_the_database_ended_is_repeated_with_what_ends_it(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = iter([OperationalError("deadlock"), OperationalError("deadlock"), None])

    def finish() -> None:
        if error := next(ends):
            raise error

    (chunk,) = chunks = [Chunk(TopicHour, NOON, NOON, [figures(NOON, 3)])]
    written = write_back(chunks, finish)
    assert (written.outcomes, stored()) == ({Replacement.REPLACED: 1}, {NOON: 3})

    monkeypatch.setattr(stats, "TRIES", 2)
    ends = iter([OperationalError("deadlock")] * 2)
    with pytest.raises(OperationalError):
        write_back([chunk._replace(rows=[figures(NOON, 4)])], finish)
    assert stored() == {NOON: 3}


def test_two_hours_that_are_one_on_the_project_s_clocks_are_not_in_one_transaction() -> None:
    """Without USE_TZ, when they are put back."""
    at = datetime(2026, 10, 25, 2)
    chunks = [Chunk(TopicHour, at, NOON + n * HOUR, []) for n in range(2)]
    other, day = (
        Chunk(TopicHour, at + HOUR, HOURS[2], []),
        Chunk(TaskDay, NOON.date(), NOON, []),
    )
    assert list(_transactions([*chunks, other, day])) == [chunks[:1], [chunks[1], other], [day]]
    assert list(_transactions([chunks[0], other, chunks[1]])) == [[chunks[0], other], [chunks[1]]]


@pytest.fixture
def in_berlin(transactional_db: None) -> Iterator[None]:
    """The times of the database's connection are of a zone where clocks are put back."""
    connection = connections[get_settings().database]

    def be_in(zone: str | None) -> None:
        connection.close()
        connection.settings_dict["TIME_ZONE"] = zone
        for name in ("timezone", "timezone_name"):
            vars(connection).pop(name, None)

    before = connection.settings_dict["TIME_ZONE"]
    be_in("Europe/Berlin")
    yield
    be_in(before)


@pytest.mark.databases
def test_the_hour_that_comes_twice_is_compared_with_what_is_stored_of_it(in_berlin: None) -> None:
    hours = [datetime(2026, 10, 25, hour, tzinfo=timezone.utc) for hour in range(3)]
    for hour in hours:
        assert replace_each(TopicHour, {hour: [figures(hour, 10)]}) in (
            {hour: Replacement.REPLACED},
            {hour: Replacement.SAME},  # where two hours are one
        )
    assert compare_each(TopicHour, {hour: [figures(hour, 10)] for hour in hours}) == dict.fromkeys(
        hours, Replacement.SAME
    )
    assert compare_each(TopicHour, {hours[0]: [figures(hours[0], 9)]}) == {
        hours[0]: Replacement.KEPT
    }
