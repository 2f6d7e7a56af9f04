"""What `manage.py delayq_pipeline` takes: the arguments of each job, and how they become its
options."""

from __future__ import annotations

import os
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from django.utils import timezone as zones

from ..pipeline.runner import OPTIONS
from .commands.delayq_replay import duration, instant, operator

#: Arguments whose options are in milliseconds.
_MILLISECONDS = {"delay": "delay_ms"}
_DURATION = "90s 15m 2h 30d 4w"


def add_common(parser: ArgumentParser) -> None:
    """What every job takes."""
    period = "2h, 30d (ago), a date or a datetime"
    parser.add_argument(
        "--lake",
        default=os.environ.get("DELAYQ_LAKE", ""),
        help="directory (default: $DELAYQ_LAKE)",
    )
    parser.add_argument("--since", type=instant, help=f"what finished then or later: {period}")
    parser.add_argument("--until", type=instant, help="what finished before then")
    parser.add_argument("--topic", default="", help="only this one")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done; change nothing"
    )
    parser.add_argument("--json", action="store_true", help="the report as one JSON document")
    parser.add_argument(
        "--master", default="local[*]", help="where Spark runs (default: %(default)s, this machine)"
    )
    parser.add_argument("--driver-memory", default="1g", help="of Java here (default: %(default)s)")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="of Spark; no secrets"
    )
    refer = "env:NAME or file:/path, as executors on other machines find it"
    parser.add_argument(
        "--database-secret", default="", metavar="REF", help=f"the database's password: {refer}"
    )
    parser.add_argument(
        "--redis-secret", default="", metavar="REF", help=f"the URL of Redis: {refer}"
    )
    parser.add_argument(
        "--write-params",
        metavar="FILE",
        help="do not run: write what spark-submit needs; - for stdout",
    )
    parser.add_argument(
        "--traceback", action="store_true", default=SUPPRESS, help="show all of an error"
    )


def add_export(parser: ArgumentParser) -> None:
    """archive -> lake."""
    parser.add_argument(
        "--batch", type=_whole, help="ids of the archive per batch (default: 500,000)"
    )
    _add_duration(
        parser, "--settle", "leave out what the database took later than so long ago (default: 60s)"
    )
    _add_duration(
        parser,
        "--prune",
        "then delete from SQL what is in the lake and finished longer ago; 1h or more",
    )
    _add_switch(parser, "--compact", "rewrite the small files of days that are over")
    _add_duration(parser, "--grace", "keep files that no commit names for so long (default: 1d)")
    _add_duration(
        parser,
        "--interval",
        "export again after this time, until SIGTERM (default: once)",
    )
    _add_by(parser)


def add_stats(parser: ArgumentParser) -> None:
    """lake -> statistics."""
    parser.add_argument(
        "--source", choices=["lake", "archive"], help="where to read (default: lake)"
    )
    _add_switch(parser, "--everything", "all hours and days, not only those with new rows")
    _add_switch(
        parser, "--fewer", "also where what is stored counts messages that are not there any more"
    )


def add_forecast(parser: ArgumentParser) -> None:
    """Redis and outbox -> forecast."""
    parser.add_argument(
        "--drain-rate", type=_number, help="messages a second (default: the most of the last day)"
    )
    parser.add_argument(
        "--replica", metavar="REF", help="URL of a replica to read: env:NAME or file:/path"
    )


def add_audit(parser: ArgumentParser) -> None:
    """Compare, and repair."""
    _add_duration(parser, "--pause", "between the first look and the second (default: 5s)")
    _add_switch(parser, "--repair", "mend what differs, each with an operator action")
    parser.add_argument(
        "--most", type=_whole, help="differences of a kind to look at again (default: 10,000)"
    )
    _add_by(parser)


