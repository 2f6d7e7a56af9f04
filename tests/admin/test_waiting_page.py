"""The page of waiting messages: filters, a sample, a dry run, and operations on all that fit."""

from __future__ import annotations

import csv
import html
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest
from django.test import Client

from django_delayq.admin.forms import waiting_form
from django_delayq.models import BulkOperation, OperatorAction
from django_delayq.operators import bulk_waiting, waiting_list
from django_delayq.operators.waiting_selection import WaitingSelection, waiting_messages
from tests.admin.browser import address
from tests.admin.bulk_orders import run, text_of
from tests.app.tasks import close_order, record
from tests.bulk_hands import at
from tests.hands import DAY, Hands, apart


@pytest.fixture
def client(as_user: Callable[..., Client]) -> Client:
    return as_user(
        "view_dashboard", "view_payload", "bulk_operate", "cancel_message", "download_messages"
    )


def test_what_was_not_read_may_still_fit(
    client: Client, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.using(delay=DAY).enqueue_many((n,) for n in range(501))
    for name in ("LEAST", "LOOKS_FOR"):
        monkeypatch.setattr(waiting_list, name, 0)
    there = address("waiting"), {"topic": "default", "key_prefix": "campaign:"}
    assert "None of the messages that were read fits" in text_of(client.get(*there))
    monkeypatch.setattr(waiting_list, "LOOKS_FOR", 60)
    assert "Nothing that waits fits these filters" in text_of(client.get(*there))


@pytest.fixture
def campaign(hands: Hands) -> None:
    """Twelve wrong messages beside three others."""
    for n in range(12):
        record.using(key=f"campaign:{n}", delay=timedelta(days=1, seconds=n)).enqueue(n)
    for n in range(3):
        close_order.using(key=f"order:{n}", delay=DAY).enqueue(n)


def form_at(client: Client, query: str) -> dict[str, str]:
    """What the browser would send of the form at waiting/?query."""
    response = client.get(f"{address('waiting')}?{query}")
    assert response.status_code == 200
    text = response.content.decode()
    given = re.findall(r'<input type="hidden" name="(query|token)" value="([^"]*)"', text)
    return {name: html.unescape(value) for name, value in given}


def send(client: Client, query: str, **fields: Any) -> Any:
    return client.post(address("waiting_start"), {**form_at(client, query), **fields})


def order(client: Client, query: str, **fields: Any) -> BulkOperation:
    """The whole way from the address to the stored operation."""
    response = send(client, query, **{"reason": "wrong campaign", **fields})
    assert response.status_code == 302, text_of(response)
    operation = BulkOperation.objects.latest("pk")
    assert response["Location"] == address("bulk", pk=operation.pk)
    return operation


def test_the_filters_show_how_many_fit_and_a_sample(client: Client, campaign: None) -> None:
    text = text_of(client.get(f"{address('waiting')}?key_prefix=campaign:"))
    assert (
        re.search(r"Waiting messages ?12 ", text) and "campaign:3" in text and "order:1" not in text
    )
    text = text_of(client.get(f"{address('waiting')}?topic=default&argument=args.0%3D7"))
    assert re.search(r"Waiting messages ?1 ", text) and "campaign:7" in text


def test_a_lower_bound_is_counted_on_by_itself(
    browser_page: Callable[..., Any],
    as_user: Callable[..., Any],
    hands: Hands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record.using(delay=DAY).enqueue_many((n,) for n in range(1_200))
    for name in ("LEAST", "LOOKS_FOR"):
        monkeypatch.setattr(waiting_list, name, 0)
    where = f"{address('waiting')}?topic=default&task={record.name}"
    client = as_user("view_dashboard", "bulk_operate", "cancel_message")
    assert "≥ 500" in text_of(client.get(where))
    tab = browser_page(client)
    tab.goto(where)
    tab.locator("[data-delayq-count]").get_by_text("1,200", exact=True).wait_for()
    assert tab.locator("[data-delayq-bound]").count() == 0


def listed_from(client: Client, where: str) -> list[list[str]]:
    """The ids of each page of the list, by its links."""
    pages = list[list[str]]()
    while where:
        text = client.get(f"{address('waiting')}{where}").content.decode()
        pages.append(re.findall(r'name="id" value="(\w{32})"', text))
        further = re.search(r'<a href="([^"]*)">Next ›', text)
        where = html.unescape(further[1]) if further else ""
    return pages


def test_the_list_goes_on_behind_its_first_page(client: Client, hands: Hands) -> None:
    due_at = datetime.now(tz=timezone.utc) + timedelta(days=1)
    for n in range(90):  # at one instant, so that only the ids tell them apart
        record.using(key=f"campaign:{n}", due_at=due_at, durable=n >= 60).enqueue(n)
    close_order.using(key="campaign:other", due_at=due_at).enqueue(1)
    pages = listed_from(client, "?key_prefix=campaign:")
    seen = [one for page in pages for one in page]
    assert len(pages[0]) == 50 and len(seen) == len(set(seen)) == 91


def test_a_message_that_ends_meanwhile_hides_no_other_one(client: Client, hands: Hands) -> None:
    due_at = datetime.now(tz=timezone.utc) + timedelta(days=1)
    for n in range(60):
        record.using(key=f"campaign:{n}", due_at=due_at).enqueue(n)
    text = client.get(f"{address('waiting')}?key_prefix=campaign:").content.decode()
    first = re.findall(r'name="id" value="(\w{32})"', text)
    further = re.search(r'<a href="([^"]*)">Next ›', text)
    assert further
    record.cancel(id=first[-1])
    later = {one for page in listed_from(client, html.unescape(further[1])) for one in page}
    assert len({*first, *later}) == 60


@pytest.mark.parametrize(
    "after", ["x", "redis/nowhere/1.2/", "outbox/default/x/", "////", "a/b/c/d"]
)
def test_a_place_that_is_none_is_said(client: Client, campaign: None, after: str) -> None:
    answer = client.get(
        address("waiting"), {"topic": "default", "task": record.name, "after": after}
    )
    assert answer.status_code == 200
    assert "is not a place in this list" in text_of(answer)


def test_a_wrong_campaign_is_cancelled_after_a_dry_run(
    client: Client, campaign: None, hands: Hands
) -> None:
    query = "task=tests.app.tasks.record&key_prefix=campaign:"
    dry = order(client, query, change="cancel", dry_run="1")
    run(hands)
    page = client.get(address("bulk", pk=dry.pk))
    text = text_of(page)
    assert "Would be changed12" in text.replace(" ", "").replace(
        "Wouldbechanged", "Would be changed"
    )
    assert "The first messages that would be changed" in text and "campaign:0" in text
    assert len(list(waiting_messages(WaitingSelection()))) == 15
    again = re.search(r'href="([^"]*/waiting/\?[^"]*)"', page.content.decode())
    assert again is not None
    path, _, real = html.unescape(again[1]).partition("?")
    assert path == address("waiting") and "change=cancel" in real
    operation = order(client, real, change="cancel")
    run(hands)
    operation.refresh_from_db()
    assert (operation.status, operation.count) == ("done", 12)
    left = sorted(str(message.key) for message in waiting_messages(WaitingSelection()))
    assert left == ["order:0", "order:1", "order:2"]
    action = OperatorAction.objects.get()
    assert (action.action, action.count, action.reason) == ("cancel", 12, "wrong campaign")


@pytest.mark.parametrize(
    ("fields", "kind", "hours"),
    [
        ({"change": "later", "by_0": "2", "by_1": "3600"}, "shift", 2.0),
        ({"change": "earlier", "by_0": "90", "by_1": "60"}, "shift", -1.5),
        ({"change": "now"}, "run now", None),
        ({"change": "move", "to": "orders"}, "move", 0.0),
    ],
)
def test_the_form_orders_each_operation(
    client: Client, campaign: None, hands: Hands, fields: dict[str, str], kind: str, hours: Any
) -> None:
    names = {"by_0": "by_0", "by_1": "by_unit"}
    text = client.get(f"{address('waiting')}?topic=default").content.decode()
    fields = {next((n for n in (name, names.get(name, "")) if f'name="{n}"' in text), name): value
              for name, value in fields.items()}  # fmt: skip
    if "by_unit" in fields:
        fields["by"] = fields.pop("by_0")
    before = {m.key: m.due_at for m in waiting_messages(WaitingSelection(topic="default"))}
    operation = order(client, "topic=default", **fields)
    run(hands)
    operation.refresh_from_db()
    assert (operation.kind, operation.status, operation.count) == (kind, "done", 12)
    text = text_of(client.get(address("bulk", pk=operation.pk)))
    assert "campaign:0" in text
    if hours is not None:
        topic = "orders" if kind == "move" else "default"
        after = {m.key: m.due_at for m in waiting_messages(WaitingSelection(topic=topic))}
        assert all(after[key] - due == timedelta(hours=hours) for key, due in before.items())


def test_what_was_skipped_is_listed_with_its_reason_and_as_a_file(
    client: Client, campaign: None, hands: Hands
) -> None:
    operation = order(client, "key_prefix=campaign:", change="cancel")
    busy = record.using(key="campaign:busy", delay=DAY)
    handle = busy.enqueue(1)
    BulkOperation.objects.filter(pk=operation.pk).update(cutoff=2**60)

    def begin() -> None:
        handle.reschedule(delay=0)
        assert hands.claim()

    with at(bulk_waiting, "_deal_with", lambda: apart(begin), time=1):
        run(hands)
    text = text_of(client.get(address("bulk", pk=operation.pk)))
    assert "Skipped: started" in text and "campaign:busy" in text
    answer = client.get(f"{address('bulk_csv', pk=operation.pk)}?only=skipped")
    content = b"".join(answer.streaming_content).decode("utf-8-sig")  # type: ignore[attr-defined]
    (row,) = csv.DictReader(StringIO(content))
    assert (row["key"], row["skipped"]) == ("campaign:busy", "started")
    answer = client.get(address("bulk_csv", pk=operation.pk))
    assert b"".join(answer.streaming_content).count(b"campaign:") == 13  # type: ignore[attr-defined]


def test_a_form_that_is_sent_twice_counts_once(client: Client, campaign: None) -> None:
    form = {**form_at(client, "topic=default"), "change": "cancel", "reason": "wrong"}
    for _ in range(2):
        assert client.post(address("waiting_start"), form).status_code == 302
    assert BulkOperation.objects.count() == 1
    refused = client.post(address("waiting_start"), {**form, "change": "now"})
    assert "already ordered something else" in text_of(refused)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"change": "cancel"}, "Write a reason"),
        ({"change": "later", "dry_run": "1"}, "Write how much later or earlier"),
        ({"change": "move", "dry_run": "1"}, "Choose the other topic"),
        ({"change": "vanish", "dry_run": "1"}, "Select a valid choice"),
    ],
)
def test_the_form_says_what_is_missing(
    client: Client, campaign: None, fields: dict[str, str], words: str
) -> None:
    assert words in text_of(send(client, "topic=default", **fields))
    assert not BulkOperation.objects.exists()


