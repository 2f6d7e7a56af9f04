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
from ..models import ArchivedMessage, OutboxMessage, OutboxStatus, UnarchivableEntry
from ..store.queries import COUNTERS, PartitionStats, lag_of
from ..store.store import RedisStore
from ..store.topic_state import pause_of
from ..tasks import registry
from .overview import ALIVE_FOR
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


_OUTBOX = """
SELECT topic, COUNT(*) FROM (
    SELECT topic FROM {outbox} WHERE status = %s ORDER BY relay_at_ms LIMIT {cap}
) AS nearest GROUP BY topic"""

_DEAD_SINCE = """
SELECT topic, COUNT(*) FROM (
    SELECT topic FROM {archive} WHERE state = 'dead' AND finished_at >= %s
    ORDER BY finished_at DESC LIMIT {cap}
) AS newest GROUP BY topic"""


def read_topics(store: RedisStore) -> Sequence[TopicFigures]:
    """The figures of each topic that has been used or that code here declares, by name. Four round
    trips. Raises StoreUnavailable."""
    partitions = store.topics.used_partitions()
    stats = store.queries.all_stats(partitions)
    unarchived = [
        partition for partition, part in zip(partitions, stats, strict=True) if part.finished
    ]
    ages = dict(zip(unarchived, store.queries.oldest_finished(unarchived), strict=True))
    now_ms, workers = store.clock_ms(), Counter[str]()
    for beat in store.workers.heartbeats().values():
        if now_ms - beat["at_ms"] <= ALIVE_FOR * 1000 and not beat.get("draining"):
            workers.update(beat.get("topics", ()))
    parts: dict[str, list[PartitionStats]] = defaultdict(list)
    archive_lag: dict[str, float] = defaultdict(float)
    for partition, part in zip(partitions, stats, strict=True):
        parts[partition.topic].append(part)
        age = ages.get(partition, 0.0)
        archive_lag[partition.topic] = max(archive_lag[partition.topic], age)
    return [
        _figures(topic, parts.get(topic, ()), archive_lag[topic], workers[topic])
        for topic in sorted(parts.keys() | registry.known_topics())
    ]


def read_database() -> DatabaseCounts:
    """Three short queries, each bounded whatever the tables hold. Raises django.db.Error."""
    connection = connections[get_settings().database]
    outbox = connection.ops.quote_name(OutboxMessage._meta.db_table)
    with connection.cursor() as cursor:
        dead = count_open_dead_letters(cursor)
        cursor.execute(_OUTBOX.format(outbox=outbox, cap=OUTBOX_CAP), [str(OutboxStatus.WAITING)])
        waiting = Counter(dict(cursor.fetchall()))
    return DatabaseCounts(
        outbox=waiting, dead_letters=dead, unarchivable=UnarchivableEntry.objects.count()
    )


def count_dead_letters(age: timedelta) -> Counter[str]:
    """By topic, how many messages died within this time, up to DEAD_CAP of all topics. Raises
    django.db.Error."""
    connection = connections[get_settings().database]
    archive = connection.ops.quote_name(ArchivedMessage._meta.db_table)
    since = connection.ops.adapt_datetimefield_value(timezone.now() - age)
    with connection.cursor() as cursor:
        cursor.execute(_DEAD_SINCE.format(archive=archive, cap=DEAD_CAP), [since])
        return Counter(dict(cursor.fetchall()))


def _figures(
    topic: str, parts: Sequence[PartitionStats], archive_lag: float, workers: int
) -> TopicFigures:
    # One loop: with a thousand topics, a sum for each figure is a third of the cost of a scrape.
    waiting = ready = leased = finished = 0
    paused, counters = False, dict.fromkeys(COUNTERS, 0)
    for part in parts:
        waiting += part.waiting
        ready += part.ready
        leased += part.leased
        finished += part.finished
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
        paused=paused,
        workers=workers,
        counters=counters,
    )
