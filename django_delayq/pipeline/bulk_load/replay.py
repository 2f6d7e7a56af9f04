"""Dead letters of the archive or the lake -> messages again, each once, and linked to its
origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...core.conf import DEFAULT_TOPIC, Settings
from ...store.keys import Partition
from ...store.store import RedisStore
from .. import schemas
from ..lake.lake import Lake
from ..lake.reader import read_lake
from ..lake.watermark import last_settled_id
from ..params import Params, ReplayOptions, Report, Tell
from ..sources.archive_source import finished_between, read_archive
from . import loads, messages, replay_frames, replay_marks
from .messages import FrameTotals
from .replay_frames import OPEN, Declared

#: Rows that SQL took later than so many seconds ago may still get a smaller id: they are for
#: another job.
SETTLE = 60.0


class _Letters(NamedTuple):
    """The selection, looked at once."""

    made: DataFrame
    fit: FrameTotals
    """What a replay could take, whether SQL has it open, replayed or discarded: the same in each
    run of the job."""
    good: FrameTotals
    """What of it is open."""
    skipped: Counter[str]
    topics: Sequence[str]


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Replay. Raises Refused: then nothing is replayed; other errors: then what is, stays, and the
    same job again replays and marks the rest."""
    options = params.options(ReplayOptions)
    loads.check_job(options.job)
    store = RedisStore(None, params.redis.settings())
    try:
        fences = loads.Fences(store, options.job, store.topics.used_partitions())
        tell("looking at the dead letters")
        standing, ids = _standing(params, fences)
        letters = _look(spark, params, _declared(options, store.client.settings), standing, ids)
        try:
            fingerprint = _fingerprint(params, letters, ids, store)
            fences.check(fingerprint)
            return _run(spark, params, letters, fingerprint, store, tell)
        finally:
            letters.made.unpersist()
    finally:
        store.close()


def _standing(params: Params, fences: loads.Fences) -> tuple[pa.Table, tuple[int, int]]:
    """What SQL knows of the dead letters, and the ids (first, last] that are looked at: from the
    first open one on.

    They are those of the first run of the job: what came later is not of it.
    """
    begun = next(
        (
            found
            for found in map(loads.decode_fingerprint, fences.fingerprints())
            if {"first", "last"} <= found.keys()
        ),
        {},
    )
    since, until = params.period()
    last = begun["last"] if begun else last_settled_id(SETTLE)
    standing = replay_marks.standings(since, until, params.topic, last)
    if begun:
        return standing, (begun["first"], last)
    dead = standing["id"].to_pylist()
    is_open = (
        pk for pk, word in zip(dead, standing["standing"].to_pylist(), strict=True) if word == OPEN
    )
    return standing, (next(is_open, dead[0]) - 1, dead[-1]) if dead else (0, last)


def _fingerprint(
    params: Params, letters: _Letters, ids: tuple[int, int], store: RedisStore
) -> dict[str, Any]:
    """What may not differ between two runs of a job: the fence skips what is below its marks, sent
    or not, so that a letter that is selected only later would be taken for one that was sent."""
    options = params.options(ReplayOptions)
    split = {
        topic: topic_options.partitions
        for topic, topic_options in sorted(store.client.settings.topics.items())
        if topic_options.partitions > 1
    }
    return {
        "where": options.where, "edits": dict(options.edits), "source": options.source,
        "since": params.since,
        "until": params.until, "topic": params.topic, "delay_ms": options.delay_ms,
        "splits": options.splits,
        "partitions": split, "first": ids[0], "last": ids[1], "letters": letters.fit.rows,
        "hash": letters.fit.hash,
    }  # fmt: skip


def _declared(options: ReplayOptions, settings: Settings) -> Declared:
    topics = {task.topic for task in options.tasks} | set(settings.topics) | {DEFAULT_TOPIC}
    counts = {
        topic: settings.topics[topic].partitions if topic in settings.topics else 1
        for topic in sorted(topics)
    }
    return Declared(options.tasks, counts, settings.body_limit)


