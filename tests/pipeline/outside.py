"""Spark in processes of its own: jobs as they run on a cluster, where executors have nothing but
the packaged zip."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import pytest

from django_delayq.pipeline import params_from_django
from django_delayq.pipeline.job_errors import SparkMissing
from django_delayq.pipeline.params import ParameterSpec, TaskSpec
from django_delayq.pipeline.session import check_java
from tests.pipeline.quick import JAVA

ROOT = Path(__file__).resolve().parents[2]

#: Jobs about a task of the tests.
TASK = TaskSpec(
    name="tests.app.tasks.record",
    topic="crowd",
    ttr_ms=60_000,
    parameters=[ParameterSpec(name="number", kind="both", annotation="int")],
)
REPLAY = {
    "job": "again", "tasks": [msgspec.to_builtins(TASK)], "by": "anna", "reason": "mended",
    "delay_ms": 3_600_000,
}  # fmt: skip
SCHEDULE = {
    "job": "night", "task": msgspec.to_builtins(TASK), "format": "csv", "key": "k",
    "delay_ms": 86_400_000,
}  # fmt: skip

#: For every Java that is started: Spark's launcher, drivers and executors.
QUICK_JAVA = {"JAVA_TOOL_OPTIONS": JAVA}

#: Runs jobs one after another in one session: CONFIGURATION (JSON), then NAME FILE for each job.
JOBS = """
import json, sys, traceback
from django_delayq.pipeline import session
from django_delayq.pipeline import params_from_django
from django_delayq.pipeline.jobs import run
from django_delayq.pipeline.params import Params

def main(start, *jobs):
    start = json.loads(start)
    every = [(name, Params.decode(open(path, "rb").read())) for name, path in zip(jobs[::2], jobs[1::2])]
    params_from_django.set_up(every[0][1])
    spark = session.build_session(start["master"], "512m", start["conf"])
    for path in start["files"]:
        spark.sparkContext.addPyFile(path)
    session.prepare(spark)  # the formats, too, come from there
    for name, params in every:
        try:
            report = run(name, spark, params, lambda line, *counts: print(line, file=sys.stderr))
            print(report.as_text(), file=sys.stderr)
            print(json.dumps(json.loads(report.as_json())), flush=True)
        except Exception:
            print(json.dumps({"job": name, "error": traceback.format_exc()}), flush=True)
    exec(start["code"], globals() | {"spark": spark, "every": every})
    spark.stop()
    print(session.java_log(), file=sys.stderr)

main(*sys.argv[1:])
"""


def require_java() -> None:
    """Skip the test without Java; fail it in CI."""
    try:
        check_java()
    except SparkMissing as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))


class Ended(NamedTuple):
    """A process that has ended."""

    code: int
    out: str
    err: str
    commands: str
    """Command lines of it and of all it started, as `ps` shows them."""


def run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, seconds: float = 550
) -> Ended:
    """Run it in this folder, which is also its place for temporary files."""
    (folder / "tmp").mkdir(exist_ok=True)
    given = plain_environment() | QUICK_JAVA | {"TMPDIR": str(folder / "tmp")} | dict(environment)
    process = subprocess.Popen(
        command, cwd=folder, env=given, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    seen: set[str] = set()
    watch = threading.Thread(target=_watch, args=(process.pid, seen), daemon=True)
    watch.start()
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        raise AssertionError(
            f"not within {seconds} s:\n{process.communicate()[1][-5000:]}"
        ) from None
    watch.join()
    return Ended(process.returncode, out, err, "\n".join(seen))


def _watch(pid: int, seen: set[str]) -> None:
    while psutil.pid_exists(pid):
        try:
            this = psutil.Process(pid)
            if this.status() == psutil.STATUS_ZOMBIE:
                return
            seen.update(" ".join(one.cmdline()) for one in [this, *this.children(recursive=True)])
        except psutil.NoSuchProcess:
            pass
        time.sleep(0.1)


def plain_environment() -> dict[str, str]:
    """Without what pytest's own session has set for Spark, and without a project."""
    ours = ("PYSPARK_", "SPARK_", "DJANGO_SETTINGS_MODULE")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def python_without_us(folder: Path) -> Path:
    """A Python with all that is installed but django_delayq itself, as an executor's may be."""
    path = folder / "python-without-us"
    site = str(Path(psutil.__file__).parents[1])  # where all that is installed lies
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return path


def spark_home(folder: Path) -> Path:
    """PySpark's folder by links: what its workers write into SPARK_HOME stays out of the
    environment."""
    import pyspark

    home = folder / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
    return home


def write_params(path: Path, **rest: Any) -> str:
    """Parameters with references, as --write-params writes them."""
    with params_from_django.parameters(elsewhere=True, **rest) as params:
        path.write_bytes(params.encode())
    return str(path)


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"Nobody listens at port {port}")


def without_deltalake(folder: Path) -> Path:
    """A Python for executors."""
    blocked = folder / "blocked"
    blocked.mkdir()
    (blocked / "deltalake.py").write_text('raise ImportError("executors have no deltalake")')
    inner = python_without_us(folder)
    path = folder / "python-of-executors"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{blocked}:$PYTHONPATH" exec {inner} "$@"\n')
    path.chmod(0o755)
    return path


def a_hundred_rows(folder: Path) -> str:
    """A file of a hundred rows."""
    path = folder / "rows.csv"
    path.write_text("k,number\n" + "".join(f"{n},{n}\n" for n in range(100)))
    return str(path)