def add_schedule(parser: ArgumentParser) -> None:
    """Rows -> messages."""
    parser.add_argument("--task", required=True, help="name of the task")
    parser.add_argument(
        "--source", required=True, help="path of files, name of a table, or a SELECT"
    )
    parser.add_argument(
        "--format", required=True, choices=["parquet", "csv", "json", "table", "query"]
    )
    parser.add_argument(
        "--key", required=True, metavar="COLUMN", help="identifies a row: unique, no nulls"
    )
    parser.add_argument(
        "--not-keyed",
        dest="keyed",
        action="store_const",
        const=False,
        help="it makes the ids, but is not their key",
    )
    _add_pairs(
        parser,
        "--column",
        "columns",
        "PARAMETER=COLUMN",
        "(default: columns named as the parameters)",
    )
    parser.add_argument("--due", metavar="COLUMN", help="with the due time")
    _add_duration(parser, "--delay", "without --due: due so long after the start of the job")
    parser.add_argument(
        "--rejects", metavar="FOLDER", help="for refused rows; without it one of them refuses all"
    )
    _add_load(parser)


def add_replay(parser: ArgumentParser) -> None:
    """Dead letters -> messages."""
    parser.add_argument(
        "--source", choices=["archive", "lake"], help="where to read (default: archive)"
    )
    parser.add_argument("--where", metavar="SQL", help="condition over the columns of the archive")
    _add_pairs(parser, "--edit", "edits", "ARGUMENT=EXPRESSION", "in SQL, over the same columns")
    _add_duration(parser, "--delay", "wait so long before they run")
    parser.add_argument("--reason", default="", help="why, for the record")
    _add_by(parser)
    _add_load(parser)


ARGUMENTS: dict[str, Callable[[ArgumentParser], None]] = {
    "export": add_export,
    "stats": add_stats,
    "forecast": add_forecast,
    "audit": add_audit,
    "schedule": add_schedule,
    "replay": add_replay,
}


def job_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a job as Params.job has them: only what was given, for the defaults are in
    options.py.

    Raises Refused for a task that does not exist.
    """
    fields = OPTIONS[name].__struct_fields__
    job = {}
    for argument, value in given.items():
        option = _MILLISECONDS.get(argument, argument) if isinstance(value, timedelta) else argument
        if option in fields and value is not None:
            job[option] = _plain(value, option)
    if "by" in fields:
        job["by"] = operator(given.get("by"))
    if name in ("schedule", "replay"):
        job |= _tasks(name, given)
    return job


def iso(when: datetime | None) -> str:
    """As Params has it; empty for None. A naive one is by TIME_ZONE."""
    if when is None:
        return ""
    aware = zones.make_aware(when, zones.get_default_timezone()) if zones.is_naive(when) else when
    return aware.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _tasks(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    import msgspec

    from ..pipeline.bulk_load.task_specs import all_specs, spec_of

    if name == "schedule":
        return {"task": msgspec.to_builtins(spec_of(given["task"]))}
    return {"tasks": msgspec.to_builtins(all_specs())}


def _plain(value: Any, option: str) -> Any:
    """As JSON has it: seconds, or milliseconds where the option says so."""
    if isinstance(value, timedelta):
        return (
            round(value.total_seconds() * 1000) if option.endswith("_ms") else value.total_seconds()
        )
    return dict(value) if option in ("columns", "edits") else value


def _add_by(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--by", help="who, for the record (default: the user of the operating system)"
    )


def _add_load(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--job", required=True, help="names this load: the same job again adds nothing twice"
    )
    parser.add_argument(
        "--max-per-second", type=_number, help="messages, so that the queue's workers keep up"
    )
    parser.add_argument(
        "--splits", type=_whole, help="parts of a partition written side by side (default: 4)"
    )


def _add_duration(parser: ArgumentParser, name: str, text: str) -> None:
    parser.add_argument(name, type=duration, metavar="DURATION", help=f"{text}: {_DURATION}")


def _add_switch(parser: ArgumentParser, name: str, text: str) -> None:
    parser.add_argument(name, action="store_const", const=True, help=text)


def _add_pairs(parser: ArgumentParser, name: str, dest: str, metavar: str, text: str) -> None:
    parser.add_argument(
        name,
        type=_pair,
        action="append",
        dest=dest,
        metavar=metavar,
        help=f"{metavar} {text}; may be repeated",
    )


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name.strip() or not value.strip():
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


def _whole(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**12:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 10**9:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
