"""Where a secret argument could show: each place is looked at, with each way to hide it."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client

from django_delayq import DelayedTask, Reject, Retry, Snooze, delayed_task
from django_delayq.archive.search import every_row
from django_delayq.archive.selection import Selection
from django_delayq.archive.unarchivable import put_aside
from django_delayq.client.handle import Handle
from django_delayq.core.exceptions import InvalidMessage
from django_delayq.core.signals import dead
from django_delayq.models import UnarchivableEntry
from django_delayq.operators import operations
from django_delayq.operators.waiting_selection import WaitingSelection, waiting_messages
from django_delayq.store import finished
from django_delayq.tasks.redaction import MARK
from django_delayq.worker.process.console import Console
from tests.admin.browser import address
from tests.hands import DAY, ORDERS, Hands, only_row
from tests.integrations.api import conftest as api_hands
from tests.integrations.test_sentry import Kept, sentry

__all__ = ["api", "caller", "caller_with", "sentry"]

api, caller_with, caller = api_hands.api, api_hands.caller_with, api_hands.caller

CARD, STREET = "4111-2222-zyx", "Geheimweg 17"
ARGUMENTS: Any = (7, CARD, {"street": STREET, "town": "Ulm"})
KEYS = [
    "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY",
    "MDEyMzQ1Njc4OUFCQ0RFRjAxMjM0NTY3ODlBQkNERUY",
]


def charge(order_id: int, card: str, where: Any = None, **more: Any) -> None:
    try:
        raise LookupError(where["street"])
    except LookupError as error:
        raise ValueError(f"{card} is refused, {{'card': {card!r}}}") from error


def hide(topic: str, task: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """For REDACT: what is not the first argument."""
    return [*args[:1], *["***"] * len(args[1:])], dict.fromkeys(kwargs, "***")


def hide_wrongly(*given: Any) -> Any:
    raise RuntimeError(f"no: {given}")


@pytest.fixture(params=["secret", "function", "broken function", "encrypted"])
def way(request: Any, settings: Any) -> str:
    """How it is hidden."""
    more: dict[str, Any] = {
        "function": {"REDACT": f"{__name__}.hide"},
        "broken function": {"REDACT": f"{__name__}.hide_wrongly"},
        "encrypted": {"ENCRYPTION_KEYS": KEYS},
    }.get(request.param, {})
    settings.DELAYQ = {**settings.DELAYQ, **more}
    return str(request.param)


@pytest.fixture
def pay(way: str, declared: Any) -> DelayedTask[..., None]:
    secret = ("card", "where.street") if way in ("secret", "encrypted") else ()
    options: Any = {"secret": secret, "topic": "orders", "name": "pay", "max_attempts": 2}
    return delayed_task(**options)(charge)


@pytest.fixture
def root(hands: Hands) -> Iterator[Client]:
    client = Client()
    client.force_login(
        User.objects.create(username="root-of-secrets", is_staff=True, is_superuser=True)
    )
    yield client
    User.objects.all().delete()


def clean(text: Any) -> str:
    """The text itself, where nothing of it is secret."""
    text = text.decode() if isinstance(text, bytes) else str(text)
    for one in (CARD, STREET):
        assert one not in text
    return text


def page(client: Client, name: str, query: Any = None, **arguments: Any) -> str:
    answer = client.get(address(name, **arguments), query or {}, follow=True)
    assert answer.status_code == 200
    return clean(answer.getvalue() if answer.streaming else answer.content)


def delayq_command(*words: str) -> str:
    out = StringIO()
    call_command("delayq", *words, stdout=out, stderr=out)
    return clean(out.getvalue())


@pytest.fixture(params=["redis", "outbox"])
def waiting(request: Any, pay: Any, hands: Hands) -> Handle:
    delay, durable = (DAY, False) if request.param == "redis" else (40 * DAY, True)
    handle: Handle = pay.using(delay=delay, durable=durable).enqueue(*ARGUMENTS)
    assert handle.get().args == list(ARGUMENTS), "code gets what it has sent"
    return handle


def test_pages_of_a_waiting_message(root: Client, waiting: Handle) -> None:
    assert "<h1" in page(root, "message", topic="orders", message_id=waiting.id)
    for query in ({}, {"from": "outbox"}, {"in": "database"}, {"where": "outbox"}):
        page(root, "topic", query, topic="orders")
    page(root, "waiting", {"topic": "orders"})
    page(root, "find", {"q": waiting.id})
    page(root, "schedule")


def test_commands_that_show_a_waiting_message(waiting: Handle) -> None:
    for more in ((), ("--json",)):
        assert waiting.id in delayq_command("get", "orders", waiting.id, *more)
        assert waiting.id in delayq_command("list", "orders", *more)
        assert waiting.id in delayq_command("find", waiting.id, *more)


def test_a_command_that_sends(pay: Any, hands: Hands) -> None:
    for more in ((), ("--dry-run",), ("--json",)):
        assert "pay" in delayq_command("send", "pay", "1", CARD, *more)


def test_the_api_shows_a_waiting_message(caller: Any, waiting: Handle) -> None:
    (message,) = caller.get("/topics/orders/messages").json()["messages"] or [{"id": waiting.id}]
    assert clean(message) and message["id"] == waiting.id
    assert clean(caller.get("/topics/orders/message", id=waiting.id).json())


def test_who_leases_a_message_gets_its_arguments(
    caller: Any, way: str, settings: Any, declared: Any
) -> None:
    caller.send("mail", task="sms", args=[CARD])
    assert [message["args"] for message in caller.consume("mail")] == [[CARD]]


def test_running_messages(root: Client, pay: Any, hands: Hands) -> None:
    pay.enqueue(*ARGUMENTS)
    (lease,) = hands.claim(ORDERS)
    page(root, "topic", topic="orders")
    page(root, "message", topic="orders", message_id=lease.id.hex())
    for more in ((), ("--json",)):
        assert lease.id.hex() in delayq_command("list", "orders", "--running", *more)


def test_bulk_orders_and_what_they_would_change(root: Client, waiting: Handle) -> None:
    filters = ("orders", "--task", "pay", "--dry-run")
    for words in (
        ("cancel", *filters),
        ("reschedule", *filters, "--later", "1h"),
        ("move", *filters, "--to", "modes"),
    ):
        assert waiting.id in delayq_command(*words)
    page(root, "waiting", {"topic": "orders", "task": "pay"})
    page(root, "bulk_list")


@pytest.fixture
def letter(pay: Any, hands: Hands) -> Handle:
    """A dead letter, after two failed attempts."""
    handle: Handle = pay.using(max_attempts=1).enqueue(*ARGUMENTS)
    hands.work(ORDERS)
    hands.archive()
    return handle


def test_the_row_of_a_dead_letter(letter: Handle, way: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {type(only_row())._meta.db_table}")
        (values,) = cursor.fetchall()
    assert clean(values)
    row = only_row()
    assert (row.error_class, row.state) == ("ValueError", "dead")
    assert f"ValueError: {MARK} is refused" in row.traceback
    assert f"LookupError: {MARK}" in row.traceback and "in charge" in row.traceback
    marks = {"secret": "done", "function": "done", "broken function": "failed"}
    assert f'"redaction":"{marks.get(way, "encrypted")}"' in row.body


def test_pages_of_a_dead_letter(root: Client, letter: Handle, way: str) -> None:
    html = page(root, "archived", pk=only_row().pk)
    assert (MARK in html) or way in ("function", "broken function")
    assert ("delayq-replay-reason" in html) == (way == "encrypted"), "else the arguments are gone"
    page(root, "archived", {"edit": 1}, pk=only_row().pk)
    page(root, "archive")
    page(root, "archive_csv")
    page(root, "find", {"q": letter.id})


def test_figures_and_what_needs_attention(
    root: Client, letter: Handle, pay: Any, hands: Hands
) -> None:
    pay.enqueue(*ARGUMENTS)
    assert hands.claim(ORDERS)
    for name in ("changelist", "dead_letters", "running", "workers", "statistics"):
        page(root, name)
    page(root, "topic", topic="orders")
    for words in (("top", "--once"), ("top", "--once", "--json"), ("stats",), ("stats", "--json")):
        assert "orders" in delayq_command(*words)
    assert "nothing was changed" in delayq_command("replay", "--task", "pay", "--dry-run")


def test_commands_and_the_api_show_a_dead_letter(caller: Any, letter: Handle) -> None:
    assert letter.id in delayq_command("find", letter.id, "--json")
    (shown,) = caller.get("/topics/orders/dead-letters").json()["messages"]
    assert clean(shown)
    assert clean(caller.get("/topics/orders/message", id=letter.id).json())


def test_the_history_of_attempts(pay: Any, hands: Hands, root: Client) -> None:
    handle = pay.enqueue(*ARGUMENTS)
    hands.work(ORDERS)
    assert MARK in str(clean(handle.get().runs))
    page(root, "message", topic="orders", message_id=handle.id)


def test_lines_of_the_log(pay: Any, hands: Hands, caplog: Any) -> None:
    console = Console()
    with caplog.at_level(logging.DEBUG):
        pay.enqueue(*ARGUMENTS)
        hands.work(ORDERS)
        hands.archive()
    assert "is refused" in clean(caplog.text) and console.counts


def test_receivers_of_signals_and_the_variables_of_the_stack(pay: Any, hands: Hands) -> None:
    kept: list[Any] = []

    def keep(sender: Any, events: Any, **kwargs: Any) -> None:
        kept.extend(events)

    dead.connect(keep)
    pay.using(max_attempts=1).enqueue(*ARGUMENTS)
    hands.work(ORDERS)
    dead.disconnect(keep)
    (event,) = kept
    assert type(event.error).__name__ == "ValueError"
    assert clean((event.reason, event.error, event.error.__cause__))
    stack, names = event.error.__traceback__, []
    while stack is not None:
        if stack.tb_frame.f_code.co_name == "charge":
            assert clean(stack.tb_frame.f_locals) == "{}"
        names.append(stack.tb_frame.f_code.co_name)
        stack = stack.tb_next
    assert names[-1] == "charge"


def test_events_of_sentry(sentry: Kept, pay: Any, hands: Hands) -> None:
    pay.enqueue(*ARGUMENTS)
    hands.work(ORDERS)
    event = sentry.events[-1]
    assert clean(sentry.events) and event["exception"]["values"][-1]["type"] == "ValueError"


def test_spans_of_opentelemetry(pay: Any, hands: Hands, settings: Any) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from django_delayq.integrations import opentelemetry as ours

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before, ours._tracer = ours._tracer, provider.get_tracer("tests")
    try:
        settings.DELAYQ = {
            **settings.DELAYQ,
            "MIDDLEWARE": ["django_delayq.integrations.opentelemetry.trace_runs"],
        }
        worker = Hands(hands.store)
        pay.enqueue(*ARGUMENTS)
        worker.work(ORDERS)
    finally:
        ours._tracer = before
    (span,) = exporter.get_finished_spans()
    assert "ValueError" in clean(span.to_json())


def test_entries_that_the_database_refused(root: Client, pay: Any, hands: Hands) -> None:
    pay.using(max_attempts=1).enqueue(*ARGUMENTS)
    hands.work(ORDERS)
    for entries in finished.unarchived(hands.store, ORDERS):
        for entry in entries:
            put_aside(entry, ValueError("no"))
    row = UnarchivableEntry.objects.get()
    raw = json.loads(row.content)
    for name, value in raw.items():
        assert name == "at_ms" or clean(base64.b64decode(value).decode("latin-1")) is not None
    page(root, "unarchivable_entry", pk=row.pk)
    page(root, "unarchivable")
    delayq_command("unarchivable", "list", "--json")


# A search must not tell


def test_nobody_searches_for_a_secret_argument(pay: Any, way: str, hands: Hands) -> None:
    pay.using(delay=DAY).enqueue(*ARGUMENTS)
    if way in ("secret", "encrypted"):
        for name in ("card", "args.1", "where", "where.street", "args.2.street"):
            with pytest.raises(InvalidMessage, match="secret argument"):
                WaitingSelection(topic="orders", argument=name, value=CARD)
    else:
        found = WaitingSelection(topic="orders", argument="card", value=CARD)
        assert list(waiting_messages(found)) == [], "what is hidden is not found"
    if way != "broken function":
        found = WaitingSelection(topic="orders", argument="order_id", value="7")
        assert len(list(waiting_messages(found))) == 1


def test_nor_in_the_archive(letter: Handle, way: str) -> None:
    row = only_row()
    period: Any = {"since": row.finished_at, "topic": "orders"}
    secret = Selection(argument="card", value=CARD, **period)
    if way in ("secret", "encrypted"):
        with pytest.raises(InvalidMessage, match="secret argument"):
            list(every_row(secret, ("pk",)))
    else:
        assert list(every_row(secret, ("topic",))) == []
    if way != "broken function":
        plain = Selection(argument="order_id", value="7", **period)
        assert [found.pk for found in every_row(plain, ("topic",))] == [row.pk]


# Edits and replays keep what is hidden


def form_of(client: Client, path: str, name: str) -> dict[str, str]:
    form = client.get(path).context[name]
    return {field.html_name: field.value() or "" for field in form}


def test_an_edit_keeps_what_is_hidden(root: Client, pay: Any, way: str, hands: Hands) -> None:
    handle = pay.using(delay=DAY).enqueue(*ARGUMENTS)
    where: Any = {"topic": "orders", "message_id": handle.id}
    data = form_of(root, address("message", **where), "edit_form")
    if way == "broken function":
        return
    answer = root.post(
        address("message_edit", **where), data | {"argument_order_id": "8", "reason": "x"}
    )
    assert answer.status_code == 302
    assert handle.get().args == [8, *ARGUMENTS[1:]]


def test_an_edit_changes_what_is_hidden(root: Client, pay: Any, way: str, hands: Hands) -> None:
    handle = pay.using(delay=DAY).enqueue(*ARGUMENTS)
    where: Any = {"topic": "orders", "message_id": handle.id}
    data = form_of(root, address("message", **where), "edit_form")
    if way == "broken function":
        return
    answer = root.post(
        address("message_edit", **where), data | {"argument_card": "new", "reason": "x"}
    )
    assert answer.status_code == 302
    assert handle.get().args == [7, "new", ARGUMENTS[2]]


def test_the_mark_is_never_written_into_a_message(root: Client, pay: Any, hands: Hands) -> None:
    handle = pay.using(delay=DAY).enqueue(*ARGUMENTS)
    where: Any = {"topic": "orders", "message_id": handle.id}
    data = form_of(root, address("message", **where), "edit_form")
    changed = {name: MARK if name == "argument_order_id" else text for name, text in data.items()}
    changed |= {"argument_order_id": f'"{MARK}"', "argument_where": f'["{MARK}"]'}
    assert root.post(address("message_edit", **where), changed).status_code == 200
    with pytest.raises(InvalidMessage, match="hidden"):
        operations.edit(User.objects.get(), "orders", handle.id, ([7, MARK], {}))
    assert handle.get().args == list(ARGUMENTS)


def test_a_dead_letter_is_replayed_with_its_true_arguments_or_not_at_all(
    root: Client, letter: Handle, way: str, hands: Hands
) -> None:
    answer = root.post(address("archived_replay", pk=only_row().pk), {"reason": "x"}, follow=True)
    text = clean(answer.content)
    if way == "encrypted":
        hands.relay()
        (message,) = waiting_messages(WaitingSelection(topic="orders"))
        assert message.args == list(ARGUMENTS)
    else:
        assert "was not replayed: redacted" in text


# Arguments that annotations make of JSON


@dataclass
class Person:
    """Somebody."""

    name: str
    born: date
    pin: bytes
    places: list[tuple[str, datetime]]


def test_an_error_tells_nothing_of_what_an_annotation_has_made(declared: Any, hands: Hands) -> None:
    def greet(person: Person, token: bytes) -> None:
        raise ValueError(f"{person} {person.born:%Y-%m-%d} {token!r} {token.decode()}")

    at = datetime(2026, 3, 4, 5, 6, tzinfo=timezone.utc)
    someone = Person("Anna Geheim", date(1990, 1, 2), b"pin-7319", [("Ulm", at)])
    options: Any = {"topic": "orders", "name": "greet", "max_attempts": 1}
    delayed_task(secret=("person", "token"), **options)(greet).enqueue(someone, b"token-4711")
    hands.work(ORDERS)
    hands.archive()
    row = only_row()
    text = f"{row.error_message} {row.traceback} {row.body}"
    for one in ("Geheim", "1990", "7319", "Ulm", "2026, 3", "2026-03", "4711"):
        assert one not in text
    assert f"pin={MARK}" in text


# What a task says of its message counts, whatever is hidden


class GatewayAway(ConnectionError):
    """Nobody answers."""


@pytest.mark.parametrize(
    "case",
    [
        (lambda card: Reject(f"{card} is stolen"), None, "dead", f"{MARK} is stolen"),
        (lambda card: Snooze(3600), None, "delayed", ""),
        (lambda card: Snooze(3600), GatewayAway, "delayed", ""),
        (lambda card: Retry(f"{card}: busy", delay=3600), GatewayAway, "delayed", f"{MARK}: busy"),
        (GatewayAway, GatewayAway, "delayed", MARK),
        (ValueError, GatewayAway, "dead", MARK),
    ],
    ids=["Reject", "Snooze", "Snooze alone", "Retry", "retry_for", "not retry_for"],
)
def test_what_a_task_says_counts(case: Any, way: str, declared: Any, hands: Hands) -> None:
    said, retry_for, state, text = case

    def say(order_id: int, card: str) -> None:
        raise said(card)

    options: Any = {"retry_for": (retry_for,)} if retry_for else {}
    if way in ("secret", "encrypted"):
        options["secret"] = ("card",)
    declare = delayed_task(
        topic="orders", name="say", max_attempts=3, backoff=lambda n: 3600, **options
    )
    handle = declare(say).enqueue(7, CARD)
    hands.work(ORDERS)
    if state == "dead":
        hands.archive()
        row = only_row()
        assert (row.state, row.attempts) == ("dead", 1)
        assert text in clean(f"{row.reason} {row.error_message} {row.traceback}")
    else:
        message = handle.get()
        assert message.state == state
        assert 3500_000 < message.due_at.timestamp() * 1000 - hands.store.clock_ms() < 3600_001
        assert text in clean(message.runs)
