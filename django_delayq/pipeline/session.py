"""Starts Spark, refuses a session in which the jobs would be wrong, spreads work over it, and says
how far that is."""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from .job_errors import Refused, SparkMissing
from .params import SECRET_NAME

Part = TypeVar("Part")

#: Java that Spark 4 runs on.
OLDEST_JAVA = 17
FIX = (
    f"Spark needs Java {OLDEST_JAVA} or newer: install a JRE (Debian: openjdk-17-jre-headless) or "
    f"set JAVA_HOME."
)
INSTALL = "pip install 'django-delayq[spark]'."
INSTALL_CONNECT = "pip install 'django-delayq[spark,connect]'."
#: How the URL of a server of Spark Connect begins.
CONNECT = "sc://"
#: The port of such a server, and the seconds in which it has to answer.
CONNECT_PORT, WAIT = 15_002, 10.0

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
#: The modules of our formats, and the data source of each.
_FORMATS = {
    ".lake.lake_source": "LakeSource",
    ".sources.archive_source": "ArchiveSource",
    ".sources.outbox_source": "OutboxSource",
    ".sources.query_source": "QuerySource",
    ".sources.queue_source": "QueueSource",
    ".sinks.queue_sink": "QueueSink",
}
#: Seconds between two looks at how far a job is.
PACE = 0.5
_SHUFFLE = "spark.sql.shuffle.partitions"
#: How many partitions Spark makes unless it is told: each is a task.
SPARK_PARTITIONS = "200"
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

    The session is global and starts a JVM: never call this in a web process. Under spark-submit,
    which has started Java, `master` and `driver_memory` have no effect. With a `master` sc://... it
    is a session of Spark Connect: Java runs at the server. `extra` is configuration of Spark and
    overrides ours.
    """
    pyspark_sql = _pyspark()
    if (active := pyspark_sql.SparkSession.getActiveSession()) is not None:
        adapt(active)  # a builder would change its zone, and with it what its owner sees
    if master.startswith(CONNECT):
        return _connected(pyspark_sql, master, extra or {})
    configuration = dict(_NEEDED)
    if submitted():
        configuration |= _quiet()
    else:
        check_java()
        # Otherwise Spark starts the first python3 of the PATH, which lacks our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        configuration |= {"spark.master": master, **_defaults(master, driver_memory, java_options)}
    configuration |= {"spark.app.name": "delayq", **(extra or {})}
    builder = pyspark_sql.SparkSession.builder.config(map=configuration)
    if not submitted():
        _start_java(configuration)
    return builder.getOrCreate()


def _connected(pyspark_sql: Any, url: str, extra: Mapping[str, str]) -> Any:
    """A session of Spark Connect that has our package, as Python at the server needs it."""
    try:
        import_module("grpc")
    except ImportError as error:
        raise SparkMissing(f"Spark Connect needs {error.name}: {INSTALL_CONNECT}") from error
    # Its other configuration is the server's.
    ours = {name: value for name, value in _NEEDED.items() if name.startswith("spark.sql.")}
    where = urlsplit(url)
    try:
        # The client itself would try again for ten minutes.
        socket.create_connection((where.hostname, where.port or CONNECT_PORT), WAIT).close()
    except OSError as error:
        raise SparkMissing(
            f"No Spark Connect server answers at {where.hostname}:{where.port or CONNECT_PORT}: "
            f"{error}. Start one (sbin/start-connect-server.sh), or give its address as --master."
        ) from error
    builder = pyspark_sql.SparkSession.builder.remote(url).config(map={**ours, **extra})
    session = builder.getOrCreate()
    session.addArtifacts(str(pack(_scratch())), pyfile=True)
    return session


def pack(folder: Path) -> Path:
    """This package as a zip in the folder, for Python elsewhere. Spark wants that name."""
    package = Path(__file__).parents[1]
    packed = folder / f"{package.name}.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in package.rglob("*"):
            if path.suffix in (".py", ".lua"):
                archive.write(path, path.relative_to(package.parent))
    return packed


def build_session(
    master: str = "local[*]",
    driver_memory: str = "1g",
    extra: Mapping[str, str] | None = None,
    *,
    java_options: str = "",
) -> Any:
    """A SparkSession for work of your own: start_session() with our formats registered."""
    return prepare(start_session(master, driver_memory, extra, java_options=java_options))


def prepare(session: Any) -> Any:
    """Adapt a session that exists already, for example in a notebook, and register our formats: the
    sources for reading, `delayq` for writing. A second call does no harm. Raises Refused."""
    adapt(session)
    for name, source in _FORMATS.items():
        session.dataSource.register(getattr(import_module(name, __package__), source))
    return session


def adapt(session: Any) -> None:
    """Make a session, perhaps another's, fit for the jobs: set options that are Spark's own
    defaults, and slow; what somebody has set stays. Raises Refused where dates would be cut
    elsewhere than at midnight UTC."""
    zone = session.conf.get("spark.sql.session.timeZone")
    if zone not in UTC:
        raise Refused(
            f"The session's time zone is {zone!r}: hours and days would be other ones. "
            "Set spark.sql.session.timeZone=UTC."
        )
    if session.conf.get(_SHUFFLE) == SPARK_PARTITIONS:
        session.conf.set(_SHUFFLE, str(max(8, 2 * parallelism(session))))


def _quiet() -> dict[str, str]:
    """Under spark-submit: only errors in the log, unless somebody has set it, so that the report
    is seen."""
    from pyspark import SparkConf

    given = SparkConf()
    wanted = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    return {name: value for name, value in wanted.items() if not given.contains(name)}


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


def parallelism(spark: Any) -> int:
    """How many tasks run at a time."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual name
    from pyspark.sql.utils import is_remote

    if not is_remote():
        return int(spark.sparkContext.defaultParallelism)
    # A server says it only by what it does.
    numbers = spark.range(1 << 16).select(F.spark_partition_id().alias("number"))
    return int(numbers.agg(F.max("number")).collect()[0][0]) + 1


