"""The page of one row of the archive, and what can be done to a dead letter there."""

from __future__ import annotations

import json
from collections.abc import Callable
from uuid import uuid4

import pytest
from django.test import Client

from django_delayq.admin.runs import shown_run
from django_delayq.archive.erasure import ERASED
from django_delayq.archive.selection import Selection
from django_delayq.models import ArchivedMessage, OperatorAction, OutboxMessage
from django_delayq.operators import bulk, operations
from django_delayq.operators.bulk_runner import BulkRunner
from tests.admin.browser import address
from tests.admin.bulk_orders import text_of
from tests.admin.rows import NOON, make, make_dead
from tests.bulk_hands import OPERATOR
from tests.hands import Hands
from tests.operators.test_replay import dead

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq")]

AsUser = Callable[..., Client]
EVERYTHING = (
    "view_dashboard", "view_payload", "replay_message", "edit_message", "discard_message",
    "bulk_operate",
)  # fmt: skip
BODY = '{"args":[1042],"kwargs":{"reason":"unpaid"}}'


def test_a_row_shows_all_that_is_known(as_user: AsUser) -> None:
    history = {
        "worker": "host:1:a",
        "started_ms": 1.0,
        "ended_ms": 31.0,
        "outcome": "retried",
        "error": "OSError: away",
    }
    row = make_dead(
        body=BODY, headers='{"trace":"abc"}', history=json.dumps(history), attempts=2, replay_of=77
    )
    page = as_user(*EVERYTHING).get(address("archived", pk=row.pk)).content.decode()
    for text in (
        "unpaid",
        "trace",
        "OSError: away",
        "order is gone",
        "Traceback",
        "30 ms",
        row.message_id.hex,
        "row 77",
    ):
        assert text in page, text
    assert 'id="delayq-arguments"' in page
    assert "redaction" not in page
    assert 'data-delayq-copy="#delayq-traceback"' in page


def test_contents_are_hidden_without_the_permission(as_user: AsUser) -> None:
    history = {
        "worker": "host:1:a",
        "started_ms": 1.0,
        "ended_ms": 31.0,
        "outcome": "retried",
        "error": "OSError: pw=1",
    }
    row = make_dead(
        body='{"args":["secret-a"],"kwargs":{}}',
        headers='{"h":"secret-h"}',
        history=json.dumps(history),
    )
    ArchivedMessage.objects.filter(pk=row.pk).update(error_message="secret-m", traceback="secret-t")
    client = as_user("view_dashboard", "replay_message", "edit_message")
    for there in (
        address("archived", pk=row.pk),
        address("archived", pk=row.pk) + "?edit=1",
        address("archive"),
    ):
        page = client.get(there).content.decode()
        assert "secret" not in page
        assert "pw=1" not in page
    assert "shop.errors.PriceMissing" in page.replace("<wbr>", "")
    detail = client.get(address("archived", pk=row.pk)).content.decode()
    assert "OSError" in detail
    edited = {"edited": "1", "argument_order_id": "5"}
    assert client.post(address("archived_replay", pk=row.pk), edited).status_code == 403
    assert not OutboxMessage.objects.exists()


def test_other_lives_and_replays_are_linked(as_user: AsUser) -> None:
    first, second = (
        make_dead(key="order:1", replayed_by=uuid4(), replayed_at=NOON),
        make(key="order:1"),
    )
    page = as_user("view_dashboard").get(address("archived", pk=first.pk)).content.decode()
    assert address("archived", pk=second.pk) in page
    assert f"{address('find')}?q={first.replayed_by.hex}" in page


@pytest.mark.parametrize("pk", [4242, 2**63 - 1, 2**63, 10**30])
def test_a_row_that_is_not_there_is_not_found(as_user: AsUser, pk: int) -> None:
    assert as_user("view_dashboard").get(address("archived", pk=pk)).status_code == 404


