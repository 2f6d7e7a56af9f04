"""Starts Spark, and refuses a session in which the jobs would be wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import Refused, SparkMissing

#: Java that Spark 4 runs on.
OLDEST_JAVA = 17
FIX = f"Spark needs Java {OLDEST_JAVA} or newer: install a JRE (Debian: openjdk-17-jre-headless) or set JAVA_HOME."


def build_session(
    master: str = "local[*]",
    driver_memory: str = "1g",
    extra: Mapping[str, str] | None = None,
    *,
    app: str = "delayq",
    java_options: str = "",
) -> Any:
    """A SparkSession for a job of its own process. Raises SparkMissing, Refused.

    Spark's session is global and starts a JVM: never in a web process.
    """
    pyspark_sql = _pyspark()
    check_java()
    # Else Spark starts whatever python3 the PATH has, which lacks what this environment has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = pyspark_sql.SparkSession.builder.appName(app).master(master)
    for name, value in {**_defaults(master, driver_memory, java_options), **(extra or {})}.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        if "JAVA_GATEWAY" in str(error):
            raise SparkMissing(f"Java did not start. {FIX}") from error
        raise
    check_session(session)
    return session


def _defaults(master: str, driver_memory: str, java_options: str) -> dict[str, str]:
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return {
        **(local if master.startswith("local") else {}),
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC {_log_option()} {java_options}",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), "delayq-spark-warehouse")),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|credential|dsn|url|uri",
    }


def check_session(session: Any) -> None:
    """Raise Refused for a session, perhaps another's, in which dates would be cut elsewhere than at midnight UTC."""
    zone = session.conf.get("spark.sql.session.timeZone")
    if zone not in ("UTC", "Etc/UTC", "GMT", "+00:00", "Z"):
        raise Refused(
            f"The session's time zone is {zone!r}: hours and days would be other ones. "
            "Set spark.sql.session.timeZone=UTC."
        )


def check_java() -> None:
    """Raise SparkMissing with the fix when there is no Java, or too old a one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not java or not Path(java).exists():
        raise SparkMissing(FIX)
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkMissing(f"{java} does not run. {FIX}") from error
    version = said.partition('"')[2].split(".")[0].strip('"')
    if version.isdecimal() and int(version) < OLDEST_JAVA:
        raise SparkMissing(f"{java} is Java {version}. {FIX}")


def _pyspark() -> Any:
    try:
        from pyspark import sql
    except ImportError as error:
        raise SparkMissing("PySpark is not installed: pip install 'django-delayq[spark]'.") from error
    return sql


def _log_option() -> str:
    """Only errors, from the first line on: Spark's level applies later."""
    path = Path(tempfile.gettempdir(), f"delayq-log4j2-{os.getuid()}.properties")
    path.write_text(
        "rootLogger.level = error\nrootLogger.appenderRef.stderr.ref = stderr\nappender.console.type = Console\n"
        "appender.console.name = stderr\nappender.console.target = SYSTEM_ERR\n"
        "appender.console.layout.type = PatternLayout\nappender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n\n",
        encoding="utf-8",
    )
    return f"-Dlog4j2.configurationFile={path}"
