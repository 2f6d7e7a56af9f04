"""Pages of the archive: each row once in both directions, whatever the filters, however small the
windows."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq.archive import search
from django_delayq.archive.search import every_row, page_of
from django_delayq.archive.selection import Selection
from django_delayq.core.exceptions import InvalidMessage
from django_delayq.models import ArchivedMessage
from tests.admin.rows import NOON, make, make_dead

pytestmark = [pytest.mark.databases, pytest.mark.django_db]

TOPICS = ("orders", "default", "crowd")
TASKS = ("tests.app.tasks.close_order", "tests.app.tasks.record", "tests.app.tasks.noop")
ERRORS = ("shop.errors.PriceMissing", "ValueError", "shop.errors.NotPriceMissing")


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if these few rows were millions."""
    for name, size in {
        "FIRST_IDS": 7,
        "PERIOD_ROWS": 9,
        "FEW_ROWS": 8,
        "SEARCHED_ROWS": 6,
        "CANDIDATES": 3,
    }.items():
        monkeypatch.setattr(search, name, size)
    monkeypatch.setattr(search, "BUDGET", 0.0)
    monkeypatch.setattr(search, "RARE", 3)


def crowd(count: int, seed: int = 1) -> list[ArchivedMessage]:
    """Rows of all kinds. They finished in nearly, not quite, the order of their ids, some in the
    same instant."""
    dice = random.Random(seed)
    rows = []
    for number in range(count):
        state = dice.choice(("acked", "acked", "dead", "cancelled", "expired"))
        finished_at = NOON + timedelta(minutes=number + dice.choice((0, 0, -30)) - number % 3)
        values: dict[str, Any] = {
            "topic": dice.choice(TOPICS),
            "task": dice.choice(TASKS),
            "state": state,
        }
        if state == "dead":
            values |= {
                "error_class": dice.choice(ERRORS),
                dice.choice(("replayed_at", "discarded_at")): dice.choice((None, NOON)),
            }
        elif state != "acked":
            values |= {"reason": state}
        if dice.random() < 0.2:
            values["key"] = f"order:{dice.randrange(5)}"
        rows.append(
            make(**values, finished_at=finished_at, body=f'{{"args":[{number % 7}],"kwargs":{{}}}}')
        )
    return rows


def selections(seed: int, count: int) -> list[Selection]:
    """Random combinations of filters."""
    dice = random.Random(seed)
    choices: dict[str, Sequence[Any]] = {
        "state": ("acked", "dead", "cancelled"),
        "open": (True,),
        "topic": (*TOPICS, "gone"),
        "task": (*TASKS, "gone"),
        "error": ("PriceMissing", "ValueError", "shop.errors.PriceMissing", "cancelled", "Nope"),
        "since": (NOON, NOON + timedelta(minutes=40)),
        "until": (NOON + timedelta(minutes=45), NOON + timedelta(hours=3)),
        "key": ("order:1", "order:2"),
    }
    return [
        Selection(
            **{name: dice.choice(values) for name, values in choices.items() if dice.random() < 0.3}
        )
        for _ in range(count)
    ]


def matches(selection: Selection, row: ArchivedMessage) -> bool:
    """What a selection means, without a database."""
    wanted = selection
    return (
        (not wanted.state or row.state == wanted.state)
        and (
            not wanted.open
            or (row.state == "dead" and not row.replayed_at and not row.discarded_at)
        )
        and (not wanted.topic or row.topic == wanted.topic)
        and (not wanted.task or row.task == wanted.task)
        and (
            not wanted.error
            or wanted.error in (row.error_class, row.error_class.rpartition(".")[2], row.reason)
        )
        and (not wanted.since or row.finished_at >= wanted.since)
        and (not wanted.until or row.finished_at < wanted.until)
        and (not wanted.key or row.key == wanted.key)
    )


def downwards(selection: Selection, size: int = 5) -> list[int]:
    """Ids of all rows, by following `older`."""
    found, before = [], None
    while True:
        page = page_of(selection, before=before, size=size)
        found += [row.pk for row in page.rows]
        if page.older is None:
            assert page.complete
            return found
        before = page.older


def upwards(selection: Selection, bottom: str, size: int = 5) -> list[int]:
    """Ids of all rows newer than the cursor, by following `newer`."""
    found: list[int] = []
    after: str | None = bottom
    while after is not None:
        page = page_of(selection, after=after, size=size)
        found = [row.pk for row in page.rows] + found
        after = page.newer
    return found


