"""An address, a form and a Selection mean the same."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.http import QueryDict
from django.test import override_settings
from django.utils import timezone as zones

from django_delayq.admin.forms.archive_form import ArchiveForm, query_of, selection_from
from django_delayq.archive.selection import Selection
from django_delayq.core.exceptions import InvalidMessage
from tests.admin.rows import NOON

ID = "0190e1d2a3b47c5d8e9f001122334455"


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {
            "state": "dead",
            "open": True,
            "topic": "orders",
            "task": "tests.app.tasks.noop",
            "error": "a & b=c",
        },
        {"topic": "gone", "task": "gone.too"},
        {"since": NOON, "until": NOON + timedelta(microseconds=1)},
        {"key": "order:1042 & ünï:+%"},
        {"message_id": ID},
        {"ids": (3, 1, 2)},
        {"argument": "order.id", "value": 'a:"b" c', "since": NOON},
        {"argument": "args.0", "value": "7", "since": NOON},
    ],
)
def test_an_address_brings_a_selection_back(parts: dict[str, Any]) -> None:
    selection = Selection(**parts)
    for zone in ("UTC", "Asia/Kathmandu"):
        with override_settings(TIME_ZONE=zone):
            assert selection_from(QueryDict(query_of(selection))) == selection


def test_instants_without_a_zone_are_in_the_projects() -> None:
    with override_settings(TIME_ZONE="Asia/Kolkata"), zones.override("Asia/Kolkata"):
        selection = selection_from(QueryDict("since=2026-11-20T12:00"))
        assert selection.since == datetime(2026, 11, 20, 6, 30, tzinfo=timezone.utc)
        form = ArchiveForm(QueryDict(query_of(selection)))
        assert 'value="2026-11-20T12:00:00"' in str(form["since"])


def test_a_period_counts_from_now_unless_instants_are_given() -> None:
    since = selection_from(QueryDict("period=24h")).since
    assert since is not None
    assert abs(zones.now() - timedelta(days=1) - since) < timedelta(seconds=5)
    assert selection_from(QueryDict("period=24h&since=2026-11-20T12:00:00Z")).since == NOON


def test_checked_rows_are_ids() -> None:
    assert selection_from(QueryDict("kind=replay&id=3&id=1&id=3&ids=7,8")).ids == (3, 1, 7, 8)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (ID, {"message_id": ID}),
        ("0190e1d2-a3b4-7c5d-8e9f-001122334455", {"message_id": ID}),
        ("key:a:b", {"key": "a:b"}),
        ("args.a.b:1:2", {"argument": "a.b", "value": "1:2"}),
        ("args.0: x", {"argument": "args.0", "value": "x"}),
        (" key:x ", {"key": "x"}),
    ],
)
def test_the_search_box_understands(text: str, parts: dict[str, str]) -> None:
    query = QueryDict(mutable=True)
    query["q"] = text
    assert selection_from(query) == Selection(**parts)


@pytest.mark.parametrize(
    "query",
    [
        "state=acked&open=on",
        "state=x",
        "period=x",
        "since=x",
        "q=x",
        "q=args.:1",
        "id=x",
        "id=0",
        "id=-1",
        "ids=1;2",
    ],
)
def test_what_it_does_not_understand_it_says(query: str) -> None:
    with pytest.raises(InvalidMessage):
        selection_from(QueryDict(query))