def test_very_many_have_to_be_confirmed_by_a_word(
    client: Client, campaign: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.enqueue_many([record.using(delay=DAY).prepare(n) for n in range(600)])
    monkeypatch.setattr(waiting_form, "MANY", 500)
    answer = send(client, "topic=default", change="cancel", reason="wrong")
    assert "Type “default” here to confirm" in text_of(answer)
    order(client, "topic=default", change="cancel", word="default")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("key_prefix=", "Say which"),
        ("topic=nowhere", "not declared"),
        ("topic=default&argument=seven", "Write a name and a value"),
        ("topic=default&since=yesterday", "Write a date and a time"),
        ("since=2027-01-02T00:00&until=2027-01-01T00:00", "ends before it begins"),
        ("topic=%00", "Select a valid choice|character 0|not declared"),
        ("topic=default&by=nan&change=later", "Change all that fit|Nothing that waits"),
    ],
)
def test_filters_that_make_no_sense_are_told(
    hands: Hands, client: Client, query: str, words: str
) -> None:
    response = client.get(f"{address('waiting')}?{query}")
    assert response.status_code == 200
    assert re.search(words, text_of(response))


def test_who_may_not_change_sees_the_messages_only(
    as_user: Callable[..., Client], campaign: None
) -> None:
    viewer = as_user("view_dashboard")
    text = viewer.get(f"{address('waiting')}?topic=default").content.decode()
    assert "campaign:1" in text and address("waiting_start") not in text
    assert "Arguments" not in text
    assert viewer.get(f"{address('waiting')}?argument=a%3D1").status_code == 403
    for missing in ("bulk_operate", "cancel_message"):
        held = {"view_dashboard", "bulk_operate", "cancel_message"} - {missing}
        assert as_user(*held).post(address("waiting_start"), {}).status_code == 403


