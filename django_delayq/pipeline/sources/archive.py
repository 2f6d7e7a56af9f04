"""spark.read.format("delayq_archive"): the archive in a database, as a data source of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from ...core.exceptions import ConfigurationError
from .. import schemas
from ..params import Database
from ..sinks.parquet_files import copied
from . import ranges, rows
from .ranges import PARTS


def read_archive(
    spark: SparkSession,
    database: Database,
    ids: rows.Range,
    columns: Sequence[str] | None = None,
    parts: int = PARTS,
    copy: Path | None = None,
) -> DataFrame:
    """The rows of the archive with lo < id <= hi; these columns of schemas.ARCHIVE, else all.

    Each action reads them anew, `parts` ranges side by side (fewer when there are few rows): take
    ids that are settled (see settled.py), so that each sees the same rows. Ask for the columns that
    you need: Spark does not tell a Python source. With `copy`, a directory, all columns are written
    there, too, when an action reads to the end: see copying.py. No secret gets into the plan.
    """
    spark.dataSource.register(ArchiveSource)
    schema = schemas.chosen(schemas.ARCHIVE, list(columns or schemas.ARCHIVE.names))
    reader = spark.read.format(ArchiveSource.name()).schema(schemas.spark_schema(schema))
    lo, hi = ids
    reader = reader.options(database=encoded(database), lo=str(lo), hi=str(hi), parts=str(parts))
    return (reader if copy is None else reader.option("copy", str(copy))).load()


def finished_between(
    frame: DataFrame, since: datetime | None, until: datetime | None, topic: str = ""
) -> DataFrame:
    """Rows that finished in [since, until), of a topic if it is given."""
    if since is not None:
        frame = frame.where(F.col("finished_at") >= F.lit(since))
    if until is not None:
        frame = frame.where(F.col("finished_at") < F.lit(until))
    return frame.where(F.col("topic") == topic) if topic else frame


def encoded(database: Database) -> str:
    """The option `database`."""
    return msgspec.json.encode(database).decode()


class IdRange(InputPartition):
    """Rows with lo < id <= hi."""

    def __init__(self, lo: int, hi: int) -> None:
        super().__init__((lo, hi))
        self.lo, self.hi = lo, hi


class ArchiveSource(DataSource):
    """Options:

    - `database`: JSON of params.Database;
    - `lo`, `hi`: rows with lo < id <= hi. What is left out is looked up when an action is planned,
      and may be another one for the next action, with rows that are not settled: two looks at one
      DataFrame may differ then;
    - `parts`: ranges that are read side by side (8), fewer when there are few rows;
    - `reader`: `auto`, or `cursor` for Django's cursor whatever the database is;
    - `copy`: a directory to which the rows, with all columns, are also written as Parquet by UTC
      date: see writer.py.

    Columns: those of `.schema(...)`, else all: Spark does not tell a Python source which ones it
    needs, and a narrow schema is read twice as quickly.
    """

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "delayq_archive"

    def schema(self) -> Any:
        """All columns."""
        return schemas.spark_schema(schemas.ARCHIVE)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For the columns of this schema."""
        return RangeReader(checked_columns(schema, schemas.ARCHIVE), self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """For spark.readStream: see archive_stream.py."""
        from .archive_stream import ArchiveStreamReader

        return ArchiveStreamReader(schema, self.options)


class RangeReader(DataSourceReader):
    """Reads a table by ranges of its ids. Picklable: no connection outside of a method."""

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        self._schema = schema
        self._database = database_of(options)
        self._lo, self._hi = number_of(options, "lo"), number_of(options, "hi")
        self._parts = max(1, number_of(options, "parts") or PARTS)
        self._reader = options.get("reader", "auto")
        self._copy = options.get("copy")
        if self._copy and schema != schemas.ARCHIVE:
            raise ConfigurationError(
                "The option `copy` writes the columns of the lake: all, in their order."
            )

    @property
    def _table(self) -> str:
        return self._database.table

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of ids, with about as many rows each."""
        lo, hi = self._lo, self._hi
        if lo is None or hi is None:
            first, last = ranges.range_of_all(self._database, table=self._table)
            lo, hi = first if lo is None else lo, last if hi is None else hi
        found = ranges.edges(self._database, (lo, hi), self._parts, table=self._table)
        return [IdRange(*ids) for ids in found] or [IdRange(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        assert isinstance(partition, IdRange)
        ids = (partition.lo, partition.hi)
        found = rows.read_rows(
            self._database, self._schema, ids, table=self._table, reader=self._reader
        )
        yield from (
            copied(found, Path(self._copy), "part-{}-{}".format(*ids)) if self._copy else found
        )


def checked_columns(schema: StructType, known: pa.Schema) -> pa.Schema:
    """Columns that a user asks for, by name and type. Raises ConfigurationError for what the table
    has not got."""
    types = {field.name: field.dataType for field in schemas.spark_schema(known)}
    for field in schema:
        if field.name not in types:
            raise ConfigurationError(f"There is no column {field.name!r}, only {', '.join(types)}.")
        if field.dataType != types[field.name]:
            wanted, there = field.dataType.simpleString(), types[field.name].simpleString()
            raise ConfigurationError(
                f"The column {field.name!r} is of type {there}, not {wanted}: cast it afterwards."
            )
    return schemas.chosen(known, schema.names)


def database_of(options: Mapping[str, str]) -> Database:
    """The option `database`. Raises ConfigurationError."""
    try:
        return msgspec.json.decode(options["database"], type=Database)
    except KeyError:
        raise ConfigurationError(
            "The option `database` is missing: JSON of engine, name, table, host ..."
        ) from None
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"The option `database` cannot be read: {error}") from None


def number_of(options: Mapping[str, str], name: str) -> int | None:
    """A whole number, None when it is not given. Raises ConfigurationError."""
    text = options.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        raise ConfigurationError(
            f"The option `{name}` is {text!r}, which is no whole number."
        ) from None
