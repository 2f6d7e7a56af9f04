"""The archive of PostgreSQL with 1, 10 and 30 million rows, as one table and by months: the rate at
which rows come, the pages, and a month that is pruned.

`python -m tests.benchmarks.pg_growth --rows 1000000 --rows 10000000`. Rows are made by the database
itself, a year of them, and their indexes afterwards: a minute for two million on a quiet machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from tests.benchmarks import common, on_database, pages, seed
from tests.benchmarks.common import median

ROWS = (1_000_000, 10_000_000)
#: Rows that the database makes in one statement.
CHUNK = 500_000
DAYS = 360
#: Rows that come while the archive has its size, and those of one transaction.
COMING, BATCH = 20_000, 2_000
RUNS = 3
#: Two months go.
KEPT = timedelta(days=300)

#: Much as seed.rows_of() makes them: most are acked, three in ten have an id that a key gives, and
#: texts have no one length. Of the dead letters of the last 60 days half are open, of those before
#: one in a hundred.
_FILL = """
INSERT INTO {table} ({columns})
SELECT (CASE WHEN dice.keyed THEN md5(n::text) ELSE
        lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
        || substr(md5(dice.word), 1, 3) || '8' || substr(md5(n::text), 1, 15) END)::uuid,
    at - interval '30 minutes', topics[task], 0, tasks[task],
    CASE WHEN dice.keyed THEN 'order:' || n ELSE '' END,
    state, CASE state WHEN 'cancelled' THEN 'cancelled' ELSE '' END,
    '{{"args":[' || n || '],"kwargs":{{"reason":"unpaid","note":"' || repeat('x', (350 * random())::int)
    || '"}}}}', '', 1, 60000, NULL, CASE state WHEN 'dead' THEN 2 ELSE 1 END, 0,
    CASE state WHEN 'dead' THEN '{{"started_ms":1,"ended_ms":2,"outcome":"retry"}}' ELSE '' END,
    at, CASE state WHEN 'cancelled' THEN NULL ELSE at END, at + random() * interval '100 ms',
    CASE state WHEN 'cancelled' THEN NULL ELSE 8 * random() END,
    CASE state WHEN 'cancelled' THEN NULL ELSE 40 * random() END, 'shop-1:7:a',
    CASE state WHEN 'dead' THEN errors[1 + (random() * (cardinality(errors) - 1))::int] ELSE '' END,
    CASE state WHEN 'dead' THEN 'order ' || n || ' is gone' ELSE '' END,
    CASE state WHEN 'dead' THEN %(traceback)s ELSE '' END, NULL, '',
    CASE WHEN state = 'dead' AND n %% CASE WHEN at < now() - interval '60 days' THEN 100 ELSE 2 END > 0
        THEN now() END
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n,
LATERAL (SELECT %(begin)s::timestamptz + n * %(step)s::interval AS at, random() AS chance,
    random() < 0.3 AS keyed, random()::text || n AS word,
    1 + width_bucket(random(), %(weights)s::float[]) AS task) AS dice,
LATERAL (SELECT CASE WHEN chance < 0.96 THEN 'acked' WHEN chance < 0.985 THEN 'dead'
    ELSE 'cancelled' END AS state) AS ended,
