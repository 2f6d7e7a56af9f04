"""Which messages the verbs read and change: one by its id or key, or those that fit filters."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError

from ..client.finding import Target
from ..core.message import Message
from ..core.present import distance, on_one_line
from ..operators.waiting_selection import WaitingSelection
from ..worker.process.runner import ExitCode
from .cli import filled, in_time_zone, parse_due

#: The head of a table of messages.
HEAD = ("due", "in", "state", "topic", "task", "key", "attempt", "id")
RIGHT = (False, False, False, False, False, False, True, False)

_FILTERS = ("task", "key_prefix", "since", "until")


def add_filters(parser: ArgumentParser) -> None:
    """--task, --key-prefix, --due-after and --due-before."""
    parser.add_argument("--task", type=filled, metavar="NAME", help="messages of this task")
    parser.add_argument(
        "--key-prefix", type=filled, metavar="TEXT", help="messages whose keys begin with this"
    )
    parser.add_argument(
        "--due-after",
        dest="since",
        type=parse_due,
        metavar="TIME",
        help="due then or later: now, 2h, 30d (from now on), a date or a datetime",
    )
    parser.add_argument(
        "--due-before", dest="until", type=parse_due, metavar="TIME", help="due before then"
    )


def add_one(parser: ArgumentParser) -> None:
    """ID and --key, which name one message of a topic."""
    parser.add_argument("id", nargs="?", metavar="ID", help="32 hexadecimal digits")
    parser.add_argument("--key", metavar="KEY", help="the business key, instead of ID")


def one_target(options: dict[str, Any]) -> Target:
    """The message that ID or --key names. Raises InvalidMessage and UnknownTopic, and CommandError
    for a contradiction or when nothing is named."""
    named = [name for name in ("id", "key") if options[name] is not None]
    given = [name for name in _FILTERS if options.get(name)]
    if not named:
        raise CommandError("Give ID or --key.", returncode=ExitCode.CONFIGURATION)
    if len(named) == 2 or given or options.get("all"):
        raise CommandError(
            "Name one message, by ID or by --key; or choose messages by filters.",
            returncode=ExitCode.CONFIGURATION,
        )
    if not options["topic"]:
        raise CommandError(
            "--key needs the topic: two topics may have the same key.",
            returncode=ExitCode.CONFIGURATION,
        )
    return Target.of(options["topic"], options["key"], options["id"])


def selection_of(options: dict[str, Any]) -> WaitingSelection:
    """The waiting messages that the filters choose. Raises InvalidKey."""
    given = {name: options[name] for name in _FILTERS if options[name]}
    return WaitingSelection(topic=options["topic"] or "", **given)


def table_row(message: Message, now: datetime) -> Sequence[str]:
    """A message as a row under HEAD."""
    return (
        in_time_zone(message.due_at),
        distance(message.due_at, now),
        message.state.value,
        message.topic,
        on_one_line(message.task),
        on_one_line(message.key or "-"),
        str(message.attempt),
        message.id,
    )