def _look(
    spark: SparkSession,
    params: Params,
    declared: Declared,
    standing: pa.Table,
    ids: tuple[int, int],
) -> _Letters:
    options = params.options(ReplayOptions)
    since, until = params.period()
    # A lake may have a row twice, until the audit has mended it.
    read = _read(spark, params, options, ids).dropDuplicates(["id"])
    mine = replay_frames.selected_letters(
        finished_between(read, since, until, params.topic), options.where
    )
    chosen = mine.join(spark.createDataFrame(standing), "id", "left").fillna(
        replay_frames.GONE, ["standing"]
    )
    placed = messages.placed(
        replay_frames.replays(chosen, options, declared), declared.topics, options.splits
    )
    tasks = max(8, options.splits * max(declared.topics.values()))
    made = messages.arranged(placed, tasks).persist(StorageLevel.MEMORY_AND_DISK)
    fit = F.col("fault").isNull().alias("fit")
    found = made.groupBy("reason", "topic", fit).agg(*messages.summed(made)).collect()
    good = [row for row in found if row["reason"] is None]
    skipped: Counter[str] = Counter()
    for row in found:
        if row["reason"] is not None:
            skipped[row["reason"]] += row["rows"]
    whole = _total([row for row in found if row["fit"]])
    return _Letters(made, whole, _total(good), skipped, sorted(row["topic"] for row in good))


def _total(found: Sequence[Any]) -> FrameTotals:
    return FrameTotals(
        sum(row["rows"] for row in found), sum(row["body_bytes"] for row in found),
        str(sum(int(row["hash"]) for row in found)),
    )  # fmt: skip


def _read(
    spark: SparkSession, params: Params, options: ReplayOptions, ids: tuple[int, int]
) -> DataFrame:
    if options.source == "archive":
        return read_archive(spark, params.database, ids, schemas.ARCHIVE.names)
    since, until = (instant.strftime("%Y-%m-%d") if instant else "" for instant in params.period())
    found = read_lake(spark, Lake(params.lake), since=since, until=until)
    return found.where((F.col("id") > ids[0]) & (F.col("id") <= ids[1]))


def _run(
    spark: SparkSession,
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
    before = fences.counts()
    if note := loads.check_memory(store, letters.good, 0, len(partitions)):
        report.problems.append(note)
    tell(f"writing {letters.good.rows:,} messages")
    good = letters.made.where(F.col("reason").isNull())
    with fences.reporting(before, letters.good.rows):
        _write(spark, params, good, fences, fingerprint, letters.good.rows)
    report.figures |= fences.added(before, letters.good.rows)
    kept = {
        identity
        for partition in partitions
        for identity in store.bulk_load.conflicts(partition, options.job)
    }
    tell("marking the origins")
    marks = replay_marks.Marks(options, _in_words(params, options))
    report.figures |= {"marked": marks.mark(_links(good, kept)), "key live": marks.kept}
    return report


def _write(
    spark: SparkSession,
    params: Params,
    good: DataFrame,
    fences: loads.Fences,
    fingerprint: dict[str, Any],
    rows: int,
) -> None:
    options = params.options(ReplayOptions)
    spec = loads.load_spec(
        options.job, fingerprint, options.tasks, record_conflicts=True, rows=rows,
        due_ms=fences.open(fingerprint, record_conflicts=True) + options.delay_ms,
        per_second=loads.share(spark, options.max_per_second,
        len(fences.partitions) * options.splits),
    )  # fmt: skip
    loads.write_messages(spark, messages.message_columns(good), params.redis, spec)


def _links(good: DataFrame, kept: set[bytes]) -> Iterator[tuple[int, UUID | None]]:
    """Origin and message of each row, in pages; None for a key that another message has."""
    for batch in good.select("origin", "id").orderBy("origin").toArrow().to_batches():
        for origin, identity in zip(
            batch["origin"].to_pylist(), batch["id"].to_pylist(), strict=True
        ):
            yield origin, None if identity in kept else UUID(bytes=identity)


def _in_words(params: Params, options: ReplayOptions) -> str:
    conditions = {
        "since": params.since,
        "until": params.until,
        "topic": params.topic,
        "where": options.where,
    }
    return ", ".join(
        [options.source, *(f"{name} {value}" for name, value in conditions.items() if value)]
    )
