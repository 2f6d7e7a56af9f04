"""A person's data is erased wherever it is, and nothing else is."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.core.management import call_command

from django_delayq.archive import erasure
from django_delayq.archive.erasure import ERASED, Person
from django_delayq.archive.selection import Selection
from django_delayq.archive.unarchivable import archive_again
from django_delayq.core.exceptions import InvalidMessage
from django_delayq.models import (
    ArchivedMessage,
    BulkMessage,
    BulkOperation,
    LakeBatch,
    OperatorAction,
    RecurringTask,
    TaskDay,
    UnarchivableEntry,
)
from django_delayq.operators import operations
from django_delayq.operators.bulk_run import BulkRun, decoded, stored_options
from django_delayq.operators.erase import Erased, erase
from django_delayq.operators.message_search import by_key
from django_delayq.operators.replay import replay
from django_delayq.operators.waiting_orders import (
    WaitingChange,
    change_waiting,
    run_to_end,
    start_waiting,
)
from django_delayq.operators.waiting_selection import WaitingSelection
from django_delayq.store import get_store
from django_delayq.store.store import RedisStore
from django_delayq.tasks.argument_edit import ArgumentEdit
from tests.app.sql_tasks import count
from tests.app.tasks import answer, close_order, record
from tests.archive.test_unarchivable import aside
from tests.bulk_hands import OPERATOR, at
from tests.faults import unreachable
from tests.hands import (
    DAY,
    Hands,
    end_lease,
    lose_redis,
    meanwhile,
    messages_in,
    outbox,
    prefix_keys,
    rows,
)
from tests.killed import run_killed
from tests.operators.test_replay import dead

pytestmark = pytest.mark.databases

SECRET, OTTO = "anna@example.org", "otto@example.org"
ANNA = Person(argument="value", value=SECRET)


def traces(store: RedisStore, secret: str = SECRET) -> list[str]:
    """The keys of Redis and the tables that have the text anywhere."""
    client, found = store.client.redis, []
    for key in prefix_keys(store):
        reads = {b"hash": client.hgetall, b"stream": client.xrange, b"string": client.get}
        read = reads.get(client.type(key))
        if read and secret.encode() in repr(read(key)).encode():
            found.append(key.decode().removeprefix(store.client.prefix))
    for model in apps.get_app_config("django_delayq").get_models():
        if model._meta.managed:
            for row in model._default_manager.values():
                values = [bytes(v) if isinstance(v, memoryview) else v for v in row.values()]
                if secret in repr(values):
                    found.append(model.__name__)
    return found


def erase_now(person: Person = ANNA, **options: Any) -> Erased:
    return erase(person, **{"wait": 0, "by": "olga", **options})


def counts(done: Erased) -> dict[str, int]:
    return {place.name: place.count for place in done.places.values()}


@pytest.fixture
def everywhere(hands: Hands) -> Hands:
    """Messages of two people in each place."""
    for person in (SECRET, OTTO):
        answer.enqueue(person)
        record.using(durable=True, headers={"mail": person}, key=f"mail:{person}").enqueue(person)
    hands.work()
    hands.archive()
    for person in (SECRET, OTTO):
        record.using(delay=60, key=f"later:{person}").enqueue(person)
        record.using(delay=60, durable=True).enqueue(person)
        record.using(delay=DAY, durable=True).enqueue(person)
        answer.enqueue(person)
        dead(body=json.dumps({"args": [person], "kwargs": {}}), error_message=f"no {person}")
    hands.work()  # its answers have ended and are not archived
    return hands


def test_nothing_of_the_person_is_left_anywhere(everywhere: Hands) -> None:
    assert len(set(traces(everywhere.store))) >= 6
    done = erase_now()
    assert traces(everywhere.store) == []
    assert done.complete and done.left == []
    assert counts(done) == {"queue": 2, "outbox": 1, "archive": 7}


def test_other_people_keep_everything(everywhere: Hands) -> None:
    before, live = of_otto(), set(messages_in(everywhere.store))
    erase_now()
    assert len(before) == 3 and of_otto()[:3] == before
    assert len(of_otto()) == 4, "what had ended is archived"
    assert len(live) == 4 and len(live & messages_in(everywhere.store)) == 2
    assert [status for status, _ in outbox()] == ["sent", "waiting"]
    assert by_key(f"later:{OTTO}")[0].state == "delayed"
    assert len([key for key in prefix_keys(everywhere.store) if b":result:" in key]) == 2


def of_otto() -> list[dict[str, Any]]:
    return [row for row in ArchivedMessage.objects.order_by("pk").values() if OTTO in str(row)]


def test_a_dry_run_counts_each_place_and_changes_nothing(everywhere: Hands) -> None:
    before = traces(everywhere.store)
    done = erase_now(dry_run=True)
    assert counts(done) == {"queue": 2, "ended": 1, "outbox": 2, "archive": 3}
    samples = [place.sample for place in done.places.values()]
    assert all(samples) and SECRET not in str(samples)
    assert traces(everywhere.store) == before
    assert not OperatorAction.objects.exists()


def test_a_redacted_row_keeps_what_happened(hands: Hands) -> None:
    handle = answer.using(key="mail:anna", headers={"mail": SECRET}).enqueue(SECRET)
    hands.work()
    (before,) = hands.archive()
    erase_now()
    (row,) = rows()
    assert (row.body, row.key, row.headers, row.result) == (ERASED, "", "", "")
    for name in ("message_id", "task", "topic", "state", "attempts", "worker", "run_ms"):
        assert getattr(row, name) == getattr(before, name)
    assert (row.enqueued_at, row.finished_at) == (before.enqueued_at, before.finished_at)
    assert hands.store.reports.result("default", handle.identity) is None


def test_rows_are_deleted_where_that_is_wanted(everywhere: Hands) -> None:
    done = erase_now(delete=True)
    assert traces(everywhere.store) == []
    assert counts(done)["archive"] == 7
    assert ArchivedMessage.objects.count() == len(of_otto())


def test_an_open_dead_letter_is_discarded_and_never_replayed(hands: Hands) -> None:
    pks = dead(body=json.dumps({"args": [SECRET], "kwargs": {}}))
    erase_now()
    assert ArchivedMessage.objects.get().discarded_at is not None
    again = replay(ArchivedMessage.objects.filter(pk__in=pks), force=True)
    assert (again.count, dict(again.skipped)) == (0, {"redacted": 1})


def test_a_nested_argument_and_each_way_to_pass_it_are_found(hands: Hands) -> None:
    for value in ({"customer": 42}, {"customer": "42"}, {"customer": 421}, {"customer": [42]}):
        record.enqueue(value)
        record.enqueue(value=value)
    hands.work()
    hands.archive()
    exact = Person(argument="value.customer", value=42)
    assert counts(erase_now(exact, dry_run=True)) == {"archive": 2}
    typed = Person(argument="value.customer", value="42", as_typed=True)
    assert counts(erase_now(typed)) == {"archive": 4}
    assert sum(row.body == ERASED for row in rows()) == 4


def test_a_typed_value_is_compared_by_its_json(hands: Hands) -> None:
    number = UUID("0190a5f0-0000-7000-8000-000000000001")
    record.enqueue(str(number))
    assert counts(erase_now(Person(argument="value", value=number)))["queue"] == 1
    with pytest.raises(InvalidMessage, match="no JSON"):
        Person(argument="value", value=object())


def test_task_topic_and_key_narrow_it_down(hands: Hands) -> None:
    close_order.using(key="order:1").enqueue(7)
    close_order.using(key="item:1").enqueue(7)
    record.enqueue(7)
    by_value = {"argument": "args.0", "value": 7}
    for narrowed in ({"topic": "orders"}, {"task": "tests.app.tasks.close_order"}):
        assert counts(erase_now(Person(**by_value, **narrowed), dry_run=True)) == {"queue": 2}
    assert counts(erase_now(Person(**by_value, key_prefix="order:"), dry_run=True)) == {"queue": 1}
    assert counts(erase_now(Person(key_prefix="order:"))) == {"queue": 1, "archive": 1}
    with pytest.raises(InvalidMessage, match="whose data"):
        Person(task="tests.app.tasks.close_order")


@pytest.mark.long
def test_a_message_that_runs_is_erased_when_it_has_ended(hands: Hands) -> None:
    record.using(key="mail:anna").enqueue(SECRET)
    (lease,) = hands.claim()
    record.using(key="mail:anna", on_duplicate="replace").enqueue(SECRET)  # follows the run
    done = erase_now()
    assert done.left == ["1 messages run. They can be erased when they have ended."]
    hands.run(lease)
    assert erase_now().complete
    assert traces(hands.store) == []
    assert sorted(row.state for row in rows()) == ["acked", "cancelled"]


def test_what_follows_the_run_of_another_is_taken_back(hands: Hands) -> None:
    record.using(key="one key").enqueue(OTTO)
    (lease,) = hands.claim()
    record.using(key="one key", on_duplicate="replace").enqueue(SECRET)
    assert erase_now().complete
    assert traces(hands.store) == []
    hands.run(lease)
    assert [row.state for row in hands.archive()] == ["cancelled", "acked"]


def test_a_result_that_no_row_leads_to_is_removed(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ARCHIVE": "none"}
    silent = Hands(get_store())
    answer.enqueue(SECRET)
    (lease,) = silent.claim()
    with meanwhile(lambda: erase(ANNA, wait=30)) as begin:
        begin()
        silent.run(lease)
        assert traces(silent.store) != []
    assert traces(silent.store) == []
    assert rows() == []


def test_a_cancel_that_redis_has_not_heard_of_is_no_obstacle(hands: Hands) -> None:
    record.using(durable=True, delay=60, key="mail:anna").enqueue(SECRET)
    with unreachable():
        record.cancel(key="mail:anna")
    assert erase_now().complete
    assert (traces(hands.store), outbox()) == ([], [])


@pytest.mark.long
def test_it_waits_for_a_message_that_runs(hands: Hands) -> None:
    record.enqueue(SECRET)
    (lease,) = hands.claim()
    passes: list[int] = []

    def progress(done: Erased) -> None:
        passes.append(1)

    with meanwhile(lambda: erase(ANNA, wait=30, progress=progress)) as begin:
        begin()
        hands.run(lease)
    assert traces(hands.store) == []
    assert rows()[0].state == "acked"


@pytest.mark.long
def test_a_durable_message_that_redis_has_lost_does_not_come_back(hands: Hands) -> None:
    record.using(durable=True, delay=60).enqueue(SECRET)
    lose_redis(hands.store)
    assert erase_now().complete
    assert hands.reconcile() == 0
    assert (traces(hands.store), outbox()) == ([], [])


def test_where_redact_hides_the_argument_what_was_seen_alive_is_erased(
    hands: Hands, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": "tests.operators.test_erase.hide"}
    record.using(key=f"mail:{SECRET}", delay=60).enqueue(SECRET)
    done = erase_now()
    assert traces(hands.store) == []
    assert any("REDACT" in note for note in done.notes)


def hide(topic: str, task: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ["***"], {}


def test_an_unarchivable_entry_is_redacted_and_can_be_archived(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.using(key="wrong").enqueue(SECRET)
    hands.work()
    aside(hands, monkeypatch)
    done = erase_now()
    assert counts(done) == {"unarchivable": 1}
    archive_again(UnarchivableEntry.objects.all())
    (row,) = rows()
    assert (row.body, row.key, row.state) == (ERASED, "", "acked")


def test_an_unarchivable_entry_is_deleted_where_that_is_wanted(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.using(key="wrong").enqueue(SECRET)
    hands.work()
    aside(hands, monkeypatch)
    erase_now(delete=True)
    assert not UnarchivableEntry.objects.exists()


def test_records_of_operators_keep_no_value(hands: Hands) -> None:
    (pk,) = dead(body=json.dumps({"args": [SECRET], "kwargs": {}}), key="mail:anna")
    OperatorAction.new("discard", "olga", "she has asked", archived_id=pk)
    OperatorAction.new("replay", "olga", f"for {SECRET}", selection=f"value = {SECRET}, open")
    OperatorAction.new("cancel", "olga", "mail:anna2", selection="key mail:anna, state dead")
    selection = Selection(key="mail:anna", state="dead").encode()
    edit = ArgumentEdit(task="tests.app.tasks.record", argument="value", value=SECRET)
    BulkOperation.objects.create(
        kind="replay",
        selection=selection,
        options=stored_options({"edit": edit.encode()}),
        status="done",
        operator="olga",
    )
    RecurringTask.objects.create(
        task="t", rule="r", upto_ms=1, pause_reason=f"until {SECRET} answers"
    )
    assert counts(erase_now()) == {"archive": 1, "texts": 4}
    assert traces(hands.store) == []
    said = OperatorAction.objects.order_by("pk").values_list("reason", "selection")[:3]
    assert list(said) == [
        ("", ""),
        ("for [erased]", "value = [erased], open"),
        ("mail:anna2", "key [erased], state dead"),
    ]
    operation = BulkOperation.objects.get()
    assert Selection.decode(operation.selection).key == "[erased]"
    assert decoded(operation.options)["edit"]["value"] == "[erased]"
    assert RecurringTask.objects.get().pause_reason == "until [erased] answers"


def test_lists_of_bulk_operations_keep_no_key(hands: Hands) -> None:
    for person in (SECRET, OTTO):
        record.using(key=f"mail:{person}", delay=DAY).enqueue(person)
        record.using(key=f"order:{person[:1]}", delay=DAY).enqueue(person)
    everything = WaitingSelection(topic="default")
    change_waiting("shift", everything, by=timedelta(hours=1), reason="late")
    erase_now()
    assert traces(hands.store) == []
    keys = sorted(BulkMessage.objects.values_list("key", flat=True))
    assert keys == ["", "", f"mail:{OTTO}", "order:o"]


def test_a_list_keeps_no_key_of_a_message_that_left_no_row(hands: Hands, settings: Any) -> None:
    record.using(key=f"mail:{SECRET}", delay=DAY).enqueue(1)
    record.using(key="c:4", delay=DAY).enqueue(2)
    change_waiting("cancel", WaitingSelection(topic="default"), reason="late")
    hands.archive()
    ArchivedMessage.objects.all().delete()
    erase_now()
    erase_now(Person(key_prefix="c:4"))
    assert traces(hands.store) == []
    assert not BulkMessage.objects.exclude(key__in=["", "mail:[erased]"]).exists()


@pytest.mark.long
def test_a_list_loses_its_keys_while_the_operation_goes_on(hands: Hands) -> None:
    for person in (SECRET, OTTO):
        record.using(key=f"mail:{person}", delay=DAY).enqueue(person)
    asked = WaitingChange(kind="move", to="orders")
    everything = WaitingSelection(topic="default")
    operation = start_waiting(OPERATOR, asked, everything, reason="late")
    with at(BulkRun, "counted", erase_now, after=True, time=1):
        run_to_end(operation)
    operation.refresh_from_db()
    assert (operation.status, operation.count) == ("done", 1)
    assert traces(hands.store) == []
    assert by_key(f"mail:{OTTO}")[0].topic == "orders"


@pytest.mark.parametrize("delete", [False, True])
def test_a_list_is_found_after_a_move_too(hands: Hands, delete: bool) -> None:
    record.using(key="order:7", delay=DAY).enqueue(SECRET)
    change_waiting("move", WaitingSelection(topic="default"), to="orders", reason="late")
    erase_now(delete=delete)
    assert list(BulkMessage.objects.values_list("key", flat=True)) == ([] if delete else [""])


@pytest.mark.long
def test_the_words_of_an_order_keep_no_value(hands: Hands) -> None:
    for value in (SECRET, 'Anna "Jürgen" Maier', "42"):
        record.using(delay=DAY).enqueue(value)
        call_command("delayq", "cancel", "--argument", f"value={value}", "--reason", "r", "--yes")
        erase_now(Person(argument="value", value=value))
        operation = BulkOperation.objects.latest("pk")
        assert value not in operation.selection and "Maier" not in operation.options
    assert traces(hands.store) == []


def test_what_an_operator_gave_as_the_reason_of_a_cancel_goes_too(hands: Hands) -> None:
    handle = record.using(delay=DAY).enqueue(SECRET)
    operations.cancel(OPERATOR, "default", handle.id, reason=f"{SECRET} has moved")
    record.using(delay=DAY).enqueue(SECRET)
    change_waiting("cancel", WaitingSelection(topic="default"), reason=f"{SECRET} has moved")
    hands.archive()
    erase_now()
    assert traces(hands.store) == []
    assert [row.reason for row in rows()] == ["", ""]


def test_a_bulk_operation_that_runs_keeps_its_selection(hands: Hands) -> None:
    dead(body=json.dumps({"args": [SECRET], "kwargs": {}}), key="mail:anna")
    text = Selection(key="mail:anna").encode()
    BulkOperation.objects.create(kind="replay", selection=text, status="waiting", operator="olga")
    assert erase_now().left == ["1 bulk operations that have not ended name the person."]
    assert BulkOperation.objects.get().selection == text


def test_a_reason_that_a_task_gave_goes_from_the_figures_too(hands: Hands) -> None:
    (pk,) = dead(
        body=json.dumps({"args": [SECRET], "kwargs": {}}),
        error_class="", reason=f"no mailbox {SECRET}", worker="host:1:a",
    )  # fmt: skip
    day = ArchivedMessage.objects.get(pk=pk).finished_at.date()
    TaskDay.objects.create(
        day=day, topic="default", task="tests.app.tasks.record", errors=json.dumps(
            {f"no mailbox {SECRET}": 2, "ValueError": 1}
        ), **dict.fromkeys(("messages", "acked", "dead", "cancelled", "expired", "attempts", "retried"), 0),
    )  # fmt: skip
    erase_now()
    assert traces(hands.store) == []
    assert json.loads(TaskDay.objects.get().errors) == {"": 2, "ValueError": 1}


def test_the_record_has_counts_and_not_the_value(everywhere: Hands) -> None:
    erase_now(reason="request 17")
    action = OperatorAction.objects.get(action="erase")
    assert (action.operator, action.reason, action.count) == ("olga", "request 17", 7)
    assert action.finished_at is not None
    assert action.selection.startswith("redacted: argument value, value's hash ")
    assert action.selection.endswith(": queue 2, outbox 1, archive 7")


@pytest.mark.long
def test_a_row_that_keeps_a_message_from_running_twice_is_deleted_later(hands: Hands) -> None:
    count.enqueue(SECRET)
    (lease,) = hands.claim()
    hands.executor.run(lease)  # and the worker dies before it settles
    name = Person(argument="name", value=SECRET)
    done = erase_now(name, delete=True)
    assert len(done.left) == 2 and len(rows()) == 1
    end_lease(hands.store, lease)
    assert erase_now(name, delete=True).complete
    assert traces(hands.store) == []


def test_a_message_that_is_replayed_meanwhile_is_erased_too(hands: Hands) -> None:
    pks = dead(body=json.dumps({"args": [SECRET], "kwargs": {}}))
    replayed: list[Any] = []

    def progress(done: Erased) -> None:
        if not replayed:
            replayed.append(replay(ArchivedMessage.objects.filter(pk__in=pks), by="olga"))

    record.using(delay=60).enqueue(SECRET)  # met first: the outbox is read after it
    erase_now(progress=progress)
    assert replayed[0].count == 1
    assert traces(hands.store) == []


def test_rows_beyond_gaps_between_ids_are_found(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "SPAN", 3)
    monkeypatch.setattr(erasure, "BATCH", 2)
    pks = dead(20, body=json.dumps({"args": [SECRET], "kwargs": {}}))
    ArchivedMessage.objects.filter(pk__in=pks[5:14]).delete()
    assert counts(erase_now()) == {"archive": 11}
    assert traces(hands.store) == []


def test_a_lake_that_was_not_looked_through_is_named(hands: Hands) -> None:
    LakeBatch.objects.create(table_id=UUID(int=7), lo=0, hi=1, version=1)
    assert erase_now().left == [
        "The lake (table 00000000-0000-0000-0000-000000000007) was not looked through: give its URI."
    ]


KILLED = """
from django_delayq.archive.erasure import Person
from django_delayq.client import changes
from django_delayq.models import OperatorAction
from django_delayq.operators import erase
from django_delayq.store.reports import Reports

{kill}
erase.erase(Person(argument="args.0", value="anna@example.org"), wait=0, delete={delete})
"""


@pytest.mark.long
@pytest.mark.parametrize("delete", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "kill",
    [
        'killing(changes, "cancel", 1)',
        pytest.param('killing(erase._Erasure, "_archive", 1, before=True)', marks=pytest.mark.long),
        pytest.param('killing(Reports, "forget", 1)', marks=pytest.mark.long),
        'killing(OperatorAction, "add", 1)',  # the transaction of the rows is open
        'killing(erase, "erase_rows", 1)',
        pytest.param('killing(erase._Erasure, "_end", 1, before=True)', marks=pytest.mark.long),
    ],
)
def test_killed_anywhere_it_goes_on_when_it_is_called_again(
    everywhere: Hands, kill: str, delete: bool
) -> None:
    run_killed(KILLED.format(kill=kill, delete=delete))
    assert erase_now(delete=delete).complete
    assert traces(everywhere.store) == []
    assert len(of_otto()) == 4
    assert len(messages_in(everywhere.store)) == 2
