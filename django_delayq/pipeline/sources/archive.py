"""spark.read.format("delayq_archive"): the archive in a database, as a data source of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...exceptions import ConfigurationError
from .. import schemas
from ..params import Database
from . import rows


class IdRange(InputPartition):
    """Rows with lo < id <= hi."""

    def __init__(self, lo: int, hi: int) -> None:
        super().__init__((lo, hi))
        self.lo, self.hi = lo, hi


class ArchiveSource(DataSource):
    """Options: `database` (JSON of params.Database), `lo` and `hi` (lo < id <= hi, required, so that two looks at one
    DataFrame see the same rows), `parts` (default 8). Columns: those of `.schema(...)`, else all: Spark tells a Python
    source nothing of what it needs, and a narrow schema is read twice as quickly."""

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "delayq_archive"

    def schema(self) -> Any:
        """All columns."""
        return schemas.spark_schema(schemas.ARCHIVE)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For the columns of this schema."""
        return ArchiveReader(schema.names, self.options)


class ArchiveReader(DataSourceReader):
    """Picklable: no connection before read()."""

    def __init__(self, columns: Sequence[str], options: Any) -> None:
        missing = [name for name in ("database", "lo", "hi") if name not in options]
        if missing:
            raise ConfigurationError(f"delayq_archive needs the options {', '.join(missing)}.")
        self._columns = list(columns)
        self._database = str(options["database"])
        self._ids = (int(options["lo"]), int(options["hi"]))
        self._parts = int(options.get("parts", 8))

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of ids."""
        database = msgspec.json.decode(self._database, type=Database)
        return [IdRange(lo, hi) for lo, hi in rows.edges(database, self._ids, self._parts)] or [IdRange(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        assert isinstance(partition, IdRange)
        database = msgspec.json.decode(self._database, type=Database)
        schema = schemas.chosen(schemas.ARCHIVE, self._columns)
        yield from rows.read(database, schema, (partition.lo, partition.hi))
