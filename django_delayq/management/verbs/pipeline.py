"""Run a job of the data pipeline on Spark, in this process.

Needs the extra `spark` and Java 17. Ctrl-C ends a job safely: run it again to go on. `delayq
pipeline JOB --help` says what a job does and takes.

  python manage.py delayq pipeline export --lake /data/lake
  python manage.py delayq pipeline stats --lake /data/lake --since 7d

Exit codes: 0 done, 1 failed, 2 refused, 3 the audit found differences, 130 Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import getdoc
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import CommandError

from ...pipeline import params_from_django, rendering
from ...pipeline.job_errors import Refused, cause, code_of
from ...pipeline.jobs import (
    JOBS,
    Job,
    Start,
    add_start_arguments,
    interruption,
    run_job,
    start_of,
)
from ...pipeline.params import Report
from ...pipeline.session import java_log
from ..cli import INTERRUPTED, HelpFormatter, Reporter, Verb
from ..pipeline_arguments import add_job_arguments, params_of


class Command(Verb):
    """Runs a job on Spark."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """A sub-command for each job."""
        jobs = parser.add_subparsers(dest="job_name", required=True, metavar="JOB")
        for job in JOBS.values():
            options = jobs.add_parser(
                job.name,
                help=job.help,
                description=getdoc(job.options),
                formatter_class=HelpFormatter,
            )
            add_job_arguments(options, job)
            _add_common(options)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the job and print its report, or write its parameters."""
        job, self.reporter = JOBS[options["job_name"]], Reporter(self.stderr)
        try:
            with _ends_on_sigterm():
                if options["write_params"]:
                    self._write_params(job, options)
                    return
                report = self._run_job(job, options, start_of(options))
        except KeyboardInterrupt:
            self.reporter.clear()
            self.stderr.write(f"Interrupted: {interruption(job.name)}", style_func=str)
            sys.exit(INTERRUPTED)
        except Exception as error:
            self.reporter.clear()
            self._fail(job, error, options)
        self.reporter.clear()
        self.stdout.write((rendering.as_json if options["json"] else rendering.as_text)(report))
        if report.code:
            sys.exit(int(report.code))

    def _run_job(self, job: Job, options: dict[str, Any], start: Start) -> Report:
        with params_from_django.parameters(
            database_secret=options["database_secret"],
            redis_secret=options["redis_secret"],
            elsewhere=start.elsewhere,
            **params_of(job, options),
        ) as params:
            return run_job(job.name, params, start, self.reporter.show)

    def _write_params(self, job: Job, options: dict[str, Any]) -> None:
        with params_from_django.parameters(
            database_secret=options["database_secret"],
            redis_secret=options["redis_secret"],
            elsewhere=True,
            **params_of(job, options),
        ) as params:
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
        """In a sentence; with --json also as a report, with --traceback all of it."""
        found = cause(error)
        code = code_of(found)
        if options["json"]:
            report = Report(job=job.name, code=code, problems=[str(found)])
            self.stdout.write(rendering.as_json(report))
        if options["traceback"]:
            self.stderr.write(
                "".join(traceback.format_exception(error)) + java_log(), style_func=str
            )
            self.stderr.write(str(found))
            sys.exit(int(code))
        raise CommandError(str(found), returncode=int(code)) from error


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
