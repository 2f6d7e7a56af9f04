"""Reads by ADBC's drivers, which turn the answer of a database into Arrow and make no Python
objects of values.

PostgreSQL: binary COPY, half the work of COPY as text on both sides. SQLite: a third of the work of
Python's module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any

import pyarrow as pa

from ..params import Database
from .databases import READ_ONLY, address_of, connection_to, patience_of, unavailable
from .ranges import Range

#: Bytes that a batch should have.
CHUNK = 4 * 1024 * 1024
_BYTES_OF_BATCH = "adbc.postgresql.batch_size_hint_bytes"
_ROWS_OF_BATCH = "adbc.sqlite.query.batch_rows"


def driver(vendor: str) -> Any:
    """The module for PostgreSQL or SQLite; None for another database, and where it is not
    installed."""
    if vendor not in ("postgresql", "sqlite"):
        return None
    if vendor == "postgresql":
        # Psycopg 3 knows which options of a connection are for libpq.
        from django.db.backends.postgresql.psycopg_any import is_psycopg3

        if not is_psycopg3:
            return None
    try:
        return import_module(f"adbc_driver_{vendor}.dbapi")
    except ImportError:
        return None


def postgresql_batches(
    database: Database, schema: pa.Schema, ids: Range
) -> Iterator[pa.RecordBatch]:
    """As table_reader.read_rows(). Raises DatabaseUnavailable, and ADBC's errors."""
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import Conninfo

    django = connection_to(database)
    # The parameters of Django's connection that libpq knows.
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    options = django.get_connection_params().items()
    given = {name: value for name, value in options if name in known and value is not None}
    if "options" in given:
        # ADBC asks the server at the beginning: a short timeout of the project would end that.
        given["options"] += " -c statement_timeout=0"
    address = make_conninfo(**{**given, "client_encoding": "UTF8"})
    quote = django.ops.quote_name
    # Ids as 32 digits without dashes.
    expressions = {"message_id": f"encode(uuid_send({quote('message_id')}), 'hex') AS "}
    columns = ", ".join(expressions.get(field.name, "") + quote(field.name) for field in schema)
    # The numbers are written into the statement, because COPY takes no parameters.
    where = f"WHERE id > {int(ids[0])} AND id <= {int(ids[1])} ORDER BY id"
    with _open("postgresql", database, address) as connection, connection.cursor() as cursor:
        # All in one transaction, so that a connection pool in between uses one connection. The
        # statement_timeout of the project is for its pages; a range may take minutes.
        cursor.execute("SET LOCAL statement_timeout = 0")
        if role := database.options.get("assume_role"):
            cursor.execute(f"SET LOCAL ROLE {quote(role)}")
        cursor.adbc_statement.set_options(**{_BYTES_OF_BATCH: str(CHUNK)})
        cursor.execute(f"SELECT {columns} FROM {quote(database.table)} {where}")
        for batch in cursor.fetch_record_batch():
            yield batch.cast(schema)


@contextmanager
def sqlite_columns(database: Database, most: int) -> Iterator[Callable[[str], Sequence[pa.Array]]]:
    """A function that returns the columns of a statement, which has no parameters and returns at
    most this many rows.

    Raises DatabaseUnavailable, and ADBC's errors.
    """
    with (
        _open("sqlite", database, address_of(database.name), autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"PRAGMA busy_timeout = {int(patience_of(database) * 1000)}")
        cursor.execute(READ_ONLY)
        # The first batch decides the types of the columns: so there is only one batch.
        cursor.adbc_statement.set_options(**{_ROWS_OF_BATCH: str(most)})

        def columns(sql: str) -> Sequence[pa.Array]:
            cursor.execute(sql)
            return [column.combine_chunks() for column in cursor.fetch_arrow_table().columns]

        yield columns


@contextmanager
def _open(vendor: str, database: Database, address: str, **options: Any) -> Iterator[Any]:
    module = driver(vendor)
    try:
        connection = module.connect(address, **options)
    except module.Error as error:
        raise unavailable(database, error) from None
    with closing(connection):
        yield connection
