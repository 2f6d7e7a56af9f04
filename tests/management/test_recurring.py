"""`manage.py delayq recurring`."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq import delayed_task
from django_delayq.models import OperatorAction, OutboxMessage, RecurringTask
from django_delayq.outbox.ticker import Ticker
from tests.hands import Hands

NAME = "recurring.task"


@pytest.fixture(autouse=True)
def _task(nothing_recurs: dict[str, Any], hands: Hands) -> None:
    delayed_task(name=NAME, cron="0 3 * * *", time_zone="Europe/Berlin")(lambda: None)


def recurring(*arguments: str) -> str:
    out = StringIO()
    call_command("delayq", "recurring", *arguments, stdout=out)
    return out.getvalue()


def test_the_list_shows_rules_ticks_and_who_writes_none(hands: Hands) -> None:
    assert "nobody writes its ticks" in recurring("list")
    Ticker(hands.store).run_once()
    head, line = recurring("list").splitlines()
    assert head.split() == ["task", "rule", "missed", "next", "last", "state"]
    assert line.startswith(f"{NAME}  0 3 * * * Europe/Berlin  once")
    assert ":00:00" in line


def test_the_list_is_json_for_programs(hands: Hands) -> None:
    Ticker(hands.store).run_once()
    (shown,) = json.loads(recurring("list", "--json"))
    assert shown["rule"] == "0 3 * * * Europe/Berlin"
    assert len(shown["next_ticks"]) == 3
    assert (shown["silent"], shown["paused"], shown["last"]) == (False, None, None)


def test_a_task_is_paused_resumed_and_run(hands: Hands) -> None:
    said = recurring("pause", NAME, "--reason", "a test", "--by", "anna")
    assert said == f"paused {NAME}\n"
    assert "paused by anna: a test" in recurring("list")
    assert json.loads(recurring("list", "--json"))[0]["paused"]["by"] == "anna"
    assert recurring("resume", NAME) == f"resumed {NAME}\n"
    assert RecurringTask.objects.get().paused_at is None
    assert recurring("run", NAME).startswith(f"enqueued {NAME} as message ")
    assert OutboxMessage.objects.get().task == NAME
    actions = OperatorAction.objects.order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["pause", "resume", "run now"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pause", NAME], "Write a reason"),
        (["pause"], "Name the task"),
        (["run", "unknown"], "No recurring task is named 'unknown'"),
        (["resume", NAME], "is not paused"),
    ],
)
def test_what_cannot_be_done_ends_with_2(arguments: list[str], words: str) -> None:
    RecurringTask.objects.create(task=NAME, rule="every 60 s", upto_ms=1)
    with pytest.raises(CommandError, match=words) as error:
        recurring(*arguments)
    assert error.value.returncode == 2


def test_without_recurring_tasks_it_says_so(declared: dict[str, Any]) -> None:
    del declared[NAME]
    assert recurring("list") == "no recurring task\n"
