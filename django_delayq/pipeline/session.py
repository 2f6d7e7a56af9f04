"""Starts Spark, and refuses a session in which the jobs would be wrong."""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from .errors import Refused, SparkMissing
from .params import SECRET_NAME

#: Java that Spark 4 runs on.
OLDEST_JAVA = 17
FIX = (
    f"Spark needs Java {OLDEST_JAVA} or newer: install a JRE (Debian: openjdk-17-jre-headless) or "
    f"set JAVA_HOME."
)
INSTALL = "pip install 'django-delayq[spark]'."

#: What Spark masks wherever it shows its configuration.
REDACTED = SECRET_NAME + "|credential|url|uri"
UTC = ("UTC", "Etc/UTC", "GMT", "+00:00", "Z")

#: Without these the jobs would be wrong, or not run.
_NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.redaction.regex": REDACTED,
}
#: Modules whose data sources every session gets.
_FORMATS = (
    ".sources.archive",
    ".sources.outbox",
    ".sources.query",
    ".sources.queue",
    ".sinks.queue",
)
_LOG = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def start_session(
    master: str = "local[*]",
    driver_memory: str = "1g",
    extra: Mapping[str, str] | None = None,
    *,
    java_options: str = "",
) -> Any:
    """A SparkSession for the jobs, which register the sources that they need. Raises SparkMissing,
    Refused.

    Spark's session is global and starts a JVM: never in a web process. Under spark-submit, which
    has started Java and chosen the master, both and the memory are as it says. `extra` is Spark's
    configuration and goes before ours.
    """
    pyspark_sql = _pyspark()
    if (active := pyspark_sql.SparkSession.getActiveSession()) is not None:
        check_session(active)  # a builder would change its zone, and with it what its owner sees
    theirs = submitted()
    configuration = dict(_NEEDED)
    if not theirs:
        check_java()
        _prepare_environment(master)
        configuration |= {"spark.master": master, **_defaults(master, driver_memory, java_options)}
    configuration |= {"spark.app.name": "delayq", **(extra or {})}
    builder = pyspark_sql.SparkSession.builder
    for name, value in configuration.items():
        builder = builder.config(name, value)
    return builder.getOrCreate() if theirs else _started(builder, configuration)


def build_session(
    master: str = "local[*]",
    driver_memory: str = "1g",
    extra: Mapping[str, str] | None = None,
    *,
    java_options: str = "",
) -> Any:
    """A SparkSession for work of your own: as start_session(), with our formats."""
    return prepare(start_session(master, driver_memory, extra, java_options=java_options))


def prepare(session: Any) -> Any:
    """Check a session that somebody else has made, in a notebook say, and register our sources.
    Raises Refused."""
    check_session(session)
    register_formats(session)
    return session


def register_formats(session: Any) -> None:
    """Make our formats known to this session: those of sources/ to read, `delayq` to write. Again
    is no harm."""
    for name in _FORMATS:
        module = import_module(name, __package__)
        for source in vars(module).values():
            if _is_source(source) and source.__module__ == module.__name__:
                session.dataSource.register(source)


def check_session(session: Any) -> None:
    """Raise Refused for a session, perhaps another's, in which dates would be cut elsewhere than at
    midnight UTC."""
    zone = session.conf.get("spark.sql.session.timeZone")
    if zone not in UTC:
        raise Refused(
            f"The session's time zone is {zone!r}: hours and days would be other ones. "
            "Set spark.sql.session.timeZone=UTC."
        )


@contextmanager
def configured(session: Any, values: Mapping[str, str]) -> Iterator[None]:
    """With other values of Spark's configuration, and then with those that were there."""
    before = {name: session.conf.get(name, None) for name in values}
    for name, value in values.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            session.conf.unset(name) if old is None else session.conf.set(name, old)


