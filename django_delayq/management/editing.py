"""The options that say what becomes of one argument: of the verbs `replay` and `edit`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ..tasks.argument_edit import ArgumentEdit
from ..worker.process.runner import ExitCode
from .cli import filled, name_and_value

_HOWS = ("set", "map", "replace", "remove")


def add_edit(parser: ArgumentParser, *, required: bool = False) -> None:
    """--set, --map, --replace and --remove."""
    how = parser.add_mutually_exclusive_group(required=required)
    how.add_argument(
        "--set",
        type=name_and_value,
        metavar="NAME=VALUE",
        help="give this argument the value, JSON or a plain word: url=https://shop.example/hook",
    )
    how.add_argument(
        "--map",
        type=name_and_value,
        action="append",
        metavar="NAME=OLD->NEW",
        help="give it the new value where it has the old one; may be repeated",
    )
    how.add_argument(
        "--replace",
        type=name_and_value,
        action="append",
        metavar="NAME=TEXT->TEXT",
        help="replace a text inside of it; may be repeated",
    )
    how.add_argument(
        "--remove", type=filled, metavar="NAME", help="take it away: the task takes it no longer"
    )


def asked_edit(options: dict[str, Any]) -> ArgumentEdit | None:
    """The edit that the options ask for. Raises InvalidMessage, and CommandError without the
    task."""
    how = next((name for name in _HOWS if options.get(name)), None)
    if how is None:
        return None
    if not options["task"]:
        raise CommandError(
            "An argument is one of a task: give --task.", returncode=ExitCode.CONFIGURATION
        )
    if how == "remove":
        return ArgumentEdit.read(options["task"], options["remove"], how, "")
    pairs = [options["set"]] if how == "set" else options[how]
    names = {name for name, _value in pairs}
    if len(names) > 1:
        raise CommandError(
            "One edit is about one argument: name the same in each.",
            returncode=ExitCode.CONFIGURATION,
        )
    return ArgumentEdit.read(
        options["task"], names.pop(), how, "\n".join(value for _name, value in pairs)
    )