@pytest.mark.long
@pytest.mark.usefixtures("small_windows")
def test_all_combinations_of_filters_find_what_a_plain_loop_finds() -> None:
    rows = crowd(90)
    for selection in selections(2, 50):
        expected = {row.pk for row in rows if matches(selection, row)}
        found = downwards(selection)
        assert len(found) == len(set(found)), selection
        assert set(found) == expected, selection


def test_the_same_with_windows_that_hold_everything() -> None:
    rows = crowd(60)
    for selection in selections(3, 60):
        page = page_of(selection, size=100)
        assert {row.pk for row in page.rows} == {
            row.pk for row in rows if matches(selection, row)
        }, selection
        assert page.complete
        assert page.searched_back_to is page.older is page.newer is None


@pytest.mark.long
@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("seed", [4, 5])
def test_upwards_is_downwards_reversed(seed: int) -> None:
    crowd(60, seed)
    for selection in [Selection(), *selections(seed, 20)]:
        down = downwards(selection)
        timed = search._kind(selection) is search._ByFinishing
        assert upwards(selection, "0.0" if timed else "0") == down, selection


@pytest.mark.parametrize("part", [{}, {"since": NOON - timedelta(days=1)}, {"state": "dead"}])
def test_the_newest_come_first(part: dict[str, Any]) -> None:
    rows = [make_dead(finished_at=NOON + timedelta(seconds=number)) for number in range(12)]
    assert downwards(Selection(**part)) == [row.pk for row in reversed(rows)]


@pytest.mark.parametrize("part", [{}, {"since": NOON - timedelta(days=1)}])
@pytest.mark.usefixtures("small_windows")
def test_rows_that_come_and_go_meanwhile_repeat_and_hide_no_other(part: dict[str, Any]) -> None:
    rows = [make(finished_at=NOON + timedelta(seconds=number)) for number in range(40)]
    selection, before, found = Selection(**part), None, []
    for step in range(30):
        page = page_of(selection, before=before, size=5)
        found += [row.pk for row in page.rows]
        make(finished_at=NOON + timedelta(hours=1, seconds=step))
        if page.rows:
            page.rows[-1].delete()  # the very row at which the next page begins
        before = page.older
        if before is None:
            break
    assert found == [row.pk for row in reversed(rows)]


