"""The page of a topic: its figures, pause and resume, and what waits in it, page by page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_delayq import InvalidMessage
from django_delayq.client import topics
from django_delayq.models import OperatorAction, OutboxMessage
from django_delayq.operators import recent_actions
from django_delayq.outbox.listing import count_outbox, list_outbox
from django_delayq.stats import overview as figures
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.admin.browser import address
from tests.admin.world import MODES
from tests.app.tasks import act, close_order, crowd, noop
from tests.faults import unreachable
from tests.hands import DAY, PAST, Hands, lose_redis
from tests.undeclared import leave

HOSTILE = "</code><script>alert(1)</script>\u202e"
AsUser = Callable[..., Client]
ORDERS = "orders"


@pytest.fixture
def page(as_user: AsUser, hands: Hands) -> Callable[..., str]:
    """The HTML of a topic's page, for who may see everything but change nothing."""
    client = as_user("view_dashboard", "view_payload")

    def get(topic: str = ORDERS, **query: str) -> str:
        response = client.get(address("topic", topic=topic), query)
        assert response.status_code == 200
        return response.content.decode()

    return get


def shown_ids(html: str) -> list[str]:
    """Of the listed messages, in their order."""
    return re.findall(r'title="([0-9a-f]{32})"><code class="delayq-id">…[0-9a-f]{8}</code>', html)


def further(html: str) -> str:
    """The cursor behind the link to the next page."""
    found = re.search(r'after=([^"&]+)">Next', html)
    return found[1].replace("%3A", ":") if found else ""


def walk(page: Callable[..., str], **query: str) -> list[str]:
    """The ids of all pages."""
    html = page(**query)
    ids = shown_ids(html)
    while cursor := further(html):
        html = page(**query, after=cursor)
        ids += shown_ids(html)
    return ids


def test_what_waits_is_listed_by_due_time_with_its_facts(page: Callable[..., str]) -> None:
    later = close_order.using(delay=2 * DAY, priority="low").enqueue(2)
    sooner = close_order.using(delay=DAY, key="order:1").enqueue(1, reason="it was <i>late</i>")
    html = page()
    assert shown_ids(html) == [sooner.id, later.id]
    assert f'href="{address("message", topic=ORDERS, message_id=sooner.id)}"' in html
    assert "order:1" in html and "tests.app.tasks.close_order" in html and "<td>low</td>" in html
    assert "1, reason=&quot;it was &lt;i&gt;late&lt;/i&gt;&quot;" in html
    assert sooner.due_at and f'datetime="{sooner.due_at.isoformat()}"' in html
    assert "in 24 h" in html


def test_arguments_are_not_even_in_the_context_of_who_may_not_see_them(
    as_user: AsUser, hands: Hands
) -> None:
    close_order.using(delay=DAY).enqueue(1, reason="secret-reason")
    response = as_user("view_dashboard").get(address("topic", topic=ORDERS))
    assert "secret-reason" not in response.content.decode()
    assert [preview for _, preview in response.context["rows"]] == [""]


def test_a_preview_has_120_characters_at_most_and_shows_what_nobody_sees(
    page: Callable[..., str],
) -> None:
    noop.using(delay=DAY).enqueue("x" * 60_000)
    noop.using(delay=2 * DAY).enqueue(HOSTILE)
    html = page("default")
    assert f"<code>&quot;{'x' * 118}…</code>" in html
    assert "&lt;script&gt;" in html and "\\u202e" in html
    assert "<script>alert" not in html and "\u202e" not in html


def test_every_page_goes_on_where_the_last_one_ended(
    page: Callable[..., str], split: Callable[[int], Any]
) -> None:
    split(3)
    crowd.using(due_at=datetime(2030, 1, 1, tzinfo=timezone.utc)).enqueue_many(
        [(n,) for n in range(120)]
    )
    ids = walk(lambda **query: page("crowd", **query))
    assert len(ids) == len(set(ids)) == 120
    assert ids == [message.id for message in topics.list_messages("crowd", limit=500).messages]
    assert "First page" in page("crowd", after=topics.list_messages("crowd", limit=50).cursor or "")


