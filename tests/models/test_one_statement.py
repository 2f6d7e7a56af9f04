"""Several queries in one statement."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from django.db.models import Value
from django.utils import timezone

from django_delayq.models import ArchivedMessage, TaskDay, TopicHour, UnarchivableEntry
from django_delayq.models.one_statement import Count, read_together
from tests.admin.rows import NOON, make, make_dead

pytestmark = [pytest.mark.django_db, pytest.mark.databases]

FIGURES = dict.fromkeys(("messages", "acked", "dead", "cancelled", "expired"), 1) | {
    "attempts": 1,
    "retried": 0,
}


def test_each_query_has_its_own_answer(django_assert_num_queries: Any) -> None:
    make(topic="mail")
    dead = make_dead()
    every = ArchivedMessage.objects.order_by("-pk")
    with django_assert_num_queries(1):
        count, topics, (row,), nothing = read_together(
            Count(every[:1]),
            every.values_list("topic", "error_class"),
            every.filter(state="dead")[:1],
            UnarchivableEntry.objects.values_list("topic"),
        )
    assert count == 1
    assert set(topics) == {("mail", ""), ("orders", "shop.errors.PriceMissing")}
    assert (row.pk, row.message_id, row.finished_at) == (
        dead.pk, dead.message_id, every.get(pk=dead.pk).finished_at,
    )  # fmt: skip
    assert nothing == []


def test_values_have_the_types_that_they_have_alone() -> None:
    TaskDay.objects.create(day=date(2026, 11, 20), topic="mail", task="t", **FIGURES)
    TopicHour.objects.create(hour=timezone.now(), topic="mail", **FIGURES, lateness_max=1.5)
    days, hours, rows = (
        TaskDay.objects.values_list("day", "lateness_max", "topic"),
        TopicHour.objects.values_list("hour", "lateness_max", "topic"),
        ArchivedMessage.objects.annotate(mark=Value(7)).values_list("mark", "message_id"),
    )
    make(finished_at=NOON)
    assert read_together(days, hours, rows) == [list(days), list(hours), list(rows)]


def test_only_the_asked_columns_of_a_row_are_read(django_assert_num_queries: Any) -> None:
    make(body='{"args":[7]}')
    ((row,),) = read_together(ArchivedMessage.objects.only("pk", "topic"))
    assert "body" not in row.__dict__
    with django_assert_num_queries(1):
        assert row.body == '{"args":[7]}'


def test_what_cannot_match_asks_for_nothing() -> None:
    make()
    rows = ArchivedMessage.objects.all()
    nothing = rows.filter(topic__in=())
    later = rows.filter(finished_at__gte=timezone.now() + timedelta(days=1))
    assert read_together(nothing, rows.none(), Count(nothing), later) == [[], [], 0, []]
    assert read_together() == []
