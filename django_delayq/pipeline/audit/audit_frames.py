"""What an audit compares: frames of Redis, outbox, archive and lake in, frames of findings out.

Pure, but for damaged(), which asks Redis on the executors. The findings are candidates: the frames
were read one after the other, while messages moved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from ...operators.doctor.findings import FindingKind
from ...store import open_store
from ...store.keys import Partition
from ...store.structures import LANES
from .. import schemas
from ..params import Redis

#: Places of what has not ended.
LIVE = (*LANES, "leased", "none", "follower")
LIFE = ["message_id", "stamp"]
WHERE = ["message_id", "topic", "partition"]
_DIAGNOSED = pa.schema(
    [*schemas.chosen(schemas.QUEUE, WHERE), ("stamp", pa.int64()), ("kind", pa.string())]
)


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


def rows(archive: DataFrame) -> DataFrame:
    """Of the archive, or of the lake: row (its id), message_id, stamp."""
    stamp = F.unix_micros("enqueued_at").alias("stamp")
    return archive.select(F.col("id").alias("row"), "message_id", stamp)


def lives(archive: DataFrame, lake: DataFrame) -> DataFrame:
    """message_id, stamp, and whether it is only the lake that knows of this end. Both: see
    rows()."""
    both = archive.select(*LIFE, F.lit(False).alias("lake")).unionByName(
        lake.select(*LIFE, F.lit(True).alias("lake"))
    )
    return both.groupBy(*LIFE).agg(F.min("lake").alias("lake"))


# Redis alone


def suspects(queue: DataFrame) -> DataFrame:
    """message_id, topic and partition of what is not in order: a record and its one place, its lane
    or a lease; a follower only while there is a lease."""
    place = F.col("place")
    whole = F.col("recorded") & (place.isin("leased", "follower") | (place == F.col("lane")))
    there = F.array_sort(F.collect_set(F.when(whole, place).otherwise("damaged")))
    seen = queue.where(place.isin(*LIVE)).groupBy(*WHERE)
    in_order = F.col("there").isin(*LANES, "leased", "follower,leased")
    return seen.agg(F.concat_ws(",", there).alias("there")).where(~in_order).select(*WHERE)


def damaged(queue: DataFrame, redis: Redis) -> DataFrame:
    """What Redis finds wrong with the suspects, if anything."""
    ask = partial(_diagnosed, redis=redis)
    return as_findings(suspects(queue).mapInArrow(ask, from_arrow_schema(_DIAGNOSED)))


def _diagnosed(batches: Iterable[pa.RecordBatch], redis: Redis) -> Iterator[pa.RecordBatch]:
    with closing(open_store(redis.settings())) as store:
        for batch in batches:
            parts: dict[Partition, list[bytes]] = defaultdict(list)
            for message_id, *place in zip(*batch.to_pydict().values(), strict=True):
                parts[Partition(*place)].append(bytes.fromhex(message_id))
            rows = [
                (message_id.hex(), *partition, stamp_us, FindingKind.of_damage(damage).value)
                for partition, ids in parts.items()
                for message_id, stamp_us, damages in store.repair.diagnose(partition, ids)
                for damage in damages
            ]
            found = [dict(zip(_DIAGNOSED.names, row, strict=True)) for row in rows]
            yield pa.RecordBatch.from_pylist(found, schema=_DIAGNOSED)


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
    known = loose.join(newest, "message_id", "left").join(past, "message_id", "left")
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


_TYPES = {
    "topic": "string", "partition": "int", "message_id": "string", "stamp": "bigint",
    "lake": "boolean",
}  # fmt: skip


def as_findings(frame: DataFrame, kind: FindingKind | None = None) -> DataFrame:
    """The columns of a Finding; those that the frame lacks are null. Without a kind each row has
    its own, or null when it is no finding."""
    columns = [
        (F.col(name) if name in frame.columns else F.lit(None)).cast(type_).alias(name)
        for name, type_ in _TYPES.items()
    ]
    named = frame.select((F.lit(kind.value) if kind else F.col("kind")).alias("kind"), *columns)
    return named.where(F.col("kind").isNotNull()).fillna({"lake": False})
