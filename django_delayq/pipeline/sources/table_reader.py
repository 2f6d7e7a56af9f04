"""Reads a range of a table as Arrow batches: by COPY on PostgreSQL, elsewhere by a short statement
for each batch.

It runs on executors, which know no Django settings, and holds only a few batches in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from ...core.exceptions import ConfigurationError
from ..params import Database
from . import adbc
from .adbc import CHUNK
from .databases import backend_of, connected, connection_to, select_rows
from .ranges import Range

#: Rows of a batch at most: 10,000 of the archive take some 5 MB.
BATCH = 10_000
#: Rows of the first batch, which shows how large the rows are.
FIRST = 100
#: `auto` is the quickest reader that is installed for the database; `cursor` uses Django's cursor
#: on any database.
READERS = ("auto", "cursor")
NAIVE = pa.timestamp("us")
#: How a time is read: as microseconds since 1970, which are much cheaper than datetimes. A column
#: of PostgreSQL has a time zone, also without USE_TZ. date_part() computes in doubles, exact for
#: whole seconds; extract() in decimals, which takes 2 us more for a row.
_TIMES = {
    "postgresql": (
        "(date_part('epoch', date_trunc('second', {0}))::bigint * 1000000"
        " + date_part('microseconds', {0})::bigint % 1000000)"
    ),
    "mysql": "timestampdiff(MICROSECOND, '1970-01-01 00:00:00', {0})",
}


def read_rows(
    database: Database, schema: pa.Schema, ids: Range, *, reader: str = "auto"
) -> Iterator[pa.RecordBatch]:
    """The rows with lo < id <= hi in the order of their ids, with the columns of the schema.

    Rows that are inserted or deleted meanwhile may be missing or not: ask for settled rows. Raises
    DatabaseUnavailable, ConfigurationError, and the errors of the database.
    """
    if reader not in READERS:
        raise ConfigurationError(f"There is no reader {reader!r}, only {' and '.join(READERS)}.")
    if ids[1] <= ids[0]:
        return
    ops, vendor = connection_to(database).ops, backend_of(database).vendor
    quick = reader == "auto" and adbc.driver(vendor)
    if quick and vendor == "postgresql":
        yield from adbc.postgresql_batches(database, schema, ids)
        return
    zone = "UTC" if vendor == "postgresql" else database.zone
    time = _TIMES.get(vendor, "{0}")
    expressions = [
        (time if pa.types.is_timestamp(field.type) else "{0}").format(ops.quote_name(field.name))
        for field in schema
    ]
    select = f"SELECT {', '.join(expressions)}, id FROM {ops.quote_name(database.table)}"
    (at, hi), size, full = ids, FIRST, True
    # A statement for each batch, because drivers fetch a whole answer, and a reader in the middle
    # of one keeps the writers of SQLite waiting.
    with adbc.sqlite_columns(database, BATCH) if quick else _cursor_columns(database) as fetch:
        while full:
            page = f"WHERE id > {int(at)} AND id <= {int(hi)} ORDER BY id"
            *columns, read = fetch(f"{select} {page} {ops.limit_offset_sql(0, size)}") or [()]
            full = len(read) == size
            if not read:
                return
            arrays = [
                _column(values, field, zone) for values, field in zip(columns, schema, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            yield batch
            at = read[-1].as_py() if isinstance(read, pa.Array) else read[-1]
            size = max(1, min(BATCH, 4 * size, CHUNK * len(read) // max(1, batch.nbytes)))


@contextmanager
def _cursor_columns(database: Database) -> Iterator[Callable[[str], Sequence[Any]]]:
    """A function that returns the columns of a statement; perhaps none if it returns no rows."""
    with connected(database) as connection:
        yield lambda sql: list(zip(*select_rows(connection, sql), strict=True))


def _column(values: Any, field: pa.Field, zone: str) -> pa.Array:
    """Values, or an Arrow column of SQLite's, as a column of this field."""
    is_arrow = isinstance(values, pa.Array)
    if is_arrow and values.null_count == len(values):
        return pa.nulls(len(values), field.type)  # a column without a value may be of any type
    if pa.types.is_timestamp(field.type):
        # Of SQLite's columns, times are texts.
        naive, zone = (values.cast(NAIVE), zone) if is_arrow else _naive_times(values, zone)
        if zone != "UTC":
            naive = pc.assume_timezone(naive, zone, ambiguous="earliest", nonexistent="earliest")
        return naive.cast(field.type)
    if not is_arrow:
        first = next((value for value in values if value is not None), None)
        if isinstance(first, UUID):
            values = [None if value is None else value.hex for value in values]
        elif isinstance(first, memoryview):
            values = [None if value is None else bytes(value) for value in values]
        values = pa.array(values, field.type)
    if field.name == "message_id":
        # 32 digits without dashes: some databases have a type for ids.
        return pc.replace_substring(values, "-", "")
    return values.cast(field.type)


def _naive_times(values: Sequence[Any], zone: str) -> tuple[pa.Array, str]:
    """Microseconds, ISO texts or datetimes as Arrow, and the zone that they are in. Times without a
    zone are in `zone`."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, str):
        return pc.cast(pa.array(values, pa.string()), NAIVE), zone
    if isinstance(first, int):
        return pa.array(values, pa.int64()).cast(NAIVE), zone
    # Arrow turns datetimes with a zone into UTC.
    return pa.array(values, NAIVE), "UTC" if getattr(first, "tzinfo", None) else zone
