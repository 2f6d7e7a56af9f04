"""The overview of all topics: one pipelined read of Redis, whose cost does not grow with the queue,
and a few short queries. Both answers are kept for a moment, so that many open tabs cost one read.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from django.db import Error
from django.utils.timezone import get_current_timezone

from ..client.topics import topic_stats
from ..core.exceptions import StoreError
from ..core.message import Final
from ..core.times import from_ms, in_words
from ..store import get_store
from ..store.beats import is_alive
from ..store.keys import Partition
from ..store.queries import Snapshot
from ..store.store import RedisStore
from ..store.topic_state import Pause, TopicStats, stats_of_topic
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
#: Samples that the chart begins with: three hours.
SAMPLES = 180
#: A rate is taken over at least, and at most, so many ms.
RATE_OVER_MS, RATE_OVER_AT_MOST_MS = 20_000, 300_000
#: Upper ends of the bars of lateness, in ms.
LATENESS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000, 60_000)


@dataclass(frozen=True, kw_only=True)
class TopicOverview(TopicStats):
    """One row of the overview."""

    outbox: int
    """Waiting in SQL: far from due, or Redis was away. Of the nearest OUTBOX_CAP of all topics."""
    per_second: float | None
    """Finished messages per second over the last minutes; None until there are two samples."""
    late_p50_ms: float | None
    late_p99_ms: float | None
    """Of the newest 200 acked runs, without those that are older than a day."""
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
        """No worker serves it, and no pause says that this is meant."""
        return not self.workers and not self.paused

    @property
    def unserved(self) -> bool:
        """No worker serves it although messages wait: somebody has to do something."""
        return self.without_worker and self.waiting > 0


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One bar of a picture."""

    label: str
    count: int
    at: datetime | None = None
    in_full: str = ""
    """For the table, when the label below the bar has too little room."""

    @property
    def words(self) -> str:
        """The label in full."""
        return self.in_full or self.label


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
    lateness: Sequence[Bucket] = ()
    """Newest runs of all topics, none older than a day, by lateness: up to 1 ms, 2, 5, 10 ... and
    more."""
    samples: Sequence[Sample] = ()
    """The last three hours by minute, the oldest first."""
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
    """What people did within the last three hours, and deploys; the oldest first."""
    stale: bool = False
    """Whether Redis could not be read: then everything is as it was at `at`."""
    problem: str = ""
    """Why Redis or the database could not be read, or empty. Then its part is as it was at `at`."""


@dataclass(frozen=True, kw_only=True)
class Obstacles:
    """What keeps messages of a topic from being started."""

    pause: Pause | None = None
    unserved: bool = False
    """No living worker serves it; false when that is not known."""


def overview() -> Overview:
    """The overview of now, at most a second old. Never raises because Redis or the database is
    away: see `problem`."""
    with _lock:
        reader = reader_of(get_store())
    return reader.overview()


def overview_of(topics: Collection[str]) -> Overview:
    """The same of these topics only, as if there were no others. There is no forecast: its figures
    are of all topics."""
    with _lock:
        reader = reader_of(get_store())
    return reader.overview_of(topics)


def worker_statuses() -> Sequence[WorkerStatus]:
    """All heartbeats, the living first. Raises StoreUnavailable."""
    store = get_store()
    return statuses_of(store.queries.snapshot((), (), 1), store.clock_ms())


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


class _Source:
    """Redis or the database: when it is read again, and by which thread."""

    def __init__(self) -> None:
        self.has_answered = False
        """Also with an error."""
        self.problem = ""
        self._kept_until = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """Whether this thread is to read it now. Others are given what is kept; while nothing is
        kept they wait a moment."""
        if self._is_fresh() or not (
            self._lock.acquire(blocking=False)
            if self.has_answered
            else self._lock.acquire(timeout=FIRST_WAIT)
        ):
            yield False
            return
        try:
            yield not self._is_fresh()  # another thread may have just read it
        finally:
            self._lock.release()

    def keep(self, until: float, problem: str) -> None:
        """Note an answer, or why there is none."""
        self.has_answered, self.problem, self._kept_until = True, problem, until

    def _is_fresh(self) -> bool:
        return time.monotonic() < self._kept_until


