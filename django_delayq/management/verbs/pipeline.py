"""Run a job of the data pipeline on Spark, in this process.

Needs the extra `spark` and Java 17. Ctrl-C ends a job safely: run it again to go on. `delayq
pipeline JOB --help` says what a job does and takes.

  python manage.py delayq pipeline export --lake s3://shop/lake
  python manage.py delayq pipeline stats --lake s3://shop/lake --since 7d

Exit codes: 0 done, 1 failed, 2 refused, 3 the audit found differences or the
check a broken limit, 130 Ctrl-C.
"""

from __future__ import annotations

import ast
import inspect
import re
import signal
import sys
import traceback
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

import msgspec
from django.core.management.base import CommandError
from msgspec.structs import FieldInfo

from ...core.job_report import Report
from ...core.signal_handlers import handled
from ...core.times import in_words, utc
from ...pipeline import params_from_django
from ...pipeline.job_errors import Refused, cause, code_of
from ...pipeline.jobs import JOBS, Job, add_start_arguments, run_job, start_of
from ...pipeline.params import JobOptions, Params, TaskSpec
from ...pipeline.session import java_log
from ..cli import (
    DURATIONS,
    INTERRUPTED,
    HelpFormatter,
    Reporter,
    Verb,
    absolute,
    add_lake,
    filled,
    name_and_value,
    parse_duration,
    parse_instant,
    storage_of,
    user_of_shell,
)


class Command(Verb):
    """Runs a job on Spark."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """A sub-command for each job."""
        jobs = parser.add_subparsers(dest="job_name", required=True, metavar="JOB")
        for job in JOBS.values():
            options = jobs.add_parser(
                job.name,
                help=job.help,
                description=inspect.getdoc(job.options),
                formatter_class=HelpFormatter,
            )
            add_job_arguments(options, job)
            _add_common(options)

    def add_json(self, parser: ArgumentParser) -> None:
        """Each job has it: people write it behind the job."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the job and print its report, or write its parameters."""
        job, self.reporter = JOBS[options["job_name"]], Reporter(self.stderr)
        try:
            # As Ctrl-C ends a job: files that were made for it are removed, as one with a password.
            with handled((signal.SIGTERM,), lambda *_: sys.exit(128 + signal.SIGTERM)):
                if options["write_params"]:
                    self._write_params(job, options)
                    return
                start = start_of(options)
                with self._parameters(job, options, start.elsewhere) as params:
                    report = run_job(job.name, params, start, self.reporter.show)
        except KeyboardInterrupt:
            self.reporter.clear()
            self.stderr.write(f"Interrupted: {job.options.interrupted}", style_func=str)
            sys.exit(INTERRUPTED)
        except Exception as error:
            self.reporter.clear()
            self._fail(job, error, options)
        self.reporter.clear()
        self.stdout.write(report.as_json() if options["json"] else report.as_text())
        if report.code:
            sys.exit(int(report.code))

    def _parameters(
        self, job: Job, options: dict[str, Any], elsewhere: bool
    ) -> AbstractContextManager[Params]:
        """The parameters of the job. `elsewhere`: for executors on other machines."""
        given = params_of(job, options)
        return params_from_django.parameters(
            database_secret=options["database_secret"],
            redis_secret=options["redis_secret"],
            elsewhere=elsewhere,
            needs_redis="redis" in msgspec.convert(given["job"], job.options).needs(),
            **given,
        )

    def _write_params(self, job: Job, options: dict[str, Any]) -> None:
        with self._parameters(job, options, True) as params:
            raw, path = params.encode(), options["write_params"]
        if path == "-":
            self.stdout.write(raw.decode())
            return
        try:
            Path(path).write_bytes(raw + b"\n")
        except OSError as error:
            raise Refused(f"{path} cannot be written: {error.strerror}.") from error
        self.stderr.write(
            f"wrote {path}: spark-submit ... {job.name} --params {path}", style_func=str
        )

    def _fail(self, job: Job, error: Exception, options: dict[str, Any]) -> NoReturn:
        """Write the error as a sentence; with --json a report too, with --traceback all of it."""
        found = cause(error)
        code = code_of(found)
        if options["json"]:
            report = Report(job=job.name, code=code, problems=[str(found)])
            self.stdout.write(report.as_json())
        if options["traceback"]:
            self.stderr.write(
                "".join(traceback.format_exception(error)) + java_log(), style_func=str
            )
            self.stderr.write(str(found))
            sys.exit(int(code))
        raise CommandError(str(found), returncode=int(code)) from error


# The command line, made from the options of the jobs


