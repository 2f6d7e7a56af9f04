"""Enqueues dead letters of the archive or the lake again, each once, and marks its origin."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple
from uuid import UUID

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...core.chunks import chunked
from ...core.conf import DEFAULT_TOPIC, Settings, check_name
from ...core.message import task_code
from ...store.client import BATCH
from ...store.keys import Partition
from ...store.store import RedisStore
from .. import schemas
from ..job_errors import Refused
from ..lake.lake import Lake
from ..lake.lake_source import read_lake
from ..lake.watermark import last_settled_id
from ..params import Params, ReplayOptions, Report, Tell
from ..sinks.loader import LoadSpec
from ..sources.archive_source import finished_between, read_archive
from . import loads, message_frames, replay_frames, replay_marks
from .messages import LoadTotals

#: Rows that SQL took later than so many seconds ago may still get a smaller id: they are for
#: another job.
SETTLE = 60.0
#: Marks that the driver holds at a time.
LINKS = 100_000


class _Letters(NamedTuple):
    """The selected dead letters."""

    made: DataFrame
    fit: LoadTotals
    """Those that a replay could take, whether SQL has them open, replayed or discarded: the same
    in each run of the job."""
    good: LoadTotals
    """Those of them that are open."""
    skipped: Counter[str]
    topics: Sequence[str]
    cells: int
    """Splits of all partitions of all topics that are declared."""


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Replay. When it raises Refused, nothing is replayed. After another error, messages that were
    replayed stay, and the same job again replays and marks the rest."""
    options = params.options(ReplayOptions)
    check_name(options.job, "a job", Refused)
    with closing(RedisStore(None, params.redis.settings())) as store:
        fences = loads.Fences(store, options.job, store.topics.used_partitions())
        tell("reading the dead letters")
        ids = _ids(params, fences)
        letters = _read(spark, params, store.client.settings, ids)
        try:
            # What may not differ between two runs of a job. The fence skips what is below its
            # marks, sent or not: a letter that is selected only later would count as sent.
            topics = sorted(store.client.settings.topics.items())
            fingerprint = {
                "where": options.where, "edits": dict(options.edits), "source": options.source,
                "since": params.since, "until": params.until, "topic": params.topic,
                "delay_ms": options.delay_ms, "splits": options.splits,
                "partitions": {name: own.partitions for name, own in topics if own.partitions > 1},
                "first": ids[0], "last": ids[1], "letters": letters.fit.rows,
                "hash": letters.fit.hash,
            }  # fmt: skip
            fences.check(fingerprint)
            return _run(params, letters, fingerprint, store, tell)
        finally:
            letters.made.unpersist()


def _ids(params: Params, fences: loads.Fences) -> tuple[int, int]:
    """The ids (first, last] that are read: from the first open letter on.

    The first run of a job decides about the ids: a letter that came later is not of the job.
    """
    for found in map(loads.decode_fingerprint, fences.fingerprints()):
        if {"first", "last"} <= found.keys():
            return found["first"], found["last"]
    since, until = params.period()
    return replay_marks.ids_of_open(since, until, params.topic, last_settled_id(SETTLE))


