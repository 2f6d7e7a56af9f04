"""Reads a range of a table as Arrow batches: by COPY on PostgreSQL, else in short statements, each of one batch.

Runs on executors, which know no Django settings. Holds a few batches, however many rows there are.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from ...exceptions import ConfigurationError
from ..params import Database
from .connect import Connected, Row, connected
from .ranges import Range, edges

__all__ = ["READERS", "Range", "edges", "read"]

#: Rows of a batch at most: 10,000 of the archive take some 5 MB.
BATCH = 10_000
#: Rows of the first one, from which their size is learned.
FIRST = 100
#: Bytes that a batch should have, and of COPY's data that are parsed at a time.
CHUNK = 4 * 1024 * 1024
#: `auto` is the quickest for the database, `cursor` reads by Django's cursor whatever the database is.
READERS = ("auto", "cursor")


def read(
    database: Database, schema: pa.Schema, ids: Range, *, table: str = "", reader: str = "auto"
) -> Iterator[pa.RecordBatch]:
    """The rows with lo < id <= hi in the order of their ids, with the columns of the schema; of the archive unless a
    table is named.

    Rows that are inserted or deleted meanwhile may be there or not: ask for settled ones. Raises DatabaseUnavailable,
    ConfigurationError, and what the database raises.
    """
    if reader not in READERS:
        raise ConfigurationError(f"There is no reader {reader!r}, only {' and '.join(READERS)}.")
    if ids[1] <= ids[0]:
        return
    table = table or database.table
    with connected(database, plain=reader == "cursor") as connection:
        if reader == "auto" and connection.vendor == "postgresql" and _has_copy(connection):
            yield from _copy(connection, table, schema, ids)
        else:
            zone = "UTC" if connection.vendor == "postgresql" else database.zone
            yield from _by_statements(connection, table, schema, ids, zone)


def _has_copy(connection: Connected) -> bool:
    """psycopg 3. With psycopg2, Django's cursor has to do."""
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return bool(is_psycopg3)


def _expression(connection: Connected, field: pa.Field, *, copied: bool = False) -> str:
    """A column as it travels best: times as microseconds since 1970, which take much less than datetimes to make."""
    name = connection.quote(field.name)
    if pa.types.is_timestamp(field.type):
        if connection.vendor == "postgresql":  # always with a time zone there: an instant, whatever USE_TZ is
            # date_part() computes in doubles, exact for whole seconds; extract() in decimals: 2 us more for a row.
            seconds = f"date_part('epoch', date_trunc('second', {name}))::bigint * 1000000"
            return f"({seconds} + date_part('microseconds', {name})::bigint % 1000000)"
        if connection.vendor == "mysql":
            return f"timestampdiff(MICROSECOND, '1970-01-01 00:00:00', {name})"
    if copied and pa.types.is_binary(field.type):
        return f"encode({name}, 'hex')"
    return name


# PostgreSQL


def _copy(connection: Connected, table: str, schema: pa.Schema, ids: Range) -> Iterator[pa.RecordBatch]:
    """Much quicker than a cursor: no Python object is made of a value."""
    columns = ", ".join(_expression(connection, field, copied=True) for field in schema)
    # Numbers of our own: COPY takes no parameters.
    where = f"WHERE id > {int(ids[0])} AND id <= {int(ids[1])} ORDER BY id"
    query = f"SELECT {columns} FROM {connection.quote(table)} {where}"
    with (
        connection.django.cursor() as cursor,
        cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv, ENCODING 'UTF8')") as copy,
    ):
        for chunk in _chunks(copy):
            yield from _parse(chunk, schema)


def _chunks(copy: Any) -> Iterator[bytes]:
    """COPY's data in pieces of whole rows: psycopg gives one row at a time, never a part of one."""
    rows: list[Any] = []
    size = 0
    for row in copy:
        rows.append(row)
        size += len(row)
        if size >= CHUNK:
            yield b"".join(rows)
            rows, size = [], 0
    if rows:
        yield b"".join(rows)


def _parse(chunk: bytes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    table = csv.read_csv(
        io.BytesIO(chunk),
        # One block: else a field with newlines at its end could be cut.
        read_options=csv.ReadOptions(column_names=schema.names, block_size=len(chunk) + 1, use_threads=False),
        # A row of one NULL is an empty line.
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        # An unquoted nothing is NULL, a quoted one is the empty text.
        convert_options=csv.ConvertOptions(
            column_types={field.name: _travelling(field.type) for field in schema},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    for batch in table.to_batches(max_chunksize=BATCH):
        columns = [_arrived(column, field) for field, column in zip(schema, batch.columns, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _travelling(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.string() if pa.types.is_binary(kind) else kind


def _arrived(column: pa.Array, field: pa.Field) -> pa.Array:
    if pa.types.is_binary(field.type):
        return pa.array([None if text is None else bytes.fromhex(text) for text in column.to_pylist()], field.type)
    return _plain_id(column) if field.name == "message_id" else column.cast(field.type)


# Any other database


def _by_statements(
    connection: Connected, table: str, schema: pa.Schema, ids: Range, zone: str
) -> Iterator[pa.RecordBatch]:
    """A statement for each batch: drivers fetch the whole of an answer, and a reader that is in the middle of one keeps
    SQLite's writers waiting."""
    columns = ", ".join(_expression(connection, field) for field in schema)
    select = f"SELECT {columns}, id FROM {connection.quote(table)}"
    (at, hi), size = ids, FIRST
    while True:
        page = f"WHERE id > {int(at)} AND id <= {int(hi)} ORDER BY id {connection.limit(size)}"
        rows = connection.fetch(f"{select} {page}")
        if rows:
            batch = _batch(rows, schema, zone)
            yield batch
        if len(rows) < size:
            return
        at = rows[-1][-1]
        size = max(1, min(BATCH, 4 * size, CHUNK * len(rows) // max(1, batch.nbytes)))


def _batch(rows: Sequence[Row], schema: pa.Schema, zone: str) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))[: len(schema)]
    arrays = [_column(values, field, zone) for field, values in zip(schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(values: Sequence[Any], field: pa.Field, zone: str) -> pa.Array:
    if pa.types.is_timestamp(field.type):
        return _times(values, field.type, zone)
    first = next((value for value in values if value is not None), None)
    if isinstance(first, UUID):
        values = [None if value is None else value.hex for value in values]
    elif isinstance(first, memoryview):
        values = [None if value is None else bytes(value) for value in values]
    array = pa.array(values, field.type)
    return _plain_id(array) if field.name == "message_id" else array


def _times(values: Sequence[Any], kind: pa.DataType, zone: str) -> pa.Array:
    """From microseconds, ISO text or datetimes; those without a zone are of this one."""
    first = next((value for value in values if value is not None), None)
    naive = pa.timestamp("us")
    if isinstance(first, str):
        array = pc.cast(pa.array(values, pa.string()), naive)
    elif isinstance(first, int):
        array = pa.array(values, pa.int64()).cast(naive)
    else:
        array = pa.array(values, naive)
        zone = "UTC" if getattr(first, "tzinfo", None) else zone  # Arrow has made it UTC
    if zone != "UTC":
        array = pc.assume_timezone(array, zone, ambiguous="earliest", nonexistent="earliest")
    return array.cast(kind)


def _plain_id(array: pa.Array) -> pa.Array:
    """32 digits without dashes: some databases have a type for them."""
    return pc.replace_substring(array, "-", "")
