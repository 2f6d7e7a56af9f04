"""Spark Connect: the jobs of a driver that has no Java, against the server that PySpark brings. Its
Python has neither our package nor deltalake."""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_delayq.client.topics import list_messages
from django_delayq.core.message import key_id
from django_delayq.models import ArchivedMessage, TopicHour
from django_delayq.pipeline.jobs import JOBS
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.params import Storage
from django_delayq.stats.hourly import compute_hour
from tests.databases.processes import Child
from tests.pipeline import outside
from tests.pipeline.lakes import ids_in
from tests.pipeline.rows import INSTANTS, make_rows
from tests.servers import PORTS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("delayq", "transactional_db"),
]

CLUSTER = (outside.ROOT / "docs" / "pipeline" / "cluster.md").read_text()
#: What the docs say of each job.
ON_CONNECT = dict(re.findall(r"^\| `(\w+)` \| (yes|no|it needs no Spark)\b", CLUSTER, re.M))
Job = Callable[..., dict[str, Any]]


@pytest.fixture
def connect(tmp_path: Path, settings: Any) -> Iterator[str]:
    """The address of a server of Spark Connect."""
    outside.require_java()
    port, home = secrets.choice(PORTS), outside.spark_home(tmp_path)
    given = {
        **outside.plain_environment(), **outside.QUICK_JAVA,
        "REDIS_OF_TEST": settings.DELAYQ["REDIS"], "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(home), "PYSPARK_PYTHON": str(outside.without_deltalake(tmp_path)),
    }  # fmt: skip
    words = [f"{name}={value}" for name, value in given.items()]
    options = {
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": port,
        "spark.ui.enabled": "false", "spark.sql.warehouse.dir": tmp_path / "warehouse",
        "spark.local.dir": tmp_path / "scratch",
    }  # fmt: skip
    child = Child(
        [
            "/usr/bin/env", "-i", *words, str(home / "bin" / "spark-submit"), "--master", "local[2]",
            "--driver-memory", "1g",
            *(word for name, value in options.items() for word in ("--conf", f"{name}={value}")),
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
        ],
        tmp_path / "server.log",
    )  # fmt: skip
    try:
        outside.wait_for(port)
        yield f"sc://127.0.0.1:{port}"
    finally:
        child.end(9)


@pytest.fixture
def job(connect: str, tmp_path: Path, settings: Any) -> Job:
    """Runs a job in a process without Java; returns its report."""

    def run(name: str, **given: Any) -> dict[str, Any]:
        params = outside.write_params(
            tmp_path / f"{name}.json", redis_secret="env:REDIS_OF_TEST", **given
        )
        command = [sys.executable, "-m", "django_delayq.pipeline", name, "--params", params]
        environment = {
            "JAVA_HOME": "/nowhere", "PATH": "/nowhere", "PYTHONPATH": str(outside.ROOT),
            "REDIS_OF_TEST": settings.DELAYQ["REDIS"],
        }  # fmt: skip
        ended = outside.run([*command, "--master", connect, "--json"], environment, tmp_path)
        report: dict[str, Any] = json.loads(ended.out) if ended.out else {}
        assert report, ended.err[-5000:]
        assert "java" not in ended.commands
        return {"problems": (), **report}

    return run


def test_the_docs_say_of_each_job_whether_it_runs_there() -> None:
    assert ON_CONNECT.keys() == JOBS.keys()


