"""Pause a topic: running messages go on, no other message starts.

`delayq resume` ends the pause; with --for or --until it also ends by itself.

  python manage.py delayq pause orders --reason "payment provider is down" --for 2h
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


class Command(Verb):
    """Pauses a topic."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which topic, how long, and for the record."""
        parser.add_argument("topic", metavar="TOPIC", help="the topic")
        end = parser.add_mutually_exclusive_group()
        end.add_argument(
            "--for",
            dest="until",
            type=parse_from_now,
            metavar="DURATION",
            help=f"it goes on by itself after {DURATIONS}",
        )
        end.add_argument(
            "--until", type=parse_due, metavar="TIME", help="it goes on by itself then"
        )
        add_record(parser, reason=True)

    def run(self, options: dict[str, Any]) -> Answer:
        """Pause it."""
        until = options["until"]
        operations.pause(
            ShellUser(options["by"]), options["topic"], reason=options["reason"], until=until
        )
        end = f" until {in_time_zone(until)}" if until else ""
        return Answer(
            text=f"paused topic {options['topic']}{end}",
            data={"topic": options["topic"], "paused": True, "until": until},
        )
