"""Writes rows to the lake, and reads again by Spark what was written. Nothing of it counts before
it is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from .. import schemas
from ..errors import LakeError, Refused
from ..params import Database
from ..session import configured
from ..sources.archive import read_archive
from ..sources.ranges import Range, parts_of
from .lake import Digest, Lake, LakeFile, WrittenFiles
from .reader import pattern_of, uri_of

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Times as every reader of Parquet knows them, and not in the old 96 bits.
_MICROSECONDS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


def digest_of(frame: DataFrame) -> Digest:
    """In one pass over the rows."""
    return _digest(hashed(frame).agg(*signature()).collect()[0].asDict())


def hashed(frame: DataFrame) -> DataFrame:
    """With a hash of the columns of the archive, in two halves, for signature(): apart from it, so
    that the pass in which rows are written computes it in compiled code."""
    whole = F.xxhash64(*schemas.ARCHIVE.names)
    low = whole.bitwiseAND(F.lit(2**32 - 1))
    return frame.withColumns({"hash_high": F.shiftright(whole, 32), "hash_low": low})


def signature() -> list[Column]:
    """Of a hashed() frame: rows, sums of the halves of their hashes, and the first and last id and
    instant. Two sets of rows with equal ones are equal for all that can be told, in whatever order
    and files they lie."""
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
    Returns what SQL held."""
    return digest_of(source_rows(spark, database, ids, attempt))


def source_rows(
    spark: SparkSession, database: Database, ids: Range, attempt: Path | None = None
) -> DataFrame:
    """These rows, in parts as large as files should be where there are no gaps between the ids."""
    return read_archive(spark, database, ids, parts=parts_of(ids), copy=attempt)


def write_files(spark: SparkSession, frame: DataFrame, attempt: Path) -> Digest:
    """Write rows with the columns of the archive as files by date, sorted within each. Returns what
    the source held.

    Tasks that Spark repeated may count twice in it. Raises Refused for other columns.
    """
    check_columns(frame)
    seen = Observation()
    date = F.date_format("finished_at", "yyyy-MM-dd").alias("dt")
    rows = hashed(frame).observe(seen, *signature()).select(*schemas.ARCHIVE.names, date)
    with configured(spark, _MICROSECONDS):
        writer = rows.sortWithinPartitions("dt", "topic", "finished_at").write.mode("error")
        writer.option("compression", "zstd").partitionBy("dt").parquet(uri_of(attempt))
    return _digest(seen.get)


def read_back(spark: SparkSession, lake: Lake, attempt: Path) -> WrittenFiles:
    """Read the files of an attempt. Raises LakeError when a row lies under another date than its
    own."""
    paths = {f"{path.parent.name}/{path.name}": path for path in attempt.glob("dt=*/*.parquet")}
    held: dict[str, Digest] = {}
    hours: set[str] = set()
    for name, hour, digest in _cells(spark, list(paths.values())):
        if name[3:13] != hour[:10]:
            raise LakeError(f"{paths[name]} has rows that finished in the hour {hour}.")
        held[name] = held.get(name, Digest()) + digest
        hours.add(hour)
    plain = lake.found_in(attempt, [(paths[name], digest.rows) for name, digest in held.items()])
    files = [_with_digest(file, held["/".join(file.path.split("/")[-2:])]) for file in plain]
    return WrittenFiles(sum(held.values(), Digest()), files, sorted(hours))


def verified(
    spark: SparkSession, lake: Lake, frame: Callable[[], DataFrame], attempt: Path, source: Digest
) -> WrittenFiles:
    """Read back what was written, and compare it with `source`, which write_files() or copy() gave.
    `frame()` is the source once more, made only when they differ: Spark starts a process to plan
    one. Raises LakeError when that differs, too."""
    written = read_back(spark, lake, attempt)
    if written.digest != source and written.digest != (again := digest_of(frame())):
        # The second look is at the source itself: what was counted while it was written counts
        # repeated tasks twice.
        raise LakeError(
            f"{attempt} holds {written.digest}, its source holds {again}: it is not committed."
        )
    return written


def check_columns(frame: DataFrame) -> None:
    """Raise Refused unless the columns are those of the archive, in their order and of their
    types."""
    wanted = {field.name: field.dataType for field in schemas.spark_schema(schemas.ARCHIVE)}
    found = {field.name: field.dataType for field in frame.schema}
    if list(found.items()) != list(wanted.items()):
        odd = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        raise Refused(
            f"The rows have not the columns of the archive. Look at: "
            f"{', '.join(odd) or 'their order'}."
        )


def _cells(spark: SparkSession, paths: Sequence[Path]) -> Iterator[tuple[str, str, Digest]]:
    """Per file and hour what is in it."""
    if not paths:
        return
    frame = spark.read.schema(schemas.spark_schema(schemas.ARCHIVE)).parquet(
        *map(pattern_of, paths)
    )
    hour = F.floor(F.unix_seconds("finished_at") / 3600).alias(
        "hour"
    )  # a number: a text per row costs seconds
    keys = (F.col("_metadata.file_path").alias("path"), hour)
    for row in hashed(frame).groupBy(*keys).agg(*signature()).collect():
        text = f"{EPOCH + timedelta(hours=row['hour']):%Y-%m-%dT%H:00:00Z}"
        yield "/".join(unquote(row["path"]).split("/")[-2:]), text, _digest(row.asDict())


def _digest(found: Mapping[str, Any]) -> Digest:
    if not found.get("rows"):
        return Digest()
    hashed = found["high"] * 2**32 + found["low"]
    return Digest(
        found["rows"], hashed, found["lowest"], found["highest"], found["oldest"], found["newest"]
    )


def _with_digest(file: LakeFile, digest: Digest) -> LakeFile:
    known = {
        "lowest": digest.lowest,
        "highest": digest.highest,
        "signature": str(digest.signature),
    }
    return msgspec.structs.replace(file, **known)
