"""Give a waiting message another due time.

The message is named by its topic and its id or key. `--delay 0s` makes it due at once.

  python manage.py delayq reschedule orders --key order:7 --delay 10m
  python manage.py delayq reschedule orders --key order:7 --due-at 2026-01-31T12:00+01:00
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ...operators import operations
from ..cli import (
    DURATIONS,
    Answer,
    ShellUser,
    Verb,
    add_record,
    in_time_zone,
    parse_due,
    parse_from_now,
)
from ..targets import add_one, one_target


class Command(Verb):
    """Moves the due time of a message."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which message, when, and for the record."""
        parser.add_argument("topic", metavar="TOPIC", help="the topic of the message")
        add_one(parser)
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
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Give it the due time."""
        target = one_target(options)
        message_id = target.identity.hex()
        user = ShellUser(options["by"])
        due_at = operations.reschedule(
            user, target.topic, message_id, options["due_at"], reason=options["reason"]
        )
        return Answer(
            text=f"message {message_id} of topic {target.topic} is due {in_time_zone(due_at)}",
            data={"id": message_id, "topic": target.topic, "due_at": due_at},
        )
