"""The source of the job schedule as a frame: files of three formats, a table, or a query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812 - the usual name

from ..errors import Refused
from ..options import ScheduleOptions
from ..params import Database
from ..sources.query import read_query, select_all
from .json_lines import read_lines
from .schedule_frames import CORRUPT


def read_source(spark: SparkSession, options: ScheduleOptions, database: Database) -> DataFrame:
    """Its rows. Text that is no row of its format has the column CORRUPT set. Raises Refused."""
    if options.format == "table":
        return read_query(spark, database, select_all(database, options.source))
    if options.format == "query":
        return read_query(spark, database, options.source)
    readers: dict[str, Callable[[SparkSession, str], DataFrame]] = {
        "parquet": lambda spark, path: spark.read.parquet(path), "csv": _csv,
        "json": lambda spark, path: read_lines(spark, path, CORRUPT),
    }  # fmt: skip
    try:
        return readers[options.format](spark, options.source)
    except AnalysisException as error:
        said = str(error).partition("\n")[0]
        raise Refused(
            f"The source {options.source!r} cannot be read as {options.format}: {said}"
        ) from error


def _csv(spark: SparkSession, path: str) -> DataFrame:
    """All columns are text: what looks like a number may be a code with zeros in front. The first
    line names them."""
    options: dict[str, Any] = {
        "header": True,
        "escape": '"',
        "multiLine": True,
        "enforceSchema": False,
    }
    names = spark.read.options(**options).csv(path).columns
    fields = [T.StructField(name, T.StringType()) for name in [*names, CORRUPT]]
    options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    return spark.read.options(**options).schema(T.StructType(fields)).csv(path)
