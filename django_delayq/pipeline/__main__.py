"""The jobs without a Django project: `python -m django_delayq.pipeline JOB --params FILE`, also
under spark-submit."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..core.exceptions import DelayQError
from ..core.job_report import Report, ignore
from . import params_from_django, session
from .job_errors import Refused, code_of
from .jobs import JOBS, add_start_arguments, run_job, start_of
from .params import Params
from .session import submitted


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and print its report. Returns the exit code: see job_errors.Code."""
    parser = argparse.ArgumentParser(prog="python -m django_delayq.pipeline", description=__doc__)
    jobs = "; ".join(f"{job.name}: {job.help.rstrip('.')}" for job in JOBS.values())
    parser.add_argument("job", metavar="JOB", choices=JOBS, help=jobs)
    parser.add_argument(
        "--params",
        required=True,
        metavar="FILE",
        help="Made by `manage.py delayq pipeline JOB --write-params FILE`; - for stdin.",
    )
    parser.add_argument("--json", action="store_true", help="The report as one JSON document.")
    parser.add_argument("--traceback", action="store_true", help="Show all of an error.")
    add_start_arguments(parser)
    options = parser.parse_args(arguments)
    # spark-submit writes standard error and standard output to one place. A program that reads
    # JSON there gets the JSON alone.
    tell = ignore if options.json and submitted() else partial(print, file=sys.stderr, flush=True)
    try:
        try:
            from_stdin = options.params == "-"
            raw = sys.stdin.buffer.read() if from_stdin else Path(options.params).read_bytes()
        except OSError as error:
            raise Refused(f"{options.params} cannot be read: {error.strerror}.") from error
        params = Params.decode(raw)
        start = start_of(vars(options))
        params_from_django.set_up(params)
        report = run_job(options.job, params, start, tell)
    except KeyboardInterrupt:
        tell(f"Interrupted: {JOBS[options.job].options.interrupted}")
        return 130
    except DelayQError as error:
        if options.traceback:
            tell("".join(traceback.format_exception(error)) + session.java_log())
        tell(str(error))
        report = Report(job=options.job, code=code_of(error), problems=[str(error)])
        if not options.json:
            return int(report.code)
    sys.stdout.write((report.as_json() if options.json else report.as_text()) + "\n")
    return int(report.code)


if __name__ == "__main__":
    sys.exit(main())
