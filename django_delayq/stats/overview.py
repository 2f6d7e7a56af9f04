"""The overview of all topics: one pipelined read of Redis, whose cost does not grow with the queue,
and a few short queries. Both answers are kept for a moment, so that many open tabs cost one read.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from django.db import Error, connections
from django.utils.timezone import get_default_timezone

from ..client.topics import topic_stats
from ..core.conf import get_settings
from ..core.exceptions import StoreError
from ..core.message import Final
from ..core.times import from_ms
from ..store import get_store
from ..store.beats import is_alive
from ..store.keys import Partition
from ..store.queries import PartitionStats, Snapshot, TopicSample, TopicSamples
from ..store.store import RedisStore
from ..store.topic_state import Pause, TopicStats, stats_of_topic
from ..store.workers import SAMPLE_MS
from ..tasks import registry
from . import overview_sql
from .histogram import nearest_rank
from .history import KeptForecast
from .marks import MARK, ChartMark
from .overview_sql import MINUTE_MS, DatabaseFigures

#: An answer of Redis is kept for so many seconds. A failure is kept for longer, so that a frozen
#: server holds up one request and not each.
KEPT, KEPT_AFTER_FAILURE = 1.0, 5.0
#: While nothing was read yet, a request waits so many seconds for the one that reads.
FIRST_WAIT = 2.0
#: A source that took so many seconds is read by a thread of its own from then on, and nobody waits
#: for it. Its answer is kept for twenty times as long as it took, at most so many seconds.
SLOW, REDIS_KEPT_SHARE, REDIS_KEPT_AT_MOST = 0.1, 20.0, 60.0
#: Samples (minutes) that are read: those of a day. Charts begin with the last three hours.
SAMPLES = 1_440
#: More topics than this have no chart of them together.
MOST_CHARTED = 500
#: Topics that a chart tells apart. The others are one.
MOST_STACKED = 6
#: A rate is taken over at least, and at most, so many ms.
RATE_OVER_MS, RATE_OVER_AT_MOST_MS = 20_000, 300_000
#: Upper ends of the bars of lateness, in ms.
LATENESS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000, 60_000)


@dataclass(frozen=True, kw_only=True)
class TopicOverview(TopicStats):
    """One row of the overview."""

    outbox: int
    """Waiting in SQL: far from due, or Redis was away. Of the nearest OUTBOX_CAP of all topics."""
    outbox_due_at: datetime | None = None
    """When the first of them is due."""
    per_second: float | None
    """Finished messages per second over the last minutes; None until there are two samples."""
    late_p50_ms: float | None
    late_p99_ms: float | None
    """Of the newest 200 acked runs, without those that are older than a day. None for a topic that
    is not among the hundred that have finished most."""
    dead_letters: int
    """Open ones, of the newest DEAD_CAP of all topics."""
    workers: int
    """Living workers that claim messages of the topic."""
    quiet_workers: int = 0
    """Living workers that serve the topic, but claim nothing because an operator made them
    quiet."""
    declared: bool = True
    """Whether the code of this process declares it."""

    @property
    def first_due_at(self) -> datetime | None:
        """When the next message is due, in Redis or in the outbox."""
        known = [when for when in (self.next_due_at, self.outbox_due_at) if when is not None]
        return min(known, default=None)

    @property
    def waiting(self) -> int:
        """Messages that have not ended: in Redis, leased or not, and in the outbox."""
        return self.backlog + self.delayed + self.leased + self.outbox

    @property
    def is_past(self) -> bool:
        """Nothing is left of it: no code here declares it, no worker serves it, and there is
        nothing to do about it."""
        return not (
            self.declared or self.workers or self.waiting or self.finished or self.dead_letters
        )

    @property
    def without_worker(self) -> bool:
        """No worker serves it, and nothing says that this is meant: no pause, no API_TOPICS."""
        return not (self.workers or self.paused or get_settings().is_for_api(self.topic))

    @property
    def unserved(self) -> bool:
        """No worker serves it although messages wait: somebody has to do something."""
        return self.without_worker and self.waiting > 0


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One bar of a picture."""

    count: int
    at: datetime | None = None
    """Its beginning."""
    up_to_ms: float | None = None
    """Of a bar of lateness: its upper end. None for the last one, which has no end."""
    parts: Sequence[int] = ()
    """Of the count: each of the topics that the picture tells apart, in their order, and then all
    others."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One minute of the chart."""

    at_ms: int
    finished_per_second: float
    lag: float
    waiting: int


