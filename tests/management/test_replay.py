"""manage.py delayq replay and discard: what they take, refuse, show and say."""

from __future__ import annotations

import getpass
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper
from django.db import OperationalError
from django.utils import timezone as django_timezone

from django_delayq.management import cli, selecting
from django_delayq.management.cli import Reporter, parse_duration, parse_instant
from django_delayq.management.verbs import replay as verb
from django_delayq.models import ArchivedMessage, OperatorAction, OutboxMessage
from django_delayq.outbox.listing import list_outbox
from tests.app.tasks import record
from tests.faults import unreachable
from tests.operators.test_replay import dead, origins

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("delayq"),
]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def run(name: str, *args: str, stderr: StringIO | None = None) -> tuple[str, str]:
    """Runs a command; gives what it wrote to stdout and stderr."""
    out, err = StringIO(), stderr or StringIO()
    call_command("delayq", name, *args, stdout=out, stderr=err, no_color=stderr is None)
    return out.getvalue(), err.getvalue()


def refused(name: str, *args: str) -> CommandError:
    with pytest.raises(CommandError) as caught:
        run(name, *args)
    return caught.value


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of the reporter comes 10 s after the one before."""
    seconds = iter(range(0, 10**6, 10))
    monkeypatch.setattr(
        cli, "Reporter", lambda stream: Reporter(stream, lambda: float(next(seconds)))
    )


# Replay


def test_an_argument_is_edited_on_the_way() -> None:
    dead(2, body='{"args":["http://a"],"kwargs":{}}')
    dead(body='{"args":[7],"kwargs":{}}')
    task = ("--task", "tests.app.tasks.record")
    edit = ("--replace", "value=http://->https://")
    out, _ = run("replay", *task, *edit, "--dry-run")
    assert "would have replayed 2 messages, skipped 1 (nothing to edit 1)" in out
    out, _ = run("replay", *task, *edit, "--reason", "moved")
    assert "replayed 2 messages, skipped 1 (nothing to edit 1)" in out
    assert {message.args[0] for message in list_outbox("default").messages} == {"https://a"}
    assert "--task" in str(refused("replay", "--topic", "default", "--set", "value=1"))


def test_a_dry_run_makes_the_checks_of_the_real_one() -> None:
    dead(2)
    dead(body='{"args":[],"kwargs":{"colour":"red"}}')
    foreseen, _ = run("replay", "--all", "--dry-run")
    done, _ = run("replay", "--all")
    assert "replayed 2 messages, skipped 1 (arguments refused 1)" in foreseen
    assert "replayed 2 messages, skipped 1 (arguments refused 1)" in done


def test_it_says_what_was_replayed_and_what_was_not() -> None:
    dead(3)
    dead(task="gone")
    dead(2, task="lost")
    record.using(key="k", delay=60).enqueue("newer")
    dead(key="k")
    out, err = run("replay", "--topic", "default")
    assert out == "replayed 3 messages, skipped 4 (unknown task 3, key live 1)\n"
    assert err == ""


def test_one_is_singular() -> None:
    dead()
    assert run("replay", "--all") == ("replayed 1 message\n", "")


@pytest.mark.parametrize(
    ("args", "chosen"),
    [
        (["--topic", "orders"], "b"),
        (["--task", "tests.app.tasks.close_order"], "b"),
        (["--error", "requests.exceptions.Timeout"], "c"),
        (["--error", "Timeout"], "c"),
        (["--error", "out"], ""),
        (["--error", "poison"], "d"),
        (["--since", "2h"], "e"),
        (["--since", "2020-01-01"], "ef"),
        (["--until", "2001-09-09T01:00+00:00"], "abcd"),
        (["--since", "2020-01-01T00:00:00Z", "--until", "2021-01-01"], "f"),
        (["--topic", "default", "--error", "ValueError"], "aef"),
        (["--all"], "abcdef"),
        (["--all", "--limit", "2"], "ab"),
    ],
)
def test_filters_choose(args: list[str], chosen: str) -> None:
    now = datetime.now(timezone.utc)
    differences: dict[str, dict[str, Any]] = {
        "a": {},
        "b": {
            "topic": "orders",
            "task": "tests.app.tasks.close_order",
            "body": '{"args":[1],"kwargs":{}}',
        },
        "c": {"error_class": "requests.exceptions.Timeout"},
        "d": {"error_class": "", "reason": "poison"},
        "e": {"finished_at": now - timedelta(hours=1)},
        "f": {"finished_at": datetime(2020, 6, 1, tzinfo=timezone.utc)},
    }
    pks = {letter: dead(**values)[0] for letter, values in differences.items()}
    run("replay", *args)
    replayed = set(ArchivedMessage.objects.exclude(replayed_at=None).values_list("pk", flat=True))
    assert {letter for letter, pk in pks.items() if pk in replayed} == set(chosen)


def test_rate_delay_and_force_reach_the_messages() -> None:
    dead(3)
    run("replay", "--all")
    OutboxMessage.objects.all().delete()
    run("replay", "--all", "--force", "--rate", "0.5", "--delay", "15m")
    dues = sorted(OutboxMessage.objects.values_list("due_at_ms", flat=True))
    assert [due - dues[0] for due in dues] == [0, 2_000, 4_000]
    assert dues[0] > (django_timezone.now().timestamp() + 14 * 60) * 1000


def test_the_record_names_the_user_of_the_machine_or_the_one_given() -> None:
    dead()
    run("replay", "--all", "--reason", "mended")
    run("replay", "--error", "Timeout", "--by", "ada")
    first, second = OperatorAction.objects.order_by("pk")
    assert (first.operator, first.reason, first.count) == (getpass.getuser(), "mended", 1)
    assert (second.operator, second.reason, second.count) == ("ada", "", 0)
    assert "Timeout" in second.selection


def test_a_machine_without_users_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr(getpass, "getuser", nobody)
    dead()
    assert run("replay", "--all")[0] == "replayed 1 message\n"


def test_a_dry_run_shows_ten_and_changes_nothing() -> None:
    dead(11, error_class="a.b.Timeout")
    dead(key="order\x1b[2J\n7", error_class="", reason="poison")
    run("replay", "--all", "--limit", "1")
    actions = OperatorAction.objects.count()
    out, _ = run("replay", "--all", "--dry-run")
    lines = out.splitlines()
    assert (
        lines[0]
        == "would have replayed 11 messages, skipped 1 (already replayed 1); nothing was changed"
    )
    assert lines[1:] == [
        "  tests.app.tasks.record  -  a.b.Timeout  2001-09-09 00:00:00+00:00"
    ] * 10 + ["  ... and 1 more"]
    out, _ = run("replay", "--error", "poison", "--dry-run")
    assert "  tests.app.tasks.record  order\\x1b[2J\\n7  poison  2001-09-09" in out
    assert "more" not in out
    assert OutboxMessage.objects.count() == 1
    assert OperatorAction.objects.count() == actions


def test_on_a_terminal_progress_is_one_line(impatient: None) -> None:
    dead(501)
    _, err = run("replay", "--all", stderr=Terminal())
    lines = [line for line in err.split("\r\x1b[K") if line]
    assert lines == ["replayed 0 messages", "replayed 500 messages", "replayed 501 messages"]
    assert err.endswith("\r\x1b[K")
    assert "\n" not in err


def test_elsewhere_progress_is_a_line_now_and_then(impatient: None) -> None:
    dead(501)
    assert run("replay", "--all")[1].splitlines()[-1] == "replayed 501 messages"


def test_progress_is_not_said_more_often_than_people_read() -> None:
    now = [0.0]
    for stream, times in ((Terminal(), 3), (StringIO(), 0)):
        reporter = Reporter(OutputWrapper(stream), lambda: now[0])
        for _ in range(26):
            reporter.show("x")
            now[0] += 0.01
        assert stream.getvalue().count("x") == times


def test_a_known_total_is_a_bar_on_a_terminal_and_a_share_elsewhere() -> None:
    pytest.importorskip("rich")
    for stream, words in ((Terminal(), "500/1000"), (StringIO(), "moved (50 % of 1,000)")):
        shown = Reporter(OutputWrapper(stream), iter((0.0, 10.0, 10.0)).__next__)
        shown.show("moved", 500, 1000)
        shown.clear()
        assert words in stream.getvalue()


def test_ctrl_c_says_how_many_were_done_and_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    pks = dead(501)
    show = Reporter.show

    def interrupt(self: Reporter, text: str, *amounts: int) -> None:
        if "500" in text:
            raise KeyboardInterrupt
        show(self, text, *amounts)

    monkeypatch.setattr(Reporter, "show", interrupt)
    err = StringIO()
    with pytest.raises(SystemExit) as caught:
        call_command("delayq", "replay", "--all", stdout=StringIO(), stderr=err)
    assert caught.value.code == 130
    assert err.getvalue() == ("Interrupted: replayed 500 messages. Run it again to go on.\n")
    assert origins() == pks[:500]


def test_ctrl_c_at_once_is_no_different(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(selecting, "selected", interrupt)
    err = StringIO()
    with pytest.raises(SystemExit):
        call_command("delayq", "replay", "--all", stderr=err)
    assert "nothing was changed" in err.getvalue()


# Refused


@pytest.mark.parametrize(
    "args", [[], ["--limit", "5"], ["--reason", "x", "--dry-run"], ["--force"]]
)
def test_without_filters_it_asks_for_all(args: list[str]) -> None:
    dead()
    error = refused("replay", *args)
    assert error.returncode == 2
    assert "--all for every dead letter" in str(error)
    assert origins() == []


def test_all_and_a_filter_contradict_each_other() -> None:
    error = refused("replay", "--all", "--topic", "orders")
    assert (error.returncode, "--all contradicts" in str(error)) == (2, True)


@pytest.mark.parametrize(
    "args",
    [
        ["--limit", "0"], ["--limit", "x"], ["--rate", "0"], ["--rate", "nan"], ["--rate", "fast"], ["--delay", "5"],
        ["--since", "yesterday"], ["--since", "2026-02-30"], ["--until", "99999999999d"], ["--since", "999999999w"],
    ],
)  # fmt: skip
def test_wrong_values_are_refused(args: list[str]) -> None:
    assert f"argument {args[0]}: " in str(refused("replay", "--all", *args))


def test_too_long_a_delay_ends_with_2() -> None:
    error = refused("replay", "--all", "--delay", "999w")
    assert (error.returncode, "more than ten years" in str(error)) == (2, True)


def test_without_redis_keys_end_with_3_and_a_word_of_what_was_done() -> None:
    dead(500)
    dead(key="k")
    with unreachable():
        error = refused("replay", "--all")
    assert error.returncode == 3
    assert "Before that: replayed 500 messages." in str(error)


def test_a_database_that_fails_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("no such table")

    monkeypatch.setattr(verb.Command, "change", staticmethod(fail))
    error = refused("replay", "--all")
    assert (error.returncode, str(error)) == (
        1,
        "The database failed: OperationalError: no such table",
    )


# Times


def test_durations() -> None:
    assert [parse_duration(text) for text in ("90s", "15m", "2h", "30d", "4w")] == [
        timedelta(seconds=90), timedelta(minutes=15), timedelta(hours=2), timedelta(days=30), timedelta(weeks=4),
    ]  # fmt: skip


def test_times_without_a_zone_are_those_of_the_project(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert parse_instant("2026-01-31") == datetime(2026, 1, 30, 23, tzinfo=timezone.utc)
    assert parse_instant("2026-01-31T12:30") == datetime(2026, 1, 31, 11, 30, tzinfo=timezone.utc)
    assert parse_instant("2026-01-31T12:30Z") == datetime(2026, 1, 31, 12, 30, tzinfo=timezone.utc)
    assert abs(parse_instant("2h") - django_timezone.now() + timedelta(hours=2)) < timedelta(
        minutes=1
    )


def test_without_use_tz_times_are_naive(settings: Any) -> None:
    settings.USE_TZ = False
    assert parse_instant("2026-01-31T12:30+02:00") == datetime(2026, 1, 31, 10, 30)
    assert parse_instant("2026-01-31") == datetime(2026, 1, 31)
    assert parse_instant("2h").tzinfo is None


# Discard


def test_discarding_needs_a_reason() -> None:
    dead()
    assert "--reason" in str(refused("discard", "--all"))
    assert refused("discard", "--all", "--reason", " ").returncode == 2
    assert not ArchivedMessage.objects.exclude(discarded_at=None).exists()


def test_discarding_marks_and_records() -> None:
    dead(3)
    dead(topic="orders")
    shown, _ = run("discard", "--topic", "default", "--reason", "old", "--dry-run")
    assert shown.startswith("would have discarded 3 messages; nothing was changed\n")
    out, _ = run("discard", "--topic", "default", "--reason", "old", "--by", "ada", "--limit", "2")
    assert out == "discarded 2 messages\n"
    out, _ = run("discard", "--topic", "default", "--reason", "old")
    assert out == "discarded 1 message, skipped 2 (discarded 2)\n"
    assert ArchivedMessage.objects.filter(discarded_at=None).get().topic == "orders"
    action = OperatorAction.objects.order_by("pk")[0]
    assert (action.action, action.operator, action.reason, action.count) == (
        "discard",
        "ada",
        "old",
        2,
    )
