"""Runs one job in a session of its own, and turns whatever goes wrong into a sentence and an exit
code."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from .error_messages import cause
from .errors import Refused
from .jobs import check, run
from .params import SECRET_NAME, Params, Report, Tell
from .session import start_session

#: scheme://user:password@host
_CREDENTIALS = re.compile(r"://[^/\s]*:[^/\s]*@")


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """How Spark is started; under spark-submit, its own options say that."""

    master: str = "local[*]"
    driver_memory: str = "1g"
    configuration: Mapping[str, str] = {}

    @property
    def elsewhere(self) -> bool:
        """Whether executors may be on other machines."""
        return not self.master.startswith("local")


def run_job(name: str, params: Params, start: Start, tell: Tell) -> Report:
    """Run one of jobs.JOBS. Raises DelayQError, whatever Spark raised; its __cause__ is what that
    was."""
    check(name, params)  # before Java takes its seconds
    try:
        with _session(start) as spark:
            return run(name, spark, params, tell)
    except Exception as error:
        found = cause(error)
        if found is error:
            raise
        raise found from error


def add_start_arguments(parser: ArgumentParser) -> None:
    """The options that become a Start. Under spark-submit its own options count."""
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
    """From the values of these options. Raises Refused."""
    return Start(
        master=given["master"],
        driver_memory=given["driver_memory"],
        configuration=configuration_of(given["conf"]),
    )


def interruption(name: str) -> str:
    """What an interrupted job has left."""
    if name in ("schedule", "replay"):
        return "what was sent stays; the same job again sends the rest."
    return "nothing is half done; run it again to go on."


def configuration_of(pairs: Sequence[str]) -> dict[str, str]:
    """From NAME=VALUE. Raises Refused for what is no such thing, and for a secret: anybody may see
    it."""
    given = {}
    for pair in pairs:
        name, found, value = pair.partition("=")
        if not found or not name.strip():
            raise Refused(
                f"--conf {name!r}: write NAME=VALUE, for example spark.executor.memory=4g."
            )
        if re.search(SECRET_NAME, name) or _CREDENTIALS.search(value):
            raise Refused(
                f"--conf {name} looks like a secret, which every user of this machine and Spark's "
                f"event log would see. "
                "Put it into spark-defaults.conf or a credentials provider; for the database and "
                "Redis give references."
            )
        given[name.strip()] = value.strip()
    return given


@contextmanager
def _session(start: Start) -> Iterator[Any]:
    """One that ends with the job, unless it was there before."""
    before = _active()
    spark = start_session(start.master, start.driver_memory, start.configuration)
    try:
        yield spark
    finally:
        if before is None:
            with suppress(Exception):  # Java may be gone; the reason is on its way up
                spark.stop()


def _active() -> Any:
    with suppress(ImportError):
        from pyspark.sql import SparkSession

        return SparkSession.getActiveSession()
    return None