def test_what_waits_in_the_database_is_listed_there_and_not_in_redis(
    page: Callable[..., str],
) -> None:
    here = close_order.using(delay=DAY, durable=True).enqueue(1)
    assert shown_ids(page()) == []
    assert shown_ids(page(**{"in": "database"})) == [here.id]
    assert "In the outbox (1)" in page()


def test_pages_of_the_database_lose_nothing_that_is_due_at_one_instant(
    page: Callable[..., str],
) -> None:
    midnight = datetime(2030, 1, 1, tzinfo=timezone.utc)
    calls = [close_order.using(due_at=midnight, durable=True).prepare(n) for n in range(70)]
    calls += [
        close_order.using(due_at=midnight + timedelta(seconds=n), durable=True).prepare(n)
        for n in range(40)
    ]
    handles = close_order.enqueue_many(calls)
    crowd.using(due_at=midnight, durable=True).enqueue(0)
    ids = walk(page, **{"in": "database"})
    assert sorted(ids) == sorted(handle.id for handle in handles)
    assert set(ids[:71]) >= {handle.id for handle in handles[:70]}


def test_the_listing_of_the_database_costs_two_queries_at_any_depth(hands: Hands) -> None:
    midnight = datetime(2030, 1, 1, tzinfo=timezone.utc)
    close_order.using(due_at=midnight, durable=True).enqueue_many([(n,) for n in range(30)])
    cursor = list_outbox(ORDERS, limit=10).cursor
    with CaptureQueriesContext(connection) as queries:
        assert len(list_outbox(ORDERS, cursor=cursor, limit=50).messages) == 20
    assert len(queries) == 2
    assert count_outbox(ORDERS) == 30


def test_a_row_that_cannot_be_decoded_is_listed_all_the_same(page: Callable[..., str]) -> None:
    here = close_order.using(delay=DAY, durable=True).enqueue(1)
    OutboxMessage.objects.update(record=b"nonsense")
    assert shown_ids(page(**{"in": "database"})) == [here.id]


@pytest.mark.parametrize("place", ["", "database"])
@pytest.mark.parametrize("cursor", ["nonsense", "1.2.3", "-1.-1", "9" * 30 + ".1", "\x00"])
def test_a_wrong_cursor_is_said_in_words(page: Callable[..., str], place: str, cursor: str) -> None:
    assert "is not a position in this list" in page(**{"in": place, "after": cursor})


@pytest.mark.parametrize("cursor", ["", ".", "a.b", "1.-2", f"{2**63}.1"])
def test_the_database_takes_no_cursor_but_its_own(hands: Hands, cursor: str) -> None:
    with pytest.raises(InvalidMessage, match="is not a place in this list"):
        list_outbox(ORDERS, cursor=cursor)


def test_an_unknown_topic_is_named_with_those_that_exist(as_user: AsUser, hands: Hands) -> None:
    response = as_user("view_dashboard").get(address("topic", topic="nobody"))
    assert response.status_code == 404
    assert "Known topics:" in response.content.decode()


def test_redis_away_is_said_with_503(as_user: AsUser, hands: Hands) -> None:
    client = as_user("view_dashboard")
    with unreachable():
        response = client.get(address("topic", topic=ORDERS))
    assert response.status_code == 503
    assert "Redis cannot be reached" in response.content.decode()


# Pause and resume


def post(client: Client, name: str, **data: str) -> Any:
    return client.post(address(name, topic=ORDERS), data)


def test_pause_holds_the_topic_and_says_who_when_and_why(as_user: AsUser, hands: Hands) -> None:
    client = as_user("view_dashboard", "pause_topic")
    response = post(client, "topic_pause", reason="the bank <is> down")
    assert response.status_code == 302 and response.url == address("topic", topic=ORDERS)
    pause = topics.topic_stats(ORDERS).paused
    assert pause is not None
    action = OperatorAction.objects.get()
    assert (pause.reason, pause.by, pause.until) == (
        "the bank <is> down",
        action.operator,
        None,
    )
    assert (action.action, action.reason, action.count) == ("pause", "the bank <is> down", 1)
    html = client.get(response.url).content.decode()
    assert "the bank &lt;is&gt; down" in html and f"by {action.operator}" in html
    assert "until somebody resumes it." in html and "Resume" in html


