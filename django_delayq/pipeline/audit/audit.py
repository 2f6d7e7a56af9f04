"""Compares Redis, the outbox, the archive and the lake: finds what is lost, twice or in a wrong
place, and repairs it.

All is read in the direction in which messages move: the outbox, Redis, the archive, the lake. A
message that moves meanwhile may be seen twice, but is never missed. To find a message that must not
be there twice, only those rows of the archive count that were there before the first of it was
read. So a healthy system in motion gives few candidates. A check of each by its id decides.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...archive.selection import newest_id
from ...core.job_report import Report, Tell
from ...operators.doctor.conclusion import Looks, conclude, note_left
from ...operators.doctor.findings import Candidates, Finding, FindingKind
from ...store import get_store
from ...store.keys import Partition
from ...store.queries import Life
from ..lake.lake import Lake
from ..lake.lake_source import read_lake
from ..params import AuditOptions, Params
from ..sources.archive_source import read_archive
from ..sources.outbox_source import read_outbox
from ..sources.queue_source import read_queue
from . import audit_frames as frames
from .audit_lake import AuditedLake

#: The columns of the archive and the lake that tell which messages have ended.
_ENDED = ("id", "message_id", "enqueued_at")


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Find candidates, check them again, and repair them when the options say so.

    The code is DIFFERENT when there were differences, also when all are repaired: the next audit is
    clean then. Raises Refused, and LakeError when the lake is not as its log says.
    """
    begun = time.monotonic()
    report, options = Report(job="audit"), params.options(AuditOptions)
    lake = AuditedLake(spark, params) if params.lake else None
    found, counts = Candidates([], {})
    of_period = bool(params.since or params.until)
    if not of_period:
        found, counts = _of_messages(spark, params, lake.lake if lake else None, report, tell)
    if lake:
        of_lake = lake.compare(report)
        found, counts = [*found, *of_lake.found], {**counts, **of_lake.counts}
    looks = Looks(options.pause, options.repair, options.by, options.most)
    left = conclude(get_store(), Candidates(found, counts), looks, report, tell, lake)
    if not (params.topic or of_period):
        note_left(left)
    report.figures["seconds"] = round(time.monotonic() - begun, 3)
    return report


def _of_messages(
    spark: SparkSession, params: Params, lake: Lake | None, report: Report, tell: Tell
) -> Candidates:
    """Of Redis, the outbox and what has ended."""
    with ExitStack() as kept:

        def keep(name: str, frame: DataFrame) -> DataFrame:
            """Read now, and once: later steps see what was there when its turn had come."""
            kept.callback(frame.persist().unpersist)
            report.figures[name.replace(" ", "_")] = count = frame.count()
            tell(f"{count:,} {name}")
            return frame

        before = newest_id()
        topics = [params.topic] if params.topic else []
        promised = frames.promises(read_outbox(spark, params.database))
        if topics:
            promised = promised.where(F.col("topic").isin(topics))
        outbox = keep("rows of the outbox", promised)
        queue = keep("places in Redis", frames.places(read_queue(spark, params.redis, topics)))
        archived = read_archive(spark, params.database, (0, newest_id()), _ENDED)
        archive = keep("rows of the archive", frames.rows(archived))
        in_lake = read_lake(spark, lake, _ENDED) if lake else archived.limit(0)
        exported = keep("rows of the lake", frames.rows(in_lake))
        ended = frames.lives(archive, exported)
        past = frames.lives(archive.where(F.col("row") <= before), exported)
        candidates = [
            frames.damaged(queue, params.redis),
            frames.misplaced(queue, _partitions(spark)),
            frames.ends(queue, outbox, ended),
            frames.unclosed(outbox, past),
            frames.lost(outbox, queue, ended),
            frames.live_again(queue, past),
        ]
        found = reduce(DataFrame.unionByName, candidates).persist()
        kept.callback(found.unpersist)
        return _collected(found, params.options(AuditOptions).most)


def _partitions(spark: SparkSession) -> DataFrame:
    """Every number of partitions that each topic has had: topic, counts."""
    store = get_store()
    store.partitions.forget()
    used = sorted({*store.topics.names(), *store.client.settings.topics})
    counts = [(topic, sorted(store.partitions.counts(topic))) for topic in used]
    return spark.createDataFrame(counts, "topic string, counts array<int>")


def _collected(found: DataFrame, most: int) -> Candidates:
    of_kinds = found.groupBy("kind").count().collect()
    counts = {FindingKind(row["kind"]): row["count"] for row in of_kinds}
    parts = [found]
    if max(counts.values(), default=0) > most:
        parts = [found.where(F.col("kind") == kind.value).limit(most) for kind in counts]
    rows = [
        Finding(
            FindingKind(row["kind"]),
            Partition(row["topic"], row["partition"] or 0),
            Life(bytes.fromhex(row["message_id"]), row["stamp"] or 0),
            lake=row["lake"],
        )
        for part in parts
        for row in part.collect()
    ]
    return Candidates(rows, counts)
