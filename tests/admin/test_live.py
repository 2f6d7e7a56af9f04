"""Every page is live: its part is sent again when it has changed. Times are in the project's zone,
or in UTC."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import Client

from django_delayq.admin import site
from django_delayq.models import ArchivedMessage
from tests.admin import by_hand
from tests.admin.browser import address
from tests.admin.test_overview import page, text_of
from tests.admin.world import World

ORDERS = "orders"

#: Pages that are refreshed by themselves: all but forms and lists that nobody watches.
LIVE = {
    "changelist", "topic", "message", "running", "workers", "dead_letters", "operator_actions",
    "bulk_list", "recurring", "unarchivable", "statistics",
}  # fmt: skip


def test_pages_that_change_are_refreshed(world: World, as_user: Callable[..., Client]):
    client = as_user(superuser=True)
    found = set()
    for route in site._pages:
        if "GET" in route.methods:
            answer = client.get(address(route.name, **world.fill(route)), follow=True)
            html = answer.getvalue()  # also of what is downloaded
            if b"data-delayq-live" in html and b"live.js" in html:
                found.add(route.name)
    assert found >= LIVE


@pytest.mark.parametrize("name", sorted(LIVE - {"changelist", "running"}))
def test_what_has_not_changed_is_not_sent_again(
    name: str, world: World, as_user: Callable[..., Client]
):
    client = as_user(superuser=True)
    route = next(one for one in site._pages if one.name == name)
    part = address(name, **world.fill(route)) + "?part=1"
    client.get(part)
    first = client.get(part)
    assert b"<html" not in first.content and b"part=1" not in first.content
    again = client.get(part, headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_message_that_has_ended_leads_the_script_to_its_row(
    world: World, as_user: Callable[..., Client]
):
    client = as_user(superuser=True)
    row = ArchivedMessage.objects.get(pk=world.acked)
    where = address("message", topic=row.topic, message_id=row.message_id.hex)
    answer = client.get(where + "?part=1")
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer["X-DelayQ-Location"] == client.get(where).url


# Which zone

#: Without USE_TZ all times are the clock's on the wall, and there is nothing to choose.
zones = pytest.mark.skipif(not django_settings.USE_TZ, reason="no zones without USE_TZ")


@zones
def test_times_are_in_the_projects_zone_or_in_utc(
    viewer: Client, shown: Callable[..., None], settings: Any
):
    settings.TIME_ZONE = "Asia/Tokyo"
    shown(by_hand.overview())
    html = page(viewer)
    assert "All times are in Asia/Tokyo" in html and "2026-11-20 19:20:11" in html
    assert '<button type="submit" name="zone" value="utc">Show UTC</button>' in html
    answer = viewer.post(address("zone"), {"zone": "utc", "next": address("workers")})
    assert answer.url == address("workers")
    cookie = answer.cookies[site.ZONE_COOKIE]
    assert cookie["httponly"] and cookie["samesite"] == "Lax"
    html = page(viewer)
    assert "All times are in UTC" in html and "2026-11-20 10:20:11" in html
    assert "peak 59 at 11:19" in html, "charts too"
    viewer.post(address("zone"), {"zone": ""})
    assert "All times are in Asia/Tokyo" in page(viewer)


@zones
def test_a_time_that_is_asked_for_is_one_of_the_zone_that_is_shown(
    world: World, as_user: Callable[..., Client], settings: Any
):
    settings.TIME_ZONE = "Asia/Tokyo"
    client = as_user("view_dashboard")
    due = world.waiting.get().due_at
    where, before = address("topic", topic=ORDERS), due - timedelta(minutes=30)
    html = client.get(where, {"from": f"{before:%Y-%m-%dT%H:%M}"}).content.decode()
    assert world.waiting.id in html, "nine hours early by that clock"
    client.post(address("zone"), {"zone": "utc"})
    html = client.get(where, {"from": f"{before:%Y-%m-%dT%H:%M}"}).content.decode()
    assert world.waiting.id in html
    html = client.get(where, {"from": f"{due + timedelta(hours=1):%Y-%m-%dT%H:%M}"}).content
    assert world.waiting.id.encode() not in html
    for none in ("yesterday", "9999-12-31T23:59-14:00", "0001-01-01T00:00+14:00"):
        assert b"is no time." in client.get(where, {"from": none}).content


# The table of topics


def many(count: int, **changes: Any) -> list[Any]:
    """Topics by name, the last one the furthest behind."""
    return [by_hand.topic(f"t{n:05}", lag=float(n), backlog=n, **changes) for n in range(count)]


def listed(html: str) -> list[str]:
    rows = html.split("<tbody>")[1].split("</tbody>", maxsplit=1)[0].split('<th scope="row">')[1:]
    return [text_of(f"<p {row}".split("</th>")[0]).split()[-1] for row in rows]


def table_of(viewer: Client, **query: str) -> str:
    return str(viewer.get(address("changelist"), query).content.decode())


def test_the_worst_topics_come_first(viewer: Client, shown: Callable[..., None]):
    shown(by_hand.overview(topics=[*many(3, dead_letters=0), by_hand.topic("z", lag=900.0)]))
    html = table_of(viewer)
    assert listed(html)[0] == "z"
    assert "1 to 4 of 4, the worst first" in text_of(html)


def test_topics_are_sorted_and_turned_around(viewer: Client, shown: Callable[..., None]):
    shown(by_hand.overview(topics=many(4)))
    assert listed(table_of(viewer, sort="lag")) == ["t00003", "t00002", "t00001", "t00000"]
    assert listed(table_of(viewer, sort="-lag")) == ["t00000", "t00001", "t00002", "t00003"]
    assert listed(table_of(viewer, sort="-topic"))[0] == "t00003"
    html = table_of(viewer, sort="lag")
    assert 'aria-sort="descending"><a href="?sort=-lag">' in html
    assert listed(table_of(viewer, sort="nonsense")) == listed(table_of(viewer))


def test_topics_are_filtered_by_a_part_of_their_name(viewer: Client, shown: Callable[..., None]):
    shown(by_hand.overview(topics=many(30)))
    assert listed(table_of(viewer, topic="T0001", sort="topic")) == [
        f"t000{n}" for n in range(10, 20)
    ]
    assert "No topic has such a name." in table_of(viewer, topic="gone")


def test_of_thousands_of_topics_a_page_has_fifty_each_once(
    viewer: Client, shown: Callable[..., None]
):
    shown(by_hand.overview(topics=many(10_000)))
    html = table_of(viewer)
    assert len(html) < 100_000
    assert len(listed(html)) == 50 and html.count(">t09999<") == 1
    assert 'href="?page=2" rel="next"' in html
    assert listed(table_of(viewer, sort="topic", page="2"))[0] == "t00050"
    assert listed(table_of(viewer, sort="topic", page="99999999"))[-1] == "t09999"
    assert listed(table_of(viewer, sort="topic", page="0"))[0] == "t00000"


def test_totals_of_all_time_are_another_view_of_the_table(
    viewer: Client, shown: Callable[..., None]
):
    shown(by_hand.overview(topics=many(2)))
    html = table_of(viewer, columns="totals", sort="enqueued")
    assert "Reclaimed" in html and "40,000" in html
    assert "Finished/s" not in html


def test_zeros_are_dim_and_what_is_bad_is_marked(viewer: Client, shown: Callable[..., None]):
    bad = by_hand.topic("bad", lag=4380.0, backlog=5, workers=0, dead_letters=3)
    shown(by_hand.overview(topics=[bad, by_hand.topic("idle", backlog=0, lag=0.0)]))
    html = page(viewer)
    assert '<td class="delayq-number delayq-mark-bad">1 h 13 min</td>' in html
    assert '<td class="delayq-number delayq-mark-zero">0</td>' in html
    assert 'delayq-mark-warn"><a href="' in html


def test_figures_of_a_database_that_has_never_answered_are_not_zeros(
    viewer: Client, shown: Callable[..., None]
):
    topics = [by_hand.topic(dead_letters=0, outbox=0)]
    shown(by_hand.overview(topics=topics, has_database=False, problem="The database is away."))
    said = text_of(page(viewer))
    assert "Open dead letters –" in said and "outbox not known" in said


def test_where_one_is_stands_above_each_page(world: World, as_user: Callable[..., Client]):
    html = as_user(superuser=True).get(address("topic", topic=ORDERS)).content.decode()
    trail = html.split('<div class="breadcrumbs">')[1].split("</div>")[0]
    assert text_of(trail.replace("&rsaquo;", ">")) == "Home > Delay queue > Topic orders"
