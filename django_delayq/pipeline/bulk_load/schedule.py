"""Rows of a file, a table or a query -> messages of a task. Repeated, it adds nothing twice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...store.keys import Partition
from ...store.store import RedisStore
from ..job_errors import Refused
from ..params import Params, Report, ScheduleOptions, Tell
from . import loads, messages, schedule_frames
from .messages import FrameTotals
from .schedule_source import read_source

#: Rows that a refusal names.
NAMED = 5
#: What Spark writes: parts, their checksums, and that it has ended.
_OF_SPARK = r"\.?part-.*|\.?_SUCCESS(\.crc)?|_temporary"


class _Rows(NamedTuple):
    """The rows of the source, looked at once."""

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
    """Enqueue. Raises Refused: then nothing is enqueued; other errors: then what is enqueued stays,
    and the same job again adds the rest."""
    options = params.options(ScheduleOptions)
    loads.check_job(options.job)
    if options.rejects:
        _check_rejects_folder(spark, options)
    store = RedisStore(None, params.redis.settings())
    try:
        tell("looking at the source")
        rows = _look(spark, params, options, store)
        try:
            return _run(spark, params, rows, store, tell)
        finally:
            rows.made.unpersist()
    finally:
        store.close()


def _look(
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
        raise Refused(_refusal(rows))
    count = store.topics.configured(options.task.topic)
    fences = loads.Fences(
        store, options.job, [Partition(options.task.topic, number) for number in range(count)]
    )
    fingerprint = _fingerprint(options, rows.good, count)
    # Everywhere: the topic of the task, or its partitions, may have been others.
    loads.Fences(store, options.job, store.topics.used_partitions()).check(fingerprint)
    before = fences.counts()
    note = loads.check_memory(store, rows.good, sum(before.values()), count)
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
        # JSON lines. Those of an earlier run of the job are replaced.
        refused.coalesce(1).write.mode("overwrite").json(_rejects_folder(options))
    tell(f"writing {rows.good.rows:,} messages")
    with fences.reporting(before, rows.good.rows):
        _write(spark, params, rows, fences, fingerprint)
    report.figures |= fences.added(before, rows.good.rows)
    return report


def _write(
    spark: SparkSession,
    params: Params,
    rows: _Rows,
    fences: loads.Fences,
    fingerprint: Mapping[str, Any],
) -> None:
    options = rows.planned.options
    tasks = len(fences.partitions) * options.splits
    spec = loads.load_spec(
        options.job, fingerprint, [options.task],
        due_ms=fences.open(fingerprint) + options.delay_ms,
        rows=rows.good.rows, per_second=loads.share(spark, options.max_per_second, tasks),
    )  # fmt: skip
    good = rows.made.where(F.col("reason").isNull())
    loads.write_messages(spark, messages.message_columns(good), params.redis, spec)


def _fingerprint(options: ScheduleOptions, good: FrameTotals, count: int) -> dict[str, Any]:
    """What may not differ between two runs of a job. The hash holds what is in the messages."""
    return {
        "rows": good.rows, "hash": good.hash, "topic": options.task.topic, "partitions": count,
        "splits": options.splits, "delay_ms": options.delay_ms,
    }  # fmt: skip


# Rows that are refused


def _named(rows: _Rows) -> list[dict[str, Any]]:
    if not rows.bad:
        return []
    first = rows.made.where(F.col("reason").isNotNull()).orderBy("name").limit(NAMED)
    return [
        {"key": row["name"], "reason": row["reason"]}
        for row in first.select("name", "reason").collect()
    ]


def _refusal(rows: _Rows) -> str:
    first = "; ".join(f"row {row['key']!r}: {row['reason']}" for row in _named(rows))
    return (
        f"{rows.bad:,} of {rows.good.rows + rows.bad:,} rows cannot be messages, and nothing was "
        f"enqueued. {first}. "
        "Mend the source, or give a directory for rejects to enqueue the others."
    )


# The folder for rows that are refused


def _rejects_folder(options: ScheduleOptions) -> str:
    """DIR/JOB.rejects; DIR may be a URI."""
    return f"{options.rejects.rstrip('/')}/{options.job}.rejects"


def _check_rejects_folder(spark: SparkSession, options: ScheduleOptions) -> None:
    """Raise Refused for a folder that is to be replaced, but is the source's or has what is not
    ours."""
    system, path = _hadoop_path(spark, _rejects_folder(options))
    if options.format in ("parquet", "csv", "json"):
        source, target = (
            str(_hadoop_path(spark, one)[1].toString())
            for one in (options.source, _rejects_folder(options))
        )
        if f"{source}/".startswith(f"{target}/") or target.startswith(f"{source}/"):
            raise Refused(
                f"The rejects would go to {target}, and the source is {source}: give them another "
                f"directory."
            )
    found = (
        [str(one.getPath().getName()) for one in system.listStatus(path)]
        if system.exists(path)
        else []
    )
    if strange := [name for name in sorted(found) if not re.fullmatch(_OF_SPARK, name)]:
        raise Refused(
            f"The rejects replace what is in {_rejects_folder(options)}. This job did not write "
            f"{strange[0]}, which is there: give another directory."
        )


def _hadoop_path(spark: Any, text: str) -> tuple[Any, Any]:
    """The file system of a path, as Hadoop has it, and the path in full."""
    path = spark._jvm.org.apache.hadoop.fs.Path(text)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    return system, system.makeQualified(path)
