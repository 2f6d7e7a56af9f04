"""What an audit compares: frames of Redis, outbox, archive and lake in, frames of findings out.

Pure. The findings are candidates: the frames were read one after the other, while messages moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.ml.feature import Bucketizer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from .. import schemas
from .findings import FindingKind

LANES = ("high", "normal", "low")
#: Places of what has not ended.
LIVE = (*LANES, "leased", "none", "follower")
LIFE = ["message_id", "stamp"]
WHERE = ["message_id", "topic", "partition"]


# The columns that are compared


def places(queue: DataFrame) -> DataFrame:
    """Of schemas.QUEUE: message_id, topic, partition, place, stamp, recorded, and the lane where
    the record belongs."""
    flags = F.conv(F.hex(F.expr("substring(record, 15, 1)")), 16, 10).cast("int")
    lane = F.when(flags % 4 == 0, "high").when(flags % 4 == 2, "low").otherwise("normal")
    return queue.select(
        *WHERE,
        "place",
        F.col("enqueued_at_us").alias("stamp"),
        F.col("record").isNotNull().alias("recorded"),
        lane.alias("lane"),
    )


def promises(outbox: DataFrame) -> DataFrame:
    """Of the outbox: message_id, stamp, topic, status."""
    return outbox.select("message_id", F.col("enqueued_at_us").alias("stamp"), "topic", "status")


def hashed_rows(archive: DataFrame) -> DataFrame:
    """Of the archive, or of the lake: row (its id), message_id, stamp, topic, finished_at, and
    content, a hash of all columns."""
    return archive.select(
        F.col("id").alias("row"),
        "message_id",
        F.unix_micros("enqueued_at").alias("stamp"),
        "topic",
        "finished_at",
        F.xxhash64(*schemas.ARCHIVE.names).alias("content"),
    )


def batched(frame: DataFrame, highest: Sequence[int]) -> DataFrame:
    """Rows with the number of their batch of the lake, from 0; null above the last one.

    `highest`: the biggest id of each batch, which begins after that of the one before.
    """
    if not highest:
        return frame.withColumn("batch", F.lit(None).cast("int"))
    splits = [float("-inf"), *(hi + 1.0 for hi in highest), float("inf")]
    numbered = Bucketizer(splits=splits, inputCol="row", outputCol="number").transform(frame)
    batch = F.when(F.col("row") <= highest[-1], F.col("number").cast("int"))
    return numbered.withColumn("batch", batch).drop("number")


def lives(archive: DataFrame, lake: DataFrame) -> DataFrame:
    """message_id, stamp, and whether it is only the lake that knows of this end."""
    both = archive.select(*LIFE, F.lit(False).alias("lake")).unionByName(
        lake.select(*LIFE, F.lit(True).alias("lake"))
    )
    return both.groupBy(*LIFE).agg(F.min("lake").alias("lake"))


# Redis alone


def suspects(queue: DataFrame) -> DataFrame:
    """message_id, topic and partition of what is not in order: a record and its one place, its lane
    or a lease; a follower only while there is a lease. Redis knows what is wrong with them, if
    anything: see diagnosis.py."""
    place = F.col("place")
    whole = F.col("recorded") & (place.isin("leased", "follower") | (place == F.col("lane")))
    there = F.array_sort(F.collect_set(F.when(whole, place).otherwise("damaged")))
    seen = queue.where(place.isin(*LIVE)).groupBy(*WHERE)
    in_order = F.col("there").isin(*LANES, "leased", "follower,leased")
    return seen.agg(F.concat_ws(",", there).alias("there")).where(~in_order).select(*WHERE)


def misplaced(queue: DataFrame, counts: DataFrame) -> DataFrame:
    """What no number of partitions puts where it is. `counts`: topic, counts (array of every number
    of partitions that it has had)."""
    number = F.conv(F.substring("message_id", 25, 8), 16, 10).cast("bigint")
    home = F.exists("counts", lambda count: number % count == F.col("partition"))
    living = queue.where(F.col("place").isin(*LANES, "leased", "none") & F.col("recorded"))
    found = living.join(F.broadcast(counts), "topic").where(~home).dropDuplicates(WHERE)
    return as_findings(found, FindingKind.WRONG_PARTITION)


# Redis and SQL


def ends(queue: DataFrame, outbox: DataFrame, ended: DataFrame) -> DataFrame:
    """Ends that Redis remembers and that are in no stream. `ended`: see lives().

    An end with a newer life, in Redis or the outbox, is not lost: a message that was moved in SQL
    gets a newer stamp, and Redis remembers the older one so that nobody sends it any more.
    """
    entries = queue.where(F.col("place") == "finished").select(*WHERE, "stamp").distinct()
    loose = queue.where(F.col("place") == "done").join(entries, [*WHERE, "stamp"], "left_anti")
    living = queue.where(F.col("place").isin(*LIVE)).select(*LIFE).unionByName(outbox.select(*LIFE))
    newest = living.groupBy("message_id").agg(F.max("stamp").alias("living"))
    past = ended.groupBy("message_id").agg(
        F.max_by("stamp", "stamp").alias("past"), F.max_by("lake", "stamp").alias("lake")
    )
    known = (
        loose.select(*WHERE, "stamp")
        .join(newest, "message_id", "left")
        .join(past, "message_id", "left")
    )
    kind = F.when(F.col("past") >= F.col("stamp"), FindingKind.STALE_END.value).when(
        F.col("living").isNull() | (F.col("living") <= F.col("stamp")), FindingKind.LOST_END.value
    )
    return as_findings(known.withColumn("kind", kind))


def unclosed(outbox: DataFrame, ended: DataFrame) -> DataFrame:
    """Rows of the outbox whose life is archived. `ended`: before the outbox was read."""
    return as_findings(outbox.join(ended, LIFE), FindingKind.UNCLOSED)


def lost(outbox: DataFrame, queue: DataFrame, ended: DataFrame) -> DataFrame:
    """Rows of the outbox that were sent and are nowhere. `ended`: after Redis was read."""
    sent = outbox.where(F.col("status") == "sent")
    nowhere = sent.join(queue.select(*LIFE), LIFE, "left_anti").join(ended, LIFE, "left_anti")
    return as_findings(nowhere, FindingKind.LOST)


def live_again(queue: DataFrame, ended: DataFrame) -> DataFrame:
    """Lives that wait, or have no place, and are archived. `ended`: before Redis was read. One that
    runs is none: with exactly_once the row comes before the ack."""
    waits = queue.where(F.col("place").isin(*LANES, "none")).select(*WHERE, "stamp").distinct()
    return as_findings(waits.join(ended, LIFE), FindingKind.LIVE_AGAIN)


# Archive and lake


def twice(archive: DataFrame, lake: DataFrame) -> DataFrame:
    """Lives with two rows: in SQL, in the lake, or one in each under different ids."""
    both = archive.select(
        *LIFE, "row", "topic", F.lit(1).alias("sql"), F.lit(0).alias("lakes")
    ).unionByName(
        lake.select(*LIFE, "row", "topic", F.lit(0).alias("sql"), F.lit(1).alias("lakes"))
    )
    counted = both.groupBy(*LIFE).agg(
        F.sum("sql").alias("sql"),
        F.sum("lakes").alias("lakes"),
        F.min("row").alias("row"),
        F.max("row").alias("last"),
        F.first("topic").alias("topic"),
    )
    several = (F.col("sql") > 1) | (F.col("lakes") > 1) | (F.col("row") != F.col("last"))
    found = counted.where(several).withColumn("lake", F.col("lakes") > 1)
    return as_findings(found, FindingKind.TWICE)


def sums(frame: DataFrame) -> DataFrame:
    """Per batch: how many rows, and the sum of their hashes as in batches.signature()."""
    total = F.sum(F.col("content").cast("decimal(38,0)")).cast("string")
    counted = F.count(F.lit(1)).alias("rows")
    return (
        frame.where(F.col("batch").isNotNull())
        .groupBy("batch")
        .agg(counted, total.alias("signature"))
    )


def differing(
    archive: DataFrame,
    lake: DataFrame,
    batches: Sequence[int],
    whole: Sequence[int],
    pruned_before: datetime | None,
) -> DataFrame:
    """Rows of these batches that are not the same in SQL and in the lake.

    `whole`: those of the batches that no export has pruned: SQL has to have all of their rows, but
    for what finished before `pruned_before`, and what it has under another id.
    """
    ours = archive.where(F.col("batch").isin(*batches))
    theirs = lake.where(F.col("batch").isin(*batches))
    life = F.struct(*LIFE)
    there = theirs.select("row", F.col("content").alias("other"), life.alias("of"))
    kind = (
        F.when(F.col("other").isNull(), FindingKind.LATE_ROW.value)
        .when(F.col("of") != life, FindingKind.ANOTHER_LIFE.value)
        .when(F.col("other") != F.col("content"), FindingKind.CHANGED_ROW.value)
    )
    differ = ours.join(there, "row", "left").withColumn("kind", kind)
    gone = theirs.where(F.col("batch").isin(*whole))
    if pruned_before is not None:
        gone = gone.where(F.col("finished_at") >= F.lit(pruned_before))
    gone = gone.join(ours.select("row"), "row", "left_anti").join(
        archive.select(*LIFE), LIFE, "left_anti"
    )
    # Distinct, because a row of the lake may be there twice.
    return as_findings(differ).unionByName(as_findings(gone, FindingKind.LOST_ROW)).distinct()


def surplus(found: DataFrame, vouched: Sequence[int]) -> DataFrame:
    """The findings again. In the `vouched` batches SQL holds exactly what the commit says: a row
    that SQL lacks there is a row too many in the lake."""
    wrong = (F.col("kind") == FindingKind.LOST_ROW.value) & F.col("batch").isin(*vouched)
    return found.withColumn(
        "kind", F.when(wrong, FindingKind.SURPLUS_ROW.value).otherwise(F.col("kind"))
    )


def archive_over_lake(archive: DataFrame, lake: DataFrame) -> DataFrame:
    """One row per id, in one pass over SQL: as SQL has it, else as the lake has it. A row that is
    of another life in the lake stays as it is there. Both: with the columns of the archive, in
    their order."""
    ours = archive.select("id", F.struct(*archive.columns).alias("ours"))
    theirs = lake.dropDuplicates(["id"]).select("id", F.struct(*archive.columns).alias("theirs"))
    same = [
        F.col(f"ours.{name}") == F.col(f"theirs.{name}") for name in ("message_id", "enqueued_at")
    ]
    of_sql = F.col("theirs").isNull() | (same[0] & same[1])
    row = F.when(F.col("ours").isNotNull() & of_sql, F.col("ours")).otherwise(F.col("theirs"))
    return ours.join(theirs, "id", "full_outer").select(row.alias("row")).select("row.*")


_TYPES = {
    "topic": "string", "partition": "int", "message_id": "string", "stamp": "bigint",
    "row": "bigint", "batch": "int",
    "lake": "boolean",
}  # fmt: skip


def as_findings(frame: DataFrame, kind: FindingKind | None = None) -> DataFrame:
    """The columns of a Finding; those that the frame lacks are null. Without a kind each row has
    its own, or null when it is no finding."""
    others = [
        (F.col(name) if name in frame.columns else F.lit(None)).cast(type_).alias(name)
        for name, type_ in _TYPES.items()
    ]
    named = frame.select((F.lit(kind.value) if kind else F.col("kind")).alias("kind"), *others)
    return named.where(F.col("kind").isNotNull()).fillna({"topic": "", "lake": False})