def submitted() -> bool:
    """Whether this process was started by spark-submit."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def check_java() -> None:
    """Raise SparkMissing with the fix when there is no Java, or too old a one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not java or not Path(java).exists():
        raise SparkMissing(f"JAVA_HOME is {home}, where no bin/java is. {FIX}" if home else FIX)
    try:
        version = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkMissing(f"{java} does not run. {FIX}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', version)  # Java 8 calls itself 1.8
    if found and int(found[1]) < OLDEST_JAVA:
        raise SparkMissing(f"{java} is Java {found[1]}. {FIX}")


def log() -> str:
    """What Java and Python's workers have written since the start of a session that this process
    started."""
    try:
        return Path(_scratch(), "log").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _is_source(value: Any) -> bool:
    from pyspark.sql.datasource import DataSource

    return isinstance(value, type) and issubclass(value, DataSource) and value is not DataSource


def _pyspark() -> Any:
    try:
        import pandas
        import pyarrow  # noqa: F401
        from pyspark import sql
    except ImportError as error:
        name = {"pyspark": "PySpark"}.get(error.name or "", error.name or "PySpark")
        raise SparkMissing(f"{name} is not installed: {INSTALL}") from error
    if int(pandas.__version__.split(".")[0]) >= 3:
        raise SparkMissing(f"pandas {pandas.__version__} is too new for PySpark: {INSTALL}")
    return sql


def _prepare_environment(master: str) -> None:
    # Else Spark starts whatever python3 the PATH has, which lacks what this environment has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _started(builder: Any, configuration: Mapping[str, str]) -> Any:
    from pyspark import SparkContext

    if SparkContext._gateway is None:
        try:
            SparkContext._ensure_initialized(gateway=_java(configuration))
        except Exception as error:
            if "JAVA_GATEWAY" in str(error):
                why = next(
                    (line for line in reversed(log().splitlines()) if "rror" in line), ""
                ).strip()
                raise SparkMissing(
                    f"Java did not start{f' ({why})' if why else ''}. {FIX}"
                ) from error
            raise
    return builder.getOrCreate()


def _java(configuration: Mapping[str, str]) -> Any:
    """A running Java. What it and Python's workers write goes to log(), for Java greets, and
    workers show pages.

    It ends with this process, but not if that is interrupted while it starts: therefore that is in
    a thread.
    """
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False).setAll(list(configuration.items()))
    with Path(_scratch(), "log").open("ab") as file, ThreadPoolExecutor(1) as thread:
        starting = thread.submit(launch_gateway, conf, {"stdout": file, "stderr": file})
        try:
            return starting.result()
        except (KeyboardInterrupt, SystemExit):
            with suppress(Exception):
                starting.result().proc.kill()
            raise


def _defaults(master: str, driver_memory: str, java_options: str) -> dict[str, str]:
    scratch = _scratch()
    # Only errors, from the first line on: Spark's own level applies later.
    log_settings = scratch / "log4j2.properties"
    log_settings.write_text(_LOG, encoding="utf-8")
    here = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
    }
    return {
        **(here if master.startswith("local") else {}),
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": (
            f"-Duser.timezone=UTC -Dlog4j2.configurationFile={log_settings} {java_options}".strip()
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "8",
    }


@cache
def _scratch() -> Path:
    """A folder of this process that only this user can enter; it goes with the process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(private_folder())


# Folders that only this user can enter. A process removes its own at its end, and those of killed
# processes when it makes one.

PREFIX = "delayq-job-"
_LOCK = ".lock"
#: Seconds for which a folder without a lock may be one that is just being made.
_YOUNG = 60.0


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new one for this context. What it holds goes even after a kill: it may be a password."""
    sweep()
    folder, lock = _locked()
    with lock:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove what processes of this user left that have ended: nobody holds its lock any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                _remove_left(folder)


def _locked() -> tuple[Path, TextIO]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # of mode 700
        lock = (folder / _LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _LOCK).exists():
            return folder, lock
        lock.close()  # another process swept before the lock was held


def _remove_left(folder: Path) -> None:
    if not (folder / _LOCK).exists():
        if time.time() - folder.stat().st_mtime > _YOUNG:
            shutil.rmtree(folder, ignore_errors=True)
        return
    with (folder / _LOCK).open("r") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError while it is held
        shutil.rmtree(folder, ignore_errors=True)
