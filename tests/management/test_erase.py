"""manage.py delayq erase: a person's data, for people at a terminal."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from django_delayq.archive.erasure import ERASED
from django_delayq.management.verbs import erase
from django_delayq.models import ArchivedMessage, LakeBatch, OperatorAction
from django_delayq.worker.process.runner import ExitCode
from tests.app.tasks import close_order
from tests.faults import unreachable
from tests.hands import ORDERS, Hands, messages_in

ORDER = "--argument", "order_id=42"


def command(*args: str) -> str:
    """What it prints."""
    out = StringIO()
    call_command("delayq", "erase", *args, "--by", "olga", stdout=out, stderr=StringIO())
    return out.getvalue()


def code_of(*args: str) -> tuple[int, str]:
    """The exit code, and what it prints."""
    out = StringIO()
    with pytest.raises(SystemExit) as caught:
        call_command("delayq", "erase", *args, stdout=out, stderr=StringIO())
    return int(caught.value.code or 0), out.getvalue()


@pytest.fixture
def orders(hands: Hands) -> Hands:
    """An order that is closed, and one that waits, of each of two customers."""
    for number in (42, 7):
        close_order.enqueue(number)
    hands.work(ORDERS)
    hands.archive()
    for number in (42, 7):
        close_order.using(delay=60).enqueue(number)
    return hands


def test_a_dry_run_shows_what_it_has_found(orders: Hands) -> None:
    text = command(*ORDER, "--dry-run")
    assert text.splitlines()[0].split() == ["place", "count", "some", "of", "them"]
    assert "would have erased: queue 1, archive 1\n" in text
    assert "note: Not reached: backups" in text
    found = json.loads(command(*ORDER, "--dry-run", "--json"))
    assert (found["dry_run"], found["complete"], found["left"]) == (True, True, [])
    pk = ArchivedMessage.objects.get(body__contains="42").pk
    assert found["places"][1] == {"name": "archive", "count": 1, "sample": [str(pk)]}
    assert len(messages_in(orders.store, ORDERS)) == 2


def test_it_erases_when_somebody_confirms(orders: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda question: "erase")
    assert "erased: queue 1, archive 2\n" in command(*ORDER, "--reason", "request 17")
    assert ArchivedMessage.objects.filter(body=ERASED).count() == 2
    assert ArchivedMessage.objects.count() == 3
    action = OperatorAction.objects.get()
    assert (action.action, action.operator, action.reason) == ("erase", "olga", "request 17")


@pytest.mark.parametrize("answer", ["no", EOFError])
def test_nothing_goes_without_an_answer(
    orders: Hands, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    def asked(question: str) -> str:
        if answer is EOFError:
            raise EOFError
        return str(answer)

    monkeypatch.setattr("builtins.input", asked)
    with pytest.raises(CommandError, match="Nothing was erased") as caught:
        command(*ORDER)
    assert caught.value.returncode == ExitCode.CONFIGURATION
    assert len(messages_in(orders.store, ORDERS)) == 2


def test_rows_are_deleted_by_a_key_prefix(orders: Hands) -> None:
    close_order.using(key="customer:42:order").enqueue(8)
    assert "queue 1, archive 1" in command("--key-prefix", "customer:42:", "--delete", "--yes")
    assert ArchivedMessage.objects.count() == 2


@pytest.mark.long
def test_what_is_left_is_told_by_the_exit_code(orders: Hands) -> None:
    close_order.enqueue(42)
    orders.claim(ORDERS)
    LakeBatch.objects.create(table_id=UUID(int=7), lo=0, hi=1, version=1)
    code, text = code_of(*ORDER, "--yes", "--wait", "0s")
    assert code == ExitCode.ERROR
    assert "left: 1 messages run." in text
    assert (
        "left: The lake (table 00000000-0000-0000-0000-000000000007) was not looked through: give its URI."
        in text
    )


def test_a_lake_is_looked_through(orders: Hands, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    assert "erased: queue 1, archive 2" in command(*ORDER, "--yes", "--lake", str(tmp_path))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--argument", "order_id"], "is not NAME=VALUE"),
        ([], "Say whose data"),
        (["--key-prefix", "x" * 300], "key is"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    delayq: Any, transactional_db: None, options: list[str], words: str
) -> None:
    with pytest.raises(CommandError, match=words) as caught:
        command(*options, "--yes")
    assert caught.value.returncode in (1, ExitCode.CONFIGURATION)


def test_without_redis_nothing_is_erased(orders: Hands) -> None:
    with unreachable(), pytest.raises(CommandError) as caught:
        command(*ORDER, "--yes")
    assert caught.value.returncode == ExitCode.UNREACHABLE
    assert not ArchivedMessage.objects.filter(body=ERASED).exists()
    assert not OperatorAction.objects.exists()


def test_ctrl_c_says_how_far_it_was(orders: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, progress: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(erase, "erase", interrupted)
    with pytest.raises(SystemExit) as caught:
        command(*ORDER, "--yes")
    assert caught.value.code == 130
