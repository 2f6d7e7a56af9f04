"""The archiver beside the quickest way of the database itself: the same rows, the same table with
its indexes, by turns in one process."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests import databases
from tests.benchmarks import common, on_database
from tests.benchmarks.common import median

COUNT = 50_000
RUNS = 5
#: Rows of one raw statement on MariaDB and MySQL, and of one call on SQLite.
RAW_ROWS = 1_000


def main(arguments: list[str]) -> None:
    """Each kind of database."""
    own = on_database.arguments_of("archive_rate", databases.KINDS, arguments)
    if own is not None:
        measure(common.options(own, RUNS))


def measure(options: common.Options) -> None:
    """One database: ours and raw by turns."""
    kind = databases.kind_of(json.loads(os.environ[databases.VARIABLE]))
    count, pairs = options.scaled(COUNT, 1_000), []
    with common.bench_server():
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        for number in range(options.runs + 1):
            with common.BenchWorker() as worker:
                worker.warm_up(100)
                _finish(count, number * count)
            raw = _raw(_rows())
            pairs.append((ours(), raw))
    pairs = pairs[1:]  # the first one warms up
    common.report(
        "archive_rate",
        median([mine for mine, _ in pairs]),
        "rows/s",
        case=kind,
        ceiling=median([raw for _, raw in pairs]),
        ceiling_is="COPY" if kind == "postgresql" else f"INSERT of {RAW_ROWS} rows",
        ratio=median([mine / raw for mine, raw in pairs]),
        runs=options.runs,
    )


def _finish(count: int, first: int) -> None:
    """Let so many messages run; nobody archives them yet."""
    from tests.benchmarks.tasks import noop

    noop.enqueue_many((first + index, "x" * 80) for index in range(count))
    waits = 30 + count / 500
    assert common.wait_until(common.Progress(count, first).done, waits), "not all have run"
    assert common.wait_until(common.nothing_leased, 10), "not all are settled"


def _rows() -> list[tuple[Any, ...]]:
    """The rows of what waits in the finished stream."""
    from django.db import connection

    from django_delayq.archive import archive_rows
    from django_delayq.store import get_store
    from django_delayq.store.finished import unarchived
    from django_delayq.store.keys import Partition

    entries = [e for some in unarchived(get_store(), Partition("bench", 0)) for e in some]
    return archive_rows.rows_of(entries[::-1], connection)


def ours(look: Callable[[], object] = bool) -> float:
    """Rows a second of the archiver, from the stream to the commit and the removal. `look` is
    called before the rows are deleted."""
    from django_delayq.archive.archiver import Archiver
    from django_delayq.store import get_store

    archiver, waiting = Archiver(get_store(), "bench"), _unarchived()
    gc.collect()
    gc.freeze()  # as a worker does when it has loaded everything
    begun = time.perf_counter()
    while _unarchived():
        archiver.run_once()
        archiver._began_at = 0.0  # a service would wait
    took = time.perf_counter() - begun
    look()
    _emptied(waiting)
    return waiting / took


def _raw(rows: Sequence[tuple[Any, ...]]) -> float:
    """Rows a second of the database, in one transaction and without a look at what is there."""
    from django.db import connection, transaction

    from django_delayq.archive.archive_rows import COLUMNS
    from django_delayq.models import ArchivedMessage

    table, columns = ArchivedMessage._meta.db_table, ", ".join(f'"{name}"' for name in COLUMNS)
    if connection.vendor == "postgresql":
        text = "".join(_line(row) for row in rows)
        begun = time.perf_counter()
        with (
            transaction.atomic(),
            connection.cursor() as cursor,
            cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy,
        ):
            copy.write(text)
    else:
        if connection.vendor == "mysql":
            columns = columns.replace('"', "`")
        holes = ", ".join(["%s"] * len(COLUMNS))
        begun = time.perf_counter()
        with transaction.atomic(), connection.cursor() as cursor:
            for first in range(0, len(rows), RAW_ROWS):
                cursor.executemany(
                    f"INSERT INTO {table} ({columns}) VALUES ({holes})",
                    rows[first : first + RAW_ROWS],
                )
    took = time.perf_counter() - begun
    _emptied(len(rows))
    return len(rows) / took


def _line(row: Sequence[Any]) -> str:
    """One row in COPY's text format."""
    return (
        "\t".join(
            "\\N"
            if value is None
            else str(value)
            .replace("\\", "\\\\")
            .replace("\t", "\\t")
            .replace("\n", "\\n")
            .replace("\r", "\\r")
            for value in row
        )
        + "\n"
    )


def _emptied(count: int) -> None:
    """Each round begins with an empty table."""
    from django.db import connection

    from django_delayq.models import ArchivedMessage

    assert ArchivedMessage.objects.count() == count, "rows are missing"
    with connection.cursor() as cursor:
        word = "DELETE FROM" if connection.vendor == "sqlite" else "TRUNCATE TABLE"
        cursor.execute(f"{word} {ArchivedMessage._meta.db_table}")


def _unarchived() -> int:
    from django_delayq import topic_stats

    return topic_stats("bench").finished


if __name__ == "__main__":
    main(sys.argv[1:])
