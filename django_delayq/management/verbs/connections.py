"""Count the connections that a fleet can have at most, beside what the servers allow.

Give the numbers of the fleet as it is to be. The formula is in docs/how-to/deploy.md. Beside the
result stands what is connected now, also by others.

  python manage.py delayq connections --workers 3 --processes 2 --concurrency 16
  python manage.py delayq connections --workers 4 --no-archiver --archivers 2 --web-threads 32

Exit codes: 0 it fits, 1 it may not fit.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, NamedTuple

from django.db import connections

from ...core.conf import get_settings
from ...store import get_store
from ...store.inspection import inspect_server
from ...tasks import registry
from ...worker.worker import SERVICE_THREADS, WorkerOptions
from ..cli import Answer, Verb, whole
from ..sql_services import sql_services

_HEAD = ("what", "processes", "Redis each", "database each", "Redis", "database")


class Part(NamedTuple):
    """Processes of one kind, and the most connections of each."""

    what: str
    processes: int
    redis: int
    database: int


class Command(Verb):
    """Adds up connections."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The fleet."""
        numbers = (
            ("workers", 1, "run_delayq commands"),
            ("processes", 1, "--processes of each"),
            ("concurrency", WorkerOptions.concurrency, "--concurrency of each"),
            ("archivers", 0, "run_delayq --archiver commands"),
            ("web-threads", 0, "threads of all web servers together that may enqueue"),
        )
        for name, default, words in numbers:
            parser.add_argument(
                f"--{name}",
                type=whole(0),
                default=default,
                metavar="N",
                help=f"{words} (default: {default})",
            )
        parser.add_argument(
            "--no-archiver", action="store_true", help="the workers run with --no-archiver"
        )

    def run(self, options: dict[str, Any]) -> Answer:
        """Add up and compare."""
        parts = fleet(options, len(sql_services(get_store(), "")))
        redis = sum(part.processes * part.redis for part in parts)
        database = sum(part.processes * part.database for part in parts)
        rows = [
            (
                part.what,
                *map(str, part[1:]),
                str(part.processes * part.redis),
                str(part.processes * part.database),
            )
            for part in parts
        ]
        servers = [
            *(
                (report.name, redis, report.connections, report.most_connections)
                for report in inspect_server(get_store())
            ),
            (get_settings().database, database, *_database_connections()),
        ]
        total = [("at most", "", "", "", str(redis), str(database))]
        lines, fits = [], True
        for name, needed, now, most in servers:
            fits = fits and (most is None or needed <= most)
            limit = "an unknown number" if most is None else f"{most:,}"
            too_many = "" if most is None or needed <= most else ": TOO FEW"
            lines.append(f"{name}: {needed:,} needed, {limit} allowed{too_many}; {now:,} now.")
        data = {
            "parts": [part._asdict() for part in parts],
            "redis": redis,
            "database": database,
            "servers": [
                dict(zip(("name", "needed", "now", "allowed"), server, strict=True))
                for server in servers
            ],
        }
        return Answer(
            text="\n".join(lines),
            data=data,
            rows=[_HEAD, *rows, *total],
            right=(False, *[True] * 5),
            code=0 if fits else 1,
        )


def fleet(options: dict[str, Any], services: int) -> list[Part]:
    """The processes that these options start. `services`: how many services need the database."""
    # Beside the threads of the tasks, one that all coroutines share. Batches have threads of their
    # own.
    has_batches = any(task.definition.kind == "batch" for task in registry.by_name.values())
    tasks = options["concurrency"] * (1 + has_batches) + 1
    first, others = options["workers"], options["workers"] * (options["processes"] - 1)
    if options["no_archiver"]:
        first, others = 0, first + others
    parts = [
        Part("worker with services", first, SERVICE_THREADS + tasks + services, tasks + services),
        Part("worker", others, SERVICE_THREADS + tasks, tasks),
        Part("archiver", options["archivers"], services, services),
        Part("web thread", options["web_threads"], 1, 1),
    ]
    return [part for part in parts if part.processes > 0]


def _database_connections() -> tuple[int, int | None]:
    """How many there are now, and how many there may be. A file has no limit."""
    connection = connections[get_settings().database]
    queries = {
        "postgresql": (
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'",
            "SELECT current_setting('max_connections')::int",
        ),
        "mysql": (
            "SELECT COUNT(*) FROM information_schema.processlist",
            "SELECT @@max_connections",
        ),
    }.get(connection.vendor)
    if queries is None:
        return 1, None
    with connection.cursor() as cursor:
        found = []
        for query in queries:
            cursor.execute(query)
            found.append(int(cursor.fetchone()[0]))
    return found[0], found[1]
