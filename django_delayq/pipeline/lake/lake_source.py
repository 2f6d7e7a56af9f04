"""spark.read.format("delayq_lake"): the rows of a lake, as a data source of Spark that needs no
jar. It plans by the actions of the table: files without a row that is asked for are not opened."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ...core.chunks import chunked_by_weight
from ...core.exceptions import ConfigurationError
from .. import schemas
from ..params import Storage
from ..source_options import encoded, number_of, read_option
from ..sources.archive_source import checked_columns
from .files import LakeFile, Range, Store, read_file
from .lake import Lake

#: Bytes of files that one task reads, unless one file has more.
SHARE = 32 * 1024 * 1024
MAX_ID = 2**63 - 1


def read_lake(
    spark: SparkSession,
    lake: Lake,
    columns: Sequence[str] | None = None,
    since: str = "",
    until: str = "",
    ids: Range | None = None,
) -> DataFrame:
    """The rows that finished on these UTC dates (YYYY-MM-DD, both included; empty: all) and have
    ids with lo < id <= hi, with these columns of schemas.ARCHIVE (None: all). The files are those
    of the lake's snapshot: rows that are committed later are not in it.

    An action raises LakeError when a file cannot be read, or has other rows than the log says.
    """
    spark.dataSource.register(LakeSource)
    schema = schemas.chosen(schemas.ARCHIVE, columns or schemas.ARCHIVE.names)
    files = lake.files(since, until, ids)
    reader = spark.read.format(LakeSource.name()).schema(from_arrow_schema(schema))
    reader = reader.option("storage", encoded(lake.storage))
    # So Spark's planner needs no deltalake, and each action reads the same files.
    reader = reader.option("files", _encoded(files))
    if ids is not None:
        reader = reader.options(lo=str(ids[0]), hi=str(ids[1]))
    return reader.load()


class LakeSource(DataSource):
    """Options:

    - `uri`: of the table; or `storage`: JSON of params.Storage, with options and references to
      secrets;
    - `since`, `until`: UTC dates (YYYY-MM-DD, both included) on which the messages finished;
    - `lo`, `hi`: rows with lo < id <= hi.

    The columns are those of `.schema(...)`, or all. Choose them, because Spark does not tell a
    Python source which columns it needs. Each action sees the lake as it is then.
    """

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "delayq_lake"

    def schema(self) -> Any:
        """All columns."""
        return from_arrow_schema(schemas.ARCHIVE)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For the columns of this schema."""
        return LakeReader(checked_columns(schema, schemas.ARCHIVE), self.options)


class LakeReader(DataSourceReader):
    """It can be pickled: only methods open anything."""

    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        self._schema = schema
        self._storage = _storage_of(options)
        self._files = options.get("files")
        self._since, self._until = options.get("since", ""), options.get("until", "")
        lo, hi = number_of(options, "lo"), number_of(options, "hi")
        is_every = lo is None and hi is None
        self._ids = None if is_every else (lo or 0, MAX_ID if hi is None else hi)

    def partitions(self) -> Sequence[InputPartition]:
        """Neighbouring files, some megabytes together."""
        if self._files is not None:
            files = _decoded(self._files)
        else:
            files = Lake(self._storage).files(self._since, self._until, self._ids)
        parts = chunked_by_weight(files, attrgetter("bytes"), SHARE)
        return [InputPartition(part) for part in parts] or [InputPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of these files."""
        store = Store(self._storage)
        for file in partition.value:
            yield from read_file(store, LakeFile(*file), self._schema.names, self._ids)


def _storage_of(options: Mapping[str, str]) -> Storage:
    if "storage" in options:
        return read_option(options, "storage", Storage)
    if not options.get("uri"):
        raise ConfigurationError(
            "The option `uri` is missing: the table of the lake, such as s3://bucket/lake."
        )
    return Storage(options["uri"])


def _encoded(files: Sequence[LakeFile]) -> str:
    packed = zlib.compress(msgspec.msgpack.encode(files))
    return base64.b85encode(packed).decode()


def _decoded(text: str) -> list[LakeFile]:
    packed = base64.b85decode(text)
    return msgspec.msgpack.decode(zlib.decompress(packed), type=list[LakeFile])
