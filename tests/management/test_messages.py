"""manage.py delayq list, get, find, send, cancel, reschedule, pause, resume: messages by hand."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils.timezone import now as timezone_now

from django_delayq import topic_stats
from django_delayq.management.cli import ShellUser
from django_delayq.management.targets import as_typed
from django_delayq.models import BulkOperation, OperatorAction
from django_delayq.operators import bulk_waiting, waiting_orders, waiting_selection
from django_delayq.operators.bulk_run import BulkRun
from django_delayq.operators.bulk_runner import BulkRunner
from django_delayq.operators.waiting_orders import WaitingChange, start_waiting
from django_delayq.operators.waiting_selection import WaitingSelection
from tests.app.tasks import close_order, record
from tests.bulk_hands import at
from tests.faults import unreachable
from tests.hands import Hands, apart

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("delayq"),
]

RECORD, CLOSE = "tests.app.tasks.record", "tests.app.tasks.close_order"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def delayq_command(*args: str, out: StringIO | None = None) -> str:
    """What the verb prints."""
    out = out or StringIO()
    call_command("delayq", *args, stdout=out, stderr=StringIO())
    return out.getvalue()


def in_json(*args: str) -> Any:
    return json.loads(delayq_command(*args, "--json"))


def refused(*args: str) -> CommandError:
    with pytest.raises(CommandError) as caught:
        delayq_command(*args)
    return caught.value


def keys(*args: str) -> list[str]:
    """The keys of the messages that `list` prints."""
    return [message["key"] for message in in_json("list", *args)["messages"]]


@pytest.fixture
def five() -> None:
    """Messages of two tasks, one of them only in the outbox."""
    for number in (1, 2, 3):
        record.using(key=f"user:{number}", delay=60 * number).enqueue(number)
    close_order.using(key="order:4", delay=240).enqueue(4)
    record.using(key="user:far", delay=timedelta(days=3000), durable=True).enqueue("far")


# list


def test_the_list_is_by_due_time_over_all_topics_and_the_outbox(five: None) -> None:
    assert keys() == ["user:1", "user:2", "user:3", "order:4", "user:far"]


@pytest.mark.parametrize(
    ("args", "chosen"),
    [
        (["orders"], ["order:4"]),
        (["--task", CLOSE], ["order:4"]),
        (["--key-prefix", "user:"], ["user:1", "user:2", "user:3", "user:far"]),
        (["--due-before", "150s"], ["user:1", "user:2"]),
        (["--due-after", "150s", "--due-before", "1h"], ["user:3", "order:4"]),
        (["--due-before", "now"], []),
        (["--limit", "1"], ["user:1"]),
    ],
)
def test_filters_of_the_list(five: None, args: list[str], chosen: list[str]) -> None:
    assert keys(*args) == chosen


def test_a_list_longer_than_a_page_is_whole(five: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_selection, "BATCH", 1)
    assert len(keys()) == 5


def test_people_get_a_table_and_hear_of_more(five: None) -> None:
    head, first, more = delayq_command("list", "--limit", "1").splitlines()
    assert head.split() == ["due", "in", "state", "topic", "task", "key", "attempt", "id"]
    assert "user:1" in first and RECORD in first
    assert more == "There are more: --limit 10 shows more of them."


def test_on_a_terminal_rich_draws_the_table(five: None) -> None:
    pytest.importorskip("rich")
    assert "─" in delayq_command("list", out=Terminal())


def test_without_rich_a_terminal_gets_plain_lines(
    five: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "django_delayq.management.terminal", None)
    text = delayq_command("list", "--limit", "1", out=Terminal())
    assert "─" not in text and "user:1" in text


def test_running_messages_are_listed(hands: Hands) -> None:
    record.using(key="busy").enqueue(1)
    hands.claim()
    assert delayq_command("list") == "Nothing waits that fits.\n"
    (running,) = in_json("list", "--running")["messages"]
    assert running["message"]["key"] == "busy"
    assert "busy" in delayq_command("list", "default", "--running")
    assert "for waiting messages" in str(refused("list", "--running", "--due-before", "1h"))


# get and find


def test_get_shows_a_live_message(five: None) -> None:
    text = delayq_command("get", "orders", "--key", "order:4")
    assert CLOSE in text and "calls with  4" in text
    found = in_json("get", "orders", "--key", "order:4")
    assert found["args"] == [4]
    assert in_json("get", "orders", found["id"]) == found


def test_get_of_what_is_not_live_ends_with_1() -> None:
    error = refused("get", "orders", "--key", "nothing")
    assert (error.returncode, "is not live" in str(error)) == (1, True)


@pytest.mark.parametrize("args", [["orders"], ["orders", "ab" * 16, "--key", "k"]])
def test_one_message_has_one_name(args: list[str]) -> None:
    assert refused("get", *args).returncode == 2


def test_find_finds_the_live_and_the_archived(five: None, hands: Hands) -> None:
    assert in_json("find", "order:4")[0]["state"] == "delayed"
    handle = record.using(key="done").enqueue(1)
    hands.work()
    hands.archive()
    (found,) = in_json("find", "done")
    assert (found["state"], found["row"] > 0) == ("acked", True)
    assert handle.id in delayq_command("find", handle.id)
    assert refused("find", "nothing").returncode == 1


# send


def test_send_calls_a_task_with_json_and_text() -> None:
    sent = in_json("send", CLOSE, "7", 'reason="9"', "--delay", "5m", "--key", "order:7")
    message = close_order.get(id=sent["id"])
    assert message is not None
    assert (message.args, message.kwargs, message.key) == ([7], {"reason": "9"}, "order:7")
    action = OperatorAction.objects.get()
    assert (action.action, action.count) == ("schedule", 1)
    delayq_command("send", RECORD, "two words", "--due-at", "2h", "--topic", "orders")
    assert keys("orders", "--task", RECORD) == [None]


def test_a_dry_run_checks_the_arguments_and_sends_nothing() -> None:
    assert "would send" in delayq_command("send", CLOSE, "order_id=7", "--dry-run")
    assert refused("send", CLOSE, "wrong=7", "--dry-run").returncode == 2
    assert delayq_command("list") == "Nothing waits that fits.\n"


def test_send_refuses_unknown_tasks_and_a_gap() -> None:
    assert "No task is named 'gone'" in str(refused("send", "gone"))
    assert "has no name" in str(refused("send", CLOSE, "reason=1", "7"))
    assert "given twice" in str(refused("send", CLOSE, "reason=1", "reason=2"))


# cancel and reschedule


def test_one_message_is_cancelled_and_recorded(five: None) -> None:
    delayq_command("cancel", "orders", "--key", "order:4", "--reason", "paid", "--by", "anna")
    assert keys("orders") == []
    action = OperatorAction.objects.get()
    assert (action.action, action.operator, action.reason) == ("cancel", "anna", "paid")
    assert refused("cancel", "orders", "--key", "order:4").returncode == 1


def test_those_that_fit_are_cancelled_and_no_other(five: None) -> None:
    text = delayq_command("cancel", "--task", RECORD, "--dry-run")
    assert "would have cancelled 4 messages; nothing was changed" in text
    assert len(keys()) == 5
    why = ("--reason", "wrong text", "--by", "anna", "--yes")
    out = delayq_command("cancel", "--task", RECORD, *why)
    assert out.startswith("cancelled 4 messages (operation ")
    assert keys() == ["order:4"]
    action = OperatorAction.objects.get()
    assert (action.action, action.count, action.selection) == ("cancel", 4, f"task {RECORD}")
    assert action.finished_at is not None


def test_what_runs_is_not_cancelled(five: None, hands: Hands) -> None:
    record.using(key="busy").enqueue(1)
    hands.claim()
    done = in_json("cancel", "default", "--key-prefix", "busy", "--reason", "x", "--yes")
    assert done["count"] == 0
    assert topic_stats("default").leased == 1


def test_what_runs_is_cancelled_with_a_word_of_its_own(five: None, hands: Hands) -> None:
    record.using(key="busy").enqueue(1)
    hands.claim()
    assert refused("cancel", "default", "--key", "busy").returncode == 1
    assert in_json("cancel", "default", "--key", "busy", "--running")["count"] == 1
    assert topic_stats("default").leased == 0
    assert OperatorAction.objects.latest("pk").action == "cancel running"
    assert refused("cancel", "--task", RECORD, "--running").returncode == 2


WHY = ("--reason", "wrong", "--yes")


@pytest.mark.parametrize(
    ("verb", "past"),
    [
        (["cancel"], "cancelled"),
        (["reschedule", "--later", "1h"], "rescheduled"),
        (["reschedule", "--earlier", "1m"], "rescheduled"),
        (["reschedule", "--now"], "rescheduled"),
        (["move", "--to", "orders"], "moved"),
        (["edit", "--task", RECORD, "--set", "value=9"], "edited"),
    ],
)
def test_a_dry_run_says_what_the_real_one_does(five: None, verb: list[str], past: str) -> None:
    before = in_json("list")["messages"]
    dry = in_json(*verb, "--topic", "default", "--key-prefix", "user:", "--dry-run")
    assert (dry["dry_run"], dry["count"], dry["skipped"]) == (True, 4, {})
    assert {row["key"] for row in dry["first"]} == {"user:1", "user:2", "user:3", "user:far"}
    assert in_json("list")["messages"] == before
    out = delayq_command(*verb, "--topic", "default", "--key-prefix", "user:", *WHY)
    assert out.startswith(f"{past} 4 messages (operation ")
    assert in_json("list")["messages"] != before


def test_an_edit_maps_replaces_and_removes(five: None) -> None:
    edit = ("edit", "--task", RECORD)
    assert in_json(*edit, "--map", "value=1->11", "--map", "value=2->12", *WHY)["skipped"] == {
        "nothing to edit": 2
    }
    assert keys("--argument", "value=11") == ["user:1"]
    assert in_json(*edit, "--remove", "value", "--key-prefix", "user:1", *WHY)["count"] == 1
    assert keys("--argument", "value=11") == []
    assert OperatorAction.objects.latest("pk").selection.endswith("argument value: removed")


def test_one_message_is_edited(five: None) -> None:
    edit = ("edit", "orders", "--key", "order:4", "--task", CLOSE, "--set")
    assert in_json(*edit, "order_id=5", "--dry-run")["dry_run"] is True
    assert keys("orders", "--argument", "order_id=4") == ["order:4"]
    delayq_command(*edit, "order_id=5", "--reason", "typo")
    assert keys("orders", "--argument", "order_id=5") == ["order:4"]
    assert (OperatorAction.objects.get().action, OperatorAction.objects.get().count) == ("edit", 1)


def test_an_edit_that_makes_no_sense_is_refused(five: None) -> None:
    assert "--task" in str(refused("edit", "--set", "value=9"))
    several = ("--map", "a=1->2", "--map", "b=1->2")
    assert "same in each" in str(refused("edit", "--task", RECORD, *several))
    assert "has no argument" in str(refused("edit", "--task", CLOSE, "--set", "oder=1"))
    wrong = refused("edit", "orders", "--key", "order:4", "--task", RECORD, "--set", "value=1")
    assert wrong.returncode == 2


def test_a_message_is_chosen_by_an_argument(five: None) -> None:
    assert keys("--argument", "args.0=2") == ["user:2"]
    assert in_json("cancel", "--argument", "args.0=2", *WHY)["count"] == 1
    assert keys() == ["user:1", "user:3", "order:4", "user:far"]


def test_a_shift_by_filters_says_the_operation(five: None) -> None:
    done = in_json("reschedule", "default", "--due-before", "1h", "--later", "2h", *WHY)
    operation = BulkOperation.objects.get(pk=done["operation"])
    assert (operation.kind, operation.status, operation.count) == ("shift", "done", 3)
    assert keys("--due-before", "1h") == ["order:4"]


def test_an_operation_that_was_cut_is_found_by_the_same_command(
    five: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_waiting, "BATCH", 2)
    words = ("reschedule", "default", "--due-before", "3h", "--later", "1h", *WHY)
    before = {message["id"]: message["due_at"] for message in in_json("list")["messages"]}

    def cut() -> None:
        raise KeyboardInterrupt

    with at(BulkRun, "enter", cut, after=True), pytest.raises(SystemExit):
        delayq_command(*words)
    err = StringIO()
    call_command("delayq", *words, stdout=StringIO(), stderr=err)
    operation = BulkOperation.objects.get()
    assert f"Operation {operation.pk} was ordered before" in err.getvalue()
    assert (operation.status, operation.count, operation.total) == ("done", 3, 3)
    after = {message["id"]: message["due_at"] for message in in_json("list")["messages"]}
    moved = [
        datetime.fromisoformat(after[name]) - datetime.fromisoformat(due)
        for name, due in before.items()
    ]
    assert sorted(moved) == [timedelta()] * 2 + [timedelta(hours=1)] * 3
    call_command("delayq", *words, stdout=StringIO(), stderr=StringIO())
    assert BulkOperation.objects.count() == 2, "it had ended: this is another one"


def test_the_command_watches_an_operation_that_a_worker_runs(five: None, hands: Hands) -> None:
    words = ("cancel", "--task", RECORD, *WHY)
    runner = BulkRunner(hands.store, "worker")
    order = as_typed({"task": RECORD})
    change, chosen = WaitingChange(kind="cancel"), WaitingSelection(task=RECORD)
    operation = start_waiting(ShellUser("anna"), change, chosen, reason="x", asked=order)
    BulkOperation.objects.update(status="running", worker="w", alive_at=timezone_now())

    def worker() -> None:
        BulkOperation.objects.update(status="waiting", worker="", alive_at=None)
        runner.run_once()

    with at(waiting_orders, "look_again", lambda: apart(worker), time=1):
        assert delayq_command(*words) == f"cancelled 4 messages (operation {operation.pk})\n"


def test_a_question_is_asked_on_a_terminal(five: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("n\ny\n"))
    words = ("cancel", "--task", RECORD, "--reason", "wrong")
    assert "Nothing was changed" in str(refused(*words))
    assert len(keys()) == 5
    assert delayq_command(*words).startswith("cancelled 4 messages")


@pytest.mark.parametrize(
    "args",
    [
        ["cancel", "--task", RECORD, "--reason", "no terminal"],
        ["cancel", "--task", RECORD, "--yes"],
        ["reschedule", "--task", RECORD, "--delay", "1h", *WHY],
        ["reschedule", "orders", "--key", "order:4", "--later", "1h"],
        ["reschedule", "--later", "1h", *WHY],
        ["move", "--to", "orders", *WHY],
        ["move", "--task", RECORD, "--to", "nowhere", *WHY],
        ["list", "--argument", "args.0"],
    ],
)
def test_what_makes_no_sense_is_refused(
    five: None, args: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO())
    assert refused(*args).returncode in (1, 2)
    assert len(keys()) == 5 and not OperatorAction.objects.exists()


@pytest.mark.parametrize(
    "args",
    [[], ["orders"], ["--all"], ["orders", "--all", "--task", CLOSE], ["--key", "k"]],
)
def test_a_cancel_says_which(five: None, args: list[str]) -> None:
    assert refused("cancel", *args).returncode == 2
    assert len(keys()) == 5


def test_a_message_gets_another_due_time(five: None) -> None:
    due = in_json("reschedule", "orders", "--key", "order:4", "--delay", "10m")["due_at"]
    left = datetime.fromisoformat(due) - datetime.now(tz=timezone.utc)
    assert timedelta(minutes=9) < left <= timedelta(minutes=10)
    assert keys("--due-after", "9m", "--due-before", "11m") == ["order:4"]
    assert OperatorAction.objects.get().action == "reschedule"


# pause and resume


def test_a_topic_is_paused_until_it_is_resumed() -> None:
    out = delayq_command("pause", "orders", "--reason", "provider is down", "--for", "2h")
    assert out.startswith("paused topic orders until 20")
    pause = topic_stats("orders").paused
    assert pause is not None and pause.reason == "provider is down" and pause.until is not None
    assert delayq_command("resume", "orders") == "topic orders goes on\n"
    assert topic_stats("orders").paused is None


def test_without_redis_it_ends_with_3() -> None:
    with unreachable():
        assert refused("list").returncode == 3


# What a script gives by mistake


@pytest.mark.parametrize(
    "args",
    [
        ["cancel", "", "--task", RECORD, "--reason", "x"],
        ["cancel", "default", "--task", "", "--due-before", "1h", "--reason", "x"],
        ["cancel", "default", "--key-prefix", "", "--due-before", "1h", "--reason", "x"],
        ["list", ""],
        ["discard", "--topic", "", "--since", "1h", "--reason", "x"],
        ["discard", "--error", "", "--topic", "default", "--reason", "x"],
        ["replay", "--task", "", "--topic", "default"],
    ],
)
def test_a_filter_that_is_empty_is_refused_and_does_not_choose_everything(
    five: None, args: list[str]
) -> None:
    assert "it is empty" in str(refused(*args))
    assert len(keys()) == 5


@pytest.mark.parametrize(
    "args",
    [
        ["list", "--due-before", "999999999w"],
        ["list", "--due-before", "9999999d"],
        ["send", RECORD, "1", "--delay", "999999999w"],
        ["reschedule", "default", "--key", "user:1", "--delay", "9999999d"],
        ["pause", "default", "--reason", "x", "--for", "36501d"],
        ["check", "--warn-lag", "999999999w"],
    ],
)
def test_a_duration_that_leaves_the_calendar_is_refused(five: None, args: list[str]) -> None:
    assert "is not a" in str(refused(*args))


def test_a_pause_for_no_time_is_refused_and_not_for_ever() -> None:
    assert "has passed" in str(refused("pause", "default", "--reason", "x", "--for", "0s"))
    assert not topic_stats("default").paused


@pytest.mark.parametrize(
    "args",
    [
        ["list", "\udcff"],
        ["send", RECORD, "1", "--by", "\udcff"],
        ["send", RECORD, "\udcff"],
        ["pause", "default", "--reason", "\udcff"],
        ["cancel", "default", "--all", "--reason", "\udcff"],
        ["recurring", "pause", "\udcff", "--reason", "x"],
        ["replay", "--error", "\udcff"],
    ],
)
def test_what_is_not_utf8_is_refused_before_anything_is_done(five: None, args: list[str]) -> None:
    error = refused(*args)
    assert ("not UTF-8" in str(error), error.returncode) == (True, 2)
    assert OperatorAction.objects.count() == 0
    assert len(keys()) == 5
