"""The command, with something in place of its job."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

from django.core.management import CommandError, call_command

from django_delayq.core.job_report import Report
from django_delayq.pipeline.jobs import Start, check_params
from django_delayq.pipeline.params import Params


class Call:
    """What the command gave to its job, and what it wrote."""

    def __init__(self) -> None:
        self.report: Report | Exception = Report(job="export")
        self.params: Params
        self.start: Start
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> None:
        out, err = StringIO(), StringIO()
        try:
            call_command("delayq", "pipeline", *arguments, stdout=out, stderr=err)
        finally:
            self.out, self.err = out.getvalue(), err.getvalue()

    def code(self, *arguments: str) -> int:
        """The exit code."""
        try:
            self(*arguments)
        except CommandError as error:
            self.err += str(error)
            return error.returncode
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    def job(self, name: str, params: Params, start: Start, tell: Callable[[str], object]) -> Report:
        """In place of the job."""
        self.params, self.start = params, start
        check_params(name, params)
        if isinstance(self.report, BaseException):
            raise self.report
        return self.report
