"""Enqueues a message of a task for each row of a file, a table or a query. A job that is repeated
adds nothing twice."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from ...core.conf import check_name
from ...core.job_report import Report, Tell
from ...store import open_store
from ..job_errors import Refused
from ..params import Params, Redis, ScheduleOptions
from ..session import configured
from ..sinks.loader import LoadSpec
from ..sinks.queue_sink import QueueWriter, WrittenMessages
from . import message_frames, pieces, row_messages, scheduling
from .messages import LoadTotals
from .row_messages import MessageMaker
from .schedule_source import WHOLE_FILES, read_source

#: Writes the messages of each task of Spark.
WRITER = QueueWriter
#: Pieces are kept one by one. Java's serializer holds the last hundred things that it wrote: with
#: some megabytes of pieces in each, those of twenty million messages ended a Java of 1 GB.
_ONE_BY_ONE = {"spark.sql.inMemoryColumnarStorage.batchSize": "1"}
#: What such a task says.
_WRITTEN = pa.schema([("splits", pa.list_(pa.string())), ("rows", pa.int64())])
#: Names of files that Spark writes: parts, their checksums, and the mark of the end.
_OF_SPARK = r"\.?part-.*|\.?_SUCCESS(\.crc)?|_temporary"


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Enqueue: see scheduling.schedule()."""
    options = params.options(ScheduleOptions)
    check_name(options.job, "a job", Refused)
    if options.rejects:
        _check_rejects_folder(spark, options)
    whole = WHOLE_FILES if options.format == "csv" else {}
    with (
        closing(open_store(params.redis.settings())) as store,
        configured(spark, {**_ONE_BY_ONE, **whole}),
    ):
        tell("reading the source")
        source = read_source(spark, options, params.database)
        maker = MessageMaker(
            planned=row_messages.plan(options, to_arrow_schema(source.schema, timezone="UTC")),
            now=datetime.now(tz=timezone.utc),
            limit=store.client.settings.body_limit,
            partitions=store.topics.configured(options.task.topic),
        )
        rows = _FrameRows(source, maker, params)
        try:
            return scheduling.schedule(rows, options, store, params.dry_run, tell)
        finally:
            rows.made.unpersist()


def message_pieces(source: DataFrame, maker: MessageMaker) -> DataFrame:
    """pieces.CUT_ROWS of all rows, in the order of their parts; each cell in one task of Spark."""
    cells = maker.partitions * maker.planned.options.splits

    def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pieces.cut(maker(batches), cells)

    tasks = message_frames.tasks_of(source, cells)
    cell = F.floor(F.col("part") / pieces.parts_of(cells)).cast("int")
    return (
        source.mapInArrow(cut, from_arrow_schema(pieces.CUT_ROWS))
        .repartitionById(tasks, cell % tasks)
        .sortWithinPartitions("part")
    )


def refused_rows(made: DataFrame) -> DataFrame:
    """pieces.WHY of the rows of message_pieces() that are no messages."""
    return made.select("part", "made").mapInArrow(pieces.reasons, from_arrow_schema(pieces.WHY))


def write_pieces(made: DataFrame, maker: MessageMaker, redis: Redis, spec: LoadSpec) -> None:
    """Write the messages of message_pieces(). The task that makes messages of the pieces writes
    them, too: a sink of Spark would get them through Java, which takes 2 us of CPU for each."""
    writer = WRITER(redis, spec)

    def task(cuts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = writer.write(pieces.ready(cuts, maker))
        splits = ["/".join(map(str, split)) for split in done.splits]
        yield pa.RecordBatch.from_pylist([{"splits": splits, "rows": done.rows}], schema=_WRITTEN)

    written = made.select("part", "made").mapInArrow(task, from_arrow_schema(_WRITTEN))
    writer.commit([WrittenMessages(row["splits"], row["rows"]) for row in written.collect()])


class _FrameRows:
    """The rows of a frame."""

    def __init__(self, source: DataFrame, maker: MessageMaker, params: Params) -> None:
        self._source, self._maker, self._redis = source, maker, params.redis
        self._options = maker.planned.options
        # In memory the large pieces of ten million messages ended a Java of 1 GB.
        self.made = message_pieces(source, maker).persist(StorageLevel.DISK_ONLY)
        hashed = F.sum(F.col("hash").cast("decimal(38,0)")).cast("string")
        sums = self.made.select("part", "sums")
        totals = sums.mapInArrow(pieces.part_totals, from_arrow_schema(pieces.TOTALS))
        (found,) = totals.agg(F.sum("rows"), F.sum("body_bytes"), hashed, F.sum("bad")).collect()
        self.good = LoadTotals(found[0] or 0, found[1] or 0, found[2] or "0")
        self.bad = found[3] or 0

    def named(self) -> Sequence[Mapping[str, Any]]:
        if not self.bad:
            return []
        first = refused_rows(self.made).orderBy("name").limit(scheduling.NAMED)
        found = first.select(F.col("name").alias("key"), "reason").collect()
        return [row.asDict() for row in found]

    def write_rejects(self) -> None:
        given = rejects(self._source, self._maker)
        given.coalesce(1).write.mode("overwrite").json(_rejects_folder(self._options))

    def write(self, spec: LoadSpec) -> None:
        write_pieces(self.made, self._maker, self._redis, spec)

    def rate(self) -> float | None:
        most = self._maker.partitions * self._options.splits
        return message_frames.share(self.made, self._options.max_per_second, most)


# The rows that are refused


def rejects(source: DataFrame, maker: MessageMaker) -> DataFrame:
    """Each row that cannot be a message, and why."""
    found = refused_rows(message_pieces(source, replace(maker, keep=True)))
    return found.select("reason", F.try_parse_json("row").alias("row"))


def _rejects_folder(options: ScheduleOptions) -> str:
    """DIR/JOB.rejects; DIR may be a URI."""
    return f"{options.rejects.rstrip('/')}/{options.job}.rejects"


def _check_rejects_folder(spark: SparkSession, options: ScheduleOptions) -> None:
    """Raise Refused for a folder that the rejects would replace, but that is the source's or holds
    other files."""
    target = _rejects_folder(options)
    if options.format in ("parquet", "csv", "json"):
        first, second = _place_of(target), _place_of(options.source)
        if first.startswith(second) or second.startswith(first):
            raise Refused(
                f"The rejects would go to {target}, and the source is {options.source}: give them "
                f"another directory."
            )
    if strange := _strange_file(spark, target):
        raise Refused(
            f"The rejects replace what is in {target}. This job did not write {strange}, which is "
            "there: give another directory."
        )


def _place_of(address: str) -> str:
    """Of a path or a URI, without its scheme: a path may be one of the cluster's default file
    system."""
    parts = urlsplit(address)
    path = f"/{parts.netloc}/{parts.path}" if parts.scheme else posixpath.abspath(address)
    return f"{posixpath.normpath(path)}/"


def _strange_file(spark: SparkSession, folder: str) -> str:
    """The name of a file in there that Spark has not written for this job; empty if there is none,
    or no such folder."""
    parts = urlsplit(folder)
    if parts.scheme in ("", "file") and (here := Path(parts.path)).is_dir():
        # Spark does not tell of hidden files and of folders.
        names = sorted(file.name for file in here.iterdir())
        return next((one for one in names if not re.fullmatch(_OF_SPARK, one)), "")
    name = F.element_at(F.split("path", "/"), -1)
    try:
        files = spark.read.format("binaryFile").option("recursiveFileLookup", True).load(folder)
        found = files.select(name.alias("name")).where(~name.startswith("part-")).limit(1).collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return ""
    return str(found[0]["name"]) if found else ""
