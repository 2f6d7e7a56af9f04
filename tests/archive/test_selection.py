"""Which rows a Selection means, and how it is stored and said."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_delayq.archive.selection import MOST_IDS, Selection
from django_delayq.core.exceptions import InvalidMessage
from tests.admin.rows import NOON, make, make_dead

pytestmark = [pytest.mark.databases, pytest.mark.django_db]

FULL = Selection(
    state="dead", open=True, topic="orders", task="tests.app.tasks.noop", error="ValueError", since=NOON,
    until=NOON + timedelta(hours=1), key="order:1", ids=(1, 2), argument="order.id", value="7",
)  # fmt: skip


def ids(**parts: Any) -> list[int]:
    return sorted(Selection(**parts).rows().values_list("pk", flat=True))


def test_an_empty_one_is_the_whole_archive() -> None:
    rows = [make(), make_dead()]
    assert ids() == [row.pk for row in rows]
    assert Selection().is_everything
    assert not Selection(open=True).is_everything


def test_open_is_what_nobody_has_dealt_with() -> None:
    row = make_dead()
    make_dead(replayed_at=NOON), make_dead(discarded_at=NOON), make()
    assert ids(open=True) == [row.pk]


def test_an_error_is_meant_by_its_class_in_full_its_last_part_or_the_reason() -> None:
    row, other = (
        make_dead(error_class="shop.errors.PriceMissing"),
        make_dead(error_class="", reason="poison"),
    )
    make_dead(error_class="shop.errors.NoPriceMissing")
    assert (
        ids(error="PriceMissing")
        == ids(error="shop.errors.PriceMissing")
        == ids(error="errors.PriceMissing")
        == [row.pk]
    )
    assert ids(error="poison") == [other.pk]
    assert ids(error="%PriceMissing") == ids(error="_hop.errors.PriceMissing") == []


def test_a_period_has_its_beginning_and_not_its_end() -> None:
    rows = [make(finished_at=NOON + timedelta(minutes=minute)) for minute in range(3)]
    assert ids(since=NOON, until=NOON + timedelta(minutes=2)) == [rows[0].pk, rows[1].pk]


def test_a_period_fits_a_project_without_time_zones() -> None:
    with override_settings(USE_TZ=False, TIME_ZONE="UTC"):
        row = make(
            finished_at=NOON.replace(tzinfo=None),
            due_at=NOON.replace(tzinfo=None),
            enqueued_at=NOON.replace(tzinfo=None),
        )
        assert ids(since=NOON, until=NOON + timedelta(seconds=1)) == [row.pk]
        assert ids(since=NOON + timedelta(seconds=1)) == []


def test_a_key_is_sought_in_its_topic_or_in_every_declared_one() -> None:
    here, there = make(key="order:1"), make(key="order:1", topic="default")
    make(key="order:2")
    assert ids(key="order:1") == [here.pk, there.pk]
    assert ids(key="order:1", topic="default") == [there.pk]


def test_rows_are_named_one_by_one_by_id_or_by_message_id() -> None:
    first, second, _ = make(), make(), make()
    assert ids(ids=(first.pk, second.pk)) == [first.pk, second.pk]
    assert ids(message_id=second.message_id.hex) == [second.pk]


def test_it_comes_back_from_storage_as_it_was() -> None:
    assert Selection.decode(FULL.encode()) == FULL
    assert Selection.decode(Selection().encode()) == Selection()
    assert Selection().encode() == "{}"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"state":"gone"}', '{"key":""', '{"since":"x"}', '{"ids":["a"]}']
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessage):
        Selection.decode(text)


@pytest.mark.parametrize(
    "parts",
    [
        {"state": "gone"},
        {"message_id": "x"},
        {"key": "x" * 257},
        {"ids": tuple(range(1, MOST_IDS + 2))},
    ],
)
def test_impossible_ones_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        Selection(**parts)


def test_it_is_said_in_words() -> None:
    words = FULL.in_words()
    for part in (
        "2 named rows",
        "open dead letters",
        "topic orders",
        "error ValueError",
        "key order:1",
        "order.id = 7",
    ):
        assert part in words
    assert Selection().in_words() == "everything"
    assert Selection(error="=KeyError").in_words() == "error KeyError"
    assert Selection(error="=").in_words() == "error none"
