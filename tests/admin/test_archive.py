"""The list of the archive and its filters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_delayq.archive import search
from tests.admin.browser import address
from tests.admin.rows import NOON, make, make_dead

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq")]

AsUser = Callable[..., Client]
EVERYTHING = (
    "view_dashboard", "view_payload", "replay_message", "edit_message", "discard_message",
    "bulk_operate",
)  # fmt: skip
BODY = '{"args":[1042],"kwargs":{"reason":"unpaid"}}'


def listed(client: Client, **query: Any) -> list[int]:
    """Ids of the rows on the page."""
    return [row.pk for row in client.get(address("archive"), query).context["found"].rows]


def refused(client: Client, **query: Any) -> str:
    """What the page says instead of rows."""
    answer = client.get(address("archive"), query)
    assert answer.status_code == 200
    assert answer.context["found"] is None
    return str(answer.context["form"].errors)


# The list


def test_each_filter_narrows_the_list(as_user: AsUser) -> None:
    client = as_user("view_dashboard")
    dead = make_dead(
        topic="default", task="tests.app.tasks.record", key="order:7", finished_at=timezone.now()
    )
    done = make_dead(replayed_at=NOON, error_class="ValueError")
    acked = make(finished_at=timezone.now() - timedelta(hours=3))
    assert listed(client, state="acked") == [acked.pk]
    assert listed(client, state="dead", open="on") == [dead.pk]
    assert (
        listed(client, topic="default")
        == listed(client, task="tests.app.tasks.record")
        == [dead.pk]
    )
    assert listed(client, error="PriceMissing") == [dead.pk]
    assert listed(client, error="ValueError") == [done.pk]
    assert listed(client, period="1h") == [dead.pk]
    assert listed(client, period="24h", state="acked") == [acked.pk]
    assert listed(client, since="2026-11-20 11:59", until="2026-11-20T12:00:01") == [done.pk]
    assert listed(client, q="key:order:7") == listed(client, q=str(dead.message_id)) == [dead.pk]
    assert listed(client, q=dead.message_id.hex, state="acked") == []
    assert listed(client, ids=f"{dead.pk},{acked.pk}") == [acked.pk, dead.pk]


def test_a_topic_of_former_days_can_be_filtered(as_user: AsUser) -> None:
    row = make(topic="former")
    assert listed(as_user("view_dashboard"), topic="former") == [row.pk]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"state": "gone"}, "Select a valid choice"),
        ({"period": "1y"}, "Select a valid choice"),
        ({"since": "yesterday"}, "Write a date and a time"),
        ({"since": "0001-01-01 00:00"}, ""),
        ({"until": "9999-99-99 00:00"}, "Write a date and a time"),
        ({"q": "order 1042"}, "Write a message id"),
        ({"q": "key:"}, "Write a message id"),
        ({"q": "0" * 32}, "not a UUID of RFC 9562"),
        ({"q": "key:" + "x" * 300}, "1 to 256 characters"),
        ({"q": "a\0b"}, "Null characters are not allowed"),
        ({"topic": "a\0b"}, "character 0"),
        ({"ids": "1,x"}, "ids must be row numbers"),
        ({"ids": "99999999999999999999"}, "ids must be row numbers"),
        ({"before": "here"}, "not a place in this list"),
        ({"q": "args.order_id:1042"}, "needs a period"),
    ],
)
def test_filters_that_mean_nothing_are_explained(
    as_user: AsUser, query: dict[str, str], words: str
) -> None:
    make()
    client = as_user("view_dashboard", "view_payload")
    if words:
        assert words in refused(client, **query)
    else:
        assert client.get(address("archive"), query).status_code == 200


def test_arguments_are_sought_by_those_who_may_see_them(as_user: AsUser) -> None:
    row = make(body=BODY, finished_at=timezone.now())
    assert listed(
        as_user("view_dashboard", "view_payload"), q="args.order_id:1042", period="24h"
    ) == [row.pk]
    assert "you need the permission" in refused(
        as_user("view_dashboard"), q="args.order_id:1042", period="24h"
    )


def test_the_pages_around_keep_the_filters(
    as_user: AsUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        search.page_of, "__kwdefaults__", {**search.page_of.__kwdefaults__, "size": 3}
    )
    rows = [
        make_dead(topic="default", finished_at=timezone.now() - timedelta(minutes=9 - n)).pk
        for n in range(8)
    ]
    make_dead()
    client, seen = as_user("view_dashboard"), []
    there = f"{address('archive')}?topic=default&period=24h"
    for _ in range(3):
        answer = client.get(there)
        seen += [row.pk for row in answer.context["found"].rows]
        links = answer.context["links"]
        there = address("archive") + links.get("older", "")
    assert seen == rows[::-1]
    assert "older" not in links
    answer = client.get(address("archive") + links["newer"])
    assert [row.pk for row in answer.context["found"].rows] == rows[2:5][::-1]
    assert "topic=default" in answer.context["links"]["newest"]


def test_a_page_that_is_not_full_offers_to_look_further(
    as_user: AsUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PERIOD_ROWS", "FEW_ROWS", "RARE"):
        monkeypatch.setattr(search, name, 1)
    for _ in range(2):
        make_dead(task="tests.app.tasks.noop")
    for minute in range(5):
        make_dead(finished_at=NOON + timedelta(minutes=minute + 1))
    # With a period the order is that of finishing on every database.
    page = as_user("view_dashboard").get(
        address("archive"),
        {"state": "dead", "task": "tests.app.tasks.noop", "since": "2026-01-01T00:00"},
    )
    assert "Searched back to" in page.content.decode()
    assert "Search further back" in page.content.decode()


def test_what_matches_is_offered_for_bulk_operations(as_user: AsUser) -> None:
    make_dead()
    page = (
        as_user(*EVERYTHING)
        .get(address("archive"), {"topic": "orders", "period": "24h"})
        .content.decode()
    )
    offered = [part.split('"')[0] for part in page.split('href="') if "kind=replay" in part]
    assert len(offered) == 1
    for part in ("state=dead", "open=on", "topic=orders", "since="):
        assert part in offered[0]
    assert "kind=replay" not in as_user("view_dashboard").get(address("archive")).content.decode()
    acked = as_user(*EVERYTHING).get(address("archive"), {"state": "acked"}).content.decode()
    assert "All open" not in acked
    assert "all open dead letters" not in acked


def test_only_open_dead_letters_can_be_selected(as_user: AsUser) -> None:
    dead, _, _ = make_dead(), make_dead(discarded_at=NOON), make()
    page = as_user(*EVERYTHING).get(address("archive")).content.decode()
    assert page.count('type="checkbox" name="id"') == 1
    assert f'name="id" value="{dead.pk}"' in page
    assert 'name="id"' not in as_user("view_dashboard").get(address("archive")).content.decode()


def test_an_empty_archive_says_so(as_user: AsUser) -> None:
    client = as_user("view_dashboard")
    assert "The archive is empty" in client.get(address("archive")).content.decode()
    assert (
        "No message matches" in client.get(address("archive"), {"state": "dead"}).content.decode()
    )


def test_each_row_is_named_by_task_state_and_id(as_user: AsUser) -> None:
    row = make_dead()
    text = as_user("view_dashboard").get(address("archive")).content.decode()
    assert f'aria-label="{row.task}, dead, {row.message_id.hex}"' in text.lower()


def test_what_contradicts_itself_is_refused_in_words(as_user: AsUser) -> None:
    response = as_user("view_dashboard").get(address("archive"), {"state": "acked", "open": "on"})
    assert response.context["found"] is None
    assert "Only dead letters can be open" in response.content.decode()


def test_one_box_selects_all_of_the_page(as_user: AsUser, browser_page: Callable[..., Any]) -> None:
    for _ in range(3):
        make_dead()
    make()
    page = browser_page(as_user(superuser=True))
    page.goto(f"{address('archive')}?topic=orders")
    everything, boxes = page.get_by_label("Select all on this page"), page.locator("input[name=id]")
    everything.check()
    assert boxes.count() == page.locator("input[name=id]:checked").count() == 3
    boxes.first.uncheck()
    assert everything.evaluate("box => [box.checked, box.indeterminate]") == [False, True]
    boxes.first.check()
    assert everything.is_checked()
    everything.uncheck()
    page.get_by_role("button", name="Discard selected").click()
    page.get_by_text("No message is selected").wait_for()
    assert page.url.endswith(f"{address('archive')}?topic=orders")


def test_without_anything_to_select_there_is_no_box_for_all(
    as_user: AsUser, browser_page: Callable[..., Any]
) -> None:
    make()
    page = browser_page(as_user(superuser=True))
    page.goto(address("archive"))
    assert page.get_by_label("Select all on this page").count() == 1
    assert not page.get_by_label("Select all on this page").is_visible()


def test_a_usual_screen_shows_every_column(
    browser_page: Callable[..., Any], as_user: AsUser, live_site: str
) -> None:
    make_dead(
        task="shop.orders.tasks.close_unpaid_order_after_reminder",
        error_class="shop.payments.errors.PaymentProviderUnavailable",
        key="order:2026:1042:reminder",
        lateness_ms=170_000.0,
        run_ms=123_456.0,
    )
    page = browser_page(as_user(*EVERYTHING), width=1280)
    page.goto(live_site + address("archive"))
    assert page.get_by_role("columnheader", name="Ran").is_visible()
    hidden = page.locator(".delayq-scroll").evaluate("box => box.scrollWidth - box.clientWidth")
    assert hidden == 0
