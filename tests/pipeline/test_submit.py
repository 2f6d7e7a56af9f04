"""spark-submit to a standalone master with two workers: what a team that has a cluster does. The
executors have neither our package nor deltalake."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from django_delayq.client.topics import list_messages
from django_delayq.core.message import key_id
from django_delayq.models import ArchivedMessage, TopicHour
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.params import Secret, Storage
from django_delayq.pipeline.session import pack
from tests.pipeline import outside
from tests.pipeline.clusters import Cluster
from tests.pipeline.lakes import ids_in
from tests.pipeline.rows import make_rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("delayq", "transactional_db"),
]

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@pytest.fixture
def cluster(tmp_path: Path, settings: Any) -> Iterator[Cluster]:
    outside.require_java()
    cluster = Cluster(
        tmp_path,
        {
            "REDIS_OF_TEST": settings.DELAYQ["REDIS"], "PYSPARK_PYTHON": str(outside.without_deltalake(tmp_path)),
            "PYSPARK_DRIVER_PYTHON": str(outside.python_without_us(tmp_path)), "KEY_OF_TEST": "hidden",
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(tmp_path / "spark"), **outside.QUICK_JAVA,
        },
    )  # fmt: skip
    with cluster.running():
        yield cluster


class Killer(threading.Thread):
    """Kills an executor of the next application, as soon as it has a Python worker."""

    def __init__(self, folder: Path, earlier: set[str]) -> None:
        super().__init__(daemon=True)
        self.folder, self.earlier = str(folder), earlier
        self.application, self.pid, self.ended = "", 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.05) and not self.pid:
            for one in psutil.process_iter(["cmdline"]):
                with suppress(psutil.NoSuchProcess):
                    self._kill(one, one.info["cmdline"] or [])
                if self.pid:
                    return

    def _kill(self, one: psutil.Process, words: list[str]) -> None:
        if EXECUTOR not in words or not any(self.folder in word for word in words):
            return
        application = words[words.index("--app-id") + 1]
        children = [word for child in one.children(recursive=True) for word in child.cmdline()]
        if application in self.earlier or "pyspark.daemon" not in children:
            return
        one.kill()
        one.wait(20)
        self.application, self.pid = application, one.pid


@pytest.mark.long
@pytest.mark.parametrize("where", ["path", "s3"])
def test_jobs_through_spark_submit_with_an_executor_of_each_killed(
    cluster: Cluster,
    tmp_path: Path,
    bucket: dict[str, str],
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEY_OF_TEST", "hidden")  # this process, too, reads the lake
    make_rows(2_000)
    make_rows(50, state="dead", topic="crowd", task=outside.TASK.name, body=_body)
    archive, source = str(pack(tmp_path)), outside.a_hundred_rows(tmp_path)
    script, storage = _script(tmp_path), _storage(tmp_path, bucket, where)
    given = {"redis_secret": "env:REDIS_OF_TEST", "lake": storage}
    jobs = {
        "export": {"settle": 0.0}, "stats": {}, "replay": outside.REPLAY,
        "schedule": {**outside.SCHEDULE, "source": source}, "audit": {"pause": 0.0},
    }  # fmt: skip
    said, killed = {}, set[str]()
    for name, job in jobs.items():
        params = outside.write_params(tmp_path / f"{name}.json", job=job, **given)
        events = tmp_path / f"events-{name}"
        events.mkdir()
        with _an_executor_killed(tmp_path, killed):
            ended = cluster.submit(
                "--conf", "spark.speculation=true", "--conf", "spark.eventLog.enabled=true",
                "--conf", f"spark.eventLog.dir={events}",
                "--conf", "spark.eventLog.compress=false", "--py-files", archive, script, name,
                "--params", params, "--json",
            )  # fmt: skip
        assert ended.code == 0, ended.err[-5000:]
        said[name] = json.loads(ended.out)
        assert _lost_executors(events) == 1, f"{name} has lost none"
        assert "hidden" not in ended.commands + ended.err + Path(params).read_text()
        assert len(ended.err.splitlines()) < 100, "the log is quiet"
    assert len(killed) == len(jobs), "each job is an application of its own"
    assert said["export"]["figures"]["rows"] == said["audit"]["figures"]["rows_compared"] == 2_050
    assert len(set(ids_in(Lake(storage)))) == len(ids_in(Lake(storage))) == 2_050
    assert sum(TopicHour.objects.values_list("messages", flat=True)) == 2_050
    assert ArchivedMessage.objects.exclude(replayed_by=None).count() == 50
    waiting = {bytes.fromhex(one.id) for one in list_messages("crowd", limit=500).messages}
    assert len(waiting) == 150
    assert {key_id("crowd", str(n)) for n in range(100)} <= waiting


def _body(number: int) -> str:
    return json.dumps({"args": [number], "kwargs": {}})


def _script(folder: Path) -> str:
    """The one of the docs."""
    docs = (outside.ROOT / "docs" / "pipeline" / "cluster.md").read_text()
    script = folder / "delayq_job.py"
    script.write_text("".join(re.findall(r"^# delayq_job.py\n(.+?)^```", docs, re.M | re.S)))
    return str(script)


def _storage(folder: Path, bucket: dict[str, str], where: str) -> Storage:
    if where == "path":
        return Storage(str(folder / "lake"))
    secrets = {"AWS_SECRET_ACCESS_KEY": Secret("env:KEY_OF_TEST")}
    return Storage(f"s3://shop/{folder.name}", bucket, secrets)


@contextmanager
def _an_executor_killed(folder: Path, applications: set[str]) -> Iterator[None]:
    """One of the application that is submitted meanwhile; its id is added to these."""
    killer = Killer(folder, applications)
    killer.start()
    yield
    killer.ended.set()
    killer.join()
    assert killer.pid, "no executor was killed"
    assert not psutil.pid_exists(killer.pid)
    applications.add(killer.application)


def _lost_executors(events: Path) -> int:
    """How many the application has missed before its end, by its own event log."""
    lines = [
        json.loads(line)
        for path in sorted(events.rglob("events_*"))
        for line in path.read_text().splitlines()
    ]
    return sum(
        line["Event"] == "SparkListenerExecutorRemoved" and "137" in line["Removed Reason"]
        for line in lines
    )
