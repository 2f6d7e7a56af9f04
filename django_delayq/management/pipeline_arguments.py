"""The command line of `delayq pipeline JOB`, made from the options of the job."""

from __future__ import annotations

import ast
import inspect
import os
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin

import msgspec
from django.utils import timezone as zones
from msgspec.structs import FieldInfo

from ..core.times import in_words
from ..pipeline.jobs import Job
from ..pipeline.params import JobOptions, TaskSpec
from .cli import DURATIONS, duration, instant, user_of_shell


def add_job_arguments(parser: ArgumentParser, job: Job) -> None:
    """The options of the job, and the parameters that mean something to it."""
    docs = _texts_under_fields(job.options)
    for field in msgspec.structs.fields(job.options):
        if get_origin(field.type) is None or get_args(field.type)[0] is not TaskSpec:
            _add_field(parser, field, docs[field.name])
    parser.set_defaults(by=user_of_shell())
    takes = job.options.takes
    if "lake" in takes:
        parser.add_argument(
            "--lake",
            default=os.environ.get("DELAYQ_LAKE", ""),
            type=_absolute,
            metavar="FOLDER",
            help="Directory of the lake. (default: $DELAYQ_LAKE)",
        )
    if "since" in takes:
        parser.add_argument(
            "--since",
            type=_utc,
            metavar="TIME",
            help="Only what finished then or later: 2h, 30d (ago), a date or a datetime.",
        )
        parser.add_argument(
            "--until", type=_utc, metavar="TIME", help="Only what finished before then."
        )
    if "topic" in takes:
        parser.add_argument("--topic", help="Only this topic.")
    parser.add_argument(
        "--dry-run", action="store_true", help="Say what would be done; change nothing."
    )


def params_of(job: Job, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Params that these arguments mean. Raises Refused for a task that does not
    exist."""
    names = job.options.__struct_fields__
    options = {name: given[name] for name in names if given.get(name) is not None}
    options |= {name: dict(pairs) for name, pairs in options.items() if isinstance(pairs, list)}
    if options.get("format") in ("parquet", "csv", "json"):
        options["source"] = _absolute(options["source"])
    if "task" in names or "tasks" in names:
        from ..pipeline.bulk_load.task_specs import all_specs, spec_of

        specs = {"task": spec_of(options["task"])} if "task" in names else {"tasks": all_specs()}
        options |= msgspec.to_builtins(specs)
    params = ("lake", "since", "until", "topic", "dry_run")
    return {"job": options, **{name: given[name] for name in params if given.get(name)}}


def _add_field(parser: ArgumentParser, field: FieldInfo, doc: str) -> None:
    metavar = _metavar(field.type)
    name = f"--{field.name.removesuffix('_ms').replace('_', '-')}"
    settings: dict[str, Any] = {"dest": field.name, "help": doc}
    if field.type is bool:
        name = name.replace("--", "--no-") if field.default else name
        settings |= {"action": "store_const", "const": not field.default}
    elif "=" in metavar:
        name = name.removesuffix("s")
        settings |= {"action": "append", "type": _pair, "metavar": metavar}
        settings["help"] += " May be repeated."
    else:
        settings |= {"type": _reader(field, metavar), "required": field.required}
        if get_origin(field.type) is Literal:
            settings["choices"] = get_args(field.type)
        if metavar:
            settings["metavar"] = metavar
        if metavar == "DURATION":
            settings["help"] += f" {DURATIONS}"
        if field.default is not msgspec.NODEFAULT and field.default:
            default = in_words(field.default) if metavar == "DURATION" else field.default
            settings["help"] += f" (default: {default})"
    parser.add_argument(name, **settings)


def _texts_under_fields(struct: type[JobOptions]) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).split()).replace("%", "%%")
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }  # fmt: skip


def _metavar(kind: Any) -> str:
    """From the Meta of the type, also inside of `| None`."""
    for each in (kind, *get_args(kind)):
        for meta in getattr(each, "__metadata__", ()):
            return str(meta.extra["metavar"])
    return ""


def _reader(field: FieldInfo, metavar: str) -> Callable[[str], Any]:
    """Reads a value and checks the limits of the field."""

    def read(text: str) -> Any:
        value: Any = text
        if metavar == "FOLDER":
            return _absolute(text)
        if metavar == "DURATION":
            value = duration(text).total_seconds()
            value = round(value * 1000) if field.name.endswith("_ms") else value
        if field.type is TaskSpec:  # the name of a task
            return text
        try:
            return msgspec.convert(value, field.type, strict=False)
        except msgspec.ValidationError as error:
            raise ArgumentTypeError(f"{text!r} is not possible: {error}") from error

    return read


def _pair(text: str) -> tuple[str, str]:
    name, _, value = map(str.strip, text.partition("="))
    if not name or not value:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _absolute(path: str) -> str:
    """For Spark, wherever it runs. One with a scheme is as it is."""
    has_scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path)
    return path if has_scheme or not path else os.path.abspath(path)


def _utc(text: str) -> str:
    """As Params has it: ISO 8601. A naive time is by TIME_ZONE."""
    when: datetime = instant(text)
    aware = zones.make_aware(when, zones.get_default_timezone()) if zones.is_naive(when) else when
    return aware.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