def add_job_arguments(parser: ArgumentParser, job: Job) -> None:
    """The options of the job, and the parameters that mean something to it."""
    kinds = [kind for kind in job.options.__mro__ if issubclass(kind, JobOptions)]
    # The texts under the fields.
    docs = {
        field.target.id: " ".join(str(text.value.value).split()).replace("%", "%%")
        for kind in kinds
        for definition in ast.parse(inspect.getsource(kind)).body
        if isinstance(definition, ast.ClassDef)
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }  # fmt: skip
    for field in msgspec.structs.fields(job.options):
        if get_origin(field.type) is None or get_args(field.type)[0] is not TaskSpec:
            _add_field(parser, field, docs[field.name])
    parser.set_defaults(by=user_of_shell())
    takes = job.options.takes
    if "lake" in takes:
        add_lake(parser)
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
        parser.add_argument("--topic", type=filled, help="Only this topic.")
    if "dry_run" in takes:
        parser.add_argument(
            "--dry-run", action="store_true", help="Say what would be done; change nothing."
        )


def _add_common(parser: ArgumentParser) -> None:
    """What every job takes."""
    parser.add_argument("--json", action="store_true", help="The report as one JSON document.")
    add_start_arguments(parser)
    reference = "env:NAME or file:/path, as executors on other machines find it"
    parser.add_argument(
        "--database-secret",
        default="",
        metavar="REF",
        help=f"Password of the database: {reference}.",
    )
    parser.add_argument(
        "--redis-secret", default="", metavar="REF", help=f"URL of Redis: {reference}."
    )
    parser.add_argument(
        "--write-params",
        metavar="FILE",
        help="Do not run: write the parameters for spark-submit. - is the standard output.",
    )
    # Django's, which its parser of the verb has: people write them behind the job.
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name, default=SUPPRESS, help=SUPPRESS)
    parser.add_argument(
        "--traceback", action="store_true", default=SUPPRESS, help="Show all of an error."
    )


def params_of(job: Job, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Params that these arguments mean. Raises Refused for a task that does not
    exist."""
    names = job.options.__struct_fields__
    options = {name: given[name] for name in names if given.get(name) is not None}
    options |= {name: dict(pairs) for name, pairs in options.items() if isinstance(pairs, list)}
    if options.get("format") in ("parquet", "csv", "json"):
        options["source"] = absolute(options["source"])
    if "task" in names or "tasks" in names:
        from ...pipeline.bulk_load.task_specs import all_specs, spec_of

        specs = {"task": spec_of(options["task"])} if "task" in names else {"tasks": all_specs()}
        options |= msgspec.to_builtins(specs)
    params = {
        name: given[name] for name in ("since", "until", "topic", "dry_run") if given.get(name)
    }
    if given.get("lake"):
        params["lake"] = storage_of(given)
    return {"job": options, **params}


def _add_field(parser: ArgumentParser, field: FieldInfo, doc: str) -> None:
    # From the Meta of the type, also inside of `| None`.
    metavar = next(
        (
            str(meta.extra["metavar"])
            for kind in (field.type, *get_args(field.type))
            for meta in getattr(kind, "__metadata__", ())
        ),
        "",
    )
    name = f"--{field.name.removesuffix('_ms').replace('_', '-')}"
    settings: dict[str, Any] = {"dest": field.name, "help": doc}
    if field.type is bool:
        name = name.replace("--", "--no-") if field.default else name
        settings |= {"action": "store_const", "const": not field.default}
    elif "=" in metavar:
        name = name.removesuffix("s")
        settings |= {"action": "append", "type": name_and_value, "metavar": metavar}
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


def _reader(field: FieldInfo, metavar: str) -> Callable[[str], Any]:
    """Reads a value and checks the limits of the field."""

    def read(text: str) -> Any:
        value: Any = text
        if metavar == "FOLDER":
            return absolute(text)
        if metavar == "DURATION":
            value = parse_duration(text).total_seconds()
            value = round(value * 1000) if field.name.endswith("_ms") else value
        if metavar == "PERCENT":
            value = _share(text)
        if field.type is TaskSpec:  # the name of a task
            return text
        try:
            return msgspec.convert(value, field.type, strict=False)
        except msgspec.ValidationError as error:
            raise ArgumentTypeError(f"{text!r} is not possible: {error}") from error

    return read


def _share(text: str) -> float:
    """From 1% or 0.5%."""
    if not re.fullmatch(r"\d+(\.\d+)?%", text):
        raise ArgumentTypeError(f"{text!r} is not a share: use 1% or 0.5%")
    return float(text[:-1]) / 100


def _utc(text: str) -> str:
    """As Params has it: ISO 8601. A naive time is by TIME_ZONE."""
    return utc(parse_instant(text)).isoformat().replace("+00:00", "Z")
