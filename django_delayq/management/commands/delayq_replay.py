"""manage.py delayq_replay: what is dead is sent again."""

from __future__ import annotations

import getpass
import re
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, ClassVar, NoReturn

from django.conf import settings as django_settings
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import Error
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from ...core.exceptions import ConfigurationError, DelayQError, InvalidMessage, StoreUnavailable
from ...core.text import on_one_line
from ...models import ArchivedMessage, Final, OperatorAction
from ...operators.replay import Replayed, preview, replay
from ...worker.process.runner import ExitCode

#: What a shell says of a program that Ctrl-C has ended.
INTERRUPTED = 130

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_FILTERS = ("topic", "task", "error", "since", "until")


class SelectingCommand(BaseCommand):
    """A command about a selection of dead letters. Exit codes: 0 done, 1 error, 2 options, 3 no
    Redis, 130 Ctrl-C."""

    requires_system_checks = []
    done: ClassVar[str]
    reason_required = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which messages, and for the record."""
        parser.add_argument("--topic", help="dead letters of this topic")
        parser.add_argument("--task", help="dead letters of this task")
        parser.add_argument(
            "--error",
            help="class of the error, in full or its last part, or the word of the reason",
        )
        parser.add_argument(
            "--since", type=instant, help="died then or later: 2h, 30d (ago), a date or a datetime"
        )
        parser.add_argument("--until", type=instant, help="died before then")
        parser.add_argument("--all", action="store_true", help="without any of these")
        parser.add_argument("--limit", type=_whole, help="at most so many, the oldest first")
        parser.add_argument(
            "--reason", default="", required=self.reason_required, help="why, for the record"
        )
        parser.add_argument(
            "--by", help="who, for the record (default: the user of the operating system)"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="say how many and show ten; change nothing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Change or show the selection, and say how many it was."""
        reporter = Reporter(self.stderr)
        self._so_far: Replayed | None = None
        try:
            rows = selected(options)
            if options["dry_run"]:
                self._show(rows, options)
                return

            def progress(replayed: Replayed) -> None:
                self._so_far = replayed
                reporter.show(self._summary(replayed.count, replayed.skipped))

            end = self.act(rows, {**options, "by": operator(options["by"])}, progress)
        except KeyboardInterrupt:
            reporter.clear()
            interrupted(
                self, f"{self._counted()}. Run it again to go on; nothing is {self.done} twice."
            )
        except (DelayQError, Error) as error:
            reporter.clear()
            raise failed(
                error, self._summary(self._so_far.count, {}) if self._so_far else ""
            ) from error
        reporter.clear()
        self.stdout.write(self._summary(end.count, end.skipped))

    def act(
        self, rows: QuerySet[ArchivedMessage], options: dict[str, Any], progress: Any
    ) -> Replayed:
        """Change the rows."""
        raise NotImplementedError

    def _show(self, rows: QuerySet[ArchivedMessage], options: dict[str, Any]) -> None:
        found = preview(rows, force=options.get("force", False), limit=options["limit"])
        self.stdout.write(
            f"would have {self._summary(found.count, found.skipped)}; nothing was changed"
        )
        for row in found.first:
            finished = (
                row.finished_at
                if timezone.is_naive(row.finished_at)
                else timezone.localtime(row.finished_at)
            )
            error = row.error_class or row.reason or "-"
            parts = (row.task, row.key or "-", error, finished.isoformat(" ", "seconds"))
            self.stdout.write("  " + "  ".join(on_one_line(part) for part in parts))
        if found.count > len(found.first) > 0:
            self.stdout.write(f"  ... and {found.count - len(found.first):,} more")

    def _summary(self, count: int, skipped: dict[str, int]) -> str:
        text = f"{self.done} {count:,} {'message' if count == 1 else 'messages'}"
        if skipped:
            reasons = sorted(skipped.items(), key=lambda item: -item[1])
            words = ", ".join(f"{why} {number:,}" for why, number in reasons)
            text += f", skipped {sum(skipped.values()):,} ({words})"
        return text

    def _counted(self) -> str:
        """What is committed: the last transaction may have been, without a word from it."""
        if self._so_far is None:
            return f"{self.done} nothing"
        action = OperatorAction.objects.filter(pk=self._so_far.action.pk).first()
        return self._summary(action.count if action else self._so_far.count, {})