(SELECT %(topics)s::text[] AS topics, %(tasks)s::text[] AS tasks, %(errors)s::text[] AS errors) AS known
"""


def main(arguments: list[str]) -> None:
    """--rows N, several times; --only plain or partitioned."""
    own = on_database.arguments_of("pg_growth", ("postgresql",), arguments)
    if own is None:
        return
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rows", type=int, action="append")
    parser.add_argument("--only", choices=("plain", "partitioned"))
    known, rest = parser.parse_known_args(own)
    options = common.options(rest, RUNS)
    seed.set_up()
    client = pages.log_in()
    for rows in known.rows or ROWS:
        for kind in ("plain", "partitioned"):
            if known.only in (None, kind):
                measure(client, options.scaled(rows, 20_000), kind, options.runs)


def measure(client: Any, rows: int, kind: str, runs: int) -> None:
    """One size of one kind of table."""
    from django_delayq.archive.partitioning import partition_archive
    from django_delayq.archive.prune import prune
    from django_delayq.models import ArchivedMessage
    from tests.databases.partitioned import make_plain, partition_now

    make_plain()
    coming = list(_coming())
    empty = _rate(coming, runs, keep=False)
    if kind == "partitioned":
        partition_now(13)
    begun = time.perf_counter()
    fill(rows)
    fill_s = time.perf_counter() - begun
    rate = _rate(coming, runs, keep=True)
    shown = [pages._page(client, name, address, runs) for name, address in pages._addresses(client)]
    begun = time.perf_counter()
    pruned = prune(KEPT, whole_months=True).count
    prune_s = time.perf_counter() - begun
    partition_s = None
    if kind == "plain":
        before, begun = ArchivedMessage.objects.count(), time.perf_counter()
        partition_archive()
        partition_s = time.perf_counter() - begun
        assert ArchivedMessage.objects.count() == before, "rows are missing"
    common.report(
        "pg_growth",
        rate,
        "rows/s",
        case=f"{rows:,} rows, {kind}",
        against_empty=rate / empty,
        slowest_page_ms=max(ms for ms, _ in shown),
        median_page_ms=median([ms for ms, _ in shown]),
        queries=max(queries for _, queries in shown),
        pruned=pruned,
        prune_s=prune_s,
        prune_rows_per_second=pruned / prune_s,
        partition_s=partition_s,
        fill_s=fill_s,
        runs=runs,
    )
    make_plain()


def fill(rows: int) -> None:
    """A year of so many rows that ends now."""
    from django.db import connection

    from django_delayq.archive.archive_rows import COLUMNS
    from django_delayq.models import ArchivedMessage

    table = connection.ops.quote_name(ArchivedMessage._meta.db_table)
    total, sums = sum(seed.WEIGHTS), [0.0]
    for weight in seed.WEIGHTS[:-1]:
        sums.append(sums[-1] + weight / total)
    values = {
        "begin": datetime.now(timezone.utc) - timedelta(days=DAYS),
        "step": timedelta(days=DAYS) / rows,
        "weights": sums[1:],
        "topics": [topic for topic, _ in seed.TASKS],
        "tasks": [task for _, task in seed.TASKS],
        "errors": [*seed.ERRORS, seed.RARE_ERROR],
        "traceback": seed.TRACEBACK,
    }
    statement = _FILL.format(table=table, columns=", ".join((*COLUMNS, "discarded_at")))
    with connection.cursor() as cursor:
        cursor.execute("SET maintenance_work_mem = '1GB'")
        indexes = _drop_indexes(cursor, table)
        for first in range(0, rows, CHUNK):
            last = min(rows, first + CHUNK) - 1
            cursor.execute(statement, {**values, "first": first, "last": last})
            print(f"  {last + 1:,} rows", flush=True)
        for index in indexes:
            cursor.execute(index)
            print(f"  {index}", flush=True)
        cursor.execute(f"VACUUM ANALYZE {table}")


def _drop_indexes(cursor: Any, table: str) -> list[str]:
    """Drop what slows down the making of rows. Returns the statements that make it again."""
    cursor.execute(
        "SELECT format('ALTER TABLE %%s ADD CONSTRAINT %%I %%s', conrelid::regclass, conname, "
        "pg_get_constraintdef(oid)), format('ALTER TABLE %%s DROP CONSTRAINT %%I', "
        "conrelid::regclass, conname) FROM pg_constraint "
        "WHERE conrelid = %(table)s::regclass AND contype IN ('p', 'u') UNION ALL "
        "SELECT replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON '), "
        "format('DROP INDEX %%s', indexrelid::regclass) FROM pg_index "
        "WHERE indrelid = %(table)s::regclass "
        "AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)",
        {"table": table},
    )
    made = cursor.fetchall()
    for _, drop in made:
        cursor.execute(drop)
    return [make for make, _ in made]


def _coming() -> Iterator[tuple[Any, ...]]:
    """Rows as the archiver copies them."""
    from django_delayq.archive.copying import _since_2000

    for row in seed.rows_of(COMING, lambda when: _since_2000(round(when.timestamp() * 1_000_000))):
        yield row[0].bytes, *row[1:]


def _rate(rows: Sequence[tuple[Any, ...]], runs: int, *, keep: bool) -> float:
    """Rows a second by the archiver's COPY; the last ones stay if they are to be kept."""
    from django.db import connection, transaction

    from django_delayq.archive.copying import copy_rows
    from django_delayq.models import ArchivedMessage

    rates = []
    for run in range(runs + 1):
        begun = time.perf_counter()
        for first in range(0, len(rows), BATCH):
            with transaction.atomic():
                copy_rows(rows[first : first + BATCH], connection)
        rates.append(len(rows) / (time.perf_counter() - begun))
        if not keep or run < runs:
            newest = ArchivedMessage.objects.order_by("-pk").values_list("pk", flat=True)
            ArchivedMessage.objects.filter(pk__gt=newest[0] - len(rows)).delete()
    return median(rates[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