def _read(
    spark: SparkSession,
    params: Params,
    settings: Settings,
    ids: tuple[int, int],
) -> _Letters:
    options = params.options(ReplayOptions)
    since, until = params.period()
    if options.source == "archive":
        found = replay_frames.with_standing(
            read_archive(spark, params.database, ids, schemas.LETTERS.names)
        )
    else:
        days = [instant.strftime("%Y-%m-%d") if instant else "" for instant in (since, until)]
        found = read_lake(spark, Lake(params.lake), since=days[0], until=days[1], ids=ids)
    found = finished_between(found, since, until, params.topic)
    chosen = replay_frames.selected_letters(found, options.where)
    if options.source == "lake":
        columns = ["id", "state", "replayed_at", "discarded_at"]
        sql = read_archive(spark, params.database, ids, columns).where(F.col("state") == "dead")
        standing = replay_frames.with_standing(sql).select("id", "standing")
        chosen = chosen.join(standing, "id", "left").fillna(replay_frames.GONE, ["standing"])
    topics = {task.topic for task in options.tasks} | set(settings.topics) | {DEFAULT_TOPIC}
    counts = {
        topic: settings.topics[topic].partitions if topic in settings.topics else 1
        for topic in sorted(topics)
    }
    replays = replay_frames.replays(chosen, options, list(counts), settings.body_limit)
    placed = message_frames.placed(message_frames.with_hashes(replays), counts, options.splits)
    cells = options.splits * sum(counts.values())
    made = message_frames.arranged(placed, cells).persist(StorageLevel.MEMORY_AND_DISK)
    fit = F.col("fault").isNull().alias("fit")
    sums = made.groupBy("reason", "topic", fit).agg(*message_frames.summed()).collect()
    good = [row for row in sums if row["reason"] is None]
    skipped = Counter[str]()
    for row in sums:
        if row["reason"] is not None:
            skipped[row["reason"]] += row["rows"]
    whole = _total([row for row in sums if row["fit"]])
    return _Letters(made, whole, _total(good), skipped, sorted(row["topic"] for row in good), cells)


def _total(found: Sequence[Any]) -> LoadTotals:
    return LoadTotals(
        sum(row["rows"] for row in found), sum(row["body_bytes"] for row in found),
        str(sum(int(row["hash"]) for row in found)),
    )  # fmt: skip


def _run(
    params: Params,
    letters: _Letters,
    fingerprint: dict[str, Any],
    store: RedisStore,
    tell: Tell,
) -> Report:
    options = params.options(ReplayOptions)
    report = Report(
        job="replay",
        rows=[{"left alone": why, "rows": n} for why, n in sorted(letters.skipped.items())],
    )
    report.figures = {
        "selected": letters.good.rows + letters.skipped.total(),
        "to replay": letters.good.rows,
    }
    if params.dry_run or not letters.good.rows:
        return report
    counts = {topic: store.topics.configured(topic) for topic in letters.topics}
    partitions = [
        Partition(topic, number) for topic, count in counts.items() for number in range(count)
    ]
    fences = loads.Fences(store, options.job, partitions)
    if note := loads.check_memory(store, letters.good, 0, len(partitions)):
        report.problems.append(note)
    tell(f"writing {letters.good.rows:,} messages")
    good = letters.made.where(F.col("reason").isNull())
    columns = message_frames.message_columns(good)
    spec = LoadSpec(
        job=options.job, fingerprint=loads.encode_fingerprint(fingerprint),
        tasks={task_code(task.name).hex(): task.name for task in options.tasks},
        rows=letters.good.rows, record_conflicts=True,
        per_second=message_frames.share(good, options.max_per_second, letters.cells),
    )  # fmt: skip
    report.figures |= fences.add(
        lambda load: message_frames.write(columns, params.redis, load), spec, options.delay_ms
    )
    tell("marking the origins")
    conditions = {
        "since": params.since, "until": params.until, "topic": params.topic, "where": options.where,
    }  # fmt: skip
    words = [options.source, *(f"{name} {value}" for name, value in conditions.items() if value)]

    links = _links(good, letters.good.rows, store, options.job)
    marked, key_live = replay_marks.mark_origins(options, ", ".join(words), links)
    report.figures |= {"marked": marked, "key live": key_live}
    return report


def _links(
    good: DataFrame, rows: int, store: RedisStore, job: str
) -> Iterator[tuple[int, UUID | None]]:
    """Origin and message of each row, by origin; None for a key that another message has. The
    driver holds one part of them at a time."""
    parts = -(-rows // LINKS)
    columns = good.select("origin", "id", "topic", "partition")
    arranged = columns.repartitionByRange(parts, "origin").sortWithinPartitions("origin")
    for page in chunked(arranged.toLocalIterator(), BATCH):
        places = defaultdict(list)
        for row in page:
            places[Partition(row["topic"], row["partition"])].append(bytes(row["id"]))
        left = {
            identity
            for partition, ids in places.items()
            for identity in store.bulk_load.left(partition, job, ids)
        }
        for row in page:
            identity = bytes(row["id"])
            yield row["origin"], None if identity in left else UUID(bytes=identity)