@pytest.mark.parametrize(
    ("hold", "seconds"), [("600", 600), ("900", 900), ("3600", 3600), ("28800", 28_800)]
)
def test_a_pause_may_end_by_itself(as_user: AsUser, hands: Hands, hold: str, seconds: int) -> None:
    client = as_user("view_dashboard", "pause_topic")
    post(client, "topic_pause", reason="a while", hold=hold)
    until = topics.topic_stats(ORDERS).paused.until
    assert abs((until - datetime.now(tz=timezone.utc)).total_seconds() - seconds) < 10
    assert re.search(r"until\s+<span", client.get(address("topic", topic=ORDERS)).content.decode())


@pytest.mark.parametrize("hold", ["at", ""])
def test_a_pause_may_end_at_an_instant_in_the_projects_time_zone(
    as_user: AsUser, hands: Hands, settings: Any, hold: str
) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    client = as_user("view_dashboard", "pause_topic")
    assert "Time zone Asia/Tokyo" in client.get(address("topic", topic=ORDERS)).content.decode()
    post(client, "topic_pause", reason="a while", hold=hold, at="2030-01-01T09:00")
    assert topics.topic_stats(ORDERS).paused.until == datetime(2030, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"reason": " "}, "This field is required"),
        ({"reason": "x", "hold": "at"}, "Write the time."),
        ({"reason": "x", "hold": "900", "at": "2030-01-01T00:00"}, "Choose “the time below”"),
        ({"reason": "x", "hold": "at", "at": "2020-01-01T00:00"}, "This time is in the past"),
        ({"reason": "x", "hold": "at", "at": "0001-01-01T00:00"}, "This time is in the past"),
        ({"reason": "x", "hold": "at", "at": "9999-12-31T23:59"}, "more than ten years ahead"),
        ({"reason": "x", "hold": "at", "at": "soon"}, "Write a date and a time"),
        ({"reason": "x", "hold": "7"}, "Select a valid choice"),
    ],
)
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_a_wrong_pause_is_refused_at_its_field(
    as_user: AsUser, hands: Hands, settings: Any, zone: str, data: dict[str, str], words: str
) -> None:
    settings.TIME_ZONE = zone
    response = post(as_user("view_dashboard", "pause_topic"), "topic_pause", **data)
    assert response.status_code == 200
    assert words in response.content.decode() and "<details open>" in response.content.decode()
    assert topics.topic_stats(ORDERS).paused is None
    assert not OperatorAction.objects.exists()


def test_resume_lets_it_go_on(as_user: AsUser, hands: Hands) -> None:
    topics.pause_topic(ORDERS, by="somebody", reason="lunch")
    client = as_user("view_dashboard", "pause_topic")
    post(client, "topic_resume")
    assert topics.topic_stats(ORDERS).paused is None
    assert OperatorAction.objects.get().action == "resume"


@pytest.mark.parametrize("name", ["topic_pause", "topic_resume"])
def test_who_may_not_pause_changes_nothing_and_sees_no_button(
    as_user: AsUser, hands: Hands, name: str
) -> None:
    topics.pause_topic(ORDERS, by="somebody", reason="lunch")
    client = as_user("view_dashboard", "view_payload", "cancel_message")
    assert post(client, name, reason="x").status_code == 403
    assert topics.topic_stats(ORDERS).paused.reason == "lunch"
    html = client.get(address("topic", topic=ORDERS)).content.decode()
    assert address(name, topic=ORDERS) not in html and "lunch" in html


def test_who_may_purge_is_led_to_the_bulk_operation(as_user: AsUser, hands: Hands) -> None:
    link = f"{address('bulk_new')}?kind=purge&amp;topic={ORDERS}"
    client = as_user("view_dashboard", "bulk_operate", "cancel_message")
    assert link in client.get(address("topic", topic=ORDERS)).content.decode()
    assert (
        link not in as_user("view_dashboard").get(address("topic", topic=ORDERS)).content.decode()
    )