def test_the_page_of_a_topic_leads_there(client: Client, campaign: None) -> None:
    page = client.get(address("topic", topic="default")).content.decode()
    assert f'href="{address("waiting")}?topic=default"' in page


# The ticked ones


def test_only_the_ticked_ones_are_changed(client: Client, campaign: None, hands: Hands) -> None:
    found = list(waiting_messages(WaitingSelection(topic="default")))
    ticked = [message.id for message in found[3:5]]
    ticked.append(record.using(key="kept", delay=300 * DAY, durable=True).enqueue(9).id)
    query = "&".join(["topic=default", *(f"id={one}" for one in ticked)])
    text = text_of(client.get(f"{address('waiting')}?{query}"))
    assert "It is about 3 messages that were ticked" in text and "Change the ticked ones" in text
    operation = order(client, query, change="cancel")
    run(hands)
    operation.refresh_from_db()
    assert (operation.status, operation.count) == ("done", 3)
    left = {message.id for message in waiting_messages(WaitingSelection(topic="default"))}
    assert left == {message.id for message in found} - set(ticked)
    assert "3 named messages" in OperatorAction.objects.get().selection


def test_a_wrong_id_is_said(client: Client, campaign: None) -> None:
    assert "id" in text_of(client.get(f"{address('waiting')}?topic=default&ids=nonsense"))


