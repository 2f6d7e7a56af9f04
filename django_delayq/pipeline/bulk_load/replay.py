"""Enqueues dead letters of the archive or the lake again, each once, and marks its origin."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Max, Min
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...archive.selection import Selection
from ...core.chunks import chunked
from ...core.conf import DEFAULT_TOPIC, check_name, get_settings
from ...core.job_report import Report, Tell
from ...core.message import task_code
from ...models import ArchivedMessage, Final, OperatorAction
from ...operators.replayer import mark_replayed
from ...store import open_store
from ...store.client import BATCH
from ...store.keys import Partition
from ...store.store import RedisStore
from .. import schemas
from ..job_errors import Refused
from ..lake.lake import Lake
from ..lake.lake_source import read_lake
from ..lake.watermark import last_settled_id
from ..params import Params, ReplayOptions
from ..sinks.loader import LoadSpec
from ..sources.archive_source import finished_between, read_archive
from . import loads, message_frames, replay_frames
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
    partitions: Sequence[Partition]
    """All of the topics of those that are open."""
    cells: int
    """Splits of all partitions of all topics that are declared."""


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Replay. When it raises Refused, nothing is replayed. After another error, messages that were
    replayed stay, and the same job again replays and marks the rest."""
    options = params.options(ReplayOptions)
    check_name(options.job, "a job", Refused)
    with closing(open_store(params.redis.settings())) as store:
        fences = loads.Fences(store, options.job, store.topics.used_partitions())
        tell("reading the dead letters")
        ids = _ids(params, fences)
        letters = _read(spark, params, options, store, ids)
        _drop_connection()
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
            left_alone = sorted(letters.skipped.items())
            report = Report(
                job="replay", rows=[{"left alone": why, "rows": count} for why, count in left_alone]
            )
            report.figures["selected"] = letters.good.rows + letters.skipped.total()
            report.figures["to replay"] = letters.good.rows
            if params.dry_run:
                return report
            if letters.good.rows:
                _replay(params, letters, fingerprint, store, report, tell)
            elif (action := _action(options.job)) and action.finished_at is None:
                action.finish()  # a run that was killed has marked the last one
            return report
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
    return ids_of_open(since, until, params.topic, last_settled_id(SETTLE))


def ids_of_open(
    since: datetime | None, until: datetime | None, topic: str, last: int
) -> tuple[int, int]:
    """The ids (lo, hi] of the dead letters of the period and topic up to `last`, from the first one
    that is open on."""
    selection = Selection(state=Final.DEAD, topic=topic, since=since, until=until)
    ids = selection.rows().filter(pk__lte=last).aggregate(first=Min("pk"), last=Max("pk"))
    if ids["last"] is None:
        return 0, last
    still_open = selection.narrowed(open=True).rows().filter(pk__lte=last)
    return (still_open.aggregate(first=Min("pk"))["first"] or ids["first"]) - 1, ids["last"]


def _read(
    spark: SparkSession,
    params: Params,
    options: ReplayOptions,
    store: RedisStore,
    ids: tuple[int, int],
) -> _Letters:
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
    settings = store.client.settings
    topics = {*(task.topic for task in options.tasks), *settings.topics, DEFAULT_TOPIC}
    counts = {topic: store.topics.configured(topic) for topic in sorted(topics)}
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
    used = sorted(row["topic"] for row in good)
    partitions = [Partition(topic, number) for topic in used for number in range(counts[topic])]
    return _Letters(made, whole, _total(good), skipped, partitions, cells)


def _total(found: Sequence[Any]) -> LoadTotals:
    return LoadTotals(
        sum(row["rows"] for row in found), sum(row["body_bytes"] for row in found),
        str(sum(int(row["hash"]) for row in found)),
    )  # fmt: skip


def _replay(
    params: Params,
    letters: _Letters,
    fingerprint: Mapping[str, Any],
    store: RedisStore,
    report: Report,
    tell: Tell,
) -> None:
    """Write the messages and mark their origins."""
    options = params.options(ReplayOptions)
    fences = loads.Fences(store, options.job, letters.partitions)
    # Messages that earlier runs have sent are in Redis already; those whose origins are marked are
    # not among the good ones.
    action = _action(options.job)
    applied = max(0, sum(fences.counts().values()) - (action.count if action else 0))
    if note := loads.check_memory(store, letters.good, applied, len(letters.partitions)):
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
    _drop_connection()
    tell("marking the origins")
    parts = -(-letters.good.rows // LINKS)
    marked, key_live = _mark_origins(params, good, parts, store)
    report.figures |= {"marked": marked, "key live": key_live}


def _drop_connection() -> None:
    """Let Django connect anew: Spark has been at work for so long that the database, or something
    on the way to it, may have ended the connection."""
    connections[get_settings().database].close()


def _action(job: str) -> OperatorAction | None:
    """The record of this job, if one of its runs has come to mark something."""
    return OperatorAction.objects.filter(action="replay", job=job).order_by("pk").first()


def _mark_origins(
    params: Params, good: DataFrame, parts: int, store: RedisStore
) -> tuple[int, int]:
    """Write into open origins which message replays them, with one OperatorAction for the whole
    job. It can be repeated. The driver holds one of the parts at a time. Raises LoadLost when Redis
    has lost a message meanwhile: its origin stays open.

    Returns how many were marked, and how many stay open because another message has their key.
    """
    options, marked, kept = params.options(ReplayOptions), 0, 0
    conditions = {
        "since": params.since, "until": params.until, "topic": params.topic, "where": options.where,
    }  # fmt: skip
    words = [options.source, *(f"{name} {value}" for name, value in conditions.items() if value)]
    action = _action(options.job) or OperatorAction.new(
        "replay", options.by, options.reason, job=options.job, selection=", ".join(words)
    )
    still_open = ArchivedMessage.objects.filter(replayed_at=None, discarded_at=None)
    links = good.select("origin", "id", "topic", "partition", "split")
    links = links.repartitionByRange(parts, "origin")
    for page in chunked(links.sortWithinPartitions("origin").toLocalIterator(), BATCH):
        places = defaultdict(list)
        for row in page:
            place = Partition(row["topic"], row["partition"])
            places[place].append((row["split"], bytes(row["id"])))
        left = {
            identity
            for partition, messages in places.items()
            for identity in store.bulk_load.left(partition, options.job, messages)
        }
        given = {
            row["origin"]: UUID(bytes=bytes(row["id"])) for row in page if row["id"] not in left
        }
        kept += len(page) - len(given)
        with transaction.atomic(using=get_settings().database):
            action.add(0)  # a write first: see bulk_run.BulkRun.open
            count = mark_replayed(still_open, given)
            action.add(count)
        marked += count
    action.finish()
    return marked, kept
