"""Send a message, or one for each row of a file: call a task now or later.

Arguments are JSON: `7`, `true`, `"7"`, `[1, 2]`. A text that is not JSON is taken as it is. Write
NAME=VALUE for an argument with a name. Arguments that do not fit the task are refused.

  python manage.py delayq send shop.tasks.close_order 7 reason="shop closed" --delay 30m
  python manage.py delayq send shop.tasks.close_order order_id=7 --key order:7 --dry-run

With --file each row of a Parquet file, a CSV file or a file of JSON lines becomes a message: the
columns with the names of the parameters are the arguments. The same command again, also after
kill -9, adds nothing twice. Needs the extra `arrow`. For files beyond the memory of this machine
`delayq pipeline schedule` does the same on Spark, and either goes on where the other has stopped.

  python manage.py delayq send shop.tasks.remind --file coupons.csv --key coupon --due expires_at
  python manage.py delayq send shop.tasks.remind --file c.parquet --key id --column order_id=id
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from ...client.decorator import DelayedTask
from ...core.conf import get_settings
from ...core.exceptions import InvalidArguments, InvalidMessage
from ...core.message import new_id
from ...operators import operations
from ...pipeline.job_errors import ArrowMissing, Refused
from ...pipeline.params import ScheduleOptions, check_plain
from ...store import get_store
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
    filled,
    in_time_zone,
    name_and_value,
    parse_due,
    parse_duration,
    positive,
    whole,
)

#: Options that make no sense for the rows of a file, and without a file.
_OF_ONE = ("values", "due_at", "topic", "priority", "on_duplicate", "window")
_OF_ROWS = ("format", "job", "due", "columns", "rejects", "max_per_second")


class Command(Verb):
    """Sends a message, or one for each row of a file."""

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
        parser.add_argument(
            "--key", help="the business key; with --file the column that identifies a row"
        )
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
        self._add_file_arguments(parser.add_argument_group("a message for each row of a file"))

    def _add_file_arguments(self, parser: Any) -> None:
        parser.add_argument("--file", type=Path, metavar="FILE", help="the rows")
        parser.add_argument(
            "--format",
            choices=("parquet", "csv", "json"),
            help="json: an object per line (default: by the ending of FILE)",
        )
        parser.add_argument(
            "--job",
            type=filled,
            metavar="NAME",
            help="names this load: the same again adds nothing twice (default: FILE's name)",
        )
        parser.add_argument(
            "--due", default="", metavar="COLUMN", help="has the due time, with a zone"
        )
        parser.add_argument(
            "--column",
            action="append",
            type=name_and_value,
            default=[],
            dest="columns",
            metavar="PARAMETER=COLUMN",
            help="where an argument is (default: columns named as parameters). May be repeated.",
        )
        parser.add_argument(
            "--no-keyed",
            action="store_false",
            dest="keyed",
            help="--key makes the ids of the messages, but is not their key",
        )
        parser.add_argument(
            "--rejects",
            default="",
            metavar="FOLDER",
            help="write refused rows, with line and reason, to JOB.rejects.jsonl there, and send "
            "the others (default: one refused row refuses all)",
        )
        parser.add_argument(
            "--max-per-second", type=positive, metavar="NUMBER", help="so that workers keep up"
        )
        parser.add_argument(
            "--splits",
            type=whole(high=64),
            default=4,
            metavar="COUNT",
            help="as of `pipeline schedule`; keep it when you repeat a load (default: 4)",
        )

    def run(self, options: dict[str, Any]) -> Answer:
        """Send it, or them."""
        return self._send_rows(options) if options["file"] else self._send_one(options)

    def interrupted(self) -> str:
        """Of a file: what is sent stays."""
        text = self.so_far or "nothing was sent"
        return f"Interrupted: {text}. Run it again to go on: nothing is sent twice."

    def _send_rows(self, options: dict[str, Any]) -> Answer:
        if wrong := [name for name in _OF_ONE if options[name]]:
            words = " and ".join(f"--{name.replace('_', '-')}" for name in wrong)
            raise Refused(f"With --file every row has its own arguments: leave {words} out.")
        if not options["key"]:
            raise Refused("With --file, --key has to name the column that identifies a row.")
        check_plain("send --file", bool(get_settings().encryption_keys))
        path: Path = options["file"]
        try:
            from ...pipeline.bulk_load.row_files import ENDINGS
            from ...pipeline.bulk_load.send_file import send_file
            from ...pipeline.bulk_load.task_specs import spec_of
        except ImportError as error:
            raise ArrowMissing(
                f"{error.name} is not installed: pip install 'django-delayq[arrow]'."
            ) from error
        kind: Any = options["format"] or ENDINGS.get(path.suffix.lower())
        if kind is None:
            raise Refused(f"The ending of {path} says nothing of its format: give --format.")
        names = ("key", "due", "rejects", "keyed", "max_per_second", "splits")
        delay = options["delay"]
        given = ScheduleOptions(
            job=options["job"] or path.name.partition(".")[0],
            task=spec_of(options["task"]),
            source=str(path),
            format=kind,
            columns=dict(options["columns"]),
            delay_ms=round(delay.total_seconds() * 1000) if delay else 0,
            **{name: options[name] for name in names},
        )
        if given.due and given.delay_ms:
            raise Refused("--due and --delay contradict each other: give one of them.")
        report = send_file(get_store(), given, self.progress, dry_run=options["dry_run"])
        data = {"dry_run": options["dry_run"], **report.figures}
        data |= {"problems": report.problems, "refused_rows": report.rows}
        return Answer(text=report.as_text(), data=data)

    def _send_one(self, options: dict[str, Any]) -> Answer:
        if wrong := [name for name in _OF_ROWS if options[name]]:
            raise Refused(f"--{wrong[0].replace('_', '-')} is about the rows of a --file.")
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
