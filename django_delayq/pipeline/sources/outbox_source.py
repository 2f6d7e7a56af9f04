"""spark.read.format("delayq_outbox"): the rows of the outbox, as a data source of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ...core.exceptions import ConfigurationError
from .. import schemas
from ..params import Database
from ..source_options import encoded
from .archive_source import RangeReader, checked_columns


def read_outbox(spark: SparkSession, database: Database) -> DataFrame:
    """All rows of the outbox.

    This is no snapshot: ranges are read side by side, and a row that is inserted, changed or
    removed meanwhile may be missing, old or new."""
    spark.dataSource.register(OutboxSource)
    return spark.read.format(OutboxSource.name()).options(database=encoded(database)).load()


#: `due_at` as the table stores it.
STORED = pa.field("due_at_ms", pa.int64())
MILLISECONDS = pa.timestamp("ms", tz="UTC")


class OutboxSource(DataSource):
    """Options: `database`, with its `outbox`, `lo`, `hi`, `parts` and `reader` as for
    delayq_archive."""

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "delayq_outbox"

    def schema(self) -> Any:
        """All columns."""
        return from_arrow_schema(schemas.OUTBOX)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For the columns of this schema."""
        return OutboxReader(checked_columns(schema, schemas.OUTBOX), self.options)


class OutboxReader(RangeReader):
    """A RangeReader of the outbox, which stores due times in milliseconds."""

    def __init__(self, schema: pa.Schema, options: Any) -> None:
        super().__init__(
            pa.schema([STORED if field.name == "due_at" else field for field in schema]), options
        )
        self._shown = schema
        if not self._database.outbox:
            raise ConfigurationError(
                "The option `database` does not say which table its `outbox` is."
            )
        self._database = msgspec.structs.replace(self._database, table=self._database.outbox)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        at = self._shown.get_field_index("due_at")
        for batch in super().read(partition):
            columns = batch.columns
            if at >= 0:
                columns[at] = columns[at].cast(MILLISECONDS).cast(schemas.TIME)
            yield pa.RecordBatch.from_arrays(columns, schema=self._shown)
