"""spark.read.format("delayq_query"): the rows of one SELECT on the database of the archive, which
the statement cannot change."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ..job_errors import Refused
from ..params import Database
from ..schemas import TIME
from ..source_options import encoded, read_option
from .databases import connected

#: Rows of a batch. The first batch shows the types of the columns.
BATCH = 10_000
_DECIMAL = pa.decimal128(38, 18)
#: That of SQLite is read-only already.
_READ_ONLY = {
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
}


def read_query(spark: SparkSession, database: Database, query: str) -> DataFrame:
    """The rows of a SELECT. Raises Refused for another statement, or several."""
    checked_select(query)
    spark.dataSource.register(QuerySource)
    reader = spark.read.format("delayq_query")
    return reader.options(database=encoded(database), query=query).load()


def checked_select(query: str) -> str:
    """A single SELECT, without a semicolon at its end. Raises Refused."""
    bare = query.strip().removesuffix(";").strip()
    outside = re.sub(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"", "", bare)
    if not re.match(r"(?i)(select|with)\b", bare) or ";" in outside:
        raise Refused(f"The source {query!r:.80} is not a single SELECT: give one SELECT.")
    return bare


def select_all(database: Database, table: str) -> str:
    """The SELECT for a table. Raises Refused for a text that cannot be the name of a table."""
    if not re.fullmatch(r"[\w$]+(\.[\w$]+)?", table):
        raise Refused(
            f"{table!r:.80} cannot name a table: use letters, digits and _ only. For more use a "
            f"query."
        )
    quote = "`" if database.vendor == "mysql" else '"'
    return f"SELECT * FROM {'.'.join(f'{quote}{part}{quote}' for part in table.split('.'))}"


class QuerySource(DataSource):
    """Options: `database` (JSON of params.Database), `query`. One task of Spark reads all of it."""

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "delayq_query"

    def schema(self) -> StructType:
        """The types of the first rows."""
        with closing(_pages(self.options)) as pages:
            return from_arrow_schema(_schema(*next(pages)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For these columns."""
        return QueryReader(self.options, to_arrow_schema(schema, timezone="UTC"))


class QueryReader(DataSourceReader):
    """It can be pickled: only read() opens a connection."""

    def __init__(self, options: Mapping[str, str], schema: pa.Schema) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """One: a query has one result."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """All rows. Raises Refused for a value that is not of the type of its column."""
        for _, columns in _pages(self._options):
            arrays = []
            # There are no columns where there are no rows.
            for field, values in zip(self._schema, columns, strict=bool(columns)):
                try:
                    arrays.append(pa.array(values, field.type))
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                    raise Refused(
                        f"The column {field.name!r} of the query is of type {field.type} in its "
                        f"first rows, and of another one later. Cast it in the query. {error}"
                    ) from None
            if arrays:
                yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _pages(options: Mapping[str, str]) -> Generator[tuple[list[str], list[list[Any]]]]:
    """The names of the columns, and their values, page by page; at least one page."""
    database = read_option(options, "database", Database)
    query = checked_select(options.get("query", ""))
    zone = ZoneInfo(database.zone) if database.zone != "UTC" else timezone.utc
    with connected(database, typed=True) as connection:
        # One transaction that cannot write. On PostgreSQL its rows stay on the server.
        with connection.cursor() as cursor:
            if statement := _READ_ONLY.get(connection.vendor):
                cursor.execute(statement)
        connection.set_autocommit(False)
        with connection.chunked_cursor() as cursor:
            cursor.execute(query)
            # A cursor on the server knows its columns only after the first rows.
            rows = cursor.fetchmany(BATCH)
            names = [str(column[0]) for column in cursor.description]
            while rows is not None:
                columns = zip(*rows, strict=True)
                yield names, [[_plain(value, zone) for value in column] for column in columns]
                rows = cursor.fetchmany(BATCH) or None
        connection.rollback()


def _plain(value: Any, zone: Any) -> Any:
    """A value that Arrow takes. A time without a zone is in the zone of Django's connection."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=zone)).astimezone(timezone.utc)
    if isinstance(value, UUID):
        return value.hex
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def _schema(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> pa.Schema:
    if len(set(names)) < len(names):
        raise Refused(
            f"Two columns of the query have the same name: {', '.join(names)}. Give one of them "
            f"another name."
        )
    kinds = []
    for name, values in zip(names, columns or [[]] * len(names), strict=True):
        present = [value for value in values if value is not None]
        if any(isinstance(value, Decimal) for value in present):
            kind = _DECIMAL
        elif present and all(isinstance(value, datetime) for value in present):
            kind = TIME
        else:
            try:
                kind = pa.array(present).type
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise Refused(
                    f"The column {name!r} of the query has values of several types. Cast it: "
                    f"{error}"
                ) from None
            # A column without values in a full batch may get values of any type later.
            if pa.types.is_null(kind) and len(values) == BATCH:
                kind = pa.string()
        kinds.append((name, kind))
    return pa.schema(kinds)
