"""Send a message: call a task now or later.

Arguments are JSON: `7`, `true`, `"7"`, `[1, 2]`. A text that is not JSON is taken as it is. Write
NAME=VALUE for an argument with a name. Arguments that do not fit the task are refused.

  python manage.py delayq send shop.tasks.close_order 7 reason="shop closed" --delay 30m
  python manage.py delayq send shop.tasks.close_order order_id=7 --key order:7 --dry-run
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from typing import Any

from ...client.decorator import DelayedTask
from ...core.conf import get_settings
from ...core.exceptions import InvalidArguments, InvalidMessage
from ...core.message import new_id
from ...operators import operations
from ...tasks import redaction, registry
from ...tasks.arguments import in_one_line, read_json
from ...tasks.builder import Template
from ...tasks.task import Call
from ..cli import (
    DURATIONS,
    Answer,
    ShellUser,
    Verb,
    add_by,
    in_time_zone,
    parse_due,
    parse_duration,
)


class Command(Verb):
    """Sends a message."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The task, its arguments, and when."""
        parser.add_argument("task", metavar="TASK", help="the name of the task")
        parser.add_argument(
            "values", nargs="*", metavar="ARGUMENT", help="VALUE or NAME=VALUE, as JSON or text"
        )
        when = parser.add_mutually_exclusive_group()
        when.add_argument(
            "--delay", type=parse_duration, metavar="DURATION", help=f"due after {DURATIONS}"
        )
        when.add_argument(
            "--due-at", type=parse_due, metavar="TIME", help="due then: a date or a datetime"
        )
        parser.add_argument("--topic", help="another topic than that of the task")
        parser.add_argument("--key", help="the business key")
        parser.add_argument("--priority", choices=("high", "normal", "low"))
        parser.add_argument(
            "--on-duplicate",
            choices=("raise", "keep", "replace"),
            help="what happens when a message with this key is live (default: as the task says)",
        )
        parser.add_argument(
            "--window",
            type=parse_duration,
            metavar="DURATION",
            help="with raise or keep: for so long the key takes no other message",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="check the arguments; send nothing"
        )
        add_by(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Send it."""
        task = options["task"]
        declared = registry.by_name.get(task)
        if declared is None:
            raise InvalidMessage(
                f"No task is named {task!r}. Tasks: {', '.join(sorted(registry.by_name))}."
            )
        args, kwargs = _arguments(options["values"])
        names = ("delay", "due_at", "topic", "key", "priority", "on_duplicate", "window")
        given = {name: options[name] for name in names if options[name] is not None}
        seen = redaction.shown_arguments(declared.options.topic, task, args, kwargs)
        words = f"{task}({in_one_line(seen.args, seen.kwargs, 1_000)})"
        if options["dry_run"]:
            changed = DelayedTask[..., Any](declared.definition, declared.options).using(**given)
            Template(changed, get_settings()).item(Call(changed, args, kwargs), new_id())
            data = {"dry_run": True, "task": task, "topic": changed.options.topic}
            return Answer(text=f"would send {words}; nothing was sent", data=data)
        handle = operations.schedule(ShellUser(options["by"]), task, (args, kwargs), **given)
        kept = handle.outcome == "kept"
        due = f", due {in_time_zone(handle.due_at)}" if handle.due_at else ""
        return Answer(
            text=(
                f"nothing was sent: message {handle.id} with this key is live in {handle.topic}, "
                "or its window goes on"
                if kept
                else f"sent {words} as {handle.id} to topic {handle.topic}{due}"
            ),
            data={
                "dry_run": False,
                "id": handle.id,
                "topic": handle.topic,
                "task": task,
                "key": handle.key,
                "due_at": handle.due_at,
                "outcome": handle.outcome,
            },
        )


def _arguments(values: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """Positional arguments, and those with a name. Raises InvalidArguments."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in values:
        named = re.match(r"([A-Za-z_]\w*)=(.*)", text, re.DOTALL)
        if named is None:
            if kwargs:
                raise InvalidArguments(f"{text!r} has no name: it comes before those that have.")
            args.append(_value(text))
        elif named[1] in kwargs:
            raise InvalidArguments(f"{named[1]} is given twice.")
        else:
            kwargs[named[1]] = _value(named[2])
    return args, kwargs


def _value(text: str) -> Any:
    try:
        return read_json(text)
    except InvalidArguments:
        return text