@pytest.mark.parametrize(
    "body", ["", "no json", "[1]", '{"record":"AAAA"}', '{"args":1,"kwargs":2}', "{" * 70_000]
)
def test_damaged_rows_are_shown(as_user: AsUser, body: str) -> None:
    row = make_dead(body=body, headers="{", history="{\n\n}", due_at=NOON, worker="")
    client = as_user(*EVERYTHING)
    assert client.get(address("archived", pk=row.pk)).status_code == 200
    assert client.get(address("archived", pk=row.pk) + "?edit=1").status_code == 200


# What can be done


def test_a_dead_letter_is_replayed(as_user: AsUser) -> None:
    row = make_dead(body=BODY)
    there = address("archived", pk=row.pk)
    answer = as_user("view_dashboard", "replay_message").post(
        address("archived_replay", pk=row.pk), {"reason": "mended", "next": there}, follow=True
    )
    row.refresh_from_db()
    assert answer.redirect_chain == [(there, 302)]
    assert row.replayed_by.hex in answer.content.decode()
    action = OperatorAction.objects.get()
    assert (action.action, action.reason, action.count) == ("replay", "mended", 1)
    assert OutboxMessage.objects.count() == 1


def test_it_is_replayed_with_other_arguments(as_user: AsUser) -> None:
    row, client = make_dead(body=BODY), as_user(*EVERYTHING)
    form = client.get(address("archived", pk=row.pk) + "?edit=1").context["form"]
    data = {field.html_name: field.value() or "" for field in form} | {
        "argument_order_id": "5",
        "edited": "1",
        "reason": "mended",
    }
    client.post(address("archived_replay", pk=row.pk), data)
    assert b"[5]" in bytes(OutboxMessage.objects.get().record) or b'"args":[5]' in bytes(
        OutboxMessage.objects.get().record
    )


def test_wrong_arguments_are_explained_and_nothing_is_sent(as_user: AsUser) -> None:
    row, client = make_dead(body=BODY), as_user(*EVERYTHING)
    form = client.get(address("archived", pk=row.pk) + "?edit=1").context["form"]
    data = {field.html_name: field.value() or "" for field in form} | {
        "argument_order_id": "",
        "edited": "1",
    }
    answer = client.post(address("archived_replay", pk=row.pk), data)
    assert "Write a value" in answer.content.decode()
    assert not OutboxMessage.objects.exists()


def test_a_redacted_one_needs_other_arguments(as_user: AsUser) -> None:
    row, client = (
        make_dead(body='{"args":["***"],"kwargs":{},"redaction":"done"}'),
        as_user(*EVERYTHING),
    )
    page = client.get(address("archived", pk=row.pk)).content.decode()
    assert "can only be replayed with arguments that you write" in page
    assert 'id="delayq-replay-reason"' not in page
    answer = client.post(
        address("archived_replay", pk=row.pk),
        {"reason": "x", "next": address("archived", pk=row.pk)},
        follow=True,
    )
    assert "was not replayed: redacted" in answer.content.decode()


def test_an_erased_one_says_so_and_is_not_replayed(as_user: AsUser) -> None:
    row, client = make_dead(body=ERASED), as_user(*EVERYTHING)
    page = client.get(address("archived", pk=row.pk)).content.decode()
    assert "Personal data was erased from this row" in page
    assert "redacted before" not in page and 'id="delayq-replay-reason"' not in page


def test_a_dead_letter_is_discarded_with_a_reason(as_user: AsUser) -> None:
    row, client = make_dead(), as_user("view_dashboard", "discard_message")
    there = {"next": address("archived", pk=row.pk)}
    answer = client.post(
        address("archived_discard", pk=row.pk), {**there, "reason": " "}, follow=True
    )
    assert "Write a reason" in answer.content.decode()
    client.post(address("archived_discard", pk=row.pk), {**there, "reason": "old prices"})
    row.refresh_from_db()
    assert row.discarded_at
    assert OperatorAction.objects.get().reason == "old prices"