class RunningTask(NamedTuple):
    """What a worker runs of one task."""

    topic: str
    task: str
    """Empty when the worker does not know it."""
    messages: int
    since: datetime
    """When the one that has run for longest began."""


class RunStart(NamedTuple):
    """When a worker began a message, and where it runs it."""

    began_at: datetime
    thread: str
    """Empty for a coroutine."""


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """One heartbeat."""

    name: str
    host: str
    pid: int
    version: str
    topics: Sequence[str]
    concurrency: int
    running: int
    """Messages whose tasks run now."""
    in_flight: int
    """Messages that it has claimed and not settled: those that run, and those that wait for a
    thread."""
    rss_mb: float
    started_at: datetime
    beat_at: datetime
    alive: bool
    """Whether its last heartbeat is recent."""
    draining: bool
    quiet: bool
    """Claims nothing, because an operator made it quiet."""
    quiet_requested: bool
    """An operator made it quiet. The worker obeys within five heartbeats."""
    settled: dict[str, int]
    services: dict[str, dict[str, Any]]
    """archiver, relay ...: what they have done."""
    busy: int = 0
    """Threads that run something."""
    tasks: Sequence[RunningTask] = ()
    """What it runs, the most first."""
    begun: Mapping[str, RunStart] = field(default_factory=dict)
    """By the id of the message; those that have run for longest."""

    @property
    def process(self) -> str:
        """Its name without the random part: host and pid."""
        return self.name.rpartition(":")[0] or self.name

    @property
    def held(self) -> int:
        """Messages that it has claimed and does not run."""
        return max(0, self.in_flight - self.running)

    @property
    def is_saturated(self) -> bool:
        """Whether every thread is busy."""
        return self.busy >= self.concurrency > 0

    @property
    def serves(self) -> bool:
        """Whether it claims messages of its topics."""
        return self.alive and not self.draining and not self.quiet_requested

    @property
    def keeps_quiet(self) -> bool:
        """Whether it would claim messages if no operator had made it quiet."""
        return self.alive and not self.draining and self.quiet_requested


@dataclass(frozen=True, kw_only=True)
class Overview:
    """All topics and workers at one instant."""

    at: datetime
    """By Redis' clock."""
    topics: Sequence[TopicOverview] = ()
    minutes: Sequence[Bucket] = ()
    """Due in each of the next 60 minutes, from Redis and the outbox; the first one also has what is
    overdue."""
    hours: Sequence[Bucket] = ()
    """Due in each of the next 24 hours."""
    stacked: Sequence[str] = ()
    """The topics that these bars tell apart: those with the most messages."""
    lateness: Sequence[Bucket] = ()
    """Newest runs of all topics, none older than a day, by lateness: up to 1 ms, 2, 5, 10 ... and
    more."""
    samples: Sequence[Sample] = ()
    """The last day by minute, the oldest first."""
    workers: Sequence[WorkerStatus] = ()
    forecast: KeptForecast | None = None
    """The newest that the pipeline has made."""
    dead_capped: bool = False
    """Whether there are more open dead letters than are counted."""
    outbox_capped: bool = False
    """Whether there are more waiting rows in the outbox than are counted."""
    unarchivable: bool = False
    """Whether there are messages that the archive refused."""
    marks: Sequence[ChartMark] = ()
    """What people did within the last day, and deploys; the oldest first."""
    stale: bool = False
    """Whether Redis could not be read: then everything is as it was at `at`."""
    problem: str = ""
    """Why Redis or the database could not be read, or empty. Then its part is as it was at `at`."""
    has_database: bool = True
    """False as long as nothing is known of the database."""

    @cached_property
    def totals(self) -> OverviewTotals:
        """The sums over all topics."""
        topics = self.topics
        rates = [topic.per_second for topic in topics if topic.per_second is not None]
        due = [(topic.first_due_at, topic.topic) for topic in topics if topic.first_due_at]
        next_due_at, next_topic = min(due, default=(None, ""))
        return OverviewTotals(
            backlog=sum(topic.backlog for topic in topics),
            delayed=sum(topic.delayed for topic in topics),
            leased=sum(topic.leased for topic in topics),
            outbox=sum(topic.outbox for topic in topics),
            finished=sum(topic.finished for topic in topics),
            dead_letters=sum(topic.dead_letters for topic in topics),
            lag=max((topic.lag for topic in topics), default=0.0),
            per_second=sum(rates) if rates else None,
            workers=sum(worker.alive for worker in self.workers),
            quiet_workers=sum(worker.alive and worker.quiet_requested for worker in self.workers),
            next_due_at=next_due_at,
            next_topic=next_topic,
        )


