"""Facets: what the newest rows have in common, before one filters them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_delayq.archive import facets
from django_delayq.archive.facets import facet_rows, facets_of, has_facets
from django_delayq.archive.selection import Selection
from django_delayq.models import ArchivedMessage
from tests.operators.test_replay import dead

pytestmark = [pytest.mark.databases, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def rows() -> None:
    now = timezone.now()
    dead(3, error_class="a.Timeout", finished_at=now)
    dead(2, error_class="KeyError", topic="orders", finished_at=now)
    dead(1, error_class="", reason="poison", finished_at=now - timedelta(days=3))
    dead(4, state="acked", error_class="", finished_at=now)


def look(selection: Selection) -> facets.Facets:
    return facets_of(selection, list(facet_rows(selection)))


def counts(**filters: Any) -> dict[str, dict[str, int]]:
    found = look(Selection(**filters))
    return {name: dict(pairs) for name, pairs in found.counts.items()}


def test_each_facet_counts_by_the_other_filters() -> None:
    found = counts()
    assert found["state"] == {"dead": 6, "acked": 4}
    assert found["topic"] == {"default": 8, "orders": 2}
    assert found["error"] == {"a.Timeout": 3, "KeyError": 2, "poison": 1}
    found = counts(topic="orders")
    assert found["state"] == {"dead": 2}
    assert found["topic"] == {"default": 8, "orders": 2}, "to choose another one"
    for error in ("Timeout", "=a.Timeout", "a.Timeout"):
        assert counts(error=error)["topic"] == {"default": 3}
    assert counts(error="poison")["state"] == {"dead": 1}


def test_facets_of_open_letters_leave_out_what_was_dealt_with() -> None:
    ArchivedMessage.objects.filter(topic="orders").update(replayed_at=timezone.now())
    assert counts(open=True)["topic"] == {"default": 4}
    assert counts(open=True, topics=("orders",))["topic"] == {}


def test_the_cost_has_a_bound(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    monkeypatch.setattr(facets, "NEWEST", 5)
    with django_assert_num_queries(1):
        found = look(Selection())
    assert (found.read, found.is_all) == (5, False)
    assert sum(count for _, count in found.counts["state"]) == 5
    week = look(Selection(until=timezone.now() - timedelta(days=1)))
    assert (week.read, week.is_all) == (1, True)


def test_rows_of_hidden_topics_are_not_counted() -> None:
    found = look(Selection(topics=("orders",)))
    assert (found.read, found.is_all) == (2, True)
    assert dict(found.counts["state"]) == {"dead": 2}
    assert dict(found.counts["topic"]) == {"orders": 2}


@pytest.mark.parametrize("filters", [{"ids": (1,)}, {"key": "k"}, {"key_prefix": "k"}])
def test_a_selection_of_few_rows_has_none(filters: dict[str, Any]) -> None:
    assert not has_facets(Selection(**filters))
