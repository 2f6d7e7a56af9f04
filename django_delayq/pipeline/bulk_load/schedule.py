"""Enqueues a message of a task for each row of a file, a table or a query. A job that is repeated
adds nothing twice."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import datetime, timezone
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...core.conf import check_name
from ...core.message import task_code
from ...store.keys import Partition
from ...store.store import RedisStore
from ..job_errors import Refused
from ..params import Params, Report, ScheduleOptions, Tell
from ..sinks.queue_sink import LoadSpec
from . import loads, messages, schedule_frames
from .messages import FrameTotals
from .schedule_source import read_source

#: Rows that a refusal names.
NAMED = 5
#: Names of files that Spark writes: parts, their checksums, and the mark of the end.
_OF_SPARK = r"\.?part-.*|\.?_SUCCESS(\.crc)?|_temporary"


class _Rows(NamedTuple):
    """The rows of the source."""

    source: DataFrame
    planned: schedule_frames.Plan
    now: datetime
    limit: int
    made: DataFrame
    """Arranged, with reason, name and copies."""
    good: FrameTotals
    bad: int

    @property
    def total(self) -> int:
        """Good and bad."""
        return self.good.rows + self.bad


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Enqueue. When it raises Refused, nothing is enqueued. After another error the enqueued
    messages stay, and the same job again adds the rest."""
    options = params.options(ScheduleOptions)
    check_name(options.job, "a job", Refused)
    if options.rejects:
        _check_rejects_folder(spark, options)
    with closing(RedisStore(None, params.redis.settings())) as store:
        tell("reading the source")
        rows = _read(spark, params, options, store)
        try:
            return _run(spark, params, rows, store, tell)
        finally:
            rows.made.unpersist()


def _read(
    spark: SparkSession, params: Params, options: ScheduleOptions, store: RedisStore
) -> _Rows:
    source = read_source(spark, options, params.database)
    planned = schedule_frames.plan(options, source.schema)
    count = store.topics.configured(options.task.topic)
    now, limit = datetime.now(tz=timezone.utc), store.client.settings.body_limit
    made = schedule_frames.message_rows(source, planned, now, limit)
    arranged = messages.arranged(
        messages.placed(made, {options.task.topic: count}, options.splits), count * options.splits
    )
    whole = schedule_frames.with_copies_refused(arranged).persist(StorageLevel.MEMORY_AND_DISK)
    found = (
        whole.groupBy(F.col("reason").isNull().alias("good")).agg(*messages.summed(whole)).collect()
    )
    sums = {row["good"]: FrameTotals(row["rows"], row["body_bytes"], row["hash"]) for row in found}
    bad = sums[False].rows if False in sums else 0
    return _Rows(source, planned, now, limit, whole, sums.get(True, FrameTotals(0, 0, "0")), bad)


def _run(spark: SparkSession, params: Params, rows: _Rows, store: RedisStore, tell: Tell) -> Report:
    options = rows.planned.options
    tell(f"{rows.total:,} rows, {rows.bad:,} of them refused")
    if rows.bad and not (options.rejects or params.dry_run):
        first = "; ".join(f"row {row['key']!r}: {row['reason']}" for row in _named(rows))
        raise Refused(
            f"{rows.bad:,} of {rows.total:,} rows cannot be messages, and nothing was enqueued. "
            f"{first}. Mend the source, or give a directory for rejects to enqueue the others."
        )
    count = store.topics.configured(options.task.topic)
    fences = loads.Fences(
        store, options.job, [Partition(options.task.topic, number) for number in range(count)]
    )
    # What may not differ between two runs of a job. The hash holds what is in the messages.
    fingerprint = {
        "rows": rows.good.rows, "hash": rows.good.hash, "topic": options.task.topic,
        "partitions": count, "splits": options.splits, "delay_ms": options.delay_ms,
    }  # fmt: skip
    # In all partitions: the topic of the task, or its partitions, may have been others.
    loads.Fences(store, options.job, store.topics.used_partitions()).check(fingerprint)
    note = loads.check_memory(store, rows.good, sum(fences.counts().values()), count)
    report = Report(
        job="schedule",
        figures={"rows": rows.total, "refused": rows.bad},
        problems=[note] if note else [],
    )
    if params.dry_run:
        report.figures["messages"], report.rows = rows.good.rows, _named(rows)
        return report
    if rows.bad:
        refused = schedule_frames.rejects(rows.source, rows.planned, rows.now, rows.limit)
        # JSON lines. They replace those of an earlier run of the job.
        refused.coalesce(1).write.mode("overwrite").json(_rejects_folder(options))
    tell(f"writing {rows.good.rows:,} messages")
    good = rows.made.where(F.col("reason").isNull())
    spec = LoadSpec(
        job=options.job, fingerprint=loads.encode_fingerprint(fingerprint),
        tasks={task_code(options.task.name).hex(): options.task.name}, rows=rows.good.rows,
        per_second=loads.share(spark, options.max_per_second, count * options.splits),
    )  # fmt: skip
    report.figures |= fences.add(good, params.redis, spec, options.delay_ms)
    return report


# Rows that are refused


def _named(rows: _Rows) -> list[dict[str, Any]]:
    """The first of them, and why."""
    first = rows.made.where(F.col("reason").isNotNull()).orderBy("name").limit(NAMED)
    found = first.select(F.col("name").alias("key"), "reason").collect() if rows.bad else []
    return [row.asDict() for row in found]


# The folder for rows that are refused


def _rejects_folder(options: ScheduleOptions) -> str:
    """DIR/JOB.rejects; DIR may be a URI."""
    return f"{options.rejects.rstrip('/')}/{options.job}.rejects"


def _check_rejects_folder(spark: SparkSession, options: ScheduleOptions) -> None:
    """Raise Refused for a folder that the rejects would replace, but that is the source's or holds
    other files."""
    system, path = _hadoop_path(spark, _rejects_folder(options))
    if options.format in ("parquet", "csv", "json"):
        target = str(path.toString())
        source = str(_hadoop_path(spark, options.source)[1].toString())
        if f"{source}/".startswith(f"{target}/") or target.startswith(f"{source}/"):
            raise Refused(
                f"The rejects would go to {target}, and the source is {source}: give them another "
                f"directory."
            )
    files = system.listStatus(path) if system.exists(path) else []
    names = sorted(str(file.getPath().getName()) for file in files)
    if strange := [name for name in names if not re.fullmatch(_OF_SPARK, name)]:
        raise Refused(
            f"The rejects replace what is in {_rejects_folder(options)}. This job did not write "
            f"{strange[0]}, which is there: give another directory."
        )


def _hadoop_path(spark: Any, text: str) -> tuple[Any, Any]:
    """The file system of a path, as Hadoop has it, and the path in full."""
    path = spark._jvm.org.apache.hadoop.fs.Path(text)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    return system, system.makeQualified(path)