def spread(
    spark: Any,
    parts: Sequence[Part],
    work: Callable[[Part], Iterable[Any]],
    schema: Any,
) -> Any:
    """The record batches that `work` yields for each part, as a DataFrame with this schema of
    Arrow: each part is a task of its own. Both travel to the executors."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(parts[number])

    numbers = spark.range(0, len(parts), numPartitions=max(1, len(parts)))
    return numbers.mapInArrow(task, from_arrow_schema(schema))


@contextmanager
def watched(spark: Any, show: Callable[[float], object]) -> Iterator[None]:
    """Call show(share) again and again, with the share of the tasks that have ended (0 to 1)."""
    from pyspark.sql.utils import is_remote

    if is_remote():

        def handle(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
            if total := sum(stage.num_tasks for stage in stages):
                show(sum(stage.num_completed_tasks for stage in stages) / total)

        spark.registerProgressHandler(handle)
        try:
            yield
        finally:
            spark.removeProgressHandler(handle)
        return
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        while not ended.wait(PACE):
            with suppress(Exception):  # Java may end meanwhile: the job itself says so
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                if found := [stage for stage in stages if stage and stage.numTasks]:
                    show(found[0].numCompletedTasks / found[0].numTasks)

    thread = threading.Thread(target=watch, name="delayq-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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


def java_log() -> str:
    """What Java and Python's workers have written, if this process started the session."""
    try:
        return Path(_scratch(), "log").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


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


def _start_java(configuration: Mapping[str, str]) -> None:
    """Start Java, unless this process has started it before. Raises SparkMissing.

    The output of Java and of Python's workers goes to java_log(), because both write much that
    nobody needs. Java ends with this process, unless the process is interrupted while Java starts:
    therefore a thread starts it, and an interruption kills it.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf(loadDefaults=False).setAll(list(configuration.items()))
    with Path(_scratch(), "log").open("ab") as file, ThreadPoolExecutor(1) as thread:
        starting = thread.submit(launch_gateway, conf, {"stdout": file, "stderr": file})
        try:
            gateway = starting.result()
        except (KeyboardInterrupt, SystemExit):
            with suppress(Exception):
                starting.result().proc.kill()
            raise
        except Exception as error:
            if "JAVA_GATEWAY" not in str(error):
                raise
            lines = reversed(java_log().splitlines())
            why = next((line for line in lines if "rror" in line), "").strip()
            raise SparkMissing(f"Java did not start{f' ({why})' if why else ''}. {FIX}") from error
    SparkContext._ensure_initialized(gateway=gateway)


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
        _SHUFFLE: "8",
    }


@cache
def _scratch() -> Path:
    """A folder of this process that only this user can enter; it goes with the process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(private_folder())


# Folders that only this user can enter. A process removes its own folder at its end, and the
# folders of killed processes when it makes a new one.

PREFIX = "delayq-job-"
_LOCK = ".lock"
#: Seconds for which a folder without a lock may be one that is just being made.
_YOUNG = 60.0


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder for this context. Its content may be a password, so it is removed even when the
    process is killed: the next process sweeps it."""
    sweep()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # of mode 700
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / _LOCK).exists():
                continue  # another process swept before the lock was held
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return


def sweep() -> None:
    """Remove the folders of this user's processes that have ended: nobody holds their locks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = folder.stat()
            if status.st_uid != os.getuid():
                continue
            if (folder / _LOCK).exists():
                with (folder / _LOCK).open("r") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError while it is held
                    shutil.rmtree(folder, ignore_errors=True)
            elif time.time() - status.st_mtime > _YOUNG:
                shutil.rmtree(folder, ignore_errors=True)
