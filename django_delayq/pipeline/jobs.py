"""The jobs: the one list of them, from which the command line is made."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from . import options
from .params import Params, Report, Tell, ignore
from .session import check_session


class Job(NamedTuple):
    """A job, and where its code is."""

    name: str
    options: type[options.Options]
    """What it takes; the docstring is its help."""
    module: str
    """Has run(spark, params, tell) -> Report. It is loaded when the job runs: it needs Spark, and
    Django set up."""

    @property
    def help(self) -> str:
        """A line that says what the job does."""
        return (self.options.__doc__ or "").partition("\n")[0]


JOBS = {
    job.name: job
    for job in (
        Job("export", options.ExportOptions, ".export.export"),
        Job("stats", options.StatsOptions, ".stats.stats"),
        Job("forecast", options.ForecastOptions, ".forecast.forecast"),
        Job("audit", options.AuditOptions, ".audit.audit"),
        Job("schedule", options.ScheduleOptions, ".bulk_load.schedule"),
        Job("replay", options.ReplayOptions, ".bulk_load.replay"),
    )
}


def check(name: str, params: Params) -> None:
    """Raise Refused when the job cannot do what the parameters ask. Needs no Spark."""
    params.options(JOBS[name].options).check(params)


def run(name: str, spark: Any, params: Params, tell: Tell = ignore) -> Report:
    """Run a job in this session. Raises Refused and other DelayQErrors: then nothing is half
    done."""
    check(name, params)
    check_session(spark)
    report: Report = import_module(JOBS[name].module, __package__).run(spark, params, tell)
    return report
