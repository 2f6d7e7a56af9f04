"""spark.read and spark.readStream.format("delayq_archive"): the archive in a database, as a data
source of Spark.

It runs on executors, and in a process of Spark's beside the driver. Neither knows Django settings:
a connection is made from the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ...core.exceptions import ConfigurationError
from .. import schemas
from ..params import Database
from ..source_options import encoded, number_of, read_option
from . import ranges
from .databases import connected, select_rows
from .ranges import PARTS, Range
from .settling import last_settled
from .table_reader import read_rows

#: Rows in one micro-batch of a stream, and seconds after which a row is settled, unless the options
#: say otherwise.
BATCH, SETTLE = 500_000, 60.0


def read_archive(
    spark: SparkSession,
    database: Database,
    ids: Range,
    columns: Sequence[str] | None = None,
    parts: int = PARTS,
) -> DataFrame:
    """The rows of the archive with lo < id <= hi, with these columns of schemas.LETTERS, or with
    those of schemas.ARCHIVE.

    Each action reads the rows again, in `parts` ranges side by side (fewer when there are few
    rows). Take ids that are settled (see lake/watermark.py), so that each action sees the same
    rows. Ask for the columns that you need, because Spark does not tell a Python source. No secret
    gets into the plan.
    """
    spark.dataSource.register(ArchiveSource)
    schema = schemas.chosen(schemas.LETTERS, list(columns or schemas.ARCHIVE.names))
    reader = spark.read.format(ArchiveSource.name()).schema(from_arrow_schema(schema))
    return reader.options(database=encoded(database), lo=ids[0], hi=ids[1], parts=parts).load()


def finished_between(
    frame: DataFrame, since: datetime | None, until: datetime | None, topic: str = ""
) -> DataFrame:
    """The rows that finished in [since, until), of one topic if it is given."""
    if since is not None:
        frame = frame.where(F.col("finished_at") >= F.lit(since))
    if until is not None:
        frame = frame.where(F.col("finished_at") < F.lit(until))
    return frame.where(F.col("topic") == topic) if topic else frame


class ArchiveSource(DataSource):
    """Options:

    - `database`: JSON of params.Database;
    - `lo`, `hi`: rows with lo < id <= hi. Without one of them, Spark looks it up whenever it plans
      an action, so two actions on one DataFrame may see different rows, and rows that are not
      settled;
    - `parts`: ranges that are read side by side (8), fewer when there are few rows;
    - `reader`: `auto`, or `cursor` for Django's cursor on any database.

    The columns are those of `.schema(...)`, or all. A narrow schema is read twice as quickly, and
    Spark does not tell a Python source which columns it needs.
    """

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "delayq_archive"

    def schema(self) -> Any:
        """All columns."""
        return from_arrow_schema(schemas.ARCHIVE)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For the columns of this schema."""
        return RangeReader(checked_columns(schema, schemas.LETTERS), self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """For spark.readStream."""
        return ArchiveStreamReader(schema, self.options)


class RangeReader(DataSourceReader):
    """Reads a table by ranges of its ids. It can be pickled: only methods open a connection."""

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        self._schema = schema
        self._database = read_option(options, "database", Database)
        self._lo, self._hi = number_of(options, "lo"), number_of(options, "hi")
        self._parts = number_of(options, "parts") or PARTS
        self._reader = options.get("reader", "auto")

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of ids, with about as many rows each."""
        lo, hi = self._lo, self._hi
        if lo is None or hi is None:
            first, last = ranges.range_of_all(self._database)
            lo, hi = first if lo is None else lo, last if hi is None else hi
        found = ranges.edges(self._database, (lo, hi), self._parts)
        return [InputPartition(ids) for ids in found or [(0, 0)]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        yield from read_rows(self._database, self._schema, partition.value, reader=self._reader)


class ArchiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the archive as it grows. An offset is {"id": n}: all rows up to that id are taken.

    Options:

    - `database`: JSON of params.Database;
    - `after`: a stream without a checkpoint begins after this id (0);
    - `batch`: rows of a micro-batch (500,000);
    - `settle`: seconds, see settling.py (60);
    - `parts`: ranges that are read side by side (8), fewer when there are few rows.

    It can be pickled: only methods open a connection. Raises ConfigurationError.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._schema = checked_columns(schema, schemas.ARCHIVE)
        self._database = read_option(options, "database", Database)
        self._after = number_of(options, "after", 0)
        self._batch = number_of(options, "batch") or BATCH
        self._settle = number_of(options, "settle", SETTLE)
        self._parts = number_of(options, "parts") or PARTS
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - these names are Spark's
        """Where a stream begins that has no checkpoint."""
        return {"id": self._after}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Rows of a micro-batch."""
        return ReadMaxRows(self._batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """This run takes the rows that are settled now, and no others."""
        with connected(self._database) as connection:
            self._target = last_settled(connection, self._database.table, self._settle)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of the next micro-batch, never beyond the settled rows: another row may still
        appear below an id that is not settled."""
        table = self._database.table
        with connected(self._database) as connection:
            last = self._target
            if last is None:
                last = last_settled(connection, table, self._settle)
            page = (
                f"SELECT id FROM {connection.ops.quote_name(table)} "
                f"WHERE id > {int(start['id'])} AND id <= {int(last)} ORDER BY id"
            )
            if isinstance(limit, ReadMaxRows):
                page += f" {connection.ops.limit_offset_sql(0, limit.max_rows)}"
            ((end,),) = select_rows(connection, f"SELECT max(id) FROM ({page}) AS page")
        return {"id": start["id"] if end is None else int(end)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Ranges of ids, with about as many rows each."""
        found = ranges.edges(self._database, (start["id"], end["id"]), self._parts)
        return [InputPartition(ids) for ids in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        yield from read_rows(self._database, self._schema, partition.value)


def checked_columns(schema: StructType, known: pa.Schema) -> pa.Schema:
    """The columns of this schema, which a user asks for. Raises ConfigurationError for a column or
    a type that the table does not have."""
    columns = schemas.chosen(known, schema.names)
    for field, ours in zip(schema, from_arrow_schema(columns), strict=True):
        if field.dataType != ours.dataType:
            raise ConfigurationError(
                f"The column {field.name!r} is of type {ours.dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}: cast it afterwards."
            )
    return columns