class _Reader:
    """Reads, and keeps what it has read. While one thread reads, the others are given what is kept:
    a slow query or a frozen Redis holds up one request, and the other source stays new."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._used: Sequence[Partition] | None = None
        self._redis, self._database = _Source(), _Source()
        self._seen: _Seen | None = None
        self._sql: DatabaseFigures | None = None
        self._composing = threading.Lock()
        self._last = Overview(at=datetime.now(tz=timezone.utc))

    def overview(self) -> Overview:
        """What is kept, or read anew."""
        with self._redis.reading() as mine:
            if mine:
                self._read_redis()
        if not self._seen:
            return self._last
        if not self._redis.problem:  # without Redis no row of the database would be shown anew
            with self._database.reading() as mine:
                if mine:
                    self._read_database(self._seen)
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
        return replace(found, problem=every.problem, stale=every.stale)

    def _read_redis(self) -> None:
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
            minute = from_ms(now_ms).astimezone(get_current_timezone())
            minute = minute.replace(second=0, microsecond=0)
            hour_ms = minute.replace(minute=0).timestamp() * 1000
            minutes = [(minute + timedelta(minutes=n)).timestamp() * 1000 for n in range(1, 61)]
            hours = [hour_ms + 60 * MINUTE_MS * n for n in range(1, 25)]
            snapshot = self._store.queries.snapshot(
                partitions, [round(bound) for bound in (*minutes, *hours)], SAMPLES
            )
            self._used = snapshot.used
            at_ms = max([part.now_ms for part in snapshot.stats.values()], default=now_ms)
            self._seen = _Seen(snapshot, at_ms, minutes, hours)
            self._redis.keep(time.monotonic() + KEPT, "")
        except StoreError as error:
            self._redis.keep(time.monotonic() + KEPT_AFTER_FAILURE, error.problem)
        self._compose()

    def _read_database(self, seen: _Seen) -> None:
        began, problem = time.monotonic(), ""
        topics = sorted({partition.topic for partition in seen.snapshot.stats})
        try:
            self._sql = overview_sql.read_database_figures(topics, int(seen.hours[-1]))
        except Error as error:
            problem = overview_sql.problem_of(error)
        took = time.monotonic() - began
        kept = overview_sql.kept_for(0.0 if problem else took)
        self._database.keep(began + took + kept, problem)
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
        "samples": [
            {
                **sample,
                "topics": {name: one for name, one in sample["topics"].items() if name in topics},
            }
            for sample in snapshot.samples
        ],
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
        lateness_ms={topic: late for topic, late in sql.lateness_ms.items() if topic in topics},
        marks=[mark for mark in sql.marks if mark.action == MARK or mark.topic in topics],
    )


def _overview(seen: _Seen, sql: DatabaseFigures | None, problem: str) -> Overview:
    snapshot, at_ms, minutes, hours = seen
    sql = sql or DatabaseFigures()
    living = statuses_of(snapshot, at_ms)
    due = [sum(column) for column in zip(*snapshot.forecast.values(), strict=True)]
    due = due or [0] * (len(minutes) + len(hours))
    # Some topics are only in the outbox: no code declares them, and no message of them was near
    # its time.
    names = {partition.topic for partition in snapshot.stats} | sql.outbox.keys()
    topics = [_topic(name, seen, sql, living) for name in sorted(names)]
    late = [value for values in sql.lateness_ms.values() for value in values]
    ends = (float("-inf"), *LATENESS_MS, float("inf"))
    words = [in_words(end / 1000) for end in LATENESS_MS]
    labels = [*(f"≤ {end}" for end in words), f"> {words[-1]}"]
    return Overview(
        at=from_ms(at_ms),
        topics=[topic for topic in topics if not topic.is_past],
        minutes=_due(minutes, due[: len(minutes)], sql.outbox_minutes, MINUTE_MS),
        hours=_due(hours, due[len(minutes) :], sql.outbox_minutes, 60 * MINUTE_MS),
        lateness=[
            Bucket(label=label, count=sum(low < value <= high for value in late))
            for label, (low, high) in zip(labels, pairwise(ends), strict=True)
        ],
        samples=rates(snapshot.samples),
        workers=living,
        forecast=sql.forecast,
        dead_capped=sql.dead_letters.total() >= overview_sql.DEAD_CAP,
        outbox_capped=sql.outbox.total() >= overview_sql.OUTBOX_CAP,
        unarchivable=sql.unarchivable,
        marks=sql.marks,
        problem=problem,
    )


def _topic(
    name: str, seen: _Seen, sql: DatabaseFigures, living: Sequence[WorkerStatus]
) -> TopicOverview:
    snapshot, at_ms = seen.snapshot, seen.at_ms
    parts = [stats for partition, stats in snapshot.stats.items() if partition.topic == name]
    per_second = None
    before = next(
        (
            sample
            for sample in reversed(snapshot.samples)
            if sample["at_ms"] <= at_ms - RATE_OVER_MS and name in sample["topics"]
        ),
        None,
    )
    if before is not None and before["at_ms"] >= at_ms - RATE_OVER_AT_MOST_MS:
        finished = sum(int(part.meta.get(state, 0)) for part in parts for state in Final.values)
        finished -= before["topics"][name]["finished"]
        per_second = max(0.0, float(finished * 1000 / (at_ms - before["at_ms"])))
    late = Counter(sql.lateness_ms.get(name, ()))
    return TopicOverview(
        **vars(stats_of_topic(name, parts)),
        outbox=sql.outbox[name],
        per_second=per_second,
        late_p50_ms=nearest_rank(late, 0.5),
        late_p99_ms=nearest_rank(late, 0.99),
        dead_letters=sql.dead_letters[name],
        workers=sum(name in worker.topics and worker.serves for worker in living),
        quiet_workers=sum(name in worker.topics and worker.keeps_quiet for worker in living),
        declared=registry.is_declared(name),
    )


def rates(samples: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """The store's samples as points of the chart. A rate needs two samples. Counters that went back
    (FLUSHALL) count as no rate."""
    chart = []
    for before, sample in pairwise(samples):
        topics = sample["topics"]
        finished = sum(
            max(0, topic["finished"] - before["topics"].get(name, {"finished": 0})["finished"])
            for name, topic in topics.items()
        )
        chart.append(
            Sample(
                at_ms=sample["at_ms"],
                finished_per_second=finished * 1000 / max(1, sample["at_ms"] - before["at_ms"]),
                lag=max([0.0, *(topic["lag"] for topic in topics.values())]),
                waiting=sum(topic["waiting"] for topic in topics.values()),
            )
        )
    return chart


# Pictures


def _due(
    ends: Sequence[float], by: Sequence[int], outbox: Mapping[tuple[str, int], int], step_ms: int
) -> list[Bucket]:
    """Counts up to each end as counts of each bar; the first one also has what is overdue."""
    waiting = [0] * (len(ends) + 1)
    for (_, minute), count in outbox.items():
        waiting[bisect_right(ends, minute)] += count
    bars = []
    for n, end in enumerate(ends):
        at = from_ms(end - step_ms).astimezone(get_current_timezone())
        bars.append(
            Bucket(label=f"{at:%H:%M}", count=by[n] - (by[n - 1] if n else 0) + waiting[n], at=at)
        )
    return bars


def statuses_of(snapshot: Snapshot, now_ms: float) -> list[WorkerStatus]:
    """All heartbeats, the living first."""
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
            quiet_requested=name in snapshot.quiet,
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
        for name, beat in snapshot.heartbeats.items()
    ]
    return sorted(found, key=lambda worker: (not worker.alive, worker.name))
