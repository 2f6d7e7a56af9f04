"""Open dead letters in groups: the numbers are those that one gets by looking at each row."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_delayq.archive import dead_letters
from django_delayq.archive.dead_letters import WINDOWS, DeadLetters, Group, grouped
from django_delayq.core.exceptions import InvalidName
from django_delayq.models import ArchivedMessage
from django_delayq.stats import overview_sql
from tests.operators.test_replay import dead

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True)]

TASKS = ("tests.app.tasks.record", "shop.tasks.close")
ERRORS = ("app.errors.Timeout", "KeyError", "other.errors.Timeout", "")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """The instant at which grouped() looks, until move() says another one."""
    instant = timezone.now().replace(microsecond=0)
    move(monkeypatch, instant)
    return instant


def move(monkeypatch: pytest.MonkeyPatch, instant: datetime) -> None:
    monkeypatch.setattr(dead_letters.timezone, "now", lambda: instant)


def died(now: datetime, count: int = 1, **values: Any) -> list[int]:
    """Rows of dead letters that died so long ago: hours=, minutes=, days=."""
    length = {
        unit: values.pop(unit) for unit in ("days", "hours", "minutes", "seconds") if unit in values
    }
    return dead(count, finished_at=now - timedelta(**length), **values)


def only_group(**options: Any) -> Group:
    (group,) = grouped(**options).groups
    return group


def counted(found: DeadLetters) -> dict[tuple[str, str], tuple[int, int, int]]:
    return {
        (group.task, group.error): (group.hour, group.day, group.week) for group in found.groups
    }


def naive(now: datetime, topic: str = "") -> dict[tuple[str, str], tuple[int, int, int]]:
    """The same, row by row."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in ArchivedMessage.objects.all():
        is_open = row.state == "dead" and row.replayed_at is None and row.discarded_at is None
        if not is_open or topic not in ("", row.topic) or row.finished_at < now - WINDOWS["week"]:
            continue
        windows = [name for name, length in WINDOWS.items() if row.finished_at >= now - length]
        counts.setdefault((row.task, row.error_class or row.reason), Counter()).update(windows)
    return {group: (c["hour"], c["day"], c["week"]) for group, c in counts.items()}


