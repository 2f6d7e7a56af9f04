"""The databases of tests/databases: the one of this run, and one beside it to stop and kill."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from operator import methodcaller
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.conf import settings
from django.db import connection
from django.db.utils import ConnectionHandler, OperationalError

from tests.databases import VARIABLE, Database, Server, kind_of, launcher, require
from tests.databases.__main__ import main
from tests.databases.processes import ended
from tests.servers import wait_until

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = {
    "sqlite": "SELECT sqlite_version()",
    "postgresql": "SELECT version()",
    "mariadb": "SELECT version()",
}
VENDORS = {"sqlite": "sqlite", "postgresql": "postgresql", "mariadb": "mysql"}

pytestmark = [pytest.mark.databases, pytest.mark.django_db]


@pytest.fixture
def kind() -> str:
    """The kind that this run is about."""
    return kind_of(connection.settings_dict)


@pytest.fixture(scope="module")
def own() -> Iterator[Database]:
    kind = kind_of(settings.DATABASES["default"])
    require(kind)
    with launcher(kind) as database:
        yield database


@pytest.fixture
def database(own: Database) -> Database:
    """Not the database of the run: one to stop. It runs again at the start of every test."""
    own.start()
    ask(
        own,
        "DROP TABLE IF EXISTS notes",
        "CREATE TABLE notes (id integer)",
        "INSERT INTO notes VALUES (7)",
    )
    return own


@pytest.fixture
def server(database: Database) -> Server:
    if not isinstance(database, Server):
        pytest.skip("SQLite has no server")
    return database


def ask(database: Database, *statements: str) -> Any:
    """Run them on a new connection; the rows of the last one."""
    connection = ConnectionHandler({"default": database.entry})["default"]
    with closing(connection), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else None


def test_the_suite_runs_on_the_database_that_it_was_told(kind: str) -> None:
    told = json.loads(os.environ.get(VARIABLE, '{"ENGINE": "django.db.backends.sqlite3"}'))
    assert connection.vendor == VENDORS[kind_of(told)]
    assert connection.settings_dict["PORT"] == told.get("PORT", "")
    with connection.cursor() as cursor:
        cursor.execute(VERSIONS[kind])
        (version,) = cursor.fetchone()
    assert {"sqlite": "3.", "postgresql": "PostgreSQL", "mariadb": "MariaDB"}[kind] in version


@pytest.mark.long
def test_worker_processes_use_the_database_that_they_are_told(database: Database) -> None:
    program = (
        "import django; django.setup(); from django.db import connection; cursor = "
        "connection.cursor();"
        "cursor.execute('SELECT id FROM notes'); print(cursor.fetchone()[0])"
    )
    told = {
        VARIABLE: json.dumps(database.entry),
        "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings",
    }
    said = subprocess.check_output(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ | told, text=True
    )
    assert said.strip() == "7"


@pytest.mark.parametrize(
    "end",
    [methodcaller("stop"), methodcaller("stop", immediate=True), methodcaller("kill")],
    ids=["stop", "now", "kill"],
)
def test_a_database_started_again_has_its_rows_and_its_address(
    database: Database, end: Callable[[Database], None]
) -> None:
    entry = database.entry
    end(database)
    database.start()
    assert database.entry == entry
    assert list(ask(database, "SELECT id FROM notes")) == [(7,)]


def test_a_stopped_server_refuses_connections(server: Server) -> None:
    server.stop()
    with pytest.raises(OperationalError):
        ask(server, "SELECT 1")


def test_a_killed_server_leaves_no_process_behind(server: Server) -> None:
    assert server.pid is not None
    main_process = psutil.Process(server.pid)
    processes = [main_process, *main_process.children(recursive=True)]
    server.kill()
    assert server.pid is None
    assert all(map(ended, processes))


def test_a_database_leaves_nothing_behind(kind: str) -> None:
    require(kind)
    with launcher(kind) as database:
        process = psutil.Process(database.pid) if isinstance(database, Server) else None
        assert database.folder.is_dir()
    assert not database.folder.exists()
    assert process is None or ended(process)


@pytest.mark.long
@pytest.mark.skipif(
    sys.platform != "linux", reason="nothing tells a process that its parent was killed"
)
def test_a_server_ends_with_a_killed_test_process(server: Server) -> None:
    program = (
        "import sys; from tests.databases import launcher; database = launcher(sys.argv[1]); "
        "database.start();"
        "print(database.pid, database.folder, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, server.kind],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        running = psutil.Process(int(pid))
        parent.kill()
    wait_until(lambda: ended(running), "the server has ended")
    shutil.rmtree(folder)


@pytest.mark.long
def test_a_durable_database_serves(kind: str) -> None:
    require(kind)
    with launcher(kind, durable=True) as database:
        assert list(ask(database, "SELECT 1")) == [(1,)]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'oracle'; known are sqlite, postgresql, mariadb"):
        launcher("oracle")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [(["oracle", "true"], "invalid choice: 'oracle'"), (["sqlite"], "a command is missing")],
)
def test_the_command_line_refuses_what_it_cannot_run(
    given: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(given)
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_a_command_runs_with_a_database_and_its_code_is_handed_on(ends: str, code: int) -> None:
    program = (
        f"import json, os, sys; print(json.loads(os.environ['{VARIABLE}'])['ENGINE'], flush=True); "
        f"{ends}"
    )
    command = [sys.executable, "-m", "tests.databases", "sqlite", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (code, "django.db.backends.sqlite3")


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_a_missing_server_is_passed_over_on_a_laptop_and_fails_in_ci(
    ci: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.databases.mariadb.on_path", lambda *_: None)
    monkeypatch.setenv("CI", ci)
    assert main(["mariadb", "false"]) == code
    assert (
        "no server for 'mariadb': install MariaDB (apt-get install mariadb-server)"
        in capsys.readouterr().err
    )
    with pytest.raises(
        pytest.fail.Exception if ci else pytest.skip.Exception,
        match="apt-get install mariadb-server",
    ):
        require("mariadb")