@pytest.mark.long
def test_each_job_runs_through_spark_connect(job: Job, tmp_path: Path) -> None:
    make_rows(2_000)
    make_rows(
        50, state="dead", topic="crowd", task=outside.TASK.name, body='{"args":[7],"kwargs":{}}'
    )
    lake = Storage(str(tmp_path / "lake"))
    jobs: dict[str, Callable[[], dict[str, Any]]] = {
        "export": lambda: job("export", lake=lake, job={"settle": 0.0}),
        "stats": lambda: job("stats", lake=lake),
        "check": lambda: job("check", since=INSTANTS[0], job={"messages": 1}),
        "replay": lambda: job("replay", lake=lake, job=outside.REPLAY),
        "schedule": lambda: job(
            "schedule", job={**outside.SCHEDULE, "source": outside.a_hundred_rows(tmp_path)}
        ),
        "forecast": lambda: job("forecast"),
        "audit": lambda: job("audit", lake=lake, job={"pause": 0.0}),
    }
    assert jobs.keys() == {name for name, runs in ON_CONNECT.items() if runs != "no"}
    said = {name: run() for name, run in jobs.items()}
    assert {name: report["code"] for name, report in said.items()} == dict.fromkeys(jobs, 0), said
    assert said["export"]["figures"]["rows"] == said["audit"]["figures"]["rows_compared"] == 2_050
    assert len(ids_in(Lake(lake))) == 2_050
    counted = {row.topic: (row.messages, row.lateness) for row in TopicHour.objects.all()}
    compute_hour(INSTANTS[0])
    assert counted == {row.topic: (row.messages, row.lateness) for row in TopicHour.objects.all()}
    assert counted["orders"][0] == 2_000
    dead = ArchivedMessage.objects.filter(state="dead")
    assert dead.exclude(replayed_by=None).count() == 50
    waiting = {bytes.fromhex(one.id) for one in list_messages("crowd", limit=500).messages}
    assert len(waiting) == 150
    assert {key_id("crowd", str(n)) for n in range(100)} <= waiting
    for name in ("export", "schedule", "replay"):  # the same again does nothing twice
        jobs[name]()
    assert len(list_messages("crowd", limit=500).messages) == 150
    assert len(ids_in(Lake(lake))) == 2_050


@pytest.mark.long
def test_what_is_wrong_is_refused_there_too(job: Job, tmp_path: Path) -> None:
    make_rows(3, state="dead", topic="crowd", task=outside.TASK.name)
    lake = Storage(str(tmp_path / "lake"))
    job("export", lake=lake, job={"settle": 0.0})
    for where, why in (("rand() < 0.5", "Do without rand"), ("nobody = 1", "does not fit")):
        report = job("replay", lake=lake, job={**outside.REPLAY, "where": where})
        assert report["code"] == 2
        assert why in report["problems"][0]
    precious = tmp_path / "bad" / "night.rejects" / "thesis.doc"
    precious.parent.mkdir(parents=True)
    precious.write_text("years")
    given = {
        **outside.SCHEDULE,
        "source": outside.a_hundred_rows(tmp_path),
        "rejects": str(tmp_path / "bad"),
    }
    report = job("schedule", job=given)
    assert (report["code"], "did not write thesis.doc" in report["problems"][0]) == (2, True)
    assert precious.read_text() == "years"


def test_without_a_server_or_its_packages_it_says_what_to_do(tmp_path: Path, settings: Any) -> None:
    make_rows(1)
    params = outside.write_params(
        tmp_path / "export.json", redis_secret="env:REDIS_OF_TEST",
        lake=Storage(str(tmp_path / "lake")), job={"settle": 0.0},
    )  # fmt: skip
    command = [sys.executable, "-m", "django_delayq.pipeline", "export", "--params", params]
    nobody = f"sc://127.0.0.1:{secrets.choice(PORTS)}"
    says = f"No Spark Connect server answers at {nobody.removeprefix('sc://')}: "
    environment = {"PYTHONPATH": str(outside.ROOT), "REDIS_OF_TEST": settings.DELAYQ["REDIS"]}
    ended = outside.run([*command, "--master", nobody], environment, tmp_path)
    assert (ended.code, says in ended.err) == (2, True)
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "grpc.py").write_text("raise ImportError('blocked', name='grpc')")
    environment["PYTHONPATH"] += f":{tmp_path / 'blocked'}"
    ended = outside.run([*command, "--master", nobody], environment, tmp_path)
    assert "pip install 'django-delayq[spark,connect]'" in ended.err
