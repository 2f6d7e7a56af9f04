"""The jobs without a Django project: `python -m django_delayq.pipeline JOB --params FILE`, also
under spark-submit."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from ..core.exceptions import DelayQError
from . import params_from_django, rendering, session
from .error_messages import code_of
from .errors import Refused
from .jobs import JOBS
from .params import Params, Report, Tell, ignore
from .runner import Start, configuration_of, interruption, run_job
from .session import submitted


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and print its report. Returns the exit code: see errors.Code."""
    options = _parser().parse_args(arguments)
    # spark-submit puts standard error and output together: a program that reads JSON gets nothing
    # else.
    say = ignore if options.json and submitted() else _say
    try:
        report = _run(options, say)
    except KeyboardInterrupt:
        say(f"Interrupted: {interruption(options.job)}")
        return 130
    except DelayQError as error:
        if options.traceback:
            say("".join(traceback.format_exception(error)) + session.log())
        say(str(error))
        report = Report(job=options.job, code=code_of(error), problems=[str(error)])
        if not options.json:
            return int(report.code)
    sys.stdout.write((rendering.as_json if options.json else rendering.as_text)(report) + "\n")
    return int(report.code)


def _run(options: argparse.Namespace, say: Tell) -> Report:
    path = options.params
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}.") from error
    params = Params.decode(raw)
    start = Start(
        master=options.master,
        driver_memory=options.driver_memory,
        configuration=configuration_of(options.conf),
    )
    params_from_django.set_up(params)
    return run_job(options.job, params, start, say)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m django_delayq.pipeline", description=__doc__)
    parser.add_argument(
        "job", choices=JOBS, help="; ".join(f"{name}: {what}" for name, what in JOBS.items())
    )
    parser.add_argument(
        "--params", required=True, help="file that delayq_pipeline --write-params made; - for stdin"
    )
    parser.add_argument("--json", action="store_true", help="the report for programs")
    parser.add_argument("--traceback", action="store_true", help="show all of an error")
    parser.add_argument(
        "--master", default="local[*]", help="without spark-submit (default: %(default)s)"
    )
    parser.add_argument(
        "--driver-memory", default="1g", help="without spark-submit (default: %(default)s)"
    )
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="of Spark; no secrets"
    )
    return parser


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
