"""Which messages the verbs read and change: one by its id or key, or those that fit filters."""

from __future__ import annotations

import argparse
import json
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.core.management.base import CommandError
from django.utils.crypto import salted_hmac

from ..client.finding import Target
from ..core.message import Message
from ..core.present import distance, on_one_line
from ..operators.waiting_selection import WaitingSelection
from ..worker.process.runner import ExitCode
from .cli import filled, in_time_zone, name_and_value, parse_due

#: The head of a table of messages.
HEAD = ("due", "in", "state", "topic", "task", "key", "attempt", "id")
RIGHT = (False, False, False, False, False, False, True, False)

_FILTERS = ("task", "key_prefix", "since", "until", "argument")


class Instant(NamedTuple):
    """A time as it was typed, and what it means now."""

    text: str
    at: datetime


def add_filters(parser: ArgumentParser) -> None:
    """--topic, --task, --key-prefix, --due-after, --due-before and --argument."""
    # The same as TOPIC, as `replay` and `discard` have it.
    parser.add_argument(
        "--topic",
        type=filled,
        default=argparse.SUPPRESS,
        metavar="TOPIC",
        help="the same as TOPIC",
    )
    parser.add_argument("--task", type=filled, metavar="NAME", help="messages of this task")
    parser.add_argument(
        "--key-prefix", type=filled, metavar="TEXT", help="messages whose keys begin with this"
    )
    parser.add_argument(
        "--due-after",
        dest="since",
        type=_instant,
        metavar="TIME",
        help="due then or later: now, 2h, 30d (from now on), a date or a datetime",
    )
    parser.add_argument(
        "--due-before", dest="until", type=_instant, metavar="TIME", help="due before then"
    )
    parser.add_argument(
        "--argument",
        type=name_and_value,
        metavar="NAME=VALUE",
        help="messages with this argument: order_id=7, args.0=7, address.city=Bonn",
    )


def add_topic(parser: ArgumentParser, words: str) -> None:
    """TOPIC, which may be left out."""
    parser.add_argument(
        "topic", type=filled, nargs="?", default=argparse.SUPPRESS, metavar="TOPIC", help=words
    )
    parser.set_defaults(topic=None)


def _instant(text: str) -> Instant:
    return Instant(text, parse_due(text))


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
    """The waiting messages that the filters choose. Raises InvalidMessage."""
    argument, value = options["argument"] or ("", "")
    return WaitingSelection(
        topic=options["topic"] or "",
        task=options["task"] or "",
        key_prefix=options["key_prefix"] or "",
        since=options["since"] and options["since"].at,
        until=options["until"] and options["until"].at,
        argument=argument,
        value=value,
    )


def as_typed(options: dict[str, Any]) -> str:
    """A keyed hash of the filters in the words of the command line: with 2h as 2h, whenever it is
    typed. Not the words: a value may be a person's, and not for everybody."""
    words = {
        name: value.text if isinstance(value, Instant) else value
        for name in ("topic", *_FILTERS)
        if (value := options.get(name))
    }
    return salted_hmac("django_delayq.asked", json.dumps(words), algorithm="sha256").hexdigest()


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