# An edit


@pytest.fixture
def editor(as_user: Callable[..., Client]) -> Client:
    return as_user("view_dashboard", "view_payload", "bulk_operate", "edit_message")


RECORD = "task=tests.app.tasks.record"


def test_an_edit_is_shown_before_and_after_and_done(
    editor: Client, campaign: None, hands: Hands
) -> None:
    edit = {"change": "edit", "edit_argument": "value", "edit_how": "map", "edit_values": "3 -> 33"}
    text = text_of(send(editor, RECORD, **edit, show="1"))
    assert "3 33" in text and "nothing to edit" in text
    assert not BulkOperation.objects.exists()
    dry = order(editor, RECORD, **edit, dry_run="1")
    run(hands)
    page = editor.get(address("bulk", pk=dry.pk)).content.decode()
    assert "done, 11 skipped" in page
    again = html.unescape(re.search(r'href="([^"]*again=[^"]*)"', page)[1])  # type: ignore[index]
    assert "3 -&gt; 33" in editor.get(again).content.decode()
    real = order(editor, RECORD, **edit)
    run(hands)
    for operation in (dry, real):
        operation.refresh_from_db()
    assert (real.count, real.skipped) == (dry.count, dry.skipped) == (1, '{"nothing to edit": 11}')
    values = [message.args[0] for message in waiting_messages(WaitingSelection(topic="default"))]
    assert 33 in values and 3 not in values


@pytest.mark.parametrize(
    ("query", "fields", "words"),
    [
        ("topic=default", {"edit_argument": "value"}, "Choose the task first"),
        (RECORD, {}, "Write the name of the argument"),
        (RECORD, {"edit_argument": "vaule"}, "Did you mean value?"),
        (RECORD, {"edit_argument": "value", "edit_how": "map"}, "one to a hundred pairs"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused(
    editor: Client, campaign: None, query: str, fields: dict[str, str], words: str
) -> None:
    assert words in text_of(send(editor, query, change="edit", reason="x", **fields))
    assert not BulkOperation.objects.exists()


def test_who_may_not_cancel_may_only_edit_and_the_other_way_round(
    editor: Client, client: Client, campaign: None
) -> None:
    assert "Select a valid choice" in text_of(send(client, RECORD, change="edit", reason="x"))
    assert "Select a valid choice" in text_of(send(editor, RECORD, change="cancel", reason="x"))


def test_who_may_do_nothing_to_one_message_cannot_order_for_many(
    as_user: Callable[..., Client], campaign: None
) -> None:
    bare = as_user("view_dashboard", "view_payload", "bulk_operate")
    assert bare.post(address("waiting_start"), {"query": "topic=default"}).status_code == 403
    assert "Change all that fit" not in text_of(bare.get(f"{address('waiting')}?topic=default"))


def test_an_operation_that_is_gone_prefills_nothing(editor: Client, campaign: None) -> None:
    for again in ("999999", "x", "9" * 40, "٣"):
        answer = editor.get(f"{address('waiting')}?topic=default&again={again}")
        assert answer.status_code == 200
