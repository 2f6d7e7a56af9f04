"""spark-submit to a standalone master with two workers: what a team that has a cluster does. The
executors have neither our package nor deltalake."""

from __future__ import annotations

import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from django_delayq.models import TopicHour
from django_delayq.pipeline.params import Secret, Storage
from tests.databases.processes import Child
from tests.pipeline import outside
from tests.pipeline.rows import make_rows
from tests.servers import PORTS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("delayq", "transactional_db"),
]


class Cluster:
    """A master and two workers with a core each, on this machine."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.port = secrets.choice(PORTS)
        self.home = outside.spark_home(folder)
        self.url = f"spark://127.0.0.1:{self.port}"

    def start(self, name: str, *arguments: str) -> Child:
        """One of Spark's daemons. It ends with the test process."""
        words = [f"{name}={value}" for name, value in self.environment.items()]
        spark = [
            str(self.home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{name.lower()}.{name}",
        ]
        names = ("JAVA_HOME", "PATH", "LANG")
        kept = [
            f"{name}={value}"
            for name, value in outside.plain_environment().items()
            if name in names
        ]
        command = [
            "/usr/bin/env",
            "-i",
            *kept,
            *words,
            *spark,
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            *arguments,
        ]
        return Child(command, self.folder / f"{name}.log")

    def submit(self, *arguments: str) -> outside.Ended:
        """As on a cluster, with the deploy mode that spark-submit has by default."""
        command = [
            str(self.home / "bin" / "spark-submit"),
            "--master",
            self.url,
            "--driver-memory",
            "512m",
        ]
        return outside.run([*command, *arguments], self.environment, self.folder)


@pytest.fixture
def cluster(tmp_path: Path, settings: Any) -> Iterator[Cluster]:
    outside.require_java()
    cluster = Cluster(
        tmp_path,
        {
            "REDIS_OF_TEST": settings.DELAYQ["REDIS"], "PYSPARK_PYTHON": str(without_deltalake(tmp_path)),
            "PYSPARK_DRIVER_PYTHON": str(outside.python_without_us(tmp_path)), "KEY_OF_TEST": "hidden",
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(tmp_path / "spark"), **outside.QUICK_JAVA,
        },
    )  # fmt: skip
    with ExitStack() as stack:
        master = cluster.start("Master", "--port", str(cluster.port))
        stack.callback(master.end, 9)
        wait_for(cluster.port)
        for number in range(2):
            folder = f"{tmp_path}/w{number}"
            size = ("--cores", "1", "--memory", "1g", "--work-dir", folder)
            stack.callback(cluster.start("Worker", *size, cluster.url).end, 9)
        yield cluster


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("Spark's master does not listen")


def without_deltalake(folder: Path) -> Path:
    """A Python for executors."""
    blocked = folder / "blocked"
    blocked.mkdir()
    (blocked / "deltalake.py").write_text('raise ImportError("executors have no deltalake")')
    inner = outside.python_without_us(folder)
    path = folder / "python-of-executors"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{blocked}:$PYTHONPATH" exec {inner} "$@"\n')
    path.chmod(0o755)
    return path


def _kill_an_executor(folder: Path) -> None:
    """As soon as there is one with a Python worker."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        for one in psutil.process_iter(["cmdline"]):
            words = one.info["cmdline"] or []
            ours = any(str(folder) in word for word in words)
            if ours and "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words:
                with suppress(psutil.NoSuchProcess):
                    if one.children(recursive=True):
                        one.kill()
                        return
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("where", ["path", "s3"])
def test_jobs_through_spark_submit_with_an_executor_killed(
    cluster: Cluster, tmp_path: Path, bucket: dict[str, str], where: str
) -> None:
    make_rows(2_000)
    archive, script = str(outside.pack(tmp_path)), tmp_path / "delayq_job.py"
    docs = (outside.ROOT / "docs" / "pipeline" / "cluster.md").read_text()
    script.write_text("".join(re.findall(r"^# delayq_job.py\n(.+?)^```", docs, re.M | re.S)))
    storage = Storage(str(tmp_path / "lake"))
    if where == "s3":
        secrets = {"AWS_SECRET_ACCESS_KEY": Secret("env:KEY_OF_TEST")}
        storage = Storage(f"s3://shop/{tmp_path.name}", bucket, secrets)
    given = {"redis_secret": "env:REDIS_OF_TEST", "lake": storage}
    killer = threading.Thread(target=_kill_an_executor, args=(tmp_path,), daemon=True)
    killer.start()
    said = {}
    for name, job in (("export", {"settle": 0.0}), ("stats", {}), ("audit", {"pause": 0.0})):
        params = outside.write_params(tmp_path / f"{name}.json", job=job, **given)
        ended = cluster.submit(
            "--conf", "spark.speculation=true", "--py-files", archive, str(script), name,
            "--params", params, "--json",
        )  # fmt: skip
        assert ended.code == 0, ended.err[-5000:]
        said[name] = json.loads(ended.out)
        assert "hidden" not in ended.commands + ended.err + Path(params).read_text()
        assert len(ended.err.splitlines()) < 100, "the log is quiet"
    assert not killer.is_alive(), "an executor was killed"
    assert said["export"]["figures"]["rows"] == said["audit"]["figures"]["rows_compared"] == 2_000
    assert sum(TopicHour.objects.values_list("messages", flat=True)) == 2_000
