"""manage.py delayq_pipeline: the jobs over the archive, the queue and the lake, on Spark."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import traceback
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError

from ...pipeline import params_from_django, rendering
from ...pipeline.error_messages import cause, code_of
from ...pipeline.errors import Refused
from ...pipeline.jobs import JOBS
from ...pipeline.params import Report
from ...pipeline.runner import Start, configuration_of, interruption, run_job
from ...pipeline.session import log
from ..pipeline_arguments import ARGUMENTS, add_common, iso, job_options
from .delayq_replay import Reporter, interrupted


class Command(BaseCommand):
    """Runs a job on Spark. Exit codes: 0 done, 1 failed, 2 refused, 3 the audit found differences,
    130 Ctrl-C."""

    help = (
        "Runs a job of the data pipeline on Spark, in this process. Ctrl-C ends it safely; run it "
        "again to go on."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """A sub-command for each job."""
        jobs = parser.add_subparsers(dest="which", required=True, metavar="JOB")
        for name, what in JOBS.items():
            job = jobs.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
            ARGUMENTS[name](job)
            add_common(job)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the job and print its report, or write its parameters."""
        name, said = options["which"], Reporter(self.stderr)
        try:
            with _ends_on_sigterm():
                if options["write_params"]:
                    self._write_params(name, options)
                    return
                report = self._run(name, options, said)
        except KeyboardInterrupt:
            said.clear()
            interrupted(self, interruption(name))
        except Exception as error:
            said.clear()
            self._fail(name, error, options)
        said.clear()
        self.stdout.write((rendering.as_json if options["json"] else rendering.as_text)(report))
        if report.code:
            sys.exit(int(report.code))

    def _run(self, name: str, options: dict[str, Any], said: Reporter) -> Report:
        start = Start(
            master=options["master"],
            driver_memory=options["driver_memory"],
            configuration=configuration_of(options["conf"]),
        )
        with params_from_django.parameters(
            **_given(name, options), elsewhere=start.elsewhere
        ) as params:
            return run_job(name, params, start, said.show)

    def _write_params(self, name: str, options: dict[str, Any]) -> None:
        with params_from_django.parameters(**_given(name, options), elsewhere=True) as params:
            raw, path = params.encode(), options["write_params"]
        if path == "-":
            self.stdout.write(raw.decode())
            return
        try:
            Path(path).write_bytes(raw + b"\n")
        except OSError as error:
            raise Refused(f"{path} cannot be written: {error.strerror}.") from error
        self.stderr.write(f"wrote {path}: spark-submit ... {name} --params {path}", style_func=str)

    def _fail(self, name: str, error: Exception, options: dict[str, Any]) -> NoReturn:
        """In a sentence; with --json also as a report, with --traceback all of it."""
        found = cause(error)
        code = code_of(found)
        if options["json"]:
            self.stdout.write(rendering.as_json(Report(job=name, code=code, problems=[str(found)])))
        if options["traceback"]:
            self.stderr.write("".join(traceback.format_exception(error)) + log(), style_func=str)
            self.stderr.write(str(found))
            sys.exit(int(code))
        raise CommandError(str(found), returncode=int(code)) from error


def _given(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """For project.parameters()."""
    job = job_options(name, options)
    _check(name, options)
    paths = ["rejects"] + (
        ["source"] if options.get("format") in ("parquet", "csv", "json") else []
    )
    job |= {path: _absolute(job[path]) for path in paths if job.get(path)}
    return {
        "database_secret": options["database_secret"],
        "redis_secret": options["redis_secret"],
        "lake": os.path.abspath(options["lake"]) if options["lake"] else "",
        "since": iso(options["since"]),
        "until": iso(options["until"]),
        "topic": options["topic"],
        "dry_run": options["dry_run"],
        "job": job,
    }


def _absolute(path: str) -> str:
    """For Spark, wherever it runs. One with a scheme is as it is."""
    return path if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path) else os.path.abspath(path)


def _check(name: str, options: dict[str, Any]) -> None:
    """What the job itself could only say after Java has started."""
    source = options.get("source")
    wanted = name == "export" or (name == "stats" and source != "archive")
    if (wanted or (name == "replay" and source == "lake")) and not options["lake"]:
        raise Refused(f"{name} needs a lake: --lake DIRECTORY, or DELAYQ_LAKE in the environment.")
    if options["since"] and options["until"] and options["since"] >= options["until"]:
        raise Refused(
            f"Nothing finished between {iso(options['since'])} and {iso(options['until'])}: turn "
            f"them round."
        )
    if options["dry_run"] and options.get("repair"):
        raise Refused("--dry-run and --repair contradict each other.")


@contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    """SIGTERM ends as Ctrl-C does: what was made for the job, a file with a password say, goes with
    it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> NoReturn:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
