"""Django's ORM on PostgreSQL: fill LAKE, or rows (they come to Python), or database (the database
sorts them)."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import django
from django.core.management import call_command
from django.db import connection

from tests.benchmarks.versus.answer import COLUMNS, SHARES, give

#: Rows that the server sends at a time.
PAGE = 10_000


def fill(lake: Path) -> None:
    """Put the rows of a lake into an empty archive without indexes: they would not serve this
    question."""
    from pyarrow import csv, parquet

    from django_delayq.models import ArchivedMessage
    from django_delayq.pipeline.lake.lake import Lake

    call_command("migrate", verbosity=0)
    table = ArchivedMessage._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {table}")
        _drop_indexes(cursor, table)
    names: tuple[str, ...] = ()
    for path in Lake(lake).uris():
        for batch in parquet.ParquetFile(path).iter_batches(100_000):
            names = tuple(batch.schema.names)
            options = csv.WriteOptions(include_header=False)
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY {table} ({', '.join(names)}) FROM STDIN CSV") as copy,
            ):
                csv.write_csv(batch, _Sink(copy), options)
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM ANALYZE {table}")
        cursor.execute("SELECT pg_total_relation_size(%s)", [table])
        print(f'{{"bytes": {cursor.fetchone()[0]}}}')


def _drop_indexes(cursor: Any, table: str) -> None:
    with connection.schema_editor() as editor:
        for name, one in connection.introspection.get_constraints(cursor, table).items():
            if one["index"] and not one["primary_key"]:
                kind = f"ALTER TABLE {table} DROP CONSTRAINT" if one["unique"] else "DROP INDEX"
                editor.execute(f'{kind} "{name}"')


class _Sink:
    """A file for Arrow that is a COPY."""

    closed = False

    def __init__(self, copy: Any) -> None:
        self.write = copy.write

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        pass


def rows() -> None:
    """Every row through values_list().iterator(), into dicts; exact percentiles of sorted lists."""
    from django_delayq.models import ArchivedMessage

    groups: dict[tuple[datetime, str, str], _Group] = {}
    found = ArchivedMessage.objects.values_list(*COLUMNS).iterator(PAGE)
    for topic, task, state, attempts, finished, late, run in found:
        key = (finished.replace(minute=0, second=0, microsecond=0), topic, task)
        if (group := groups.get(key)) is None:
            group = groups[key] = _Group()
        group.add(state, attempts, late, run)
    give(group.answer() for group in groups.values())


class _Group:
    __slots__ = ("attempts", "late", "messages", "retried", "run", "states")

    def __init__(self) -> None:
        self.messages = self.attempts = self.retried = 0
        self.states: dict[str, int] = {}
        self.late: list[float] = []
        self.run: list[float] = []

    def add(self, state: str, attempts: int, late: float | None, run: float | None) -> None:
        self.messages += 1
        self.attempts += attempts
        self.retried += attempts > 1
        self.states[state] = self.states.get(state, 0) + 1
        if late is not None:
            self.late.append(late)
        if run is not None:
            self.run.append(run)

    def answer(self) -> tuple[int, int, list[float | None], list[float | None]]:
        sum(self.late), sum(self.run), max(self.late, default=0), max(self.run, default=0)
        return self.messages, self.attempts, _percentiles(self.late), _percentiles(self.run)


def _percentiles(values: list[float]) -> list[float | None]:
    values.sort()
    return [values[math.ceil(share * len(values)) - 1] if values else None for share in SHARES]


def database() -> None:
    """One query, with PostgreSQL's percentile_disc as an aggregate of our own."""
    from django.db.models import Aggregate, Count, F, FloatField, Max, Q, Sum
    from django.db.models.functions import TruncHour

    from django_delayq.models import ArchivedMessage

    class Percentiles(Aggregate):
        template = "percentile_disc(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY %(expressions)s)"
        output_field = FloatField()

        def convert_value(self, value: Any, *_: Any) -> Any:
            return value

    states = {
        state: Count("id", filter=Q(state=state))
        for state in ("acked", "dead", "cancelled", "expired")
    }
    found = (
        ArchivedMessage.objects.values("topic", "task", hour=TruncHour("finished_at"))
        .order_by()
        .annotate(
            messages=Count("id"), tries=Sum("attempts"), retried=Count("id", filter=Q(attempts__gt=1)), **states,
            late_sum=Sum("lateness_ms"), late_max=Max("lateness_ms"), run_sum=Sum("run_ms"), run_max=Max("run_ms"),
            late=Percentiles(F("lateness_ms")), ran=Percentiles(F("run_ms")),
        )
    )  # fmt: skip
    give(_answers(found.iterator(PAGE)))


def _answers(found: Any) -> Iterator[tuple[Any, ...]]:
    nothing = [None] * len(SHARES)
    for row in found:
        yield row["messages"], row["tries"], row["late"] or nothing, row["ran"] or nothing


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    if sys.argv[1] == "fill":
        fill(Path(sys.argv[2]))
    else:
        {"rows": rows, "database": database}[sys.argv[1]]()