@dataclass(frozen=True, kw_only=True)
class OverviewTotals:
    """Sums over topics."""

    backlog: int
    delayed: int
    leased: int
    outbox: int
    finished: int
    """That have ended and are not archived."""
    dead_letters: int
    lag: float
    """The greatest."""
    per_second: float | None
    """None as long as no topic has a rate."""
    workers: int
    """Those that live."""
    quiet_workers: int
    next_due_at: datetime | None
    next_topic: str


@dataclass(frozen=True, kw_only=True)
class Obstacles:
    """What keeps messages of a topic from being started."""

    pause: Pause | None = None
    unserved: bool = False
    """No living worker serves it; false when that is not known."""


def overview() -> Overview:
    """The overview of now, at most a second old. Never raises because Redis or the database is
    away: see `problem`."""
    return _reader().overview()


def overview_of(topics: Collection[str]) -> Overview:
    """The same of these topics only, as if there were no others. There is no forecast: its figures
    are of all topics."""
    return _reader().overview_of(topics)


def _reader() -> _Reader:
    store = get_store()  # not under the lock, which all requests share: it may ask Redis
    with _lock:
        return reader_of(store)


def worker_statuses() -> Sequence[WorkerStatus]:
    """All heartbeats, the living first. Raises StoreUnavailable."""
    store = get_store()
    return statuses_of(*store.workers.heartbeats_and_quiet(), store.clock_ms())


def obstacles(topic: str) -> Obstacles:
    """Why messages of the topic do not start although they are due. Workers are those of at most a
    second ago. Nothing is known while Redis is away. Raises UnknownTopic."""
    with suppress(StoreError):
        pause, now = topic_stats(topic).paused, overview()
        row = next((row for row in now.topics if row.topic == topic), None)
        return Obstacles(
            pause=pause, unserved=row is not None and not now.problem and not row.workers
        )
    return Obstacles()


class Source:
    """Redis or the database: when it is read again, and by which thread."""

    def __init__(self) -> None:
        self.has_answered = False
        """Also with an error."""
        self.problem = ""
        self._kept_until = self._took = 0.0
        self._lock = threading.Lock()

    def refresh(self, read: Callable[[], None]) -> None:
        """Have `read` called, which calls keep(), unless what is kept is fresh. While one thread
        reads, the others go on with what is kept; while nothing is kept they wait a moment. For a
        source that is slow nobody waits: a thread of its own reads it."""
        if self._is_fresh():
            return
        if not self.has_answered:
            taken = self._lock.acquire(timeout=FIRST_WAIT)
        else:
            taken = self._lock.acquire(blocking=False)
        if not taken:
            return
        if self._took > SLOW and self.has_answered:
            threading.Thread(target=self._read_aside, args=(read,), daemon=True).start()
        else:
            self._read(read)

    def keep(self, seconds: float, problem: str, took: float = 0.0) -> None:
        """Note an answer that took so long, or why there is none."""
        self.has_answered, self.problem, self._took = True, problem, took
        self._kept_until = time.monotonic() + seconds

    def _read(self, read: Callable[[], None]) -> None:
        try:
            if not self._is_fresh():  # another thread may have just read it
                read()
        finally:
            self._lock.release()

    def _read_aside(self, read: Callable[[], None]) -> None:
        try:
            self._read(read)
        finally:
            connections.close_all()

    def _is_fresh(self) -> bool:
        return time.monotonic() < self._kept_until


