"""The page of dead letters: each number leads to the rows that it counts."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client
from django.utils import timezone

from django_delayq.admin.forms.archive_form import selection_from
from django_delayq.archive import dead_letters
from tests.admin.browser import address
from tests.operators.test_replay import dead

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq")]

AsUser = Callable[..., Client]
HOSTILE = "</small><script>alert(1)</script>\u202e=cmd|'/c calc'!A1"
HOUR = timedelta(hours=1)


def died(count: int = 1, ago: timedelta = HOUR / 2, **values: Any) -> list[int]:
    return dead(count, finished_at=timezone.now() - ago, **values)


@pytest.fixture
def page(as_user: AsUser) -> Callable[..., str]:
    """The HTML for who may see and do everything."""
    client = as_user(superuser=True)

    def get(**query: str) -> str:
        response = client.get(address("dead_letters"), query)
        assert response.status_code == 200
        return response.content.decode()

    return get


def links(text: str, to: str) -> list[tuple[QueryDict, str]]:
    """Parameters and text of the links to one of our pages."""
    found = re.findall(rf'href="{address(to)}\?([^"]*)"[^>]*>(.*?)</a>', text, re.S)
    return [
        (QueryDict(html.unescape(query)), re.sub("<[^>]*>|\\s", "", shown))
        for query, shown in found
    ]


def table(text: str) -> str:
    return text.partition("<tbody>")[2]


def test_every_number_is_a_link_to_as_many_rows(page: Callable[..., str]) -> None:
    died(3)
    died(2, HOUR * 5)
    died(1, HOUR * 50)
    died(
        4,
        error_class="requests.exceptions.ConnectionError",
        topic="orders",
        task="shop.tasks.close",
    )
    died(2, error_class="", reason="poison & <b>more</b>")
    died(5, HOUR * 24 * 8)
    found = links(page(), "archive")
    assert [int(re.sub(r"^\D+\d*\D+", "", shown)) for _, shown in found[:4]] == [9, 11, 12, 5]
    assert sorted(int(shown) for _, shown in found[4:]) == [2, 2, 2, 3, 4, 4, 4, 5, 6]
    for query, shown in found[4:]:
        assert selection_from(query).rows().count() == int(shown), query


def test_a_number_leads_to_the_archive_that_lists_its_rows(
    page: Callable[..., str], as_user: AsUser
) -> None:
    rows = died(3, error_class="KeyError")
    died(2, error_class="ValueError")
    hour, _day, _week = (
        query for query, _ in links(table(page()), "archive") if query["error"] == "=KeyError"
    )
    listed = (
        as_user("view_dashboard").get(f"{address('archive')}?{hour.urlencode()}").content.decode()
    )
    for pk in rows:
        assert address("archived", pk=pk) in listed
    assert len(set(re.findall(rf'"{address("archive")}(\d+)/"', listed))) == 3


def test_the_buttons_of_a_group_are_about_that_group(page: Callable[..., str]) -> None:
    died(3, error_class="KeyError", topic="orders")
    died(2, error_class="KeyError", task="tests.app.tasks.other")
    found = links(page(topic="orders"), "bulk_new")
    assert [(query["kind"], shown) for query, shown in found] == [
        ("replay", "Replay"),
        ("discard", "Discard"),
    ]
    for query, _ in found:
        filters = query.copy()
        filters.pop("kind")
        assert selection_from(filters).rows().count() == 3


@pytest.mark.parametrize(
    ("error_class", "reason"), [("", ""), ("", " blanks "), ("KeyError", "poison")]
)
def test_each_group_is_named_exactly(
    page: Callable[..., str], as_user: AsUser, error_class: str, reason: str
) -> None:
    rows = died(2, error_class=error_class, reason=reason)
    died(1, error_class="shop.KeyError", reason="")
    died(1, error_class="ValueError", reason="blanks")
    error = f"={error_class or reason}"
    query = next(query for query, _ in links(table(page()), "archive") if query["error"] == error)
    listed = (
        as_user("view_dashboard").get(f"{address('archive')}?{query.urlencode()}").content.decode()
    )
    assert {int(pk) for pk in re.findall(rf'"{address("archive")}(\d+)/"', listed)} == set(rows)


@pytest.mark.parametrize(
    ("permissions", "shown"),
    [
        ((), set()),
        (("bulk_operate",), set()),
        (("bulk_operate", "replay_message"), {"replay"}),
        (("bulk_operate", "discard_message"), {"discard"}),
        (("replay_message", "discard_message"), set()),
    ],
)
def test_who_may_not_do_it_has_no_button(
    as_user: AsUser, permissions: tuple[str, ...], shown: set[str]
) -> None:
    died()
    text = as_user("view_dashboard", *permissions).get(address("dead_letters")).content.decode()
    assert {query["kind"] for query, _ in links(text, "bulk_new")} == shown


def test_the_newest_error_is_told_only_to_who_may_see_payloads(as_user: AsUser) -> None:
    died(error_message="card 4111 was declined")
    for permissions, told in (((), False), (("view_payload",), True)):
        response = as_user("view_dashboard", *permissions).get(address("dead_letters"))
        assert ("card 4111" in response.content.decode()) is told
        assert ("card 4111" in str(response.context["rows"])) is told
        assert "ValueError" in response.content.decode()


def test_only_the_chosen_topic_is_shown(page: Callable[..., str]) -> None:
    died(error_class="KeyError", topic="orders")
    died(error_class="TypeError")
    died(error_class="OSError", topic="of-a-task-that-was-removed")
    assert all(name in page() for name in ("KeyError", "TypeError", "OSError"))
    text = page(topic="orders")
    assert "KeyError" in text
    assert "TypeError" not in text
    text = page(topic="of-a-task-that-was-removed")
    assert "OSError" in text
    assert '<option value="of-a-task-that-was-removed" selected>' in text


def test_an_impossible_topic_is_told_and_everything_is_shown(page: Callable[..., str]) -> None:
    died(error_class="KeyError")
    for topic in ("a b", "\0", "<script>"):
        text = page(topic=topic)
        assert "cannot name a topic" in text
        assert "KeyError" in text
        assert "<script>&" not in text
        assert "'<script>'" not in text


def test_nothing_open_says_so(page: Callable[..., str]) -> None:
    died(3, HOUR * 24 * 10)
    assert "No open dead letters from the last 7 days" in page()
    assert "Topic orders has no open dead letters" in page(topic="orders")


def test_a_flood_is_told(page: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "MOST_ROWS", 3)
    for minutes in range(6):
        died(1, timedelta(minutes=minutes))
    text = page()
    assert "too many to count" in text
    assert [shown for _, shown in links(table(text), "archive")] == ["4+", "4+", "4+"]


def test_more_groups_than_fit_are_told(
    page: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MOST_GROUPS", 2)
    for number in range(3):
        died(error_class="", reason=f"order {number}")
    assert "there are more" in page()


def test_what_a_worker_has_written_is_inert(page: Callable[..., str]) -> None:
    died(error_class="", reason=HOSTILE[:60], error_message=HOSTILE, task="x<script>y")
    died(error_class="E<script>", error_message=HOSTILE)
    text = page()
    assert "<script>alert" not in text
    assert "x<script>" not in text
    assert "E<script>" not in text
    assert "\u202e" not in text
    assert "\\u202e" in text
