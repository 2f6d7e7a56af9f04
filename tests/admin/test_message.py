"""The page of a live message, and what it says of one that is not live any more."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock

import pytest
from django.test import Client

from django_delayq import DelayedTask, current_message, delayed_task
from django_delayq.admin.forms.message_forms import ArgumentsForm
from django_delayq.client import topics
from django_delayq.client.handle import Handle
from django_delayq.models import ArchivedMessage, OperatorAction
from django_delayq.stats import overview
from django_delayq.store.keys import Partition, partition_keys
from django_delayq.tasks import registry
from django_delayq.tasks.context import running
from tests.admin.browser import address
from tests.admin.messages import AsUser, edited, html_of, operator, path, waiting
from tests.admin.world import heartbeat
from tests.app.tasks import act, close_order, count_to, noop
from tests.faults import unreachable
from tests.hands import DAY, ORDERS, Hands

__all__ = ["operator", "waiting"]  # fixtures

HOSTILE = "</pre></textarea><script>alert(1)</script>\u202e"
MODES = Partition("modes", 0)


# What it shows


def test_the_page_shows_all_of_a_waiting_message(operator: Client, waiting: Handle) -> None:
    html = html_of(operator, waiting)
    for text in (
        waiting.id,
        "tests.app.tasks.close_order",
        "order:1042",
        "1042",
        "a&lt;b",
        "delayed",
        "in 24 h",
    ):
        assert text in html
    message = waiting.get()
    assert message and message.expires_at
    for instant in (message.due_at, message.enqueued_at, message.expires_at):
        assert f'datetime="{instant.isoformat()}"' in html
    assert "no: Redis alone has it" in html


def test_who_may_not_see_what_it_carries_gets_nothing_of_it(
    as_user: AsUser, waiting: Handle
) -> None:
    response = as_user("view_dashboard", "edit_message", "cancel_message").get(path(waiting))
    html = response.content.decode()
    assert "a&lt;b" not in html and "order_id" not in html and "argument_" not in html
    assert not {"content", "headers", "problem"} & response.context.keys()
    assert "You need a further permission to see arguments" in html
    assert response.context["edit_form"] is None


def test_hostile_contents_are_text(operator: Client, hands: Hands) -> None:
    handle = noop.using(delay=DAY, key=HOSTILE, headers={HOSTILE: HOSTILE}).enqueue(
        HOSTILE, **{HOSTILE: [HOSTILE]}
    )
    html = html_of(operator, handle)
    assert "<script>alert" not in html and "\u202e" not in html
    assert "&lt;script&gt;alert(1)" in html and "\\u202e" in html


def test_very_long_arguments_are_sent_as_a_form_to_those_who_ask(
    operator: Client, hands: Hands, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "BODY_LIMIT": 1024 * 1024}
    handle = noop.using(delay=DAY).enqueue("x" * 900_000)
    html = html_of(operator, handle)
    assert len(html) < 300_000 and "?edit=1#delayq-edit" in html
    html = operator.get(path(handle), {"edit": 1}).content.decode()
    assert "x" * 900_000 in html and "?edit=1#delayq-edit" not in html


def test_sixty_kilobytes_are_shown_and_edited(operator: Client, hands: Hands) -> None:
    handle = noop.using(delay=DAY).enqueue("x" * 60_000)
    assert "x" * 60_000 in html_of(operator, handle)
    assert edited(operator, handle, args=json.dumps(["y" * 60_000])).status_code == 302
    message = handle.get()
    assert message and message.args == ["y" * 60_000]


def test_the_timeline_tells_each_run_that_failed_and_when_the_next_is_due(
    operator: Client, hands: Hands
) -> None:
    handle = act.enqueue("fail")
    hands.work(MODES)
    html = html_of(operator, handle)
    assert "host:1:hands" in html and "ValueError: it failed" in html
    assert re.search(r"started, \w+ after \d", html)
    assert "1 of 3</dd>" in html
    assert html.index("enqueued") < html.index("ValueError: it failed") < html.rindex(" due</li>")


def test_the_class_of_an_error_is_for_everybody_and_its_words_are_not(
    as_user: AsUser, hands: Hands
) -> None:
    handle = act.enqueue("fail")
    hands.work(MODES)
    html = html_of(as_user("view_dashboard"), handle)
    assert "ValueError" in html and "it failed" not in html


def test_a_crash_is_told_with_its_end_alone(operator: Client, hands: Hands) -> None:
    handle = close_order.enqueue(1)
    hands.claim(ORDERS)
    key = partition_keys(hands.store.client.prefix, ORDERS)[3]
    hands.store.client.redis.zadd(key, {bytes.fromhex(handle.id): 1})
    hands.store.reclaim(ORDERS)
    html = html_of(operator, handle)
    assert "crashed" in html and "1 crash" in html


def test_a_running_message_offers_nothing_but_a_cancel_of_its_own(
    operator: Client, hands: Hands
) -> None:
    handle = close_order.enqueue(1)
    hands.claim(ORDERS)
    html = html_of(operator, handle)
    assert "leased" in html and "A worker holds this message" in html
    for name in ("message_cancel", "message_run_now", "message_reschedule", "message_edit"):
        assert path(handle, name) not in html


def test_a_message_that_waits_in_the_database_says_so_and_takes_everything(
    operator: Client, hands: Hands
) -> None:
    handle = close_order.using(delay=DAY, durable=True).enqueue(1)
    html = html_of(operator, handle)
    assert "It waits in the outbox" in html and "yes: the database has it" in html
    assert edited(operator, handle, order_id="2").status_code == 302
    operator.post(
        path(handle, "message_reschedule"), {"delay": "2", "delay_unit": "86400", "reason": "x"}
    )
    message = handle.get()
    assert message and list(message.args) == [2]
    assert abs(message.due_at - datetime.now(tz=timezone.utc) - timedelta(days=2)) < timedelta(
        seconds=10
    )
    operator.post(path(handle, "message_cancel"), {"reason": "paid"})
    assert handle.get() is None


def test_a_message_that_cannot_be_decoded_is_shown_without_its_contents_and_can_be_cancelled(
    operator: Client, waiting: Handle, hands: Hands
) -> None:
    record = bytes(hands.store.queries.find(ORDERS, [bytes.fromhex(waiting.id)])[0].record)  # type: ignore[union-attr]
    key = partition_keys(hands.store.client.prefix, ORDERS)[4]
    hands.store.client.redis.hset(key, bytes.fromhex(waiting.id), record[:23] + b"\xff{nonsense")
    html = html_of(operator, waiting)
    assert "This message cannot be decoded" in html and waiting.id in html
    assert path(waiting, "message_edit") not in html
    assert (
        operator.post(path(waiting, "message_edit"), {"argument_order_id": "1"}).status_code == 200
    )
    assert operator.post(path(waiting, "message_cancel"), {"reason": "broken"}).url == address(
        "topic", topic="orders"
    )
    assert hands.store.queries.find(ORDERS, [bytes.fromhex(waiting.id)]) == [None]


def test_a_message_of_a_removed_task_is_shown_and_not_edited(
    operator: Client, declared: dict[str, Any], hands: Hands
) -> None:
    @delayed_task(name="t.gone", topic="orders")
    def gone(number: int) -> None: ...

    handle = gone.using(delay=DAY).enqueue(1)
    registry.by_code.pop(gone.definition.code), declared.pop("t.gone")
    html = html_of(operator, handle)
    assert "t.gone" in html and "not declared here" in html
    assert path(handle, "message_edit") not in html
    form = {field.html_name: field.value() or "" for field in ArgumentsForm("t.gone", ([1], {}))}
    response = operator.post(
        path(handle, "message_edit"), form | {"argument_args": "[2]", "reason": "x"}
    )
    assert (
        response.status_code == 200 and "nobody can tell what it takes" in response.content.decode()
    )
    message = handle.get()
    assert message and list(message.args) == [1]


def test_looking_at_a_message_does_not_run_its_task(operator: Client, hands: Hands) -> None:
    handle = act.using(delay=DAY).enqueue("fail")
    with mock.patch.object(DelayedTask, "__call__") as called:
        html_of(operator, handle)
    assert not called.called


# What keeps it from being started


@pytest.mark.parametrize("until", [None, timedelta(hours=1)])
def test_a_paused_topic_is_said_with_who_and_until_when(
    operator: Client, waiting: Handle, until: timedelta | None
) -> None:
    end = until and datetime.now(tz=timezone.utc) + until
    topics.pause_topic("orders", by="ada", reason="the <bank> is down", until=end)
    html = html_of(operator, waiting)
    assert "by ada" in html and "the &lt;bank&gt; is down" in html
    assert ("until somebody resumes it" in html) == (until is None)
    topics.resume_topic("orders")
    assert "by ada" not in html_of(operator, waiting)


def test_that_no_worker_serves_its_topic_is_said_paused_or_not(
    operator: Client, waiting: Handle, hands: Hands
) -> None:
    words = "No worker serves this topic"
    assert words in html_of(operator, waiting)
    topics.pause_topic("orders", by="ada", reason="x")
    overview.reader_of.cache_clear()
    assert words in html_of(operator, waiting)
    heartbeat(hands.store)
    overview.reader_of.cache_clear()
    assert words not in html_of(operator, waiting)


def test_what_operators_did_to_it_is_told(operator: Client, waiting: Handle, hands: Hands) -> None:
    other = close_order.using(delay=DAY).enqueue(2)
    operator.post(path(other, "message_run_now"), {"reason": "not this one"})
    operator.post(
        path(waiting, "message_reschedule"),
        {"delay": "7200", "delay_unit": "1", "reason": "at <night>"},
    )
    html = html_of(operator, waiting)
    assert (
        "delayq-actions-title" in html and "at &lt;night&gt;" in html and "not this one" not in html
    )
    assert OperatorAction.objects.order_by("pk")[1].operator in html


# Not live any more


def test_an_ended_message_leads_to_its_newest_row(operator: Client, hands: Hands) -> None:
    for _ in range(2):
        handle = close_order.using(key="order:7").enqueue(7)
        hands.work(ORDERS)
        hands.archive()
    newest = ArchivedMessage.objects.order_by("-pk")[0]
    response = operator.get(path(handle))
    assert response.status_code == 302 and response.url == address("archived", pk=newest.pk)


@pytest.mark.parametrize(
    ("topic", "message_id", "words"),
    [
        (
            "orders",
            "0" * 12 + "7000" + "8" + "0" * 15,
            "is not live, and the archive has no row of it",
        ),
        ("orders", "nonsense", "is not a message id"),
        ("nobody", "0" * 12 + "7000" + "8" + "0" * 15, "is not declared"),
    ],
)
def test_what_is_nowhere_is_said_in_words(
    operator: Client, hands: Hands, topic: str, message_id: str, words: str
) -> None:
    response = operator.get(address("message", topic=topic, message_id=message_id))
    assert response.status_code == 404 and words in response.content.decode()


def test_a_message_that_ended_a_moment_ago_is_not_called_unknown(
    operator: Client, waiting: Handle
) -> None:
    waiting.cancel()
    response = operator.get(path(waiting), {"moment": "1"})
    assert (
        response.status_code == 200
        and "appears in the archive in a moment" in response.content.decode()
    )


def test_redis_away_is_said_with_503(operator: Client, waiting: Handle) -> None:
    with unreachable():
        assert operator.get(path(waiting)).status_code == 503
        assert operator.post(path(waiting, "message_cancel"), {"reason": "x"}).status_code in (
            302,
            503,
        )
    assert waiting.get() is not None
    assert not OperatorAction.objects.exists()


# Progress


def test_the_page_of_a_running_message_shows_how_far_it_is(operator: Client, hands: Hands) -> None:
    handle = count_to.enqueue(10)
    (lease,) = hands.claim()
    running.set(lease)
    current_message().progress(3, 10, "pages <b>")
    html = html_of(operator, handle)
    assert '<progress max="100" value="30"' in html
    assert "3 of 10 pages &lt;b&gt;" in " ".join(html.split())
    running.set(None)


def test_who_may_not_see_arguments_sees_no_progress(as_user: AsUser, hands: Hands) -> None:
    handle = count_to.enqueue(10)
    (lease,) = hands.claim()
    running.set(lease)
    current_message().progress(3, 10, "pages")
    assert "pages" not in html_of(as_user("view_dashboard"), handle)
    running.set(None)
