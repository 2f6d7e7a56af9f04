"""The source of the job schedule as a frame: files of three formats, a table, or a query."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812 - the usual name

from ...core.exceptions import DelayQError
from ..job_errors import Refused
from ..params import Database, ScheduleOptions
from ..sources.query_source import read_query, select_all
from .message_frames import arrow_function
from .row_files import csv_names, csv_rows, csv_schema, fields_of, unreadable
from .row_messages import CORRUPT

#: Lines in which the names of the columns of a CSV file end.
HEAD = 100
#: Configuration with which frames of CSV have to be worked on: Spark does not cut the files, and
#: leaves the names of folders (`dt=01`) as they are.
WHOLE_FILES = {
    "spark.sql.files.maxPartitionBytes": str(2**50),
    "spark.sql.files.openCostInBytes": str(2**50),
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}


def read_source(spark: SparkSession, options: ScheduleOptions, database: Database) -> DataFrame:
    """Its rows. Text that is no row of its format has the column CORRUPT set. Raises Refused."""
    if options.format == "table":
        return read_query(spark, database, select_all(database, options.source))
    if options.format == "query":
        return read_query(spark, database, options.source)
    readers: dict[str, Callable[[SparkSession, str], DataFrame]] = {
        "parquet": lambda spark, path: spark.read.parquet(path), "csv": _csv,
        "json": _json_lines,
    }  # fmt: skip
    try:
        return readers[options.format](spark, options.source)
    except AnalysisException as error:
        problem = str(error).partition("\n")[0]
        raise Refused(
            f"The source {options.source!r} cannot be read as {options.format}: {problem}"
        ) from error


def _csv(spark: SparkSession, path: str) -> DataFrame:
    """As send_file reads it: Spark's own reader of CSV makes other texts of some files (line ends
    within quotes, bytes that are not UTF-8, quotes in the middle), and says nothing. Raises Refused
    when the first line does not name the columns."""
    lines = spark.read.option("lineSep", "\n").text(path)
    folders = [name for name in lines.columns if name != "value"]
    line = F.col("value").cast("binary")
    head = [bytes(row[0]) for row in lines.select(line).take(HEAD)]
    if not head:
        raise Refused(f"The source {path!r} cannot be read: it is empty.")
    try:
        names = csv_names(pa.BufferReader(b"\n".join([*head, b""])), path)
    except (pa.ArrowException, UnicodeError) as error:
        raise unreadable(path, error) from error
    placed = lines.select(
        line.alias("value"),
        F.xxhash64("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("begin"),
        *(F.col(name).cast("string").alias(name) for name in folders),
    )
    fields = [T.StructField(name, T.StringType()) for name in [*names, CORRUPT, *folders]]
    return placed.mapInArrow(partial(_csv_rows, path=path, names=names), T.StructType(fields))


def _csv_rows(
    batches: Iterable[pa.RecordBatch], path: str, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Lines of CSV files -> their rows. A file comes whole, see WHOLE_FILES."""
    for _, parts in groupby(_of_files(batches), lambda part: part["file"][0].as_py()):
        yield from _rows_of_file(parts, path, names)


def _rows_of_file(
    parts: Iterator[pa.RecordBatch], path: str, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    first = next(parts)
    if first["begin"][0].as_py():
        raise DelayQError(f"Spark has cut a file of {path!r}, which has to be read whole.")
    folders = [column[0] for column in first.columns[3:]]
    fields = [*csv_schema(names), *list(first.schema)[3:]]
    try:
        for rows, _ in csv_rows(_LinesOfFile(chain([first], parts)), path, names):
            columns = [*rows.columns, *(pa.repeat(value, len(rows)) for value in folders)]
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    except (pa.ArrowException, UnicodeError) as error:
        raise unreadable(path, error) from error


def _of_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Parts that each have lines of one file only."""
    for batch in batches:
        files = batch["file"].to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(batch)]
        yield from (batch.slice(at, end - at) for at, end in pairwise(starts) if end > at)


class _LinesOfFile(io.RawIOBase):
    """The bytes of a file of which there are the lines."""

    def __init__(self, parts: Iterator[pa.RecordBatch]) -> None:
        super().__init__()
        self._parts, self._rest = parts, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and (part := next(self._parts, None)) is not None:
            self._rest = memoryview(b"\n".join([*part["value"].to_pylist(), b""]))
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _json_lines(spark: SparkSession, path: str) -> DataFrame:
    """One object per line. A column for each field that any of them has: its JSON, null where it is
    missing. The JSON arrives to the byte; types that Spark infers for all lines would change some
    of it. Raises Refused for names that Spark cannot tell apart."""
    line = F.col("value")
    fields = arrow_function(fields_of, T.MapType(T.StringType(), T.StringType()))(
        line.cast("binary")
    )
    lines = spark.read.option("lineSep", "\n").text(path)
    parsed = lines.where(line.rlike(r"\S")).select(line, fields.alias("fields"))
    found = parsed.select(F.explode(F.map_keys("fields"))).distinct().collect()
    names = sorted(row[0] for row in found)
    same = {
        name
        for name, count in Counter([CORRUPT, *(name.lower() for name in names)]).items()
        if count > 1
    }
    if twice := [name for name in names if name.lower() in same]:
        raise Refused(
            f"The lines have fields that Spark takes for one column: {', '.join(twice)}. Rename "
            f"one of them."
        )
    values = [F.try_element_at("fields", F.lit(name)).alias(name) for name in names]
    corrupt = F.when(F.col("fields").isNull(), F.rtrim(line, F.lit("\r")))
    return parsed.select(*values, corrupt.alias(CORRUPT))
