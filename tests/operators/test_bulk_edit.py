"""Dead letters are edited and replayed in numbers: each once, and a dry run says the same before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_delayq import list_messages
from django_delayq.archive.selection import Selection
from django_delayq.core.exceptions import InvalidMessage, NotPermitted
from django_delayq.models import ArchivedMessage, BulkOperation, OperatorAction
from django_delayq.operators import bulk, edit_examples
from django_delayq.operators.bulk_run import BulkRun
from django_delayq.operators.bulk_runner import BulkRunner
from django_delayq.operators.replay import preview_replay, replay
from django_delayq.operators.replayer import Replayer
from django_delayq.tasks.argument_edit import ArgumentEdit
from tests.bulk_hands import OPERATOR, Killed, Operator, at, be_silent, die, order
from tests.hands import Hands
from tests.operators.test_replay import dead, origins

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True)]

TASK = "tests.app.tasks.record"
TO_HTTPS = ArgumentEdit(
    task=TASK, argument="value", how="replace", pairs=(("http://", "https://"),)
)


def letter(value: Any, **fields: Any) -> int:
    """A dead letter with this argument."""
    body = json.dumps({"args": [value], "kwargs": {}})
    (pk,) = dead(1, **{"task": TASK, "body": body, **fields})
    return pk


def end(operation: BulkOperation) -> tuple[str, int | None, int, dict[str, int]]:
    operation.refresh_from_db()
    return (
        operation.status,
        operation.total,
        operation.count,
        json.loads(operation.skipped),
    )


def arguments(hands: Hands) -> list[Any]:
    """Of what has been sent again."""
    hands.relay()
    return [message.args[0] for message in list_messages("default").messages]


def test_each_is_replayed_with_its_edited_argument(hands: Hands, runner: BulkRunner) -> None:
    pks = [letter(f"http://shop/{n}") for n in range(4)]
    letter("ftp://shop")
    letter(17)
    dead(1, task="tests.app.tasks.noop")
    dry, real = order(edit=TO_HTTPS, dry_run=True), order(edit=TO_HTTPS)
    runner.run_once()
    runner.run_once()
    assert end(dry) == end(real) == ("done", 6, 4, {"nothing to edit": 2})
    assert origins() == pks
    assert sorted(arguments(hands)) == [f"https://shop/{n}" for n in range(4)]
    assert "http" not in OperatorAction.objects.get().selection
    rows = ArchivedMessage.objects.filter(pk__in=pks)
    assert all("http://" in row.body for row in rows), "the letters stay as they died"


def test_what_cannot_be_edited_says_why_in_the_dry_run_too(runner: BulkRunner) -> None:
    letter("http://a")
    letter("http://a", body='{"args":[],"kwargs":{},"redaction":"done"}')
    letter("http://a", body='{"args":["http://a"],"kwargs":{"other":1}}')
    letter("http://a", body="[")
    letter("http://" + "x" * 65_510)
    dry, real = order(edit=TO_HTTPS, dry_run=True), order(edit=TO_HTTPS)
    runner.run_once()
    runner.run_once()
    skipped = {"redacted": 1, "arguments refused": 2, "undecodable": 1}
    assert end(dry) == end(real) == ("done", 5, 1, skipped)
    assert preview_replay(topic="default", edit=TO_HTTPS).count == 0


@pytest.mark.parametrize(
    "step", [(Replayer, "send", True), (BulkRun, "enter", False), (BulkRun, "enter", True)]
)
def test_after_a_kill_each_is_edited_and_replayed_once(
    step: tuple[Any, str, bool],
    hands: Hands,
    runner: BulkRunner,
    other: BulkRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_delayq.operators.walk.BATCH", 10)
    edit = ArgumentEdit(task=TASK, argument="value", how="replace", pairs=(("a", "aa"),))
    pks = [letter(f"a{n}") for n in range(25)]
    operation = order(edit=edit)
    owner, name, after = step
    with at(owner, name, die, after=after), pytest.raises(Killed):
        runner.run_once()
    be_silent()
    other.run_once()
    assert end(operation) == ("done", 25, 25, {})
    assert origins() == pks
    assert sorted(arguments(hands)) == sorted(f"aa{n}" for n in range(25))


def test_code_edits_and_replays_where_it_is_called(hands: Hands) -> None:
    letter("http://a")
    letter("b")
    dead(1, task="tests.app.tasks.noop")
    foreseen = preview_replay(topic="default", edit=TO_HTTPS)
    done = replay(topic="default", edit=TO_HTTPS, by="deploy", reason="moved")
    assert (foreseen.count, foreseen.skipped) == (done.count, done.skipped)
    assert (done.count, done.skipped) == (1, {"nothing to edit": 1})
    assert arguments(hands) == ["https://a"]
    assert "argument value: text replaced" in done.action.selection


def test_an_edit_is_for_a_replay_of_its_task() -> None:
    with pytest.raises(InvalidMessage, match="replay"):
        order("discard", edit=TO_HTTPS)
    with pytest.raises(InvalidMessage, match="its task"):
        order("replay", Selection(topic="default", task="another"), edit=TO_HTTPS)
    for missing in ("edit_message", "view_payload"):
        user = Operator(forbidden=frozenset({missing}))
        with pytest.raises(NotPermitted, match=missing):
            bulk.start(user, "replay", Selection(topic="default"), reason="x", edit=TO_HTTPS)
    assert OPERATOR.has_perm("django_delayq.edit_message")


def test_examples_show_a_few_before_and_after_and_what_is_left_out() -> None:
    letter("http://a")
    letter(17)
    letter("x", body='{"args":[],"kwargs":{},"redaction":"done"}')
    rows = bulk.selected_dead_letters(Selection(topic="default", open=True))
    found = {one.before: one for one in edit_examples.of_dead_letters(rows, TO_HTTPS)}
    assert found['"http://a"'].after == '"https://a"'
    assert found["17"].problem == "nothing to edit"
    assert found[""].problem == "redacted"
