"""Reads a range of a table as Arrow batches: by COPY on PostgreSQL, else in short statements, each
of one batch.

Runs on executors, which know no Django settings. Holds a few batches, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from ...core.exceptions import ConfigurationError
from ..params import Database
from . import adbc
from .adbc import CHUNK
from .connect import Connected, backend_of, connected
from .ranges import Range, edges

__all__ = ["READERS", "Range", "edges", "read_rows"]

#: Rows of a batch at most: 10,000 of the archive take some 5 MB.
BATCH = 10_000
#: Rows of the first one, from which their size is learned.
FIRST = 100
#: `auto` is the quickest that is installed for the database, `cursor` reads by Django's cursor
#: whatever that is.
READERS = ("auto", "cursor")
NAIVE = pa.timestamp("us")

Fetch = Callable[[str], Sequence[Any]]
"""The columns of a statement, of values or as Arrow; perhaps none where it gives no rows."""


def read_rows(
    database: Database, schema: pa.Schema, ids: Range, *, table: str = "", reader: str = "auto"
) -> Iterator[pa.RecordBatch]:
    """The rows with lo < id <= hi in the order of their ids, with the columns of the schema; of the
    archive unless a table is named.

    Rows that are inserted or deleted meanwhile may be there or not: ask for settled ones. Raises
    DatabaseUnavailable, ConfigurationError, and what the database raises.
    """
    if reader not in READERS:
        raise ConfigurationError(f"There is no reader {reader!r}, only {' and '.join(READERS)}.")
    if ids[1] <= ids[0]:
        return
    table = table or database.table
    vendor = backend_of(database).vendor
    quick = reader == "auto" and adbc.driver(vendor)
    if quick and vendor == "postgresql":
        yield from adbc.postgresql_batches(database, table, schema, ids)
        return
    with connected(database, plain=reader == "cursor") as connection:
        zone = "UTC" if vendor == "postgresql" else database.zone

        def by_cursor(sql: str) -> Sequence[Any]:
            return list(zip(*connection.fetch(sql), strict=True))

        with adbc.sqlite_columns(database, BATCH) if quick else nullcontext(by_cursor) as fetch:
            yield from _by_statements(connection, fetch, table, schema, ids, zone)


def _expression(connection: Connected, field: pa.Field) -> str:
    """A column as it travels best: times as microseconds since 1970, which take much less than
    datetimes to make."""
    name = connection.quote(field.name)
    if pa.types.is_timestamp(field.type):
        if (
            connection.vendor == "postgresql"
        ):  # always with a time zone there: an instant, whatever USE_TZ is
            # date_part() computes in doubles, exact for whole seconds; extract() in decimals: 2 us
            # more for a row.
            seconds = f"date_part('epoch', date_trunc('second', {name}))::bigint * 1000000"
            return f"({seconds} + date_part('microseconds', {name})::bigint % 1000000)"
        if connection.vendor == "mysql":
            return f"timestampdiff(MICROSECOND, '1970-01-01 00:00:00', {name})"
    return name


def _by_statements(
    connection: Connected, fetch: Fetch, table: str, schema: pa.Schema, ids: Range, zone: str
) -> Iterator[pa.RecordBatch]:
    """A statement for each batch: drivers fetch the whole of an answer, and a reader that is in the
    middle of one keeps SQLite's writers waiting."""
    wanted = ", ".join(_expression(connection, field) for field in schema)
    select = f"SELECT {wanted}, id FROM {connection.quote(table)}"
    (at, hi), size = ids, FIRST
    while True:
        page = f"WHERE id > {int(at)} AND id <= {int(hi)} ORDER BY id {connection.limit(size)}"
        *columns, read = fetch(f"{select} {page}") or [()]
        if read:
            arrays = [
                _column(values, field, zone) for field, values in zip(schema, columns, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            yield batch
        if len(read) < size:
            return
        at = read[-1].as_py() if isinstance(read, pa.Array) else read[-1]
        size = max(1, min(BATCH, 4 * size, CHUNK * len(read) // max(1, batch.nbytes)))


def _column(values: Any, field: pa.Field, zone: str) -> pa.Array:
    if isinstance(values, pa.Array):
        return _arrived(values, field, zone)
    if pa.types.is_timestamp(field.type):
        return _times(values, field.type, zone)
    first = next((value for value in values if value is not None), None)
    if isinstance(first, UUID):
        values = [None if value is None else value.hex for value in values]
    elif isinstance(first, memoryview):
        values = [None if value is None else bytes(value) for value in values]
    array = pa.array(values, field.type)
    return _plain_id(array) if field.name == "message_id" else array


def _arrived(array: pa.Array, field: pa.Field, zone: str) -> pa.Array:
    """Of SQLite's values, which are text where they are times. One without any value may be of any
    type."""
    if array.null_count == len(array):
        return pa.nulls(len(array), field.type)
    if pa.types.is_timestamp(field.type):
        return _instants(array.cast(NAIVE), zone, field.type)
    return _plain_id(array) if field.name == "message_id" else array.cast(field.type)


def _times(values: Sequence[Any], kind: pa.DataType, zone: str) -> pa.Array:
    """From microseconds, ISO text or datetimes; those without a zone are of this one."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, str):
        array = pc.cast(pa.array(values, pa.string()), NAIVE)
    elif isinstance(first, int):
        array = pa.array(values, pa.int64()).cast(NAIVE)
    else:
        array = pa.array(values, NAIVE)
        zone = "UTC" if getattr(first, "tzinfo", None) else zone  # Arrow has made it UTC
    return _instants(array, zone, kind)


def _instants(naive: pa.Array, zone: str, kind: pa.DataType) -> pa.Array:
    if zone != "UTC":
        naive = pc.assume_timezone(naive, zone, ambiguous="earliest", nonexistent="earliest")
    return naive.cast(kind)


def _plain_id(array: pa.Array) -> pa.Array:
    """32 digits without dashes: some databases have a type for them."""
    return pc.replace_substring(array, "-", "")