class _Reader:
    """Reads, and keeps what it has read. A slow query or a frozen Redis holds up at most one
    request, and the other source stays new."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._used: Sequence[Partition] | None = None
        self._redis, self._database = Source(), Source()
        self._seen: _Seen | None = None
        self._sql: DatabaseFigures | None = None
        self._composing = threading.Lock()
        self._last = Overview(at=datetime.now(tz=timezone.utc), has_database=False)
        self._charted: dict[frozenset[str], tuple[float, Sequence[Sample]]] = {}
        """The samples of some topics together, and of which instant they are."""

    def overview(self) -> Overview:
        """What is kept, or read anew."""
        self._redis.refresh(self._read_redis)
        if not self._seen:
            return self._last
        if not self._redis.problem:  # without Redis no row of the database would be shown anew
            self._database.refresh(self._read_database)
        if not self._database.has_answered:  # another thread still waits for it
            return replace(
                self._last, problem=self._last.problem or "The database has not answered yet."
            )
        return self._last

    def overview_of(self, topics: Collection[str]) -> Overview:
        """The kept figures of these topics, or new ones."""
        every = self.overview()
        if self._seen is None:
            return every
        found = _overview(
            _only_redis(self._seen, topics),
            _only_database(self._sql, topics),
            self._database.problem,
        )
        samples = () if every.stale else self.samples_of(frozenset(topics))
        return replace(found, problem=every.problem, stale=every.stale, samples=samples)

    def samples_of(self, topics: frozenset[str]) -> Sequence[Sample]:
        """The chart of these topics together, a minute old at most; empty while Redis is away."""
        begin_ms, kept = self._charted.get(topics, (0.0, ()))
        now_ms = time.time() * 1000
        if not 0 <= now_ms - begin_ms < SAMPLE_MS:
            kept = ()
            if len(topics) <= MOST_CHARTED:
                with suppress(StoreError):
                    found = self._store.queries.topic_samples(sorted(topics), SAMPLES)
                    kept = together(found, self._store.clock_ms())
            if len(self._charted) > 100:  # of users with many different permissions
                self._charted.clear()
            self._charted[topics] = now_ms, kept
        return kept

    def _read_redis(self) -> None:
        began = time.monotonic()
        try:
            if self._used is None:
                self._used = self._store.topics.used_partitions()
            # Of topics that were used, and of those that tasks declare.
            declared = {task.options.topic for task in registry.by_name.values()} | set(
                self._store.client.settings.topics
            )
            partitions = sorted(
                {
                    *self._used,
                    *(
                        Partition(name, n)
                        for name in declared
                        for n in range(self._store.topics.configured(name))
                    ),
                }
            )
            now_ms = self._store.now_us() / 1000
            # The ends (ms) of this and the next 59 minutes, and of this and the next 23 hours, by
            # the project's clock.
            minute = from_ms(now_ms).astimezone(get_default_timezone())
            minute = minute.replace(second=0, microsecond=0)
            hour_ms = minute.replace(minute=0).timestamp() * 1000
            minutes = [(minute + timedelta(minutes=n)).timestamp() * 1000 for n in range(1, 61)]
            hours = [hour_ms + 60 * MINUTE_MS * n for n in range(1, 25)]
            snapshot = self._store.queries.snapshot(
                partitions, [round(bound) for bound in (*minutes, *hours)], SAMPLES
            )
            self._used = snapshot.used
            at_ms = max([part.now_ms for part in snapshot.stats.values()], default=now_ms)
            before = self._store.queries.sample_between(
                at_ms - RATE_OVER_AT_MOST_MS, at_ms - RATE_OVER_MS
            )
            self._seen = _Seen(snapshot, before, at_ms, minutes, hours)
            took = time.monotonic() - began
            kept = min(REDIS_KEPT_AT_MOST, max(KEPT, REDIS_KEPT_SHARE * took))
            self._redis.keep(kept if took > SLOW else KEPT, "", took)
        except StoreError as error:
            self._redis.keep(KEPT_AFTER_FAILURE, error.problem)
        self._compose()

    def _read_database(self) -> None:
        began, problem = time.monotonic(), ""
        seen = self._seen
        assert seen is not None  # Redis was read first
        finished = Counter[str]()
        for partition, part in seen.snapshot.stats.items():
            finished[partition.topic] += sum(int(part.meta.get(s, 0)) for s in Final.values)
        busiest = [topic for topic, _ in finished.most_common(overview_sql.TOPICS_AT_ONCE)]
        try:
            self._sql = overview_sql.read_database_figures(sorted(busiest), int(seen.hours[-1]))
        except Error as error:
            problem = overview_sql.problem_of(error)
        took = time.monotonic() - began
        self._database.keep(overview_sql.kept_for(0.0 if problem else took), problem, took)
        self._compose()

    def _compose(self) -> None:
        with self._composing:
            if self._seen:
                self._last = _overview(self._seen, self._sql, self._database.problem)
            if self._redis.problem:
                self._last = replace(self._last, problem=self._redis.problem, stale=True)


class _Seen(NamedTuple):
    """An answer of Redis."""

    snapshot: Snapshot
    before: TopicSamples | None
    """How each topic was some minutes before, for the rates."""
    at_ms: float
    minutes: Sequence[float]
    """Ends of the bars, in ms."""
    hours: Sequence[float]


_lock = threading.Lock()
#: One for the store of this process.
reader_of = lru_cache(maxsize=1)(_Reader)


# From what was read to what is shown


def _only_redis(seen: _Seen, topics: Collection[str]) -> _Seen:
    snapshot = seen.snapshot
    beats = {
        name: {**beat, "topics": [topic for topic in beat.get("topics", ()) if topic in topics]}
        for name, beat in snapshot.heartbeats.items()
    }
    only: dict[str, Any] = {
        "stats": _of_topics(snapshot.stats, topics),
        "forecast": _of_topics(snapshot.forecast, topics),
        "samples": (),
        "heartbeats": {name: beat for name, beat in beats.items() if beat["topics"]},
    }
    return seen._replace(snapshot=snapshot._replace(**only))


def _of_topics(by: Mapping[Partition, Any], topics: Collection[str]) -> dict[Partition, Any]:
    return {partition: value for partition, value in by.items() if partition.topic in topics}


def _only_database(sql: DatabaseFigures | None, topics: Collection[str]) -> DatabaseFigures | None:
    if sql is None:
        return None
    minutes = {at: count for at, count in sql.outbox_minutes.items() if at[0] in topics}
    return DatabaseFigures(
        dead_letters=Counter(
            {topic: n for topic, n in sql.dead_letters.items() if topic in topics}
        ),
        outbox=Counter({topic: n for topic, n in sql.outbox.items() if topic in topics}),
        outbox_minutes=Counter(minutes),
        outbox_due_ms={one: ms for one, ms in sql.outbox_due_ms.items() if one in topics},
        lateness_ms={one: late for one, late in sql.lateness_ms.items() if one in topics},
        marks=[mark for mark in sql.marks if mark.action == MARK or mark.topic in topics],
    )


def _overview(seen: _Seen, sql: DatabaseFigures | None, problem: str) -> Overview:
    snapshot, _, at_ms, minutes, hours = seen
    known, sql = sql is not None, sql or DatabaseFigures()
    living = statuses_of(snapshot.heartbeats, snapshot.quiet, at_ms)
    parts: dict[str, list[PartitionStats]] = defaultdict(list)
    for partition, stats in snapshot.stats.items():
        parts[partition.topic].append(stats)
    # Some topics are only in the outbox: no code declares them, and no message of them was near
    # its time.
    names = parts.keys() | sql.outbox.keys()
    serving = Counter(topic for one in living if one.serves for topic in one.topics)
    quiet = Counter(topic for one in living if one.keeps_quiet for topic in one.topics)
    topics = [
        _topic(name, parts.get(name, ()), seen, sql, (serving[name], quiet[name]))
        for name in sorted(names)
    ]
    late = [value for values in sql.lateness_ms.values() for value in values]
    ends = (float("-inf"), *LATENESS_MS, float("inf"))
    due = _DueByBar(seen, sql)
    return Overview(
        at=from_ms(at_ms),
        topics=[topic for topic in topics if not topic.is_past],
        minutes=due.bars(minutes, 0, MINUTE_MS),
        hours=due.bars(hours, len(minutes), 60 * MINUTE_MS),
        stacked=due.stacked,
        lateness=[
            Bucket(
                count=sum(low < value <= high for value in late),
                up_to_ms=high if high in LATENESS_MS else None,
            )
            for low, high in pairwise(ends)
        ],
        samples=rates(snapshot.samples),
        workers=living,
        forecast=sql.forecast,
        dead_capped=sql.dead_letters.total() >= overview_sql.DEAD_CAP,
        outbox_capped=sql.outbox.total() >= overview_sql.OUTBOX_CAP,
        unarchivable=sql.unarchivable,
        marks=sql.marks,
        problem=problem,
        has_database=known,
    )


def _topic(
    name: str,
    parts: Sequence[PartitionStats],
    seen: _Seen,
    sql: DatabaseFigures,
    workers: tuple[int, int],
) -> TopicOverview:
    per_second = None
    before = seen.before.topics.get(name) if seen.before else None
    if before is not None and seen.before is not None:
        finished = sum(int(part.meta.get(state, 0)) for part in parts for state in Final.values)
        finished -= int(before["finished"])
        per_second = max(0.0, finished * 1000 / (seen.at_ms - seen.before.at_ms))
    late = Counter(sql.lateness_ms.get(name, ()))
    outbox_ms = sql.outbox_due_ms.get(name)
    return TopicOverview(
        **vars(stats_of_topic(name, parts)),
        outbox=sql.outbox[name],
        outbox_due_at=None if outbox_ms is None else from_ms(outbox_ms),
        per_second=per_second,
        late_p50_ms=nearest_rank(late, 0.5) if late else None,
        late_p99_ms=nearest_rank(late, 0.99) if late else None,
        dead_letters=sql.dead_letters[name],
        workers=workers[0],
        quiet_workers=workers[1],
        declared=registry.is_declared(name),
    )


def rates(samples: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """The store's samples of all topics as points of the chart. A rate needs two samples. A counter
    that went back (FLUSHALL) counts as no rate."""
    return [
        Sample(
            at_ms=sample["at_ms"],
            finished_per_second=max(0, sample["finished"] - before["finished"])
            * 1000
            / max(1, sample["at_ms"] - before["at_ms"]),
            lag=sample["lag"],
            waiting=sample["waiting"],
        )
        for before, sample in pairwise(samples)
    ]


def together(topics: Sequence[Sequence[TopicSample]], now_ms: float) -> list[Sample]:
    """The samples of topics as one chart of the minutes up to now. Where a topic has no sample its
    figures had not changed."""
    begin = min((entries[0].at_ms for entries in topics if entries), default=now_ms)
    first, last = int(begin // SAMPLE_MS), int(now_ms // SAMPLE_MS)
    first = max(first, last - SAMPLES)
    sums = {minute: [0, 0, 0.0] for minute in range(first, last + 1)}  # finished, waiting, lag
    for entries in topics:
        by_minute = {int(entry.at_ms // SAMPLE_MS): entry for entry in entries}
        older = [entry for minute, entry in by_minute.items() if minute < first]
        held = older[-1] if older else None
        for minute, sum_of in sums.items():
            entry = by_minute.get(minute)
            if entry is not None:
                # Of what finished before its first sample nobody knows when.
                sum_of[0] += max(0, entry.finished - held.finished) if held else 0
                held = entry
            if held is not None:
                sum_of[1] += held.waiting
                sum_of[2] = max(sum_of[2], held.lag)
    return [
        Sample(
            at_ms=minute * SAMPLE_MS,
            finished_per_second=finished * 1000 / SAMPLE_MS,
            lag=lag,
            waiting=int(waiting),
        )
        for minute, (finished, waiting, lag) in sums.items()
    ][1:]


# Pictures


class _DueByBar:
    """What falls due, by bar and topic."""

    def __init__(self, seen: _Seen, sql: DatabaseFigures) -> None:
        self._sql = sql
        size = len(seen.minutes) + len(seen.hours)
        self._by_topic: dict[str, list[int]] = {}
        for partition, counts in seen.snapshot.forecast.items():
            if counts[-1]:
                before = self._by_topic.get(partition.topic)
                self._by_topic[partition.topic] = (
                    [one + other for one, other in zip(before, counts, strict=True)]
                    if before
                    else list(counts)
                )
        self._all = [sum(column) for column in zip(*self._by_topic.values(), strict=True)]
        self._all = self._all or [0] * size
        most = Counter({topic: counts[-1] for topic, counts in self._by_topic.items()})
        for (topic, _), count in sql.outbox_minutes.items():
            most[topic] += count
        self.stacked = sorted(topic for topic, _ in most.most_common(MOST_STACKED))

    def bars(self, ends: Sequence[float], offset: int, step_ms: int) -> list[Bucket]:
        """Counts up to each end as counts of each bar; the first one also has what is overdue."""
        in_sql: dict[str, list[int]] = {}
        every = [0] * (len(ends) + 1)
        for (topic, minute), count in self._sql.outbox_minutes.items():
            at = bisect_right(ends, minute)
            every[at] += count
            if topic in self.stacked:
                in_sql.setdefault(topic, [0] * (len(ends) + 1))[at] += count
        nothing = [0] * (len(ends) + offset)

        def column(counts: Sequence[int], waiting: Sequence[int], nth: int) -> int:
            before = counts[offset + nth - 1] if nth else 0
            return counts[offset + nth] - before + waiting[nth]

        bars = []
        for nth, end in enumerate(ends):
            parts = [
                column(self._by_topic.get(topic, nothing), in_sql.get(topic, nothing), nth)
                for topic in self.stacked
            ]
            count = column(self._all, every, nth)
            bars.append(
                Bucket(count=count, at=from_ms(end - step_ms), parts=[*parts, count - sum(parts)])
            )
        return bars


def statuses_of(
    heartbeats: Mapping[str, Mapping[str, Any]], quiet: Collection[str], now_ms: float
) -> list[WorkerStatus]:
    """All heartbeats, the living first. `quiet`: the workers that are to claim nothing."""
    found = [
        WorkerStatus(
            name=name,
            host=str(beat.get("host", "")),
            pid=int(beat.get("pid", 0)),
            version=str(beat.get("version", "")),
            topics=list(beat.get("topics", ())),
            concurrency=int(beat.get("concurrency", 0)),
            running=int(beat.get("running", beat.get("in_flight", 0))),
            in_flight=int(beat.get("in_flight", 0)),
            rss_mb=beat.get("rss_kb", 0) / 1024,
            started_at=from_ms(beat.get("started_ms", 0)),
            beat_at=from_ms(beat["at_ms"]),
            alive=is_alive(beat, now_ms),
            draining=bool(beat.get("draining")),
            quiet=bool(beat.get("quiet")),
            quiet_requested=name in quiet,
            settled=dict(beat.get("settled", {})),
            services={
                key: value
                for key, value in beat.items()
                if isinstance(value, dict) and key not in ("settled", "begun")
            },
            busy=int(beat.get("busy", 0)),
            tasks=[
                RunningTask(topic, task, messages, from_ms(since_ms))
                for topic, task, messages, since_ms in beat.get("tasks", ())
            ],
            begun={
                message_id: RunStart(from_ms(began_ms), thread)
                for message_id, (began_ms, thread) in beat.get("begun", {}).items()
            },
        )
        for name, beat in heartbeats.items()
    ]
    return sorted(found, key=lambda worker: (not worker.alive, worker.name))
