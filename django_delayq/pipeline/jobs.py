"""The jobs: the one list of them, from which the command line is made, and how a job is run in a
session of its own."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from ..core.job_report import Report, Tell, ignore
from . import params as parameters
from .job_errors import Refused, cause
from .params import CREDENTIALS, SECRET_NAME, Params
from .session import adapt, start_session


class Job(NamedTuple):
    """A job, and where its code is."""

    name: str
    options: type[parameters.JobOptions]
    """What it takes; the docstring is its help."""
    module: str
    """Has run(spark, params, tell) -> Report. It is loaded when the job runs, because it needs
    Spark, and Django set up."""

    @property
    def help(self) -> str:
        """A line that says what the job does."""
        return (self.options.__doc__ or "").partition("\n")[0]


JOBS = {
    job.name: job
    for job in (
        Job("export", parameters.ExportOptions, ".export.export"),
        Job("stats", parameters.StatsOptions, ".stats.stats"),
        Job("check", parameters.CheckOptions, ".stats.thresholds"),
        Job("forecast", parameters.ForecastOptions, ".forecast"),
        Job("audit", parameters.AuditOptions, ".audit.audit"),
        Job("schedule", parameters.ScheduleOptions, ".bulk_load.schedule"),
        Job("replay", parameters.ReplayOptions, ".bulk_load.replay"),
    )
}


class Start(NamedTuple):
    """How Spark is started. Under spark-submit the options of spark-submit count instead."""

    master: str = "local[*]"
    driver_memory: str = "1g"
    configuration: Mapping[str, str] = {}

    @property
    def elsewhere(self) -> bool:
        """Whether executors may be on other machines."""
        return not self.master.startswith("local")


def check_params(name: str, params: Params) -> parameters.JobOptions:
    """The options of the job. Raises Refused when it cannot run with these parameters. Needs no
    Spark."""
    options = params.options(JOBS[name].options)
    options.check(params)
    return options


def run(name: str, spark: Any, params: Params, tell: Tell = ignore) -> Report:
    """Run a job in this session. Raises Refused and other DelayQErrors: then nothing is half
    done."""
    if "spark" in check_params(name, params).needs():
        adapt(spark)
    return import_module(JOBS[name].module, __package__).run(spark, params, tell)


def run_job(name: str, params: Params, start: Start, tell: Tell) -> Report:
    """Run a job in the active session, or in a new one that ends with the job, if it needs one.

    Raises only DelayQErrors. The __cause__ of one is the error that Spark raised.
    """
    options = check_params(name, params)  # before Java takes its seconds

    def work() -> Report:
        active = spark = None
        try:
            if "spark" in options.needs():
                with suppress(ImportError):  # start_session() says what is missing
                    from pyspark.sql import SparkSession

                    active = SparkSession.getActiveSession()
                spark = start_session(*start)
            return run(name, spark, params, tell)
        except Exception as error:
            found = cause(error)
            if found is error:
                raise
            raise found from error
        finally:
            if spark is not None and active is None:
                with suppress(Exception):  # Java may be gone; the error that is raised says why
                    spark.stop()

    # Few projects use it, and the others do not load it.
    if not _tells_lineage():
        return work()
    from .lineage import with_lineage

    return with_lineage(name, params, tell, work)


def _tells_lineage() -> bool:
    """Whether OpenLineage is configured, by its own environment variables."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").lower() == "true":
        return False
    return any(
        name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
        or name.startswith("OPENLINEAGE__TRANSPORT")
        for name in os.environ
    )


# The command line


def add_start_arguments(parser: ArgumentParser) -> None:
    """Add the options that become a Start."""
    parser.add_argument(
        "--master",
        default="local[*]",
        help="Where Spark runs. (default: %(default)s, all cores of this machine)",
    )
    parser.add_argument(
        "--driver-memory", default="1g", help="Memory of Java here. (default: %(default)s)"
    )
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Configuration of Spark, no secrets. May be repeated.",
    )


def start_of(given: Mapping[str, Any]) -> Start:
    """The Start that the values of these options mean.

    Raises Refused for a --conf that is not NAME=VALUE, and for one that holds a secret: every user
    of the machine can see it.
    """
    configuration = {}
    for pair in given["conf"]:
        name, found, value = pair.partition("=")
        if not found or not name.strip():
            raise Refused(
                f"--conf {name!r}: write NAME=VALUE, for example spark.executor.memory=4g."
            )
        if re.search(SECRET_NAME, name) or CREDENTIALS.search(value):
            raise Refused(
                f"--conf {name} looks like a secret, which every user of this machine and Spark's "
                f"event log would see. "
                "Put it into spark-defaults.conf or a credentials provider; for the database and "
                "Redis give references."
            )
        configuration[name.strip()] = value.strip()
    if re.search(SECRET_NAME, given["master"].partition(";")[2]):
        raise Refused(
            "--master has a secret among its parameters, which every user of this machine can see. "
            "Give the token of Spark Connect as SPARK_CONNECT_AUTHENTICATE_TOKEN."
        )
    return Start(given["master"], given["driver_memory"], configuration)
