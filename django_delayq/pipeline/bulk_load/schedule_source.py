"""The source of the job schedule as a frame: files of three formats, a table, or a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812 - the usual name

from ..job_errors import Refused
from ..params import Database, ScheduleOptions
from ..sources.query_source import read_query, select_all
from .message_frames import arrow_function
from .row_files import fields_of
from .row_messages import CORRUPT

#: What nothing between two commas is for Spark's reader of CSV, instead of the empty text: so that
#: the empty text is not null, too.
ABSENT = "\0\0"


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
    """All columns are text: what looks like a number may be a code with zeros in front. The first
    line names them. Nothing between two commas is null, and "" is the empty text."""
    options: dict[str, Any] = {
        "header": True,
        "escape": '"',
        "multiLine": True,
        "enforceSchema": False,
    }
    names = spark.read.options(**options).csv(path).columns
    fields = [T.StructField(name, T.StringType()) for name in [*names, CORRUPT]]
    options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "nullValue": ABSENT}
    return spark.read.options(**options).schema(T.StructType(fields)).csv(path)


def _json_lines(spark: SparkSession, path: str) -> DataFrame:
    """One object per line. A column for each field that any of them has: its JSON, null where it is
    missing. The JSON arrives to the byte; types that Spark infers for all lines would change some
    of it. Raises Refused for names that Spark cannot tell apart."""
    line = F.col("value")
    fields = arrow_function(fields_of, T.MapType(T.StringType(), T.StringType()))(
        line.cast("binary")
    )
    parsed = spark.read.text(path).where(line.rlike(r"\S")).select(line, fields.alias("fields"))
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
    return parsed.select(*values, F.when(F.col("fields").isNull(), line).alias(CORRUPT))
