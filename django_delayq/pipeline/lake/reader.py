"""The rows of the lake as a DataFrame: by its commits, never by a listing of its directories."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from .. import schemas
from ..errors import LakeError
from .lake import Lake, LakeFile

Batches = Iterator[pa.RecordBatch]

#: Parts of the files for each core: what one core has done sooner than another is evened out.
PARTS = 4
#: Rows that are read at a time.
BATCH = 100_000


def read_lake(
    spark: SparkSession,
    lake: Lake,
    columns: Sequence[str] | None = None,
    since: str = "",
    until: str = "",
) -> DataFrame:
    """The rows that finished on these UTC dates (YYYY-MM-DD, both included; empty: all), with these
    columns of schemas.ARCHIVE (None: all). Fixed when it is called: what is committed later is not
    in it.

    Raises LakeError when a file is not there as its commit says.
    """
    return read_files(spark, lake, lake.files(since, until), columns)


def read_files(
    spark: SparkSession, lake: Lake, files: Sequence[LakeFile], columns: Sequence[str] | None = None
) -> DataFrame:
    """The rows of these files. Raises LakeError as read_lake()."""
    wanted = schemas.ARCHIVE if columns is None else schemas.chosen(schemas.ARCHIVE, list(columns))
    schema = schemas.spark_schema(wanted)
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(pattern_of(lake.check(file)) for file in files))


def mapped_files(
    spark: SparkSession,
    lake: Lake,
    files: Sequence[LakeFile],
    columns: Sequence[str],
    function: Callable[[Batches], Batches],
    schema: pa.Schema,
) -> DataFrame:
    """What read_files().mapInArrow() gives, for functions that make few rows of many: the
    executors' Python reads the files itself. Through Java, the rows would take four times as long.
    Texts come as dictionaries.

    Raises LakeError as read_lake(); an action does when a file cannot be read.
    """
    number = min(len(files), PARTS * spark.sparkContext.defaultParallelism)
    parts = _parted([(str(lake.check(file)), file.rows) for file in files], number)
    read = partial(
        _read,
        parts=parts,
        schema=schemas.chosen(schemas.ARCHIVE, columns),
        function=function,
        size=BATCH,
    )
    return spark.range(0, len(parts), numPartitions=max(1, len(parts))).mapInArrow(
        read, schemas.spark_schema(schema)
    )


def uri_of(path: Path) -> str:
    """A path of this file system, also where Spark's default is another one."""
    return f"file://{path}"


def pattern_of(path: Path) -> str:
    """The same for Spark's readers, which take a path for a pattern."""
    return uri_of(Path(re.sub(r"([\\\[\]{}*?,^])", r"\\\1", str(path))))


def _parted(files: Sequence[tuple[str, int]], number: int) -> list[list[str]]:
    """The paths in so many parts with about as many rows each, in their order: neighbours have rows
    of one hour."""
    parts: list[list[str]] = [[] for _ in range(number)]
    rows, seen = max(1, sum(count for _, count in files)), 0
    for path, count in files:
        parts[min(number - 1, number * (2 * seen + count) // (2 * rows))].append(path)
        seen += count
    return parts


def _read(
    numbers: Batches,
    parts: Sequence[Sequence[str]],
    schema: pa.Schema,
    function: Callable[[Batches], Batches],
    size: int,
) -> Batches:
    """On an executor: the parts with these numbers."""
    paths = (
        path
        for batch in numbers
        for number in batch.column(0).to_pylist()
        for path in parts[number]
    )
    return function(batch for path in paths for batch in _batches(path, schema, size))


def _batches(path: str, schema: pa.Schema, size: int) -> Batches:
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    try:
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            yield from file.iter_batches(size, columns=schema.names, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise LakeError(f"{path} cannot be read: {error}") from None