@pytest.mark.parametrize("part", [{}, {"since": NOON - timedelta(days=1)}, {"state": "dead"}])
def test_back_and_forth_is_the_same_page(part: dict[str, Any]) -> None:
    for number in range(30):
        make_dead(finished_at=NOON + timedelta(seconds=number // 4))
    first = page_of(Selection(**part), size=10)
    second = page_of(Selection(**part), before=first.older, size=10)
    again = page_of(Selection(**part), after=second.newer, size=10)
    assert [row.pk for row in again.rows] == [row.pk for row in first.rows]
    assert [row.pk for row in page_of(Selection(**part), before=again.older, size=10).rows] == [
        r.pk for r in second.rows
    ]


@pytest.mark.usefixtures("small_windows")
def test_a_page_that_is_not_full_says_how_far_it_looked() -> None:
    wanted = make(topic="default")
    for number in range(40):
        make(finished_at=NOON + timedelta(minutes=number))
    page = page_of(Selection(topic="default", task=wanted.task))
    assert (list(page.rows), page.complete) == ([], False)
    assert page.searched_back_to is not None
    assert page.older is not None
    assert downwards(Selection(topic="default", task=wanted.task)) == [wanted.pk]


def test_a_rare_task_is_found_at_once_below_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BUDGET", 0.0)
    monkeypatch.setattr(search, "FIRST_IDS", 5)
    monkeypatch.setattr(search, "PERIOD_ROWS", 5)
    monkeypatch.setattr(search, "RARE", 10)
    wanted = make(task="tests.app.tasks.noop")
    for _ in range(50):
        make()
    for part in ({}, {"since": NOON - timedelta(days=1)}):
        page = page_of(Selection(task="tests.app.tasks.noop", **part))
        assert ([row.pk for row in page.rows], page.complete) == ([wanted.pk], True), part


@pytest.mark.parametrize(
    "part", [{}, {"since": NOON}, {"state": "dead"}, {"task": "gone"}, {"key": "order:1"}]
)
def test_a_page_takes_two_queries_and_reads_no_body(part: dict[str, Any]) -> None:
    crowd(30)
    with CaptureQueriesContext(connection) as queries:
        page_of(Selection(**part), size=50)
    assert len(queries) <= 2
    assert not any(
        name in query["sql"] for query in queries for name in ("body", "headers", "traceback")
    )


@pytest.mark.parametrize(
    "cursor", ["x", "1.x", "1.2.3", "-5", "9" * 30, f"{'9' * 30}.1", "1e3", "½"]
)
@pytest.mark.parametrize("part", [{}, {"since": NOON}])
def test_a_place_that_is_none_is_refused(cursor: str, part: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="not a place in this list"):
        page_of(Selection(**part), before=cursor)


def test_a_place_of_another_list_is_refused() -> None:
    for part, cursor in (({}, "1790000000000000.5"), ({"since": NOON}, "5")):
        with pytest.raises(InvalidMessage, match="begin at its start"):
            page_of(Selection(**part), after=cursor)


def test_every_row_walks_through_all_pages() -> None:
    rows = crowd(60)
    assert [row.pk for row in every_row(Selection(), ("topic",), 7)] == [
        row.pk for row in reversed(rows)
    ]


# Arguments

ORDER = '{"args":[1042,"late"],"kwargs":{"order":{"id":7,"lines":["a","ü\\"b"]},"paid":true,"price":1.5}}'


@pytest.mark.parametrize(
    ("argument", "value", "is_found"),
    [
        ("order_id", "1042", True),
        ("args.0", "1042", True),
        ("args.1", "late", True),
        ("args.1", '"late"', True),
        ("order.id", "7", True),
        ("order.lines.1", 'ü"b', True),
        ("paid", "true", True),
        ("price", "1.50", True),
        ("order_id", "104", False),
        ("order_id", '"1042"', False),
        ("order_id", "1042.0", False),
        ("paid", "1", False),
        ("args.2", "late", False),
        ("order.lines.x", "a", False),
        ("reason", "late", False),
        ("order_id.x", "1042", False),
        ("order", '{"id":7,"lines":["a","ü\\"b"]}', True),
    ],
)
def test_arguments_are_found_by_name_position_and_path(
    argument: str, value: str, is_found: bool
) -> None:
    make(body=ORDER)
    make(body='{"record":"1042 late"}')
    make(body="1042 late, and no JSON")
    page = page_of(Selection(since=NOON, argument=argument, value=value))
    assert len(page.rows) == is_found


@pytest.mark.usefixtures("small_windows")
def test_arguments_are_sought_in_windows_and_none_is_missed() -> None:
    rows = crowd(80)
    expected = [
        number for number, row in enumerate(rows) if row.task == TASKS[0] and number % 7 == 3
    ]
    found = downwards(
        Selection(since=NOON - timedelta(days=1), task=TASKS[0], argument="order_id", value="3"),
        size=2,
    )
    assert sorted(found) == [rows[number].pk for number in expected]


def test_many_rows_that_have_the_value_elsewhere_hide_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CANDIDATES", 3)
    wanted = make(body='{"args":[1042],"kwargs":{}}')
    for _ in range(10):
        make(body='{"args":[7],"kwargs":{"reason":"1042"}}')
    selection = Selection(since=NOON, argument="order_id", value="1042")
    first = page_of(selection)
    assert (list(first.rows), first.complete, first.searched_back_to) == ([], False, NOON)
    assert downwards(selection) == [wanted.pk]


def test_a_search_for_an_argument_reads_fewer_rows_where_they_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "SAMPLE", 4)
    monkeypatch.setattr(search, "SEARCHED_ROWS", 40)
    monkeypatch.setattr(search, "SEARCHED_BYTES", 100_000)
    wanted = make(finished_at=NOON - timedelta(hours=1), body='{"args":["here"],"kwargs":{}}')
    for number in range(30):
        make(
            finished_at=NOON - number * timedelta(minutes=1),
            body=json.dumps({"args": ["x" * 9_900], "kwargs": {}}),
        )
    selection = Selection(since=NOON - timedelta(days=1), argument="args.0", value="here")
    pages = 0
    page = page_of(selection)
    assert page.rows == [] and page.searched_back_to is not None
    while not page.rows and page.older:
        page, pages = page_of(selection, before=page.older), pages + 1
    assert [row.pk for row in page.rows] == [wanted.pk]
    assert pages in (2, 3), "ten rows in each"


def test_arguments_are_sought_inside_a_period_only() -> None:
    with pytest.raises(InvalidMessage, match="needs a period"):
        page_of(Selection(argument="order_id", value="1"))
