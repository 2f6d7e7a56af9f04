"""Reads a range of the archive as Arrow batches: COPY on PostgreSQL, sqlite3 on SQLite, else a cursor of Django's.

Runs on executors, which know no Django settings: a connection is made of the parameters, never of `settings`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from ..params import Database

#: Rows of a batch: 10,000 of the archive take some 5 MB.
BATCH = 10_000
#: Bytes of COPY that are parsed at a time.
CHUNK = 4 * 1024 * 1024

Range = tuple[int, int]
"""lo < id <= hi."""


def read(database: Database, schema: pa.Schema, ids: Range) -> Iterator[pa.RecordBatch]:
    """The rows with lo < id <= hi in the order of their ids, with the columns of the schema."""
    readers = {"postgresql": _copy, "sqlite": _sqlite}
    yield from readers.get(database.vendor, _django)(database, schema, ids)


def edges(database: Database, ids: Range, parts: int) -> list[Range]:
    """The range in so many parts of about as many rows each, however sparse the ids are."""
    lo, hi = ids
    if hi <= lo:
        return []
    step = max(1, -(-(hi - lo) // max(1, parts)))
    return [(at, min(at + step, hi)) for at in range(lo, hi, step)]


def _select(database: Database, ids: Range, columns: Sequence[str]) -> str:
    quote = "`" if database.vendor == "mysql" else '"'
    # Numbers of our own, so that COPY, which takes no parameters, can have them too.
    where = f"WHERE id > {int(ids[0])} AND id <= {int(ids[1])} ORDER BY id"
    return f"SELECT {', '.join(columns)} FROM {quote}{database.table}{quote} {where}"


# PostgreSQL


def _copy(database: Database, schema: pa.Schema, ids: Range) -> Iterator[pa.RecordBatch]:
    """Five times as quick as Django's cursor, whose timestamps are made one by one."""
    import psycopg

    query = _select(database, ids, [_copied(field, database.zone) for field in schema])
    with (
        psycopg.connect(**_postgresql(database)) as connection,
        connection.cursor() as cursor,
        cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)") as copy,
    ):
        for chunk in _chunks(copy):
            yield from _parse(chunk, schema)


def _copied(field: pa.Field, zone: str) -> str:
    """Times as microseconds and ids without dashes: what Arrow takes as it is."""
    if pa.types.is_timestamp(field.type):
        local = "" if zone == "UTC" else f" AT TIME ZONE '{zone}'"
        return f'(extract(epoch FROM "{field.name}"{local}) * 1000000)::bigint'
    return f"replace(\"{field.name}\"::text, '-', '')" if field.name == "message_id" else f'"{field.name}"'


def _postgresql(database: Database) -> dict[str, Any]:
    known = {"dbname": database.name, "host": database.host, "port": database.port, "user": database.user}
    options = {key: value for key, value in database.options.items() if isinstance(value, str | int)}
    given = {key: value for key, value in {**known, "password": database.password.resolve()}.items() if value}
    return {**options, **given}


def _chunks(copy: Any) -> Iterator[bytes]:
    """COPY's data in pieces of whole rows: psycopg gives one row, or several, at a time, never a part of one."""
    rows: list[bytes] = []
    size = 0
    for row in copy:
        rows.append(bytes(row))
        size += len(row)
        if size >= CHUNK:
            yield b"".join(rows)
            rows, size = [], 0
    if rows:
        yield b"".join(rows)


def _parse(chunk: bytes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    plain = {field.name: pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in schema}
    table = csv.read_csv(
        io.BytesIO(chunk),
        # One block: else a field with newlines at its end could be cut.
        read_options=csv.ReadOptions(column_names=schema.names, block_size=len(chunk) + 1, use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        # An unquoted nothing is NULL, a quoted one is the empty text.
        convert_options=csv.ConvertOptions(
            column_types=plain, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    yield from table.cast(schema).to_batches(max_chunksize=BATCH)


# SQLite


def _sqlite(database: Database, schema: pa.Schema, ids: Range) -> Iterator[pa.RecordBatch]:
    import sqlite3

    query = _select(database, ids, [f'"{name}"' for name in schema.names])
    with closing(sqlite3.connect(f"file:{database.name}?mode=ro", uri=True, timeout=60)) as connection:
        cursor = connection.execute(query)
        while rows := cursor.fetchmany(BATCH):
            yield _batch(rows, schema, database.zone)


# Any other


def _django(database: Database, schema: pa.Schema, ids: Range) -> Iterator[pa.RecordBatch]:
    connection = _connection(database)
    try:
        with connection.cursor() as cursor:
            cursor.execute(_select(database, ids, [connection.ops.quote_name(name) for name in schema.names]))
            while rows := cursor.fetchmany(BATCH):
                yield _batch(rows, schema, database.zone)
    finally:
        connection.close()


def _connection(database: Database) -> Any:
    """A connection of these very parameters. Python workers serve one job after another, so settings would not do."""
    from django.conf import settings
    from django.db.utils import ConnectionHandler

    if not settings.configured:
        settings.configure(USE_TZ=True)
    if database.vendor == "mysql":
        _mysql_driver()
    entry = {
        "ENGINE": database.engine,
        "NAME": database.name,
        "USER": database.user,
        "PASSWORD": database.password.resolve(),
        "HOST": database.host,
        "PORT": database.port,
        "OPTIONS": dict(database.options),
    }
    return ConnectionHandler({"default": entry})["default"]


def _mysql_driver() -> None:
    """PyMySQL where mysqlclient is not."""
    try:
        import MySQLdb  # noqa: F401
    except ImportError:
        import pymysql

        pymysql.install_as_MySQLdb()


def _batch(rows: Sequence[Sequence[Any]], schema: pa.Schema, zone: str) -> pa.RecordBatch:
    columns = [
        _column(list(values), field.type, zone) for field, values in zip(schema, zip(*rows, strict=True), strict=True)
    ]
    if "message_id" in schema.names:
        at = schema.get_field_index("message_id")
        columns[at] = _plain_id(columns[at])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: list[Any], kind: pa.DataType, zone: str) -> pa.Array:
    if pa.types.is_timestamp(kind):
        naive = pa.timestamp("us")
        text = any(isinstance(value, str) for value in values)
        array = pc.cast(pa.array(values, pa.string()), naive) if text else pa.array(values, naive)
        return pc.assume_timezone(array, zone, ambiguous="earliest", nonexistent="earliest").cast(kind)
    if pa.types.is_string(kind) and any(not isinstance(value, str | None) for value in values):
        values = [None if value is None else getattr(value, "hex", None) or str(value) for value in values]
    return pa.array(values, kind)


def _plain_id(array: pa.Array) -> pa.Array:
    """32 digits without dashes: some databases have a type for them."""
    return pc.replace_substring(array, "-", "")
