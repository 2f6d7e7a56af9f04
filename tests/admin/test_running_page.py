"""The page of what runs: which worker, which thread, for how long; and how to cancel it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_delayq.models import OperatorAction
from django_delayq.stats import held_messages
from django_delayq.stats.held_messages import read_running
from django_delayq.store.keys import Partition
from django_delayq.store.lease import HTTP, holder_code, new_token
from tests.admin.browser import address
from tests.admin.test_workers_page import read
from tests.app.tasks import close_order, record
from tests.faults import unreachable
from tests.hands import Hands

pytestmark = pytest.mark.django_db(transaction=True)

AsUser = Callable[..., Client]
ORDERS, DEFAULT = Partition("orders", 0), Partition("default", 0)
WORKER, GONE = "web-7:4711:ab", "web-8:1:cd"


def claim(
    hands: Hands, partition: Partition, worker: str = WORKER, *, ago: float = 0.0, limit: int = 9
) -> list[Any]:
    """What a worker claims, as it does it, so many seconds ago."""
    hands._next_millisecond()
    token = new_token(holder_code(worker), hands.store.clock_ms() - 1000 * ago)
    return list(hands.store.claim(partition, limit, token).leases)


def beat(hands: Hands, worker: str = WORKER, ago: float = 0.0, **said: Any) -> None:
    """Its heartbeat."""
    at_ms = int(hands.store.clock_ms() - 1000 * ago)
    usual = {"at_ms": at_ms, "topics": ["orders", "default"], "concurrency": 4}
    hands.store.workers.beat(worker, json.dumps(usual | said))


def rows(html: str) -> list[str]:
    """The text of each row."""
    body = html.replace("<wbr>", "").partition("<tbody>")[2].partition("</tbody>")[0]
    return [read(row) for row in body.split("<tr")[1:]]


def test_each_message_is_shown_with_its_worker_and_its_thread(
    as_user: AsUser, hands: Hands
) -> None:
    handle = close_order.using(key="order:7").enqueue(7)
    claim(hands, ORDERS, ago=200)
    at_ms = int(hands.store.clock_ms())
    beat(hands, begun={handle.id: [at_ms - 180_000, "delayq-pool-3"]})
    client = as_user("view_dashboard")
    (row,) = rows(client.get(address("running")).content.decode())
    for words in (handle.id[-8:], "close_order", "orders", "order:7", "3 min", "web-7:4711",
                  "delayq-pool-3", "1 /"):  # fmt: skip
        assert words in row.replace("\u200b", ""), (words, row)
    assert "since its claim" not in row


def test_what_the_heartbeat_does_not_name_yet_counts_from_its_claim(
    as_user: AsUser, hands: Hands
) -> None:
    record.enqueue(1)
    claim(hands, DEFAULT, ago=5)
    beat(hands)
    (row,) = rows(as_user("view_dashboard").get(address("running")).content.decode())
    assert "5" in row and "since its claim" in row


def test_what_has_run_for_longer_than_it_may_is_marked(as_user: AsUser, hands: Hands) -> None:
    record.enqueue(1)
    claim(hands, DEFAULT, ago=86_400)
    (row,) = rows(as_user("view_dashboard").get(address("running")).content.decode())
    assert "too long" in row


def test_the_longest_come_first_and_a_page_has_fifty(as_user: AsUser, hands: Hands) -> None:
    for number in range(60):
        record.enqueue(number)
    for number in range(60):
        claim(hands, DEFAULT, ago=number, limit=1)
    client = as_user("view_dashboard")
    first = client.get(address("running")).content.decode()
    assert len(rows(first)) == 50 and "60 messages are held by workers" in read(first)
    seconds = [one.seconds(found.at) for found in [read_running(limit=60)] for one in found.rows]
    assert seconds == sorted(seconds, reverse=True) and len(seconds) == 60
    (further,) = re.findall(r'<a href="([^"]*after=50)">', first)
    second = client.get(further.replace("&amp;", "&")).content.decode()
    assert len(rows(second)) == 10
    for cursor in ("x", "-1", "9" * 30, "²"):
        assert client.get(address("running"), {"after": cursor}).status_code == 200


def test_it_can_be_narrowed_to_a_topic_or_a_worker(as_user: AsUser, hands: Hands) -> None:
    record.enqueue(1)
    close_order.enqueue(2)
    claim(hands, DEFAULT)
    claim(hands, ORDERS, GONE)
    beat(hands)
    beat(hands, GONE, ago=700)
    client = as_user("view_dashboard")
    assert len(rows(client.get(address("running")).content.decode())) == 2
    (row,) = rows(client.get(address("running"), {"worker": GONE}).content.decode())
    assert "close_order" in row and "dead" in row
    (row,) = rows(client.get(address("running"), {"topic": "default"}).content.decode())
    assert "record" in row
    empty = client.get(address("running"), {"topic": "modes"}).content.decode()
    assert "Nothing that runs fits these filters." in empty
    workers = client.get(address("workers")).content.decode()
    assert f"{address('running')}?worker=web-8%3A1%3Acd" in workers


def test_consumers_over_http_and_unknown_holders_are_told_apart(
    as_user: AsUser, hands: Hands
) -> None:
    record.enqueue(1)
    hands._next_millisecond()
    hands.store.claim(DEFAULT, 1, new_token(HTTP, hands.store.clock_ms()))
    client = as_user("view_dashboard")
    assert "over HTTP" in rows(client.get(address("running")).content.decode())[0]
    close_order.enqueue(1)
    hands._next_millisecond()
    hands.store.claim(ORDERS, 1, b"\xff" * 16)
    page = client.get(address("running"), {"topic": "orders"})
    (row,) = rows(page.content.decode())
    assert "not known" in row and "too long" not in row


def test_progress_is_only_for_who_may_see_payloads(as_user: AsUser, hands: Hands) -> None:
    record.enqueue(1)
    (lease,) = claim(hands, DEFAULT)
    hands.store.progress(lease, json.dumps([3, 10, "secret note", 1]).encode(), 60_000)
    assert "secret note" not in as_user("view_dashboard").get(address("running")).content.decode()
    client = as_user("view_dashboard", "view_payload")
    (row,) = rows(client.get(address("running")).content.decode())
    assert "3 of 10 secret note" in row


def test_those_that_are_ticked_are_cancelled(as_user: AsUser, hands: Hands) -> None:
    for number in range(3):
        record.enqueue(number)
    ids = [lease.id.hex() for lease in claim(hands, DEFAULT)]
    ended = record.using(delay=60).enqueue(4)
    record.cancel(id=ended.id)
    client = as_user("view_dashboard", "cancel_message")
    form = {"message": [f"default/{one}" for one in [*ids[:2], ended.id]], "reason": "stuck"}
    answer = client.post(address("running_cancel"), form, follow=True)
    text = read(answer.content.decode())
    assert "2 messages are cancelled." in text and "1 message had ended before." in text
    assert [ids[2][-8:] in row for row in rows(answer.content.decode())] == [True]
    assert set(OperatorAction.objects.values_list("action", "reason")) == {
        ("cancel running", "stuck")
    }


@pytest.mark.parametrize("form", [{"message": "default/ab"}, {"reason": "stuck"}])
def test_a_cancel_needs_a_message_and_a_reason(
    as_user: AsUser, hands: Hands, form: dict[str, str]
) -> None:
    client = as_user("view_dashboard", "cancel_message")
    answer = client.post(address("running_cancel"), form, follow=True)
    assert "Tick the messages, and give a reason." in answer.content.decode()


def test_who_may_only_look_has_no_boxes(as_user: AsUser, hands: Hands) -> None:
    record.enqueue(1)
    claim(hands, DEFAULT)
    client = as_user("view_dashboard")
    assert (
        "checkbox"
        not in client.get(address("running"))
        .content.decode()
        .partition("<tbody>")[2]
        .partition("</table>")[0]
    )
    assert client.post(address("running_cancel"), {}).status_code == 403


def test_the_cost_does_not_grow_with_what_runs(
    as_user: AsUser, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = as_user("view_dashboard", "view_payload")
    client.get(address("running"))
    with CaptureQueriesContext(connection) as queries:
        client.get(address("running"))
    assert len(queries) <= 4
    for number in range(5):
        record.enqueue(number)
    claim(hands, DEFAULT)
    monkeypatch.setattr(held_messages, "MOST", 3)
    found = read_running()
    assert (found.count, found.is_partial, len(found.rows)) == (3, True, 3)


def test_without_redis_the_page_says_so(as_user: AsUser, hands: Hands) -> None:
    client = as_user("view_dashboard")
    with unreachable():
        assert client.get(address("running")).status_code == 503


def test_nothing_runs(as_user: AsUser, hands: Hands) -> None:
    assert "Nothing runs." in as_user("view_dashboard").get(address("running")).content.decode()
