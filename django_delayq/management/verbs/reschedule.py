"""Give waiting messages another due time: one by its id or key, or all that fit the filters.

One message gets a due time by --delay or --due-at. Those that fit filters are shifted by the same
time, --later or --earlier, or are due --now. That is a bulk operation: it is recorded, a worker
goes on with it after Ctrl-C or a kill, the same command finds it again, and nothing is shifted
twice. --dry-run makes all checks, says how many and shows ten.

  python manage.py delayq reschedule orders --key order:7 --delay 10m
  python manage.py delayq reschedule orders --key order:7 --due-at 2026-01-31T12:00+01:00
  python manage.py delayq reschedule --task shop.tasks.remind --later 2h --reason "provider is down"
"""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import datetime, timedelta, timezone
from typing import Any

from django.core.management.base import CommandError

from ...models import BulkKind
from ...operators import operations
from ...operators.waiting_orders import WaitingChange
from ...worker.process.runner import ExitCode
from ..changing import WaitingVerb, add_dry_run
from ..cli import (
    DURATIONS,
    Answer,
    ShellUser,
    add_record,
    in_time_zone,
    parse_due,
    parse_duration,
    parse_from_now,
)
from ..targets import add_filters, add_one, add_topic, one_target


class Command(WaitingVerb):
    """Moves due times."""

    past = "rescheduled"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which messages, when, and for the record."""
        add_topic(parser, "(default with filters: all topics)")
        add_one(parser)
        add_filters(parser)
        when = parser.add_mutually_exclusive_group(required=True)
        when.add_argument(
            "--delay",
            dest="due_at",
            type=parse_from_now,
            metavar="DURATION",
            help=f"due after {DURATIONS}",
        )
        when.add_argument(
            "--due-at", type=parse_due, metavar="TIME", help="due then: a date or a datetime"
        )
        when.add_argument(
            "--later",
            type=parse_duration,
            metavar="DURATION",
            help="with filters: how much later than planned they are due",
        )
        when.add_argument(
            "--earlier",
            type=parse_duration,
            metavar="DURATION",
            help="with filters: how much earlier they are due, but not before now",
        )
        when.add_argument("--now", action="store_true", help="due at once")
        add_dry_run(parser)
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Give it the due time, or shift all that fit."""
        by = options["later"] or (options["earlier"] and -options["earlier"])
        if options["id"] is None and options["key"] is None:
            if not (by or options["now"]):
                raise CommandError(
                    "--delay and --due-at are for one message: give ID or --key. Messages that fit "
                    "filters are moved by --later, --earlier or --now.",
                    returncode=ExitCode.CONFIGURATION,
                )
            kind = BulkKind.RUN_NOW if options["now"] else BulkKind.SHIFT
            return self.change_all(options, WaitingChange(kind=kind, by=by or timedelta()))
        target = one_target(options)
        if by:
            raise CommandError(
                "--later and --earlier are for messages that fit filters. For one message: "
                "--delay, --due-at or --now.",
                returncode=ExitCode.CONFIGURATION,
            )
        message_id = target.identity.hex()
        user = ShellUser(options["by"])
        due_at = options["due_at"] or datetime.now(tz=timezone.utc)
        due_at = operations.reschedule(
            user, target.topic, message_id, due_at, reason=options["reason"]
        )
        return Answer(
            text=f"message {message_id} of topic {target.topic} is due {in_time_zone(due_at)}",
            data={"id": message_id, "topic": target.topic, "due_at": due_at},
        )
