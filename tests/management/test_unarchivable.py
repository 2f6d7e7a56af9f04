"""manage.py delayq unarchivable: what the archive refused, for people at a terminal."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq.management.verbs import unarchivable
from django_delayq.models import ArchivedMessage, OperatorAction, UnarchivableEntry
from django_delayq.worker.process.runner import ExitCode
from tests.app.tasks import record
from tests.archive.test_unarchivable import aside
from tests.database_faults import database_away, refusing_bad_rows
from tests.hands import Hands, outbox


def command(*args: Any) -> str:
    """What it prints."""
    out = StringIO()
    call_command("delayq", "unarchivable", *args, stdout=out, stderr=StringIO())
    return out.getvalue()


@pytest.fixture
def entry(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> UnarchivableEntry:
    """A durable message that has ended."""
    record.using(durable=True, key="wrong").enqueue("paid")
    hands.work()
    return aside(hands, monkeypatch)


def test_the_list_names_each_with_the_error(entry: UnarchivableEntry) -> None:
    (line,) = command("list").splitlines()
    assert line.startswith(f"{entry.pk}  20")
    for part in (
        "default",
        "acked",
        entry.message_id,
        "tests.app.tasks.record",
        "wrong",
        "not this one",
    ):
        assert part in line
    assert command("list", "--topic", "orders") == ""


def test_they_are_archived_again_and_recorded(entry: UnarchivableEntry) -> None:
    assert command("archive", "--reason", "mended", "--by", "anna") == "archived 1 entry\n"
    assert (ArchivedMessage.objects.get().key, UnarchivableEntry.objects.count(), outbox()) == (
        "wrong",
        0,
        [],
    )
    action = OperatorAction.objects.get()
    assert (action.action, action.operator, action.reason, action.count) == (
        "archive again",
        "anna",
        "mended",
        1,
    )
    assert command("archive") == "archived 0 entries\n"
    assert OperatorAction.objects.count() == 1


def test_only_those_that_are_named_are_archived(entry: UnarchivableEntry) -> None:
    assert command("archive", str(entry.pk + 1)) == "archived 0 entries\n"
    assert command("archive", "--topic", "orders") == "archived 0 entries\n"
    assert command("archive", str(entry.pk)) == "archived 1 entry\n"


def test_what_is_refused_again_is_told_by_the_exit_code(entry: UnarchivableEntry) -> None:
    with (
        refusing_bad_rows(),
        pytest.raises(CommandError, match="refused some entries again") as caught,
    ):
        command("archive")
    assert caught.value.returncode == ExitCode.ERROR
    assert UnarchivableEntry.objects.count() == 1


def test_a_database_that_is_away_is_told_without_a_traceback(entry: UnarchivableEntry) -> None:
    with database_away(), pytest.raises(CommandError):
        command("archive")
    assert UnarchivableEntry.objects.count() == 1


def test_ctrl_c_says_how_far_it_was(
    entry: UnarchivableEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, progress: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(unarchivable, "archive_again", interrupted)
    with pytest.raises(SystemExit) as caught:
        command("archive")
    assert caught.value.code == 130