class Command(SelectingCommand):
    """Sends dead letters again. Exit codes: 0 done, 1 error, 2 wrong options, 3 no Redis, 130
    Ctrl-C."""

    help = "Sends dead letters again, each once. Ctrl-C ends it safely; run it again to go on."
    done = "replayed"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which messages, how they are sent, and for the record."""
        super().add_arguments(parser)
        parser.add_argument(
            "--delay",
            type=duration,
            default=timedelta(),
            help="wait so long before: 90s 15m 2h 30d",
        )
        parser.add_argument("--rate", type=_rate, help="so many per second become due")
        parser.add_argument(
            "--force", action="store_true", help="also what was replayed or discarded before"
        )

    def act(
        self, rows: QuerySet[ArchivedMessage], options: dict[str, Any], progress: Any
    ) -> Replayed:
        """Send the rows again."""
        names = ("delay", "rate", "force", "limit", "by", "reason")
        return replay(rows, progress=progress, **{name: options[name] for name in names})


# Options


def selected(options: dict[str, Any]) -> QuerySet[ArchivedMessage]:
    """The dead letters that the options name. Raises CommandError without any."""
    if options["all"] and any(options[name] for name in _FILTERS):
        raise CommandError(
            "--all contradicts the other filters: leave it out.", returncode=ExitCode.CONFIGURATION
        )
    if not options["all"] and not any(options[name] for name in _FILTERS):
        raise CommandError(
            "Say which: --topic, --task, --error, --since, --until; or --all for every dead "
            "letter.",
            returncode=ExitCode.CONFIGURATION,
        )
    rows: QuerySet[ArchivedMessage] = ArchivedMessage.objects.filter(state=Final.DEAD)
    if error := options["error"]:
        rows = rows.filter(
            Q(error_class=error) | Q(error_class__endswith=f".{error}") | Q(reason=error)
        )
    lookups = {
        "topic": "topic",
        "task": "task",
        "since": "finished_at__gte",
        "until": "finished_at__lt",
    }
    given = {lookup: options[name] for name, lookup in lookups.items() if options[name]}
    return rows.filter(**given) if given else rows


def duration(text: str) -> timedelta:
    """From 90s, 15m, 2h, 30d or 4w."""
    if match := re.fullmatch(r"(\d{1,9})([smhdw])", text):
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    raise ArgumentTypeError(f"{text!r} is not a duration: use 90s, 15m, 2h, 30d or 4w")


def instant(text: str) -> datetime:
    """From a duration ago, a date or a datetime; by TIME_ZONE unless it says otherwise."""
    try:
        if re.fullmatch(r"\d+[smhdw]", text):
            return timezone.now() - duration(text)
        when = parse_datetime(text)
        if when is None and (day := parse_date(text)):
            when = datetime(day.year, day.month, day.day)
    except (ValueError, OverflowError):
        when = None
    if when is None:
        raise ArgumentTypeError(
            f"{text!r} is not a time: use 2h or 30d (ago), 2026-01-31 or 2026-01-31T12:00+01:00"
        )
    if timezone.is_naive(when):
        return timezone.make_aware(when) if django_settings.USE_TZ else when
    return when if django_settings.USE_TZ else timezone.make_naive(when)


def _whole(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**12:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 10**9:
        raise ArgumentTypeError(f"{text!r} is not a number of messages per second above 0")
    return rate


def operator(given: str | None) -> str:
    """Who does it."""
    if given is not None:
        return given
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container without an entry for the user
        return ""


# Speaking


class Reporter:
    """Says how far it is: on a terminal one line that is written anew, else a line every five
    seconds."""

    def __init__(self, stream: OutputWrapper, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._terminal = stream.isatty()
        self._pause = 0.1 if self._terminal else 5.0
        self._next = clock() + (0 if self._terminal else self._pause)

    def show(self, text: str) -> None:
        """Write it, unless something was written just now."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + self._pause
        if self._terminal:
            self._stream.write(f"\r\x1b[K{text}", style_func=str, ending="")
            self._stream.flush()
        else:
            self._stream.write(text, style_func=str)

    def clear(self) -> None:
        """Make room for the last word."""
        if self._terminal:
            self._stream.write("\r\x1b[K", style_func=str, ending="")


def interrupted(command: BaseCommand, text: str) -> NoReturn:
    """Say what was done before Ctrl-C, and end."""
    command.stderr.write(f"Interrupted: {text}", style_func=str)
    sys.exit(INTERRUPTED)


def failed(error: Exception, done: str = "") -> CommandError:
    """The error in words, with what was done before it, and the exit code that fits."""
    text = (
        str(error)
        if isinstance(error, DelayQError)
        else f"The database failed: {type(error).__name__}: {error}"
    )
    if isinstance(error, ConfigurationError | InvalidMessage):
        code = ExitCode.CONFIGURATION
    else:
        code = ExitCode.UNREACHABLE if isinstance(error, StoreUnavailable) else ExitCode.ERROR
    return CommandError(
        f"{text.strip()} Before that: {done}." if done else text.strip(), returncode=code
    )