def test_the_page_costs_few_queries_however_much_waits(
    as_user: AsUser, hands: Hands, delayq: RedisStore
) -> None:
    client = as_user("view_dashboard", "view_payload")
    close_order.using(delay=DAY).enqueue_many([(n,) for n in range(60)])
    client.get(address("topic", topic=ORDERS))  # what the overview shows is kept for a moment
    with CaptureQueriesContext(connection) as queries:
        client.get(address("topic", topic=ORDERS))
    assert len(queries) <= 6


# What runs


def running(html: str) -> str:
    """The part of the page about leased messages."""
    found = re.search(r'<h2 id="running">.*?</table>', html, re.DOTALL)
    return found[0] if found else ""


def test_what_runs_is_listed_with_the_end_of_its_lease(
    page: Callable[..., str], hands: Hands
) -> None:
    handle = close_order.using(key="order:7").enqueue(7)
    assert not running(page())
    hands.claim(Partition(ORDERS, 0))
    html = page()
    assert f'<a href="{address("running")}?topic=orders">1</a>' in html
    assert address("message", topic=ORDERS, message_id=handle.id) in running(html)
    assert "order:7" in running(html) and 'title="tests.app.tasks.close_order"' in running(html)
    (one,) = topics.list_running(ORDERS)
    assert one.since and one.message.attempt == 1
    assert timedelta(0) < one.lease_until - one.since < timedelta(hours=1)
    assert f'data-delayq-at="{one.lease_until.isoformat()}"' in running(html)


def test_since_when_a_second_run_is_held_is_not_known(hands: Hands) -> None:
    act.enqueue("fail")
    hands.work(MODES)
    (message,) = topics.list_messages("modes").messages
    hands.store.reschedule_in(MODES, bytes.fromhex(message.id), PAST)
    hands.claim(MODES)
    (one,) = topics.list_running("modes")
    assert one.message.attempt == 2 and one.since is None


def test_what_runs_is_cut_off_by_the_end_of_the_leases_over_all_partitions(
    hands: Hands, split: Callable[[int], Any]
) -> None:
    split(3)
    crowd.enqueue_many([(n,) for n in range(30)])
    for number in range(3):
        hands.claim(Partition("crowd", number))
    every = topics.list_running("crowd", limit=500)
    assert len(every) == 30
    ends = [one.lease_until for one in topics.list_running("crowd", limit=10)]
    assert ends == sorted(one.lease_until for one in every)[:10]


def test_the_page_says_how_many_leased_messages_it_does_not_show(
    page: Callable[..., str], hands: Hands
) -> None:
    close_order.enqueue_many([(n,) for n in range(60)])
    hands.claim(Partition(ORDERS, 0))
    html = page()
    assert running(html).count("<tr>") == 1 + 5
    assert f'<a href="{address("running")}?topic=orders">All 60 running messages' in html


# Operator actions


def test_a_pause_can_be_changed_while_it_lasts(as_user: AsUser, hands: Hands) -> None:
    client = as_user("view_dashboard", "pause_topic")
    post(client, "topic_pause", reason="the bank is down")
    html = client.get(address("topic", topic=ORDERS)).content.decode()
    assert "Change the pause" in html and 'value="the bank is down"' in html
    post(client, "topic_pause", reason="the bank is still down", hold="900")
    pause = topics.topic_stats(ORDERS).paused
    assert pause is not None
    assert pause.reason == "the bank is still down" and pause.until


def test_another_reason_alone_does_not_move_the_end_of_a_pause(
    as_user: AsUser, hands: Hands, settings: Any
) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    client = as_user("view_dashboard", "pause_topic")
    topics.pause_topic(
        ORDERS, by="ada", reason="x", until=datetime(2030, 1, 1, tzinfo=timezone.utc)
    )
    form = client.get(address("topic", topic=ORDERS)).context["pause_form"]
    assert 'value="2030-01-01T09:00:00"' in str(form["at"])
    data = {"hold": form["hold"].value(), "at": form["at"].value()}
    post(client, "topic_pause", reason="y", **data)
    pause = topics.topic_stats(ORDERS).paused
    assert pause is not None
    assert (pause.reason, pause.until) == ("y", datetime(2030, 1, 1, tzinfo=timezone.utc))


