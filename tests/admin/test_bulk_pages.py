"""The pages of bulk operations: how far one is, whether anybody is at it, and all of them in a
list."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_delayq.admin.forms.archive_form import selection_from
from django_delayq.archive.selection import Selection
from django_delayq.core.exceptions import InvalidMessage
from django_delayq.models import ArchivedMessage, BulkOperation, OperatorAction, OutboxMessage
from django_delayq.operators import bulk
from django_delayq.operators.bulk import SILENT_AFTER, progress
from django_delayq.operators.bulk_runner import TAKE_OVER_AFTER
from django_delayq.store import get_store
from tests.admin.browser import address
from tests.admin.bulk_orders import order, page_of, run, text_of
from tests.admin.world import Root, heartbeat
from tests.app.tasks import close_order
from tests.hands import DAY, Hands
from tests.operators.test_replay import dead

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq")]

AsUser = Callable[..., Client]
HOSTILE = "</dd><script>alert(1)</script>\u202e"


@pytest.fixture
def operator(as_user: AsUser) -> Client:
    """Who may do everything."""
    return as_user(superuser=True)


def test_two_operators_at_once_replay_each_message_once(as_user: AsUser, hands: Hands) -> None:
    dead(20)
    first = order(as_user(superuser=True), "kind=replay&open=on")
    second = order(as_user(superuser=True), "kind=replay&open=on&topic=default")
    run(hands)
    run(hands)
    assert OutboxMessage.objects.count() == 20
    counts = BulkOperation.objects.order_by("pk").values_list("pk", "status", "count")
    assert list(counts) == [(first.pk, "done", 20), (second.pk, "done", 0)]
    assert sorted(OperatorAction.objects.values_list("count", flat=True)) == [0, 20]


def test_the_page_follows_it_to_its_end(operator: Client, hands: Hands) -> None:
    dead(5)
    operation = order(operator, "kind=replay&open=on")
    assert "waiting" in page_of(operator, operation)
    assert (
        'data-delayq-refresh="2"' in operator.get(address("bulk", pk=operation.pk)).content.decode()
    )
    run(hands)
    text = page_of(operator, operation)
    assert "5 of 5 (100 %)" in text
    assert "Replayed5" in text.replace(" ", "")
    assert "done" in text
    assert (
        "data-delayq-refresh" not in operator.get(address("bulk", pk=operation.pk)).content.decode()
    )


def test_a_dry_run_changes_nothing_and_offers_the_real_one(operator: Client, hands: Hands) -> None:
    rows = dead(5)
    ArchivedMessage.objects.filter(pk=rows[0]).update(discarded_at=timezone.now())
    operation = order(operator, "kind=replay&task=tests.app.tasks.record", dry_run="1")
    run(hands)
    response = operator.get(address("bulk", pk=operation.pk))
    text = text_of(response).replace(" ", "")
    assert "Wouldbechanged4" in text
    assert "Skipped:discarded1" in text
    assert not OutboxMessage.objects.exists()
    (link,) = re.findall(rf'href="{address("bulk_new")}\?([^"]*)"', response.content.decode())
    query = QueryDict(html.unescape(link))
    assert query["kind"] == "replay"
    assert selection_from(query) == Selection.decode(operation.selection)


def test_a_purge_tells_what_waits_and_ends_it(operator: Client, hands: Hands) -> None:
    for number in range(3):
        close_order.using(delay=DAY).enqueue(number)
    assert "Waiting messages 3" in text_of(
        operator.get(f"{address('bulk_new')}?kind=purge&topic=orders")
    )
    operation = order(operator, "kind=purge&topic=orders")
    run(hands)
    operation.refresh_from_db()
    assert (operation.status, operation.count) == ("done", 3)
    assert "Nothing waits there now" in text_of(
        operator.get(f"{address('bulk_new')}?kind=purge&topic=orders")
    )


def test_when_no_worker_takes_it_the_page_says_how_to_start_one(operator: Client) -> None:
    dead(3)
    operation = order(operator, "kind=replay&open=on")
    assert "No living worker runs bulk operations" in page_of(operator, operation)
    heartbeat(get_store(), relay={}, bulk={"ended": 0})
    assert "run_delayq" not in page_of(operator, operation)
    BulkOperation.objects.update(created_at=timezone.now() - timedelta(seconds=16))
    assert "No worker has taken it" in page_of(operator, operation)
    assert "python manage.py run_delayq" in page_of(operator, operation)


def test_a_worker_that_has_just_put_it_down_is_no_lack_of_workers(operator: Client) -> None:
    dead(3)
    heartbeat(get_store())
    operation = order(operator, "kind=replay&open=on")
    BulkOperation.objects.update(
        created_at=timezone.now() - timedelta(hours=1), alive_at=timezone.now()
    )
    assert "run_delayq" not in page_of(operator, operation)


def test_a_silent_worker_is_told(operator: Client) -> None:
    dead(3)
    operation = order(operator, "kind=replay&open=on")
    now = timezone.now()
    BulkOperation.objects.update(
        status="running", started_at=now, alive_at=now - timedelta(seconds=20)
    )
    assert "gone silent" not in page_of(operator, operation)
    BulkOperation.objects.update(
        created_at=now - timedelta(hours=1), alive_at=now - timedelta(seconds=31)
    )
    assert "gone silent" in page_of(operator, operation)


def test_a_worker_is_silent_when_another_may_take_over() -> None:
    assert SILENT_AFTER.total_seconds() == TAKE_OVER_AFTER


def test_one_that_waits_after_a_problem_says_what_it_was(operator: Client) -> None:
    dead(3)
    operation = order(operator, "kind=replay&open=on")
    BulkOperation.objects.update(alive_at=timezone.now(), error="StoreUnavailable: Redis is away")
    assert (
        "The operation had a problem. The worker tries again: StoreUnavailable: Redis is away"
        in page_of(operator, operation)
    )
    assert "It failed" not in page_of(operator, operation)


def test_a_replay_leads_to_what_has_ended_since(operator: Client, hands: Hands) -> None:
    (old, *_) = dead(5)
    operation = order(operator, "kind=replay&open=on&task=tests.app.tasks.record&topic=default")
    assert "Messages that ended since" not in page_of(operator, operation)
    run(hands)
    hands.relay()
    hands.work()
    hands.archive()
    found = re.search(
        r'href="([^"]*)">Messages that ended since',
        operator.get(address("bulk", pk=operation.pk)).content.decode(),
    )
    assert found
    rows = operator.get(html.unescape(found[1])).context["found"].rows
    assert {(row.state, row.task) for row in rows} == {("acked", "tests.app.tasks.record")}
    assert len(rows) == 5
    assert old not in {row.pk for row in rows}


def test_the_rate_and_the_rest_are_told() -> None:
    now = timezone.now()
    operation = BulkOperation(
        kind="replay", selection="{}", operator="anna", status="running", created_at=now
    )
    operation.started_at, operation.alive_at = now - timedelta(seconds=20), now
    operation.total, operation.count = 1_000, 190
    operation.skipped = '{"already replayed": 700, "its key is live": 10}'
    found = progress(operation)
    assert (found.done, found.percent) == (200, 20)
    assert (found.rate, found.left) == (pytest.approx(10, rel=0.1), pytest.approx(80, rel=0.1))
    assert list(found.skipped) == ["already replayed", "its key is live"]
    operation.finished_at, operation.status = now, "cancelled"
    later = progress(operation)
    assert (later.rate, later.left, later.is_alive) == (10.0, None, False)


def test_it_can_be_cancelled_once(operator: Client, hands: Hands) -> None:
    dead(3)
    operation = order(operator, "kind=replay&open=on")
    cancel = address("bulk_cancel", pk=operation.pk)
    assert operator.post(cancel)["Location"] == address("bulk", pk=operation.pk)
    run(hands)
    assert not OutboxMessage.objects.exists()
    assert "cancelled" in page_of(operator, operation)
    assert "Cancel the operation" not in page_of(operator, operation)
    assert "has ended already" in text_of(operator.post(cancel, follow=True))


@pytest.mark.long
def test_the_browser_follows_it_without_a_reload(
    browser_page: Callable[..., Any], as_user: AsUser, hands: Hands
) -> None:
    dead(5)
    client = as_user(superuser=True)
    operation = order(client, "kind=replay&open=on")
    page = browser_page(client)
    page.goto(address("bulk", pk=operation.pk))
    page.get_by_text("Not counted yet.").wait_for()
    page.evaluate("window.here = 1")
    page.get_by_role("button", name="Cancel the operation").focus()
    BulkOperation.objects.update(
        status="running", total=5, count=2, started_at=timezone.now(), alive_at=timezone.now()
    )
    page.get_by_text("2 of 5 (40 %)").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Cancel the operation"
    BulkOperation.objects.update(status="waiting", total=None, count=0, alive_at=None)
    run(hands)
    page.get_by_text("5 of 5 (100 %)").wait_for()
    assert page.get_by_role("button", name="Cancel the operation").count() == 0
    assert page.get_by_role("status").text_content() == "done"
    assert page.evaluate("window.here") == 1


@pytest.mark.long
def test_the_browser_says_when_it_cannot_follow(
    browser_page: Callable[..., Any], as_user: AsUser, browser_problems: list[str]
) -> None:
    dead(5)
    client = as_user(superuser=True)
    operation = order(client, "kind=replay&open=on")
    page = browser_page(client)
    page.goto(address("bulk", pk=operation.pk))
    page.route("**/bulk/*/", lambda route: route.fulfill(status=503, body="away"))
    page.get_by_text("could not be refreshed").wait_for()
    page.unroute("**/bulk/*/")
    BulkOperation.objects.update(status="done", total=5, count=5)
    page.get_by_text("5 of 5 (100 %)").wait_for()
    assert page.get_by_text("could not be refreshed").count() == 0
    assert [problem for problem in browser_problems if "503 for GET" not in problem] == []
    browser_problems.clear()


def test_one_that_does_not_exist_is_not_found(operator: Client) -> None:
    assert operator.get(address("bulk", pk=12345)).status_code == 404
    assert operator.get(address("bulk", pk=10**30)).status_code == 404
    assert "There is no bulk operation 12345" in text_of(
        operator.post(address("bulk_cancel", pk=12345), follow=True)
    )
    with pytest.raises(InvalidMessage):
        bulk.get(12345, Root())


def test_who_may_only_look_has_no_buttons(as_user: AsUser, operator: Client) -> None:
    dead(3)
    operation = order(operator, "kind=replay&open=on")
    text = as_user("view_dashboard").get(address("bulk", pk=operation.pk)).content.decode()
    assert address("bulk_cancel", pk=operation.pk) not in text
    assert (
        address("bulk_cancel", pk=operation.pk)
        in operator.get(address("bulk", pk=operation.pk)).content.decode()
    )


def test_all_operations_are_listed_page_by_page(operator: Client) -> None:
    made = [
        BulkOperation.objects.create(
            kind="discard", selection='{"topic":"orders"}', operator="anna"
        ).pk
        for _ in range(120)
    ]
    seen, where, pages = [], address("bulk_list"), 0
    while where:
        text = operator.get(where).content.decode()
        seen += [int(pk) for pk in re.findall(rf'href="{address("bulk_list")}(\d+)/"', text)]
        found = re.search(r'href="(\?[^"]*)" rel="next"', text)
        where, pages = (address("bulk_list") + html.unescape(found[1]) if found else ""), pages + 1
    assert (seen, pages) == (made[::-1], 3)
    for strange in ("x", "-1", "9" * 400, "٣"):
        assert operator.get(address("bulk_list"), {"before": strange}).status_code == 200


def test_a_page_of_the_list_takes_one_query_of_its_own(operator: Client) -> None:
    for _ in range(10):
        BulkOperation.objects.create(kind="discard", selection="{}", operator="anna")
    with CaptureQueriesContext(connection) as queries:
        operator.get(address("bulk_list"))
    assert sum("bulkoperation" in query["sql"] for query in queries) == 1


def test_what_operators_and_workers_write_is_inert(operator: Client) -> None:
    dead(2, error_class="", reason=HOSTILE, key=HOSTILE[:50])
    one = BulkOperation.objects.create(
        kind="replay", selection=f'{{"error": {json.dumps(HOSTILE)}}}', operator=HOSTILE, reason=HOSTILE, error=HOSTILE,
        skipped=json.dumps({HOSTILE: 3}), worker=HOSTILE, status="failed",
    )  # fmt: skip
    BulkOperation.objects.create(
        kind="replay", selection=f"no JSON {HOSTILE}", operator="x", dry_run=True
    )
    pages = [address("bulk_list"), address("bulk", pk=one.pk), address("bulk", pk=one.pk + 1)]
    for where in (*pages, f"{address('bulk_new')}?kind=replay&open=on"):
        text = operator.get(where).content.decode()
        assert "alert(1)" in text
        assert "<script>alert" not in text
        assert "\u202e" not in text
