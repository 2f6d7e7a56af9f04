"""manage.py run_delayq and the database: which tables it needs, and who archives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_delayq.management.commands import run_delayq as module
from django_delayq.models import ArchivedMessage, OperatorAction, OutboxMessage, UnarchivableEntry
from django_delayq.store.store import RedisStore
from django_delayq.worker.process.runner import ExitCode
from tests.app.tasks import record, seen
from tests.management.test_run_delayq import LONG_AGO, refused

pytestmark = pytest.mark.usefixtures("quiet")

# Tables


@pytest.fixture
def without_tables(delayq: RedisStore, transactional_db: None) -> Iterator[None]:
    """A database that nobody has migrated."""
    models = (ArchivedMessage, OutboxMessage, UnarchivableEntry, OperatorAction)
    with connection.schema_editor() as editor:
        for model in models:
            editor.delete_model(model)
    yield
    with connection.schema_editor() as editor:
        for model in models:
            editor.create_model(model)


@pytest.mark.usefixtures("without_tables")
@pytest.mark.parametrize("args", [[], ["--archiver"], ["--burst"], ["--processes", "2"]])
def test_missing_tables_end_with_2_and_say_what_to_do(args: list[str]) -> None:
    error = refused(*args)
    assert error.returncode == ExitCode.CONFIGURATION == 2
    assert "Database 'default' has no table django_delayq_archivedmessage, django_delayq_o" in str(
        error
    )
    assert "Run: manage.py migrate" in str(error)
    assert "--no-archiver" in str(error)


@pytest.mark.usefixtures("without_tables")
def test_no_archiver_needs_no_tables(run_delayq: Any) -> None:
    record.using(due_at=datetime.fromisoformat(LONG_AGO)).enqueue("x")
    run_delayq("--burst", "--no-archiver")
    assert seen == ["x"]


def test_database_that_is_away_is_no_reason_not_to_start(
    run_delayq: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*args: Any) -> Any:
        raise OperationalError("connection refused")

    with monkeypatch.context() as patched:
        patched.setattr(module, "run", lambda *args, **kwargs: 0)
        patched.setattr(connection.introspection, "table_names", away)
        run_delayq()
    assert (
        "database 'default' does not answer; the archive waits for it: connection refused"
        in caplog.text
    )


# Archiving


def test_burst_archives_what_it_has_run(run_delayq: Any) -> None:
    handle = record.using(due_at=datetime.fromisoformat(LONG_AGO)).enqueue("x")
    run_delayq("--burst")
    row = ArchivedMessage.objects.get()
    assert (row.message_id.hex, row.state, row.task) == (handle.id, "acked", record.name)


def test_archiver_alone_archives_and_runs_nothing(run_delayq: Any) -> None:
    task = record.using(due_at=datetime.fromisoformat(LONG_AGO))
    task.enqueue("x")
    run_delayq("--burst", "--no-archiver")
    assert not ArchivedMessage.objects.exists()
    task.enqueue("y")
    run_delayq("--burst", "--archiver")
    assert seen == ["x"]
    assert ArchivedMessage.objects.get().state == "acked"


@pytest.mark.parametrize(
    ("args", "names"),
    [
        ([], ["archiver", "relay", "reconciler", "bulk", "statistics", "unserved", "ticker"]),
        (["--no-archiver"], []),
    ],
)
def test_worker_hosts_the_services_of_sql(
    run_delayq: Any, monkeypatch: pytest.MonkeyPatch, args: list[str], names: list[str]
) -> None:
    hosted: list[str] = []
    monkeypatch.setattr(
        module,
        "run",
        lambda worker, *args, **kwargs: hosted.extend(s.name for s in worker.sql_services) or 0,
    )
    run_delayq(*args)
    assert hosted == names


def test_one_of_several_processes_hosts_them(
    run_delayq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted: list[int] = []

    class Recorded:
        def __init__(self, count: int, run_worker: Callable[[int], int], finite: bool) -> None:
            self.run = lambda: max(run_worker(index) for index in range(count))

    monkeypatch.setattr(module, "Supervisor", Recorded)
    monkeypatch.setattr(
        module,
        "run",
        lambda worker, health_at, **options: hosted.append(len(worker.sql_services)) or 0,
    )
    run_delayq("--processes", "3")
    assert hosted == [7, 0, 0]
