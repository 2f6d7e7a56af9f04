"""Writes rows to the lake, and reads the written files again by Spark. None of them counts before
it is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from .. import schemas
from ..job_errors import LakeError, Refused
from ..params import Database
from ..session import configured
from ..sources.archive_source import read_archive
from ..sources.ranges import Range, parts_of
from .lake import Digest, Lake, WrittenFiles
from .reader import pattern_of, uri_of

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Times as every reader of Parquet knows them, and not in the old 96 bits.
_MICROSECONDS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


def digest_of(frame: DataFrame) -> Digest:
    """The digest of these rows, in one pass over them."""
    return _digest(hashed(frame).agg(*signature()).collect()[0].asDict())


def hashed(frame: DataFrame) -> DataFrame:
    """The rows with a hash of their columns, in two halves, for signature(). It is apart from
    signature() so that compiled code computes it in the pass that writes the rows."""
    whole = F.xxhash64(*schemas.ARCHIVE.names)
    low = whole.bitwiseAND(F.lit(2**32 - 1))
    return frame.withColumns({"hash_high": F.shiftright(whole, 32), "hash_low": low})


def signature() -> list[Column]:
    """The columns of the signature of a hashed() frame: rows, sums of the halves of their hashes,
    and the first and last id and instant. Two sets of rows with the same signature are taken as
    equal, in any order and in any files."""
    return [
        F.count(F.lit(1)).alias("rows"),
        F.sum("hash_high").alias("high"),
        F.sum("hash_low").alias("low"),
        F.min("id").alias("lowest"),
        F.max("id").alias("highest"),
        F.date_format(F.min("finished_at"), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").alias("oldest"),
        F.date_format(F.max("finished_at"), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").alias("newest"),
    ]


def copy(spark: SparkSession, database: Database, ids: Range, attempt: Path) -> Digest:
    """Write the rows of the archive with lo < id <= hi as files by date, while they are read.
    Returns the digest of the rows in SQL."""
    return digest_of(source_rows(spark, database, ids, attempt))


def source_rows(
    spark: SparkSession, database: Database, ids: Range, attempt: Path | None = None
) -> DataFrame:
    """The rows of the archive with lo < id <= hi, in parts that make files of a good size where
    there are no gaps between ids. With `attempt` they are written there as files by date while they
    are read."""
    return read_archive(spark, database, ids, parts=parts_of(ids), copy=attempt)


def write_files(spark: SparkSession, frame: DataFrame, attempt: Path) -> Digest:
    """Write rows with the columns of the archive as files by date, sorted within each. Returns the
    digest of the source.

    Tasks that Spark repeated may count twice in it. Raises Refused for other columns.
    """
    expected = {field.name: field.dataType for field in from_arrow_schema(schemas.ARCHIVE)}
    found = {field.name: field.dataType for field in frame.schema}
    if list(found.items()) != list(expected.items()):
        names = {*expected, *found}
        differing = sorted(name for name in names if expected.get(name) != found.get(name))
        raise Refused(
            f"The rows do not have the columns of the archive. Look at: "
            f"{', '.join(differing) or 'their order'}."
        )
    seen = Observation()
    date = F.date_format("finished_at", "yyyy-MM-dd").alias("dt")
    rows = hashed(frame).observe(seen, *signature()).select(*schemas.ARCHIVE.names, date)
    with configured(spark, _MICROSECONDS):
        writer = rows.sortWithinPartitions("dt", "topic", "finished_at").write.mode("error")
        writer.option("compression", "zstd").partitionBy("dt").parquet(uri_of(attempt))
    return _digest(seen.get)


def read_back(spark: SparkSession, lake: Lake, attempt: Path) -> WrittenFiles:
    """Read the files of an attempt. Raises LakeError when a row is in a file of another date than
    its own."""
    paths = {f"{path.parent.name}/{path.name}": path for path in attempt.glob("dt=*/*.parquet")}
    rows = []
    if paths:
        schema = from_arrow_schema(schemas.ARCHIVE)
        frame = spark.read.schema(schema).parquet(*map(pattern_of, paths.values()))
        # The hour is a number, because a text per row costs seconds.
        hour = F.floor(F.unix_seconds("finished_at") / 3600).alias("hour")
        keys = (F.col("_metadata.file_path").alias("path"), hour)
        rows = hashed(frame).groupBy(*keys).agg(*signature()).collect()
    held: dict[Path, Digest] = {}
    hours: set[str] = set()
    for row in rows:
        path = paths["/".join(unquote(row["path"]).split("/")[-2:])]
        finished = f"{EPOCH + timedelta(hours=row['hour']):%Y-%m-%dT%H:00:00Z}"
        if path.parent.name != f"dt={finished[:10]}":
            raise LakeError(f"{path} has rows that finished in the hour {finished}.")
        held[path] = held.get(path, Digest()) + _digest(row.asDict())
        hours.add(finished)
    return WrittenFiles(sum(held.values(), Digest()), lake.files_of(held), sorted(hours))


def verified(
    spark: SparkSession, lake: Lake, frame: Callable[[], DataFrame], attempt: Path, source: Digest
) -> WrittenFiles:
    """Read the written files back, and compare them with `source`, the digest of the rows that were
    written. Only when they differ are these read again, by `frame()`: Spark starts a process to
    plan it. Raises LakeError when that differs, too."""
    written = read_back(spark, lake, attempt)
    # The digest that was computed while the files were written counts repeated tasks twice.
    if written.digest != source and written.digest != (again := digest_of(frame())):
        raise LakeError(
            f"{attempt} holds {written.digest}, its source holds {again}: it is not committed."
        )
    return written


def _digest(found: Mapping[str, Any]) -> Digest:
    if not found.get("rows"):
        return Digest()
    hashed = found["high"] * 2**32 + found["low"]
    return Digest(
        found["rows"], hashed, found["lowest"], found["highest"], found["oldest"], found["newest"]
    )
