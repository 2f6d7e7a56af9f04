"""manage.py delayq connections: what a fleet needs, beside what the servers allow."""

from __future__ import annotations

import json
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command

from django_delayq.core.conf import get_settings
from django_delayq.management.sql_services import sql_services
from django_delayq.management.verbs import connections
from django_delayq.store.store import RedisStore
from django_delayq.worker.worker import SERVICE_THREADS, Worker, WorkerOptions
from tests.app.batch_tasks import gather

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq")]


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The tasks of the project: none."""
    tasks: dict[str, Any] = {}
    monkeypatch.setattr(connections, "registry", SimpleNamespace(by_name=tasks))
    return tasks


def counted(*args: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the answer."""
    out = StringIO()
    code: Any = 0
    try:
        call_command("delayq", "connections", "--json", *args, stdout=out)
    except SystemExit as end:
        code = end.code
    return code, json.loads(out.getvalue())


def test_a_worker_has_as_many_services_as_are_counted(delayq: RedisStore) -> None:
    worker = Worker(delayq, get_settings(), WorkerOptions(topics=("orders",)))
    assert len(worker.services) == SERVICE_THREADS


def test_each_thread_of_a_fleet_counts(delayq: RedisStore) -> None:
    services = len(sql_services(delayq, ""))
    code, answer = counted(
        "--workers", "3", "--processes", "2", "--concurrency", "16", "--web-threads", "10"
    )
    assert [part["what"] for part in answer["parts"]] == [
        "worker with services",
        "worker",
        "web thread",
    ]
    assert answer["redis"] == 6 * (7 + 17) + 3 * services + 10
    assert answer["database"] == 6 * 17 + 3 * services + 10
    assert code == 0


def test_batches_have_threads_of_their_own(declared: dict[str, Any]) -> None:
    before = counted("--concurrency", "16")[1]
    declared["gather"] = gather
    after = counted("--concurrency", "16")[1]
    assert [after[name] - before[name] for name in ("redis", "database")] == [16, 16]


def test_archivers_of_their_own_leave_the_services_to_themselves(delayq: RedisStore) -> None:
    services = len(sql_services(delayq, ""))
    _, answer = counted("--workers", "4", "--no-archiver", "--archivers", "2")
    assert answer["database"] == 4 * 9 + 2 * services


@pytest.mark.databases
def test_more_than_the_servers_allow_is_an_error_that_cron_sees() -> None:
    code, answer = counted("--workers", "10000", "--concurrency", "1000")
    assert code == 1
    redis, database = answer["servers"]
    assert redis["allowed"] >= redis["now"] >= 1
    assert database["now"] >= 1
    assert database["allowed"] is None or database["allowed"] >= database["now"]


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("delayq", "connections", "--workers", "2")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["what", "processes", "Redis", "each"]
    assert any(line.startswith("at most") for line in lines)
    assert lines[-2].startswith("Redis 7")
    assert "needed" in lines[-1]


def test_kinds_without_processes_are_left_out() -> None:
    nobody = dict.fromkeys(("workers", "archivers", "web_threads"), 0)
    options = {**nobody, "processes": 1, "concurrency": 8, "no_archiver": False}
    assert connections.fleet(options, 5) == []
