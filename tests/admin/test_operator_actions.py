"""The page of operator actions: who did what to how many messages, and why."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_delayq.admin.pages.operator_actions_page import ACTIONS
from django_delayq.archive.selection import Selection
from django_delayq.models import BulkOperation, OperatorAction
from django_delayq.operators import bulk, operations
from tests.admin.browser import address
from tests.admin.world import Root

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq")]

AsUser = Callable[..., Client]
HOSTILE = "</td><script>alert(1)</script>\u202e"


@pytest.fixture
def viewer(as_user: AsUser) -> Client:
    return as_user("view_dashboard")


def done(times: int = 1, **values: Any) -> list[int]:
    """Records of actions that have ended; returns their ids, the newest first."""
    usual = {
        "action": "replay",
        "operator": "anna",
        "reason": "mended",
        "selection": "topic orders",
        "count": 7,
    }
    rows = [
        OperatorAction.objects.create(**{**usual, "finished_at": timezone.now(), **values}).pk
        for _ in range(times)
    ]
    return rows[::-1]


def rows_of(response: Any) -> list[OperatorAction]:
    return list(response.context["rows"])


def read(response: Any) -> str:
    """What the table says, without markup."""
    table = response.content.decode().partition("<tbody>")[2].partition("</tbody>")[0]
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", table)))


def pages(client: Client, **query: str) -> Iterator[Any]:
    """All pages, the newest first."""
    response = client.get(address("operator_actions"), query)
    yield response
    while found := re.search(r'href="(\?[^"]*)" rel="next"', response.content.decode()):
        response = client.get(address("operator_actions") + html.unescape(found[1]))
        yield response


def test_an_action_is_shown_with_all_that_is_known(viewer: Client) -> None:
    done(
        count=1_204,
        operator="bernd",
        action="discard",
        reason="a test shop",
        selection="task shop.close",
    )
    text = read(viewer.get(address("operator_actions")))
    for words in ("bernd", "discard", "a test shop", "task shop.close", "1,204", "ago"):
        assert words in text
    assert "interrupted" not in text


def test_one_that_has_not_ended_is_told(viewer: Client) -> None:
    done(finished_at=None)
    assert "runs, or was interrupted" in read(viewer.get(address("operator_actions")))


def test_every_row_is_on_one_page_the_newest_first(viewer: Client) -> None:
    expected = done(120)
    seen = []
    for response in pages(viewer):
        seen.append([row.pk for row in rows_of(response)])
        done()  # what comes meanwhile moves no row to another page
    assert [len(page) for page in seen] == [50, 50, 20]
    assert [pk for page in seen for pk in page] == expected


def test_the_filters_stay_from_page_to_page(viewer: Client) -> None:
    expected: list[int] = []
    for _ in range(3):
        done(2, operator="bernd")
        done(2, action="pause")
        expected = done(20, operator="bernd", action="pause") + expected
    found = [
        row.pk
        for response in pages(viewer, operator="bernd", action="pause")
        for row in rows_of(response)
    ]
    assert found == expected


def test_a_name_leads_to_all_that_its_operator_did(viewer: Client) -> None:
    name = "anna & bernd+x@example.org/?#"
    expected = done(2, operator=name)
    done(3)
    text = viewer.get(address("operator_actions")).content.decode()
    links = {html.unescape(found) for found in re.findall(r'href="([^"]*\?operator=[^"]*)"', text)}
    found = [[row.pk for row in rows_of(viewer.get(link))] for link in sorted(links)]
    assert expected in found
    assert len(found) == 2


def test_strange_filters_find_nothing(viewer: Client) -> None:
    done()
    for query in ({"operator": "\0x"}, {"action": "'--"}, {"operator": HOSTILE}, {"before": "0"}):
        response = viewer.get(address("operator_actions"), query)
        assert rows_of(response) == []
        assert "<script>alert" not in response.content.decode()
    for before in ("x", "-1", "1" * 300):
        assert len(rows_of(viewer.get(address("operator_actions"), {"before": before}))) == 1


def test_a_bulk_operation_is_linked_and_says_how_it_stands(viewer: Client) -> None:
    operation = bulk.start(Root(), "discard", Selection(open=True), reason="old")
    done()
    response = viewer.get(address("operator_actions"))
    assert response.content.decode().count(f'href="{address("bulk", pk=operation.pk)}"') == 1
    assert "waiting" in read(response).lower()
    BulkOperation.objects.update(status="done")
    assert "done" in read(viewer.get(address("operator_actions"))).lower()


def test_what_an_operator_does_is_an_action_that_one_can_filter_by(viewer: Client) -> None:
    operations.pause(Root(), "orders", reason="the bank is away")
    operations.resume(Root(), "orders")
    names = [row.action for row in rows_of(viewer.get(address("operator_actions")))]
    assert names == ["resume", "pause"]
    assert set(names) <= set(ACTIONS)
    assert len(rows_of(viewer.get(address("operator_actions"), {"action": "pause"}))) == 1


MESSAGE = "0123456789ab7def8123456789abcdef"


def test_what_it_was_done_to_is_linked(viewer: Client) -> None:
    done(topic="orders", message_id=MESSAGE, archived_id=88, selection="with other arguments")
    text = viewer.get(address("operator_actions")).content.decode()
    for where in (
        address("archived", pk=88),
        f"{address('find')}?q={MESSAGE}",
        address("topic", topic="orders"),
    ):
        assert f'<a href="{where}">' in text
    assert "with other arguments" in text


def test_very_many_words_are_cut_off(viewer: Client) -> None:
    done(selection="x" * 1_900)
    text = read(viewer.get(address("operator_actions")))
    assert "x" * 299 + "…" in text and "x" * 300 not in text


def test_a_bulk_operation_that_was_cancelled_can_be_filtered_by(viewer: Client) -> None:
    operation = bulk.start(Root(), "discard", Selection(open=True), reason="old")
    bulk.cancel(Root(), operation.pk)
    (row,) = rows_of(viewer.get(address("operator_actions"), {"action": "cancel bulk"}))
    assert row.action in ACTIONS
    assert row.bulk_operation == operation


def test_a_page_takes_one_query_of_its_own(viewer: Client) -> None:
    done(60)
    with CaptureQueriesContext(connection) as queries:
        viewer.get(address("operator_actions"))
    assert sum("django_delayq_" in query["sql"] for query in queries) == 1


def test_what_operators_write_is_inert(viewer: Client) -> None:
    done(action=HOSTILE[:20], operator=HOSTILE, reason=HOSTILE, selection=HOSTILE)
    text = viewer.get(address("operator_actions")).content.decode()
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert "\u202e" not in text


def test_actions_are_found_by_topic_period_and_text(as_user: Callable[..., Client]) -> None:
    old = OperatorAction.new("replay", "olga", "INC-77 provider is back", topic="orders")
    OperatorAction.objects.update(started_at=timezone.now() - timedelta(days=2))
    OperatorAction.new("pause", "ben", "the bank is down", topic="mail")
    client = as_user("view_dashboard")

    def found(**query: str) -> tuple[bool, bool]:
        text = client.get(address("operator_actions"), query).content.decode()
        return "provider is back" in text, "the bank is down" in text

    assert found() == (True, True)
    assert found(topic="orders") == (True, False)
    assert found(period="24h") == (False, True)
    assert found(text="inc-77") == (True, False)
    assert found(text="BANK", topic="mail", operator="ben") == (False, True)
    assert found(text="nobody") == (False, False)
    assert old.topic == "orders"
