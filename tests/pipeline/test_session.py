"""The session: quiet, in UTC, with our formats, and gone without a trace."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from django_delayq.pipeline import session
from django_delayq.pipeline.job_errors import Refused, SparkMissing
from django_delayq.pipeline.session import PREFIX, private_folder
from tests.databases.processes import ended
from tests.pipeline.outside import plain_environment
from tests.servers import wait_until

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parent.parent.parent

_OWN = """
from django_delayq.pipeline import session
spark = session.build_session("local[1]")
print(spark.range(3).count(), spark.sparkContext.getConf().get("spark.local.dir"))
spark.stop()
"""


@pytest.fixture
def foreign(spark: Any) -> Iterator[Any]:
    """A session of somebody in New York."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_session_in_another_zone_is_refused(foreign: Any) -> None:
    with pytest.raises(Refused, match=r"America/New_York.*hours and days would be other ones"):
        session.prepare(foreign)


def test_a_session_that_is_there_is_not_moved_to_another_zone(foreign: Any) -> None:
    with pytest.raises(Refused):
        session.build_session("local[1]")
    assert foreign.conf.get("spark.sql.session.timeZone") == "America/New_York"


@pytest.mark.long
def test_every_session_has_our_formats_and_takes_them_again(spark: Any) -> None:
    session.prepare(spark)
    for name in ("delayq_archive", "delayq_outbox", "delayq_queue"):
        assert "message_id" in spark.read.format(name).load().columns
    with pytest.raises(Exception, match="This frame has no"):
        spark.range(1).write.format("delayq").mode("append").save()


def test_python_of_the_workers_is_this_one(spark: Any) -> None:
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    rows = spark.range(1).mapInArrow(_executable, "executable string").collect()
    assert rows[0].executable == sys.executable


def _executable(batches: Any) -> Any:
    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"executable": [sys.executable]})


def test_files_of_a_session_are_for_this_user_only(spark: Any) -> None:
    folder = Path(spark.conf.get("spark.local.dir"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "log4j2.properties").exists()


def test_secrets_in_the_configuration_are_masked(spark: Any) -> None:
    assert spark.conf.get("spark.redaction.regex") == session.REDACTED


@pytest.mark.long
def test_a_session_says_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", _OWN], cwd=tmp_path, env=plain_environment() | {"TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    count, folder = process.stdout.split()
    assert count == "3"
    assert process.stderr == ""
    assert folder.startswith(f"{tmp_path}/{PREFIX}")
    assert [
        path.name for path in tmp_path.iterdir() if not path.name.startswith("hsperfdata")
    ] == []


def test_an_interrupted_start_leaves_no_java(tmp_path: Path) -> None:
    code = f"import signal, sys; signal.signal(15, lambda *_: sys.exit(143))\n{_OWN}"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=plain_environment() | {"TMPDIR": str(tmp_path)},
    )
    this = psutil.Process(process.pid)
    wait_until(lambda: any("java" in child.name() for child in this.children()), "Java starts", 60)
    (java,) = (child for child in this.children() if "java" in child.name())
    process.terminate()
    assert process.wait(60) == 143
    wait_until(lambda: ended(java), "Java has ended", 20)


def test_a_folder_of_a_killed_process_goes_when_the_next_begins(
    tmp_path: Path, monkeypatch: Any
) -> None:
    code = (
        "import os, signal\nfrom django_delayq.pipeline.session import private_folder\n"
        "with private_folder() as folder:\n    (folder / 'secret').write_text('hunter2')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with private_folder() as running:
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False
        )
        (left,) = set(tmp_path.iterdir()) - {running}
        assert (left / "secret").exists()
        with private_folder() as own:
            assert set(tmp_path.iterdir()) == {running, own}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_swept_before_its_lock_is_held_is_made_anew(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    real, swept = fcntl.flock, []

    def late(file: Any, how: int) -> None:
        if how == fcntl.LOCK_EX and not swept:
            swept.append(True)
            session.sweep()
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with private_folder() as folder:
        assert swept and (folder / session._LOCK).exists()
        session.sweep()
        assert folder.exists()


# Guards that need no session


def test_without_pyspark_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SparkMissing, match=r"pip install 'django-delayq\[spark\]'"):
        session.build_session()


def test_a_pandas_that_pyspark_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas

    monkeypatch.setattr(pandas, "__version__", "3.1.1")
    with pytest.raises(SparkMissing, match=r"pandas 3.1.1 is too new"):
        session.build_session()


def test_a_java_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("not a program")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissing, match=rf"{tmp_path}/bin/java does not run"):
        session.check_java()


def test_java_is_not_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SparkMissing, match="Spark needs Java 17"):
        session.check_java()
