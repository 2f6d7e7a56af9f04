"""What the verbs have in common: a base class, values of options, progress, and how they end."""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import timezone as zones
from typing import TYPE_CHECKING, Any

import msgspec
from django.conf import settings as django_settings
from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
    OutputWrapper,
)
from django.db import Error
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from ..core.exceptions import ConfigurationError, DelayQError, InvalidMessage, StoreUnavailable
from ..core.present import table
from ..core.times import aware, local
from ..models import OperatorAction
from ..pipeline.job_errors import ArrowMissing, Refused
from ..worker.process.runner import ExitCode

if TYPE_CHECKING:
    from .terminal import Bar

#: The exit code of a program that Ctrl-C has ended, as shells have it.
INTERRUPTED = 130

#: How durations are written, for help texts.
DURATIONS = "90s 15m 2h 30d 4w"

_LONGEST = timedelta(days=36_500)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class HelpFormatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Django's order of the options, and the description with its own line breaks."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a verb has to say at its end."""

    text: str = ""
    """For people, below the rows."""
    data: Any = None
    """For programs: what --json prints. msgspec has to know its types."""
    rows: Sequence[Sequence[str]] = ()
    """A table for people. The first row is its head."""
    right: Sequence[bool] = ()
    """Which of its columns are numbers."""
    code: int = 0
    """The exit code."""


class Verb(BaseCommand):
    """Base of the verbs.

    The docstring of the module is the help text. `run` does the work and returns the answer.
    Exit codes: 0 done, 1 error, 2 wrong options, 3 no Redis, 130 Ctrl-C.
    """

    requires_system_checks = []
    so_far = ""
    """How far the verb is, in words. Empty: it has not begun to change anything."""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """With the docstring of the module as the description, and with --json."""
        self.help = sys.modules[type(self).__module__].__doc__ or ""
        parser = super().create_parser(
            prog_name, subcommand, formatter_class=HelpFormatter, **kwargs
        )
        self.add_json(parser)
        return parser

    def add_json(self, parser: ArgumentParser) -> None:
        """--json, which every verb has."""
        parser.add_argument(
            "--json", action="store_true", help="the answer as one JSON document, for programs"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the verb, and say how it ended."""
        self.reporter = Reporter(self.stderr)
        # Refuse what the shell gave in another encoding than UTF-8: neither Redis nor a
        # database takes it.
        for name, value in options.items():
            for text in value if isinstance(value, list) else [value]:
                try:
                    str(text).encode()
                except UnicodeEncodeError:
                    words = f"{name} is {text!r:.80}, which is not UTF-8."
                    raise CommandError(words, returncode=ExitCode.CONFIGURATION) from None
        try:
            answer = self.run(options)
        except KeyboardInterrupt:
            self.reporter.clear()
            self.stderr.write(self.interrupted(), style_func=str)
            sys.exit(INTERRUPTED)
        except (DelayQError, Error) as error:
            self.reporter.clear()
            raise self.failure(error) from error
        self.reporter.clear()
        try:
            self.show(answer, options)
            self.stdout.flush()
        except BrokenPipeError:  # the reader has seen enough, as `| head`: the work is done
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if answer.code:
            sys.exit(answer.code)

    def run(self, options: dict[str, Any]) -> Answer:
        """Do the work."""
        raise NotImplementedError

    def failure(self, error: Exception) -> CommandError:
        """How an error of ours or of the database ends the verb."""
        return failure(error, self.so_far)

    def interrupted(self) -> str:
        """The line after Ctrl-C."""
        text = f"Interrupted: {self.committed() or 'nothing was changed'}."
        return f"{text} Run it again to go on."

    def progress(self, text: str, done: int = 0, total: int = 0) -> None:
        """Say how far the verb is, and keep it for an error or Ctrl-C. `total`: 0 when it is not
        known."""
        self.so_far = text
        self.reporter.show(text, done, total)

    def committed(self) -> str:
        """What is certainly done when Ctrl-C has ended the verb."""
        return self.so_far

    def show(self, answer: Answer, options: dict[str, Any]) -> None:
        """Write the answer: for programs, for a terminal or as plain lines."""
        if options["json"]:
            plain = msgspec.to_builtins(answer.data, builtin_types=(datetime,))
            self.stdout.write(json.dumps(plain, default=datetime.isoformat, indent=1))
            return
        if answer.rows and not self._drawn(answer):
            for line in table(answer.rows, answer.right):
                self.stdout.write(line)
        if answer.text:
            self.stdout.write(answer.text)

    def _drawn(self, answer: Answer) -> bool:
        """Draw the table by rich, where that is installed and the output is a terminal."""
        if not self.stdout.isatty():
            return False
        try:
            from .terminal import show_table
        except ImportError:
            return False
        show_table(self.stdout, answer.rows, answer.right)
        return True


@dataclass(frozen=True)
class ShellUser:
    """The user of the shell, who has every permission."""

    name: str
    is_outside_pages = True

    def has_perm(self, permission: str) -> bool:
        """Everything."""
        return True

    def get_username(self) -> str:
        """For the record."""
        return self.name


def add_record(parser: ArgumentParser, *, reason: bool = False) -> None:
    """--reason and --by, for the record of operator actions."""
    parser.add_argument(
        "--reason", default="", required=reason, metavar="TEXT", help="why, for the record"
    )
    add_by(parser)


def add_by(parser: ArgumentParser) -> None:
    """--by, for the record of operator actions."""
    parser.add_argument(
        "--by",
        default=user_of_shell(),
        metavar="NAME",
        help="who, for the record (default: the user of the operating system)",
    )


def user_of_shell() -> str:
    """The user of the operating system; empty in a container that has no entry for the user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def committed_count(action: OperatorAction, reported: int) -> int:
    """How many the action has changed: its last transaction may be committed and not reported."""
    count = OperatorAction.objects.filter(pk=action.pk).values_list("count", flat=True).first()
    return reported if count is None else count


def failure(error: Exception, done: str = "") -> CommandError:
    """The error in words, with what was done before it, and the exit code that fits."""
    text = (
        str(error)
        if isinstance(error, DelayQError)
        else f"The database failed: {type(error).__name__}: {error}"
    ).strip()
    if isinstance(error, ConfigurationError | InvalidMessage | Refused | ArrowMissing):
        code = ExitCode.CONFIGURATION
    else:
        code = ExitCode.UNREACHABLE if isinstance(error, StoreUnavailable) else ExitCode.ERROR
    return CommandError(f"{text} Before that: {done}." if done else text, returncode=code)


def in_time_zone(when: datetime) -> str:
    """An instant as people read it, by TIME_ZONE."""
    return local(when).isoformat(" ", "seconds")


# Values of options


def filled(text: str) -> str:
    """A text that is not empty. A script gives an empty one when its variable is not set, and no
    filter chooses everything."""
    if not text:
        raise ArgumentTypeError("it is empty: give a name, or leave it away")
    return text


def add_lake(parser: ArgumentParser) -> None:
    """--lake and how its store is opened: see storage_of()."""
    parser.add_argument(
        "--lake",
        default=os.environ.get("DELAYQ_LAKE", ""),
        type=absolute,
        metavar="URI",
        help="The lake: s3://bucket/path, gs://..., abfss://... or a path. (default: $DELAYQ_LAKE)",
    )
    parser.add_argument(
        "--lake-option",
        action="append",
        default=[],
        type=name_and_value,
        metavar="NAME=VALUE",
        help="Option of the lake's store, such as AWS_ENDPOINT_URL=https://...; no secrets. May be "
        "repeated.",
    )
    parser.add_argument(
        "--lake-secret",
        action="append",
        default=[],
        type=name_and_value,
        metavar="NAME=REF",
        help="Secret option of the lake's store: AWS_SECRET_ACCESS_KEY=env:NAME or =file:/path. "
        "May be repeated.",
    )


def storage_of(options: Mapping[str, Any]) -> Any:
    """The params.Storage that these arguments mean. Raises ConfigurationError."""
    from ..pipeline.params import Secret, Storage

    secrets = {name: Secret(ref) for name, ref in options["lake_secret"]}
    return Storage(options["lake"], dict(options["lake_option"]), secrets)


def absolute(path: str) -> str:
    """The path for other processes, wherever they run. One with a scheme stays as it is."""
    has_scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path)
    return path if has_scheme or not path else os.path.abspath(path)


