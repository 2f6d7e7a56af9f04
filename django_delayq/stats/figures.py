"""The figures of all topics now, cheap enough to be read every few seconds: for metrics and
alerts. The overview (overview.py) shows more, and costs more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from django.db import connections
from django.utils import timezone

from ..core.conf import get_settings
from ..core.times import now_ms
from ..models import ArchivedMessage, OutboxMessage, OutboxStatus, UnarchivableEntry
from ..store.beats import is_alive
from ..store.queries import COUNTERS, PartitionStats, lag_of
from ..store.store import RedisStore
from ..store.topic_state import pause_of
from ..tasks import registry
from .overview_sql import DEAD_CAP, OUTBOX_CAP, count_open_dead_letters


class TopicFigures(NamedTuple):
    """What Redis has of one topic."""

    topic: str
    delayed: int = 0
    ready: int = 0
    leased: int = 0
    lag: float = 0.0
    """Seconds since the oldest waiting message fell due."""
    finished: int = 0
    """Messages that have ended and are not archived."""
    archive_lag: float = 0.0
    """Seconds since the oldest of them ended."""
    paused: bool = False
    fullness: float = 0.0
    """Of the partition that is nearest its limit: what waits for the archiver, as a share of
    FINISHED_LIMIT. At 1 its messages are not claimed any more."""
    workers: int = 0
    """Living workers that serve it."""
    counters: Mapping[str, int] = dict.fromkeys(COUNTERS, 0)
    """Since the first message, by the names of COUNTERS."""


@dataclass(frozen=True, kw_only=True)
class DatabaseCounts:
    """What the database has of all topics."""

    outbox: Counter[str] = field(default_factory=Counter)
    """Rows that wait, by topic; of the nearest OUTBOX_CAP of all topics."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Open ones, by topic; of the newest DEAD_CAP of all topics."""
    unarchivable: int = 0
    """Messages that the archive refused."""
    relay_lag: float = 0.0
    """Seconds since the relay should have sent the oldest row of the outbox that waits."""


@dataclass(frozen=True, kw_only=True)
class RecentDeaths:
    """What died in one topic within some time."""

    count: int
    error: str
    """The error, or the reason, that most of them have."""
    of_error: int
    """How many have it."""


_OUTBOX = """
SELECT topic, COUNT(*) FROM (
    SELECT topic FROM {outbox} WHERE status = %s ORDER BY relay_at_ms LIMIT {cap}
) AS nearest GROUP BY topic"""

_DEAD_SINCE = """
SELECT topic, error_class, reason, COUNT(*) FROM (
    SELECT topic, error_class, reason FROM {archive} WHERE state = 'dead' AND finished_at >= %s
    ORDER BY finished_at DESC LIMIT {cap}
) AS newest GROUP BY topic, error_class, reason"""


def read_topics(store: RedisStore) -> Sequence[TopicFigures]:
    """The figures of each topic that has been used or that code here declares, by name. Three
    round trips. Raises StoreUnavailable."""
    partitions = store.topics.used_partitions()
    stats = store.queries.all_stats(partitions)
    at_ms, workers = store.clock_ms(), Counter[str]()
    for beat in store.workers.heartbeats().values():
        if is_alive(beat, at_ms) and not beat.get("draining"):
            workers.update(beat.get("topics", ()))
    parts: dict[str, list[PartitionStats]] = defaultdict(list)
    archive_lag: dict[str, float] = defaultdict(float)
    for partition, part in zip(partitions, stats, strict=True):
        parts[partition.topic].append(part)
        archive_lag[partition.topic] = max(archive_lag[partition.topic], part.unarchived_s)
    return [
        _figures(topic, parts.get(topic, ()), archive_lag[topic], workers[topic])
        for topic in sorted(parts.keys() | registry.known_topics())
    ]


def read_database() -> DatabaseCounts:
    """Four short queries, each bounded whatever the tables hold. Raises django.db.Error."""
    connection = connections[get_settings().database]
    outbox = connection.ops.quote_name(OutboxMessage._meta.db_table)
    with connection.cursor() as cursor:
        dead = count_open_dead_letters(cursor)
        cursor.execute(_OUTBOX.format(outbox=outbox, cap=OUTBOX_CAP), [str(OutboxStatus.WAITING)])
        waiting = Counter(dict(cursor.fetchall()))
    rows = OutboxMessage.objects.filter(status=OutboxStatus.WAITING).order_by("relay_at_ms")
    oldest_ms = rows.values_list("relay_at_ms", flat=True).first()
    return DatabaseCounts(
        outbox=waiting,
        dead_letters=dead,
        unarchivable=UnarchivableEntry.objects.count(),
        relay_lag=0.0 if oldest_ms is None else max(0.0, (now_ms() - oldest_ms) / 1000),
    )


def count_dead_letters(age: timedelta) -> dict[str, RecentDeaths]:
    """What died in each topic within this time, up to DEAD_CAP of all topics. Raises
    django.db.Error."""
    connection = connections[get_settings().database]
    archive = connection.ops.quote_name(ArchivedMessage._meta.db_table)
    since = connection.ops.adapt_datetimefield_value(timezone.now() - age)
    with connection.cursor() as cursor:
        cursor.execute(_DEAD_SINCE.format(archive=archive, cap=DEAD_CAP), [since])
        by_topic: dict[str, Counter[str]] = defaultdict(Counter)
        for topic, error_class, reason, count in cursor.fetchall():
            by_topic[topic][error_class.rpartition(".")[2] or reason] += count
    return {
        topic: RecentDeaths(count=errors.total(), error=error, of_error=of_error)
        for topic, errors in by_topic.items()
        for error, of_error in errors.most_common(1)
    }


def _figures(
    topic: str, parts: Sequence[PartitionStats], archive_lag: float, workers: int
) -> TopicFigures:
    # One loop: with a thousand topics, a sum for each figure is a third of the cost of a scrape.
    waiting = ready = leased = finished = fullest = 0
    paused, counters = False, dict.fromkeys(COUNTERS, 0)
    for part in parts:
        waiting += part.waiting
        ready += part.ready
        leased += part.leased
        finished += part.finished
        fullest = max(fullest, part.finished)
        for name, value in part.meta.items():
            if name in counters:
                counters[name] += int(value)
        paused = paused or pause_of(part.meta.get("paused"), part.now_ms) is not None
    return TopicFigures(
        topic,
        delayed=waiting - ready,
        ready=ready,
        leased=leased,
        lag=lag_of(parts) if ready else 0.0,
        finished=finished,
        archive_lag=archive_lag,
        fullness=fullest / get_settings().finished_limit,
        paused=paused,
        workers=workers,
        counters=counters,
    )
