"""What a worker says and does when Redis is absent, late or unfit at its start."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue
from tests.acceptance.process import ROOT
from tests.databases import Database, launcher
from tests.servers import Server, wait_until

pytestmark = pytest.mark.acceptance

Servers = Callable[..., Server]
Queues = Callable[..., Queue]


def test_absent_redis_is_named_within_a_second_and_ends_with_code_3(
    queue: Queue, figure: Figure
) -> None:
    began = time.monotonic()
    worker = queue.begin(
        "--connect-timeout", "1", DELAYQ_TEST_REDIS="redis://:secret@127.0.0.1:1/0"
    )
    worker.wait_for("Cannot reach Redis")
    said = time.monotonic() - began
    assert worker.wait() == 3
    ended = time.monotonic() - began
    startup = _time_of_django()
    figure(
        f"said after {said:.2f} s (of which {startup:.2f} s are Python and Django), ended after "
        f"{ended:.2f} s"
    )

    assert said - startup < 1
    assert 1 <= ended < startup + 3
    assert "--embedded" in worker.err
    assert "secret" not in worker.output
    assert "Traceback" not in worker.output


def test_redis_may_appear_within_the_connect_timeout(own_server: Servers, queue_on: Queues) -> None:
    server = own_server()
    queue = queue_on(server)
    handles = tasks.note.enqueue_many([()] * 10)
    server.kill()
    worker = queue.begin("--connect-timeout", "20")
    worker.wait_for("Trying again for 20 s")

    server.restart()

    worker.ready()
    queue.wait_for_runs(handles)
    assert worker.stop() == 0


def test_redis_that_evicts_is_refused_with_code_2(own_server: Servers, queue_on: Queues) -> None:
    worker = queue_on(own_server(maxmemory="100mb", maxmemory_policy="allkeys-lru")).begin()

    assert worker.wait() == 2

    assert "delayq.E011" in worker.err
    assert "CONFIG SET maxmemory-policy noeviction" in worker.err
    assert "Ready" not in worker.out


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (
            ["--topics", "orders"],
            {},
            "'orders' is not declared. Known: async, default, keyed, paced.",
        ),
        (["--topics", "default:0"], {}, "a weight is a whole number from 1 to 100"),
        (["--concurrency", "0"], {}, "from 1 to 1,000"),
        (["--embedded"], {}, "--embedded is for development"),
        ([], {"DELAYQ_TEST_SETTINGS": '{"TTL": 3}'}, "Did you mean TTR?"),
        ([], {"DELAYQ_TEST_REDIS": "http://127.0.0.1"}, "use one of redis"),
        (["--log-format", "xml"], {}, "auto, pretty, logfmt"),
        (["--shutdown-timeout", "-1"], {}, "--shutdown-timeout"),
        (["--archiver", "--no-archiver"], {}, "--archiver and --no-archiver contradict each other"),
    ],
)
def test_wrong_options_and_settings_end_with_code_2(
    queue: Queue, arguments: list[str], environment: dict[str, str], said: str
) -> None:
    worker = queue.begin(*arguments, **environment)
    assert worker.wait() == 2
    assert said in worker.err
    assert "Traceback" not in worker.err


def test_task_with_a_name_that_is_taken_is_an_error_at_the_start(queue: Queue) -> None:
    worker = queue.begin(DELAYQ_TEST_CODE="twice")
    assert worker.wait() != 0
    assert "Two tasks are named" in worker.err


def test_health_port_that_is_taken_is_said_in_words(queue: Queue) -> None:
    worker = queue.begin("--health-port", queue.url.rpartition(":")[2].partition("/")[0])
    assert worker.wait() == 2
    assert "--health-port" in worker.err
    assert "Traceback" not in worker.err


def test_process_that_cannot_start_says_why(queue: Queue) -> None:
    worker = queue.worker(
        "--processes", "2", "--health-port", queue.url.rpartition(":")[2].partition("/")[0]
    )
    worker.wait_for("cannot start: --health-port")
    worker.wait_for("a new one starts")
    assert worker.stop() == 0


# The database


@pytest.fixture
def database() -> Iterator[Database]:
    """A SQLite file, still empty."""
    with launcher("sqlite") as database:
        yield database


def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database.entry["NAME"])) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("arguments", [[], ["--archiver"], ["--burst"]])
def test_missing_tables_end_with_code_2_and_say_what_to_do(
    aof_server: Server, queue_on: Queues, database: Database, arguments: list[str]
) -> None:
    queue = queue_on(aof_server, database=database.entry)
    handles = tasks.note.enqueue_many([()] * 5)

    worker = queue.begin(*arguments)

    assert worker.wait() == 2
    assert "has no table django_delayq_" in worker.err
    assert "django_delayq_archivedmessage, " in worker.err
    assert "Run: manage.py migrate" in worker.err
    assert "Ready" not in worker.out
    assert "Traceback" not in worker.err
    assert queue.live() == len(handles)


def test_no_archiver_starts_without_the_tables(
    aof_server: Server, queue_on: Queues, database: Database
) -> None:
    queue = queue_on(aof_server, database=database.entry)
    handles = tasks.note.enqueue_many([()] * 5)
    assert queue.begin("--no-archiver", "--burst").wait() == 0
    assert queue.acked_once(handles)


@pytest.mark.long
def test_archiver_alone_archives_what_is_there_and_ends(
    aof_server: Server, queue_on: Queues, database: Database
) -> None:
    queue = queue_on(aof_server, database=database.entry)
    queue.migrate()
    acked = tasks.note.enqueue_many([()] * 1200) + tasks.note.using(topic="async").enqueue_many(
        [()] * 30
    )
    dead = tasks.fail_odd.using(max_attempts=1).enqueue(1)
    assert queue.begin("--no-archiver", "--burst").wait() == 0
    later = tasks.note.using(delay=3600).enqueue()

    assert queue.begin("--archiver", "--burst").wait() == 0

    archived = rows(
        database, "SELECT message_id, state, error_class FROM django_delayq_archivedmessage"
    )
    assert sorted(archived) == sorted(
        [*((h.id, "acked", "") for h in acked), (dead.id, "dead", "ValueError")]
    )
    assert (queue.ends(), queue.ends("async")) == ([], [])
    assert queue.live() == 1
    assert not queue.history.starts(later)
    assert queue.begin("--archiver", "--burst").wait() == 0  # and with nothing to do


@pytest.mark.long
def test_archiver_alone_runs_no_task(
    aof_server: Server, queue_on: Queues, database: Database
) -> None:
    queue = queue_on(aof_server, database=database.entry)
    queue.migrate()
    handle = tasks.note.enqueue()
    worker = queue.worker("--archiver")
    queue.worker("--no-archiver", "--max-messages", "1").wait()
    wait_until(
        lambda: rows(database, "SELECT state FROM django_delayq_archivedmessage") == [("acked",)],
        "archived",
    )
    assert {run.pid for run in queue.history.starts(handle)} == {queue.workers[1].pid}
    assert worker.stop() == 0


def test_worker_with_a_database_archives_what_it_has_run(
    aof_server: Server, queue_on: Queues, database: Database
) -> None:
    queue = queue_on(aof_server, database=database.entry)
    queue.migrate()
    handles = tasks.note.enqueue_many([()] * 50)
    assert queue.begin("--burst").wait() == 0
    archived = rows(
        database, "SELECT message_id FROM django_delayq_archivedmessage WHERE state = 'acked'"
    )
    assert sorted(archived) == sorted((handle.id,) for handle in handles)
    assert queue.ends() == []


def _time_of_django() -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", "django", "check", "--settings", "tests.acceptance.settings"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: process.poll() is not None, "Django has started and ended")
    return time.monotonic() - began
