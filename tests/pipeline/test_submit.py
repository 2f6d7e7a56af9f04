"""spark-submit to a standalone master with a worker: what a team that has a cluster does."""

from __future__ import annotations

import json
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from django_delayq.models import TopicHour
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
    """A master and a worker with two cores, on this machine."""

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
            "REDIS_OF_TEST": settings.DELAYQ["REDIS"], "PYSPARK_PYTHON": str(outside.python_without_us(tmp_path)),
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(tmp_path / "spark"), **outside.QUICK_JAVA,
        },
    )  # fmt: skip
    with ExitStack() as stack:
        master = cluster.start("Master", "--port", str(cluster.port))
        stack.callback(master.end, 9)
        _wait_for(cluster.port)
        worker = cluster.start(
            "Worker", "--cores", "2", "--memory", "1g", "--work-dir", f"{tmp_path}/w", cluster.url
        )
        stack.callback(worker.end, 9)
        yield cluster


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("Spark's master does not listen")


@pytest.mark.long
def test_export_and_stats_through_spark_submit(cluster: Cluster, tmp_path: Path) -> None:
    make_rows(2_000)
    archive, script = str(outside.pack(tmp_path)), tmp_path / "delayq_job.py"
    docs = (outside.ROOT / "docs" / "pipeline" / "cluster.md").read_text()
    script.write_text("".join(re.findall(r"^# delayq_job.py\n(.+?)^```", docs, re.M | re.S)))
    given = {"redis_secret": "env:REDIS_OF_TEST", "lake": str(tmp_path / "lake")}
    said = {}
    for name, job in (("export", {"settle": 0.0}), ("stats", {})):
        params = outside.write_params(tmp_path / f"{name}.json", job=job, **given)
        ended = cluster.submit(
            "--py-files", archive, str(script), name, "--params", params, "--json"
        )
        assert ended.code == 0, ended.err[-5000:]
        said[name] = json.loads(ended.out)
    assert said["export"]["figures"]["rows"] == 2_000
    assert sum(TopicHour.objects.values_list("messages", flat=True)) == 2_000