def many(now: datetime, count: int = 300) -> None:
    """Rows of all kinds, at instants around the borders of the windows too."""
    chance = random.Random(7)
    borders = [timedelta(0), *WINDOWS.values()]
    for _ in range(count // 5):
        error = chance.choice(ERRORS)
        off = timedelta(seconds=chance.choice((-1, 0, 1)))
        age = (
            chance.choice(borders) + off
            if chance.random() < 0.3
            else timedelta(hours=chance.uniform(0, 24 * 9))
        )
        dead(
            chance.randint(1, 9),
            finished_at=now - age,
            topic=chance.choice(("default", "orders")),
            task=chance.choice(TASKS),
            error_class=error,
            reason="" if error else chance.choice(("poison", "bad_args")),
            state=chance.choice(("dead", "dead", "dead", "acked", "cancelled")),
            replayed_at=now if chance.random() < 0.2 else None,
            discarded_at=now if chance.random() < 0.2 else None,
        )


@pytest.mark.parametrize("topic", ["", "orders", "unknown"])
def test_the_numbers_are_those_of_the_rows(now: datetime, topic: str) -> None:
    many(now)
    assert counted(grouped(topic)) == naive(now, topic)


def test_behind_each_number_are_as_many_rows(now: datetime) -> None:
    many(now)
    for topic in ("", "orders"):
        found = grouped(topic)
        for group in found.groups:
            rows = {window: found.selection(group, window).rows().count() for window in WINDOWS}
            assert rows == {"hour": group.hour, "day": group.day, "week": group.week}, group
        for window in WINDOWS:
            assert found.selection(None, window).rows().count() == found.total(window)
        assert found.older_selection().rows().count() == found.older > 0


def test_the_windows_move_with_time(now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    died(now, 2)
    expected = [(0, 2, 2, 2), (3600, 2, 2, 2), (3601, 0, 2, 2), (86_401, 0, 0, 2)]
    for passed, *numbers in expected:
        move(monkeypatch, now + timedelta(seconds=passed))
        group = only_group()
        assert [group.hour, group.day, group.week] == numbers, passed
    move(monkeypatch, now + timedelta(days=7, seconds=1))
    found = grouped()
    assert (found.groups, found.older) == ([], 2)


def test_what_was_replayed_or_discarded_is_dealt_with(now: datetime) -> None:
    rows = ArchivedMessage.objects.filter(pk__in=died(now, 5))
    first, second, *_ = rows
    ArchivedMessage.objects.filter(pk=first.pk).update(replayed_at=now)
    ArchivedMessage.objects.filter(pk=second.pk).update(discarded_at=now)
    assert only_group().week == 3


def test_a_row_without_a_class_of_error_is_grouped_by_its_reason(now: datetime) -> None:
    died(now, 2, error_class="", reason="poison")
    died(now, error_class="", reason="unknown_task")
    died(now, error_class="KeyError", reason="failed")
    assert {group.error: group.week for group in grouped().groups} == {
        "poison": 2,
        "unknown_task": 1,
        "KeyError": 1,
    }


def test_the_newest_and_the_oldest_of_the_week_are_told(now: datetime) -> None:
    for hours in (5, 1, 3):
        died(now, hours=hours)
    died(now, days=9)
    group = only_group()
    assert (group.newest_at, group.oldest_at) == (
        now - timedelta(hours=1),
        now - timedelta(hours=5),
    )


def test_what_dies_most_just_now_comes_first(now: datetime) -> None:
    died(now, 9, error_class="LongAgo", days=3)
    died(now, 5, error_class="Today", hours=5)
    died(now, 1, error_class="Now")
    assert [group.error for group in grouped().groups] == ["Now", "Today", "LongAgo"]


def test_a_message_is_read_only_when_it_is_asked_for(now: datetime) -> None:
    died(now, hours=2, error_message="an older one")
    died(now, hours=1, error_message="x" * 1_000)
    died(now, hours=1, task="tests.app.tasks.other", error_message="of another task")
    with CaptureQueriesContext(connection) as queries:
        assert {group.message for group in grouped().groups} == {""}
    assert not any("error_message" in query["sql"] for query in queries)
    said = {group.task: group.message for group in grouped(messages=True).groups}
    assert said == {"tests.app.tasks.record": "x" * 300, "tests.app.tasks.other": "of another task"}


def test_only_the_newest_are_counted_and_that_is_told(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minutes in range(10):
        died(now, minutes=30 * minutes)
    assert grouped().counted_since is None
    monkeypatch.setattr(dead_letters, "MOST_ROWS", 10)
    found = grouped()
    assert (found.counted_since, found.groups[0].week) == (None, 10)
    monkeypatch.setattr(dead_letters, "MOST_ROWS", 4)
    found = grouped()
    assert found.counted_since == now - timedelta(minutes=120)
    assert (found.groups[0].hour, found.groups[0].week) == (3, 5)
    assert [found.is_partial(window) for window in WINDOWS] == [False, True, True]


def test_a_flood_of_one_instant_is_counted(now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    died(now, 8)
    monkeypatch.setattr(dead_letters, "MOST_ROWS", 4)
    found = grouped()
    assert (found.groups[0].hour, found.is_partial("hour")) == (5, True)


def test_groups_are_cut_off_and_that_is_told(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MOST_GROUPS", 3)
    for number in range(3):
        died(now, 3 - number, error_class="", reason=f"order {number} is unknown")
    assert not grouped().more_groups
    died(now, error_class="Rare", days=2)
    found = grouped()
    assert (found.more_groups, [group.week for group in found.groups]) == (True, [3, 2, 1])


def test_older_ones_are_counted_up_to_a_limit(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    died(now, 5, days=8)
    assert (grouped().older, grouped().is_older_partial) == (5, False)
    monkeypatch.setattr(dead_letters, "MOST_OLDER", 3)
    assert (grouped().older, grouped().is_older_partial) == (3, True)


def test_all_windows_are_one_query(now: datetime) -> None:
    many(now, 50)
    with CaptureQueriesContext(connection) as queries:
        grouped("orders")
    assert len(queries) == 2
    with CaptureQueriesContext(connection) as queries:
        grouped(messages=True)
    assert len(queries) == 2


def test_a_group_says_when_its_newest_letter_is_a_replay_that_died_again(now: datetime) -> None:
    died(now, 5, hours=1)
    assert not only_group().died_again
    died(now, 1, minutes=1, replay_of=7)
    assert only_group().died_again


def test_what_cannot_be_a_topic_is_refused(now: datetime) -> None:
    for topic in ("a b", "\0", "x" * 65, "<b>"):
        with pytest.raises(InvalidName):
            grouped(topic)


@pytest.mark.skipif(
    connection.vendor != "postgresql", reason="only PostgreSQL has the index and explains it so"
)
def test_an_index_serves_every_query(now: datetime) -> None:
    died(now, 50, error_message="late")
    dead(500, state="acked", finished_at=now)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE django_delayq_archivedmessage")
    with CaptureQueriesContext(connection) as queries:
        grouped(messages=True)
    assert len(queries) == 2
    for query in list(queries):
        plan = plan_of(query["sql"])
        # In so small a table the planner takes any index that begins with finished_at.
        assert "Seq Scan" not in plan, plan
        assert "delayq_archive_" in plan, plan


@pytest.mark.long
@pytest.mark.skipif(
    connection.vendor != "mysql",
    reason="it has no partial indexes, and counts the rows that it reads",
)
def test_no_query_reads_what_was_dealt_with(now: datetime) -> None:
    """Neither of this page nor of the overview."""
    died(now, 5)
    dead(1_000, finished_at=now - timedelta(minutes=1), replayed_at=now)
    dead(1_000, finished_at=now - timedelta(minutes=1), discarded_at=now)
    dead(
        1_000,
        finished_at=now - timedelta(minutes=1),
        state="acked",
        lateness_ms=None,
        topic="orders",
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE TABLE django_delayq_archivedmessage")
        cursor.fetchall()
        cursor.execute("FLUSH STATUS")
    found = grouped(messages=True)
    figures = overview_sql.read_database_figures(["default"], 0)
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        read = sum(int(count) for _, count in cursor.fetchall())
    assert (found.total("hour"), figures.dead_letters["default"]) == (5, 5)
    assert read < 500


def plan_of(sql: str) -> str:
    """What PostgreSQL would do for many rows, of which a test has few."""
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        cursor.execute(f"EXPLAIN {sql}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("RESET enable_seqscan; RESET enable_bitmapscan")
    return plan
