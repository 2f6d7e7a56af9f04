"""Ordering a bulk operation: what it is about, the confirmation, and once however often it is
sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.http import QueryDict
from django.test import Client
from django.utils import timezone

from django_delayq.archive.selection import Selection
from django_delayq.models import ArchivedMessage, BulkOperation, OperatorAction
from django_delayq.operators import bulk
from django_delayq.operators.bulk_run import PERMISSIONS
from django_delayq.store.store import RedisStore
from tests.admin.browser import address
from tests.admin.bulk_orders import form_of, order, send, text_of
from tests.admin.world import heartbeat
from tests.app.tasks import close_order
from tests.faults import unreachable
from tests.hands import DAY, together
from tests.operators.test_replay import dead

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq")]

AsUser = Callable[..., Client]


@pytest.fixture
def operator(as_user: AsUser) -> Client:
    """Who may do everything."""
    return as_user(superuser=True)


# What it is about


def test_the_form_says_what_it_is_about(operator: Client) -> None:
    dead(7, error_class="KeyError", key="order:1042")
    dead(2, error_class="OSError")
    response = operator.get(f"{address('bulk_new')}?kind=replay&open=on&error=KeyError")
    text = text_of(response)
    assert "open dead letters, error KeyError" in text
    assert "Replay 7 messages" in text
    assert "The newest 5 of them" in text
    assert (text.count("order:1042"), text.count("OSError")) == (5, 0)


def test_a_count_of_very_many_is_cut_off(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "COUNTED", 10)
    dead(11)
    assert "Dead letters 10+" in text_of(
        operator.get(f"{address('bulk_new')}?kind=discard&open=on")
    )


def test_rows_may_be_named_one_by_one(operator: Client) -> None:
    rows = dead(4)
    ArchivedMessage.objects.filter(pk=rows[0]).update(replayed_at=timezone.now())
    response = operator.get(f"{address('bulk_new')}?kind=replay&id={rows[0]}&id={rows[1]}")
    assert "already replayed: it is skipped" in text_of(response)
    operation = order(operator, f"kind=replay&id={rows[0]}&id={rows[1]}")
    assert Selection.decode(operation.selection).ids == tuple(rows[:2])


def test_nothing_among_them_leaves_nothing_to_order(operator: Client) -> None:
    dead(2, state="acked")
    response = operator.get(f"{address('bulk_new')}?kind=replay&state=acked")
    assert "There is nothing to do" in text_of(response)
    assert address("bulk_start") not in response.content.decode()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "is not a bulk operation"),
        ("kind=burn&open=on", "is not a bulk operation"),
        ("kind=replay", "Say which"),
        ("kind=replay&id=x", "row numbers"),
        ("kind=replay&ids=99999999999999999999999", "row numbers"),
        ("kind=discard&state=lost", "lost"),
        ("kind=replay&q=args.order_id:1042&period=24h", "narrow it down"),
        ("kind=purge", "is not declared"),
        ("kind=purge&topic=nobody-declares-it", "nobody-declares-it"),
        ("kind=purge&topic=orders&task=x", "all that waits in one topic"),
        ("kind=discard&topic=%00", "cannot contain the character 0"),
    ],
)
def test_what_cannot_be_ordered_is_said_in_words(operator: Client, query: str, words: str) -> None:
    text = text_of(operator.get(f"{address('bulk_new')}?{query}"))
    assert "This cannot be a bulk operation" in text
    assert words in text
    parameters = QueryDict(query)
    form = {"kind": parameters.get("kind", ""), "query": query, "token": uuid4().hex, "reason": "x"}
    assert send(operator, form).status_code == 302
    assert not BulkOperation.objects.exists()


def test_without_redis_the_count_of_a_purge_is_no_error_of_ours(operator: Client) -> None:
    with unreachable():
        response = operator.get(f"{address('bulk_new')}?kind=purge&topic=orders")
    assert response.status_code == 503


def test_buttons_say_how_many(operator: Client) -> None:
    dead(1_204)
    assert "Discard 1,204 messages" in text_of(
        operator.get(f"{address('bulk_new')}?kind=discard&open=on")
    )
    close_order.using(delay=3600).enqueue(1)
    text = text_of(operator.get(f"{address('bulk_new')}?kind=purge&topic=orders"))
    assert "Purge 1 message" in text
    assert "Purge 1 messages" not in text
    assert "all messages that wait in topic orders when a worker starts the operation" in text


def test_without_a_worker_that_does_it_the_form_says_so(
    operator: Client, delayq: RedisStore
) -> None:
    dead(1)
    where = f"{address('bulk_new')}?kind=discard&open=on"
    assert "No living worker runs bulk operations" in text_of(operator.get(where))
    heartbeat(delayq, draining=True)
    assert "No living worker runs bulk operations" in text_of(operator.get(where))
    heartbeat(delayq)
    assert "No living worker runs bulk operations" not in text_of(operator.get(where))
    with unreachable():
        assert "No living worker runs bulk operations" not in text_of(operator.get(where))


def test_with_nothing_ticked_one_is_back_at_the_list(operator: Client) -> None:
    dead(3)
    query = {"kind": "discard", "list": "topic=default&state=dead"}
    answer = operator.get(address("bulk_new"), query)
    assert answer["Location"] == f"{address('archive')}?topic=default&state=dead"
    assert "No message is selected" in text_of(operator.get(answer["Location"]))
    pk = str(ArchivedMessage.objects.latest("pk").pk)
    assert "Discard 1 message" in text_of(operator.get(address("bulk_new"), {**query, "id": pk}))


# To order it


def test_an_order_is_stored_and_recorded(operator: Client) -> None:
    dead(3)
    operation = order(
        operator,
        "kind=replay&open=on&task=tests.app.tasks.record",
        delay="1.5",
        delay_unit="60",
        rate="5.5",
    )
    assert (operation.kind, operation.status, operation.dry_run) == ("replay", "waiting", False)
    assert Selection.decode(operation.selection) == Selection(
        open=True, task="tests.app.tasks.record"
    )
    assert json.loads(operation.options).items() >= {"delay": 90, "rate": 5.5}.items()
    (action,) = OperatorAction.objects.all()
    assert (action.action, action.reason, action.operator) == (
        "replay",
        "it is mended",
        operation.operator,
    )


def test_a_window_stays_the_one_that_was_looked_at(operator: Client) -> None:
    since = timezone.now() - timedelta(hours=1)
    dead(2, finished_at=since + timedelta(minutes=1))
    operation = order(operator, "kind=discard&open=on&period=1h")
    stored = Selection.decode(operation.selection).since
    assert stored is not None
    since = since if timezone.is_aware(since) else timezone.make_aware(since)
    assert abs(stored - since) < timedelta(seconds=20)


def test_a_reason_is_required_but_for_a_dry_run(operator: Client) -> None:
    dead(3)
    form = form_of(operator, "kind=discard&open=on")
    assert "Write a reason" in text_of(send(operator, form, reason="  "))
    assert not BulkOperation.objects.exists()
    assert send(operator, form, dry_run="1").status_code == 302
    assert BulkOperation.objects.get().dry_run
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": "-1"},
        {"delay": "x"},
        {"delay": "nan"},
        {"rate": "0"},
        {"rate": "-3"},
        {"rate": "inf"},
    ],
)
def test_impossible_options_are_refused_and_the_rest_is_kept(
    operator: Client, wrong: dict[str, str]
) -> None:
    dead(3)
    response = send(
        operator, form_of(operator, "kind=replay&open=on"), reason="the bank is back", **wrong
    )
    assert 'class="errorlist"' in response.content.decode()
    assert "the bank is back" in text_of(response)
    assert not BulkOperation.objects.exists()


@pytest.mark.parametrize(("filters", "word"), [("&topic=default", "default"), ("", "everything")])
def test_for_very_many_a_word_has_to_be_typed(
    operator: Client, monkeypatch: pytest.MonkeyPatch, filters: str, word: str
) -> None:
    dead(4)
    query = f"kind=discard&open=on{filters}"
    assert 'name="word"' not in operator.get(f"{address('bulk_new')}?{query}").content.decode()
    monkeypatch.setattr(bulk, "MANY", 3)
    form = form_of(operator, query)
    for typed in ("", "Default", "all"):
        assert f"Type “{word}” here" in text_of(send(operator, form, reason="old", word=typed))
    assert not BulkOperation.objects.exists()
    assert send(operator, form, dry_run="1").status_code == 302
    assert send(operator, form, reason="old", word=word).status_code == 302


def test_a_form_that_is_sent_twice_is_one_operation(operator: Client) -> None:
    dead(3)
    form = form_of(operator, "kind=replay&open=on")
    first, second = send(operator, form, reason="again"), send(operator, form, reason="again")
    assert first["Location"] == second["Location"]
    assert (BulkOperation.objects.count(), OperatorAction.objects.count()) == (1, 1)
    assert (
        send(operator, form_of(operator, "kind=replay&open=on"), reason="again")["Location"]
        != first["Location"]
    )


def test_a_dry_run_and_then_the_real_one_of_the_same_form_are_two(operator: Client) -> None:
    dead(3)
    form = form_of(operator, "kind=replay&open=on")
    send(operator, form, dry_run="1")
    send(operator, form, reason="again")
    assert list(BulkOperation.objects.order_by("pk").values_list("dry_run", flat=True)) == [
        True,
        False,
    ]


def test_a_form_that_is_sent_twice_at_the_same_time_is_one_operation(
    new_user: Callable[..., User],
) -> None:
    user, selection = new_user(superuser=True), Selection(open=True)
    token = uuid4()
    send_it = lambda: bulk.start(user, "replay", selection, reason="again", token=token).pk  # noqa: E731
    assert len(set(together(*[send_it] * 6))) == 1
    assert BulkOperation.objects.count() == 1


def test_without_its_token_a_form_is_refused(operator: Client) -> None:
    dead(3)
    form = form_of(operator, "kind=replay&open=on")
    for token in ("", "no UUID"):
        assert send(operator, form | {"token": token}, reason="x").status_code == 200
    assert not BulkOperation.objects.exists()


@pytest.mark.parametrize("kind", bulk.DEAD_LETTER_KINDS)
def test_each_kind_needs_a_permission_of_its_own(as_user: AsUser, kind: str) -> None:
    dead(3)
    all_others = {"bulk_operate", *PERMISSIONS.values()} - {PERMISSIONS[bulk.BulkKind(kind)]}
    client = as_user("view_dashboard", *all_others)
    query = "topic=orders" if kind == "purge" else "open=on"
    assert client.get(f"{address('bulk_new')}?kind={kind}&{query}").status_code == 403
    assert (
        send(client, {"kind": kind, "query": query, "token": uuid4().hex}, reason="x").status_code
        == 403
    )
    assert not BulkOperation.objects.exists()


# An edit on the way

LETTERS = "kind=replay&open=on&task=tests.app.tasks.record"


def test_an_argument_is_edited_on_the_way(operator: Client) -> None:
    dead(2, body='{"args":["http://a"],"kwargs":{}}')
    dead(body='{"args":[7],"kwargs":{}}')
    edit = {
        "edit_argument": "value",
        "edit_how": "replace",
        "edit_values": "http:// -> https://",
    }
    text = text_of(send(operator, form_of(operator, LETTERS), **edit, show="1"))
    assert '"http://a" "https://a"' in text and "skipped nothing to edit" in text
    operation = order(operator, LETTERS, **edit)
    options = json.loads(operation.options)
    assert options["edit"]["pairs"] == [["http://", "https://"]]
    assert "https" not in OperatorAction.objects.get().selection
    again = text_of(operator.get(f"{address('bulk_new')}?{LETTERS}&again={operation.pk}"))
    assert "http:// -> https://" in again
    assert "gets another text inside of it" in text_of(
        operator.get(address("bulk", pk=operation.pk))
    )


def test_an_edit_is_offered_for_letters_of_one_task(operator: Client, as_user: AsUser) -> None:
    one, other = dead()[0], dead(task="tests.app.tasks.noop")[0]
    several = text_of(operator.get(f"{address('bulk_new')}?kind=replay&open=on"))
    assert "choose messages of one task" in several
    offers = "Edit one argument before the replay"
    assert offers in text_of(operator.get(f"{address('bulk_new')}?kind=replay&id={one}"))
    both = f"{address('bulk_new')}?kind=replay&id={one}&id={other}"
    assert offers not in text_of(operator.get(both))
    client = as_user("view_dashboard", "bulk_operate", "replay_message", "edit_message")
    assert offers not in text_of(client.get(f"{address('bulk_new')}?kind=replay&id={one}"))


def test_a_purge_says_the_exact_number_and_shows_what_is_due_first(operator: Client) -> None:
    close_order.enqueue_many(
        [close_order.using(delay=DAY + n, key=f"order:{n}").prepare(n) for n in range(12)]
    )
    text = text_of(operator.get(f"{address('bulk_new')}?kind=purge&topic=orders"))
    assert "Waiting messages 12" in text and "Purge 12 messages" in text
    assert "The 5 that are due first" in text
    assert "order:0" in text and "order:4" in text and "order:5" not in text