def test_the_page_tells_what_operators_did_to_this_topic(page: Callable[..., str]) -> None:
    for reason, topic, message_id in (
        ("one", ORDERS, None),
        ("two", ORDERS, None),
        ("three", f"{ORDERS}-2", None),
        ("four", ORDERS.upper(), None),
        ("five", ORDERS, uuid4()),
    ):
        OperatorAction.objects.create(
            action="pause",
            operator="ada",
            reason=f"reason-{reason}",
            topic=topic,
            message_id=message_id,
        )
    html = page()
    found = [w for w in ("one", "two", "three", "four", "five") if f"reason-{w}" in html]
    assert found == ["one", "two"]


def test_only_the_newest_records_are_looked_at(
    page: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_actions, "NEWEST", 2)
    for name in ("old", "middle", "new"):
        OperatorAction.objects.create(
            action="pause", operator="ada", reason=f"{name}-one", topic=ORDERS
        )
    html = page()
    assert "old-one" not in html and html.index("new-one") < html.index("middle-one")


# Topics that no code declares


def test_the_page_of_a_topic_that_no_code_declares_shows_what_waits_and_what_to_do(
    page: Callable[..., str], as_user: AsUser, hands: Hands
) -> None:
    handle, _ = leave("jobs", 1, 2, key=None)
    html = page("jobs")
    assert handle.id in shown_ids(html) and len(shown_ids(html)) == 2
    assert 'id="delayq-undeclared"' in html and "python manage.py delayq move jobs --to" in html
    assert "messages wait and no worker serves the topic, and no code here declares it" in html
    assert "delayq-undeclared" not in page(ORDERS)
    overview = as_user("view_dashboard").get(address("changelist")).content.decode()
    assert f'href="{address("topic", topic="jobs")}"' in overview
    assert overview.count("not declared") == 1
    assert ">The topic</a>" in overview, "no worker would serve it"


def test_its_messages_have_their_pages_and_can_be_cancelled(as_user: AsUser, hands: Hands) -> None:
    (handle,) = leave("jobs", 1, key="k")
    client = as_user("view_dashboard", "cancel_message")
    there = address("message", topic="jobs", message_id=handle.id)
    assert client.get(there).status_code == 200
    for query in (handle.id, "k"):
        assert client.get(address("find"), {"q": query}).headers["Location"] == there
    client.post(address("message_cancel", topic="jobs", message_id=handle.id), {"reason": "why"})
    assert topics.topic_stats("jobs").delayed == 0


def test_a_topic_that_only_the_outbox_knows_is_on_the_overview_and_has_a_page(
    page: Callable[..., str], as_user: AsUser, hands: Hands
) -> None:
    leave("jobs", 1, durable=True, delay=3 * DAY)
    lose_redis(hands.store)
    overview = as_user("view_dashboard").get(address("changelist")).content.decode()
    assert f'href="{address("topic", topic="jobs")}"' in overview
    assert len(shown_ids(page("jobs", **{"in": "database"}))) == 1


def test_a_topic_of_which_nothing_is_left_leaves_the_overview(
    as_user: AsUser, hands: Hands
) -> None:
    leave("jobs", 1)
    client = as_user("view_dashboard")
    assert address("topic", topic="jobs") in client.get(address("changelist")).content.decode()
    topics.move_topic("jobs", ORDERS)
    figures.reader_of.cache_clear()
    assert address("topic", topic="jobs") not in client.get(address("changelist")).content.decode()


def test_a_move_is_among_what_was_done_to_the_topic(page: Callable[..., str], hands: Hands) -> None:
    leave("jobs", 1)
    call_command(
        "delayq", "move", "jobs", "--to", ORDERS, "--by", "the-operator", stdout=StringIO()
    )
    assert "the-operator" in page("jobs")


def test_what_another_process_declares_and_a_worker_serves_is_as_it_should_be(
    page: Callable[..., str], as_user: AsUser, hands: Hands
) -> None:
    leave("jobs", 1)
    beat = {"at_ms": int(hands.store.clock_ms()), "topics": ["jobs"]}
    hands.store.workers.beat("host:1:jobs", json.dumps(beat))
    assert "delayq-undeclared" not in page("jobs")
    assert (
        "not declared" not in as_user("view_dashboard").get(address("changelist")).content.decode()
    )