def name_and_value(text: str) -> tuple[str, str]:
    """From NAME=VALUE. Only the value may be empty."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as order_id=7")
    return name, value


def parse_duration(text: str) -> timedelta:
    """From 90s, 15m, 2h, 30d or 4w; at most a hundred years, so that the calendar has its end."""
    if match := re.fullmatch(r"(\d{1,9})([smhdw])", text):
        with suppress(OverflowError):
            duration = timedelta(**{_UNITS[match[2]]: int(match[1])})
            if duration <= _LONGEST:
                return duration
    raise ArgumentTypeError(
        f"{text!r} is not a duration: use 90s, 15m, 2h, 30d or 4w, and at most 36500d"
    )


def parse_instant(text: str) -> datetime:
    """From a duration ago, a date or a datetime; by TIME_ZONE unless the text has an offset."""
    try:
        if re.fullmatch(r"\d+[smhdw]", text):
            return timezone.now() - parse_duration(text)
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


def parse_from_now(text: str) -> datetime:
    """From a duration that begins now."""
    return datetime.now(tz=zones.utc) + parse_duration(text)


def parse_due(text: str) -> datetime:
    """From `now`, a duration from now on, a date or a datetime; aware, by TIME_ZONE unless the text
    has an offset."""
    if text == "now":
        return datetime.now(tz=zones.utc)
    if re.fullmatch(r"\d+[smhdw]", text):
        return parse_from_now(text)
    try:
        return aware(parse_instant(text))
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{text!r} is not a time: use now, 2h or 30d (from now on), 2026-01-31 or "
            "2026-01-31T12:00+01:00"
        ) from None


def whole(low: int = 1, high: int = 10**12) -> Callable[[str], int]:
    """A whole number between these."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high:,}")
        return int(text)

    return parse


def positive(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 10**9:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


# Progress


class Reporter:
    """Says how far a verb is: on a terminal by a bar (with rich, when the total is known) or by one
    line that is written again and again, else by a line every five seconds."""

    def __init__(self, stream: OutputWrapper, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._terminal = stream.isatty()
        self._pause = 0.1 if self._terminal else 5.0
        self._next = clock() + (0 if self._terminal else self._pause)
        self._bar: Bar | None = None

    def show(self, text: str, done: int = 0, total: int = 0) -> None:
        """Write the text, unless a text was written just now."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + self._pause
        if self._terminal and total and self._bar is None:
            with suppress(ImportError):
                from .terminal import Bar

                self._bar = Bar(self._stream)
        if self._bar:
            self._bar.show(text, done, total)
        elif self._terminal:
            self._stream.write(f"\r\x1b[K{text}", style_func=str, ending="")
            self._stream.flush()
        else:
            percent = f" ({100 * done // total} % of {total:,})" if total else ""
            self._stream.write(text + percent, style_func=str)

    def clear(self) -> None:
        """Make room for the last line."""
        if self._bar:
            self._bar.stop()
            self._bar = None
        elif self._terminal:
            self._stream.write("\r\x1b[K", style_func=str, ending="")
