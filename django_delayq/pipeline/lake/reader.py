"""The rows of the lake as a DataFrame: by its commits, never by a listing of its directories."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from .. import schemas
from .lake import Lake, LakeFile


def read_lake(
    spark: SparkSession,
    lake: Lake,
    columns: Sequence[str] | None = None,
    since: str = "",
    until: str = "",
) -> DataFrame:
    """The rows that finished on these UTC dates (YYYY-MM-DD, both included; empty: all), with these
    columns of schemas.ARCHIVE (None: all). The files are those of now: rows that are committed
    later are not in it.

    Raises LakeError when a file is not there as its commit says.
    """
    return read_files(spark, lake, lake.files(since, until), columns)


def read_files(
    spark: SparkSession, lake: Lake, files: Sequence[LakeFile], columns: Sequence[str] | None = None
) -> DataFrame:
    """The rows of these files. Raises LakeError as read_lake()."""
    schema = from_arrow_schema(
        schemas.ARCHIVE if columns is None else schemas.chosen(schemas.ARCHIVE, columns)
    )
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(pattern_of(lake.check(file)) for file in files))


def uri_of(path: Path) -> str:
    """A path of this file system, also where Spark's default is another one."""
    return f"file://{path}"


def pattern_of(path: Path) -> str:
    """The same for the readers of Spark, for which a path is a pattern."""
    return uri_of(Path(re.sub(r"([\\\[\]{}*?,^])", r"\\\1", str(path))))