def test_what_is_dealt_with_offers_nothing(as_user: AsUser) -> None:
    for row in (make(), make_dead(replayed_at=NOON), make_dead(discarded_at=NOON)):
        page = as_user(*EVERYTHING).get(address("archived", pk=row.pk)).content.decode()
        assert address("archived_replay", pk=row.pk) not in page
        assert address("archived_discard", pk=row.pk) not in page


# Hostile data

NASTY = "<script>alert(1)</script>\"'&{{ 7|add:7 }}\x1b[2J\u202e\u200b=cmd|"


def test_markup_and_unseen_characters_are_inert(as_user: AsUser) -> None:
    names = ("reason", "headers", "worker", "error_class", "error_message", "traceback", "history")
    row = make_dead(
        **dict.fromkeys(names, NASTY),
        topic=NASTY[:64],
        task=NASTY,
        key=NASTY,
        body=json.dumps({"x": NASTY}),
    )
    client = as_user(*EVERYTHING)
    for there in (
        address("archive"),
        address("archived", pk=row.pk),
        address("archive") + "?q=" + "%3Cscript%3E",
    ):
        page = client.get(there).content.decode()
        assert "<script>alert" not in page
        assert not {"\x1b", "\u202e", "\u200b"} & set(page)


def test_looking_at_a_row_does_not_run_its_task(as_user: AsUser) -> None:
    """Templates call what they can, and a task can be called."""
    from tests.app.tasks import seen

    seen.clear()
    row = make_dead(task="tests.app.tasks.record", body='{"args":[],"kwargs":{}}')
    page = as_user(*EVERYTHING).get(address("archived", pk=row.pk) + "?edit=1").content.decode()
    assert "not declared here" not in page
    assert not seen


def test_a_row_shows_its_result_and_its_progress(as_user: AsUser) -> None:
    row = make(result='{"progress":[7,10,"pages",2],"result":{"file":"a<b.pdf"}}')
    page = as_user(*EVERYTHING).get(address("archived", pk=row.pk)).content.decode()
    assert "a&lt;b.pdf" in page
    assert '<progress max="100" value="70"' in page
    assert "7 of 10 pages" in " ".join(page.split())
    assert "attempt 2" in page
    hidden = as_user("view_dashboard").get(address("archived", pk=row.pk)).content.decode()
    assert "b.pdf" not in hidden
    assert "pages" not in hidden


def test_a_redacted_result_says_so(as_user: AsUser) -> None:
    row = make(result='{"result":"***","redaction":"done"}')
    page = as_user(*EVERYTHING).get(address("archived", pk=row.pk)).content.decode()
    assert "The result was redacted before it was archived." in page
    assert "***" in page


@pytest.mark.parametrize("damaged", ["{", "[1]", '{"progress":"x"}'])
def test_a_damaged_result_hides_no_page(as_user: AsUser, damaged: str) -> None:
    row = make(result=damaged, body=BODY)
    assert "unpaid" in as_user(*EVERYTHING).get(address("archived", pk=row.pk)).content.decode()


def test_a_row_says_who_has_replayed_it_and_why_and_how_that_ended(
    as_user: AsUser, hands: Hands
) -> None:
    (alone, *others) = dead(3, error_class="KeyError")
    operations.replay_one(OPERATOR, alone, reason="INC-1: only this")
    bulk.start(OPERATOR, "replay", Selection(ids=tuple(others)), reason="INC-2: the others")
    BulkRunner(hands.store, "x").run_once()
    client = as_user("view_dashboard")
    page = text_of(client.get(address("archived", pk=alone)))
    assert "Handled byreplay: olga" in page and "INC-1: only this" in page
    page = text_of(client.get(address("archived", pk=others[0])))
    assert "Handled byreplay: olga" in page and "INC-2: the others" in page
    assert "bulk operation" in page and "INC-1" not in page
    hands.relay()
    hands.work()
    hands.archive()
    assert "After the replayacked" in text_of(client.get(address("archived", pk=others[0])))


def test_a_run_that_seems_to_end_before_it_starts_took_no_time() -> None:
    assert shown_run({"started_ms": 1_000.9, "ended_ms": 1_000.4}, may_see=True)["took"] == 0
