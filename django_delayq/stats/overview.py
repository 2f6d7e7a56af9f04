"""What the operators' overview shows: one pipelined read of Redis, whose cost does not grow with
the queue, and a few short queries, all of it kept for a moment so that many open tabs cost one
read."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

from django.db import Error
from django.utils.timezone import get_current_timezone

from ..core.exceptions import StoreError
from ..core.message import Final
from ..core.times import from_ms, in_words, shown_instant
from ..store import get_store
from ..store.keys import Partition
from ..store.queries import COUNTERS, PartitionStats, Snapshot, lag_of
from ..store.store import RedisStore
from ..store.topic_stats import lasting_pause
from ..tasks import registry
from . import sql_figures
from .figure_types import Bucket, Overview, Sample, TopicFigures, WorkerFigures
from .sql_figures import SqlFigures

__all__ = [
    "Bucket",
    "Overview",
    "Sample",
    "TopicFigures",
    "WorkerFigures",
    "forget",
    "overview",
    "problem_of",
    "workers",
]

#: Seconds for which what was read of Redis serves other requests; after a failure, so that a frozen
#: server holds up one request and not each.
KEPT, KEPT_AFTER_FAILURE = 1.0, 5.0
#: The same for the database: fifty times as long as its queries took, within these bounds.
SQL_KEPT, SQL_SHARE, SQL_KEPT_AT_MOST = 5.0, 50.0, 60.0
#: Seconds that a request waits for another one that reads what nobody has read before.
FIRST_WAIT = 2.0
#: Seconds after which a worker without a heartbeat is taken for dead: two and a half beats.
ALIVE_FOR = 25.0
#: Samples that the chart begins with: three hours.
SAMPLES = 180
#: A rate is taken over at least, and at most, so many ms.
RATE_OVER_MS, RATE_OVER_AT_MOST_MS = 20_000, 300_000
#: Upper ends of the bars of lateness, in ms.
LATENESS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000, 60_000)

_MINUTE_MS = 60_000


def overview() -> Overview:
    """The figures of now, at most a second old. Never raises because Redis or the database is away:
    see `problem`."""
    global _reader  # noqa: PLW0603 - one per process, as the store
    with _lock:
        if _reader is None or _reader.store is not get_store():
            _reader = _Reader(get_store())
        reader = _reader
    return reader.overview()


def workers() -> Sequence[WorkerFigures]:
    """All heartbeats, the living first. Raises StoreUnavailable."""
    store = get_store()
    return _workers(store.queries.snapshot((), (), 1), store.clock_ms())


def forget() -> None:
    """Read everything anew at the next use."""
    global _reader  # noqa: PLW0603
    with _lock:
        _reader = None


def problem_of(error: StoreError) -> str:
    """Why Redis could not be read. What the error says of sending is left out: nothing was to be
    sent."""
    return str(error).removesuffix(" Nothing was changed. Is it running?")


class _Reader:
    """Reads, and keeps what it has read. While one thread reads, the others are given what is kept:
    a slow query or a frozen Redis holds up one request, and what the other side says stays new."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self._used: Sequence[Partition] | None = None
        self._last = Overview(
            at=datetime.now(tz=timezone.utc),
            topics=(),
            minutes=(),
            hours=(),
            lateness=(),
            samples=(),
            workers=(),
        )
        self._reading, self._reading_sql, self._composing = (
            threading.Lock(),
            threading.Lock(),
            threading.Lock(),
        )
        self._until = self._sql_until = 0.0
        self._seen: _Seen | None = None
        self._problem = ""
        self._sql: SqlFigures | None = None
        self._sql_problem = ""
        self._sql_asked = False
        """Whether the database has answered, be it with an error."""

    def overview(self) -> Overview:
        """What is kept, or read anew."""
        if self._is_mine(self._reading, "_until", self._seen is not None or bool(self._problem)):
            try:
                self._read()
            finally:
                self._reading.release()
        # Without Redis nothing of it would be new.
        if (
            self._seen
            and not self._problem
            and self._is_mine(self._reading_sql, "_sql_until", self._sql_asked)
        ):
            try:
                self._read_sql(self._seen)
            finally:
                self._reading_sql.release()
        if self._seen and not self._sql_asked:  # another thread still waits for it
            return replace(
                self._last, problem=self._last.problem or "The database has not answered yet."
            )
        return self._last

    def _is_mine(self, lock: threading.Lock, until: str, is_kept: bool) -> bool:
        """Whether it is due, and this thread is to read it: then it holds the lock. Where nothing
        is kept, others wait a moment."""
        if time.monotonic() < getattr(self, until):
            return False
        if not (lock.acquire(blocking=False) if is_kept else lock.acquire(timeout=FIRST_WAIT)):
            return False
        if time.monotonic() < getattr(self, until):  # somebody else has just read it
            lock.release()
            return False
        return True

    def _read(self) -> None:
        try:
            self._seen, self._problem = self._look(), ""
            self._until = time.monotonic() + KEPT
        except StoreError as error:
            self._problem = problem_of(error)
            self._until = time.monotonic() + KEPT_AFTER_FAILURE
        self._compose()

    def _look(self) -> _Seen:
        if self._used is None:
            self._used = self.store.topics.used_partitions()
        partitions = self._partitions(self._used)
        now_ms = self.store.now_us() / 1000
        minutes, hours = _bounds(now_ms)
        snapshot = self.store.queries.snapshot(
            partitions, [round(bound) for bound in (*minutes, *hours)], SAMPLES
        )
        self._used = snapshot.used
        at_ms = max([part.now_ms for part in snapshot.stats.values()], default=now_ms)
        return _Seen(
            snapshot,
            at_ms,
            (minutes, hours),
            frozenset(partition.topic for partition in partitions),
        )

    def _partitions(self, used: Iterable[Partition]) -> list[Partition]:
        """Of topics that were used, and of those that tasks declare."""
        declared = {task.options.topic for task in registry.by_name.values()} | set(
            self.store.client.settings.topics
        )
        new = (
            Partition(name, n)
            for name in declared
            for n in range(self.store.topics.configured(name))
        )
        return sorted({*used, *new})

    def _read_sql(self, seen: _Seen) -> None:
        began = time.monotonic()
        try:
            self._sql, self._sql_problem = (
                sql_figures.read(sorted(seen.topics), int(seen.bounds[1][-1])),
                "",
            )
        except Error as error:
            self._sql_problem = sql_figures.problem_of(error)
        took = time.monotonic() - began
        keep = (
            SQL_KEPT
            if self._sql_problem
            else min(SQL_KEPT_AT_MOST, max(SQL_KEPT, SQL_SHARE * took))
        )
        self._sql_asked, self._sql_until = True, began + took + keep
        self._compose()

    def _compose(self) -> None:
        with self._composing:
            if self._seen:
                self._last = _overview(self._seen, self._sql, self._sql_problem)
            if self._problem:
                self._last = replace(self._last, problem=self._problem, stale=True)


class _Seen(NamedTuple):
    """What Redis has said."""

    snapshot: Snapshot
    at_ms: float
    bounds: tuple[list[float], list[float]]
    topics: frozenset[str]


_lock = threading.Lock()
_reader: _Reader | None = None


# From what was read to what is shown


def _overview(seen: _Seen, sql: SqlFigures | None, problem: str) -> Overview:
    snapshot, at_ms, bounds, _ = seen
    living = _workers(snapshot, at_ms)
    sums = [sum(column) for column in zip(*snapshot.forecast.values(), strict=True)] or [0] * sum(
        map(len, bounds)
    )
    outbox = sql.outbox_minutes if sql else {}
    # Of some only the outbox knows: no code declares them, and nothing of them was ever near its
    # time.
    names = {partition.topic for partition in snapshot.stats} | (
        sql.outbox.keys() if sql else set()
    )
    topics = [_topic(name, snapshot, sql, living, at_ms) for name in sorted(names)]
    split = len(bounds[0])
    return Overview(
        at=from_ms(at_ms),
        topics=[topic for topic in topics if not topic.is_past],
        minutes=_due(bounds[0], sums[:split], outbox, _MINUTE_MS),
        hours=_due(bounds[1], sums[split:], outbox, 60 * _MINUTE_MS),
        lateness=_histogram(sql),
        samples=rates(snapshot.samples),
        workers=living,
        forecast=sql.forecast if sql else None,
        dead_capped=sum(sql.dead_letters.values()) >= sql_figures.DEAD_CAP if sql else False,
        outbox_capped=sum(sql.outbox.values()) >= sql_figures.OUTBOX_CAP if sql else False,
        unarchivable=sql.unarchivable if sql else False,
        problem=problem,
    )


def _topic(
    name: str,
    snapshot: Snapshot,
    sql: SqlFigures | None,
    living: Sequence[WorkerFigures],
    at_ms: float,
) -> TopicFigures:
    parts = [stats for partition, stats in snapshot.stats.items() if partition.topic == name]
    heads = [part.next_due_ms for part in parts if part.next_due_ms is not None]
    note = next((part.meta["paused"] for part in parts if "paused" in part.meta), None)
    late = sql.lateness_ms.get(name, ()) if sql else ()
    ready = sum(part.ready for part in parts)
    return TopicFigures(
        topic=name,
        delayed=sum(part.waiting for part in parts) - ready,
        ready=ready,
        leased=sum(part.leased for part in parts),
        unarchived=sum(part.finished for part in parts),
        outbox=sql.outbox[name] if sql else 0,
        lag=lag_of(parts),
        next_due_at=shown_instant(min(heads)) if heads else None,
        paused=lasting_pause(note, at_ms),
        counters={
            counter: sum(int(part.meta.get(counter, 0)) for part in parts) for counter in COUNTERS
        },
        per_second=_rate(name, parts, snapshot.samples, at_ms),
        late_p50_ms=_percentile(late, 0.5),
        late_p99_ms=_percentile(late, 0.99),
        dead_letters=sql.dead_letters[name] if sql else 0,
        workers=sum(name in one.topics and one.serves for one in living),
        quiet_workers=sum(name in one.topics and one.keeps_quiet for one in living),
        declared=name in registry.known_topics(),
    )


def _rate(
    topic: str, parts: Sequence[PartitionStats], samples: Sequence[Mapping[str, Any]], at_ms: float
) -> float | None:
    before = next(
        (
            s
            for s in reversed(samples)
            if s["at_ms"] <= at_ms - RATE_OVER_MS and topic in s["topics"]
        ),
        None,
    )
    if before is None or before["at_ms"] < at_ms - RATE_OVER_AT_MOST_MS:
        return None
    before_that: int = before["topics"][topic]["finished"]
    finished = (
        sum(int(part.meta.get(name, 0)) for part in parts for name in Final.values) - before_that
    )
    return max(0.0, float(finished * 1000 / (at_ms - before["at_ms"])))


def rates(samples: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """The store's samples as points of the chart. A rate needs two; counters that went back
    (FLUSHALL) are nothing."""
    chart = []
    for before, sample in pairwise(samples):
        finished = sum(
            max(0, one["finished"] - before["topics"].get(name, {"finished": 0})["finished"])
            for name, one in sample["topics"].items()
        )
        chart.append(
            Sample(
                at_ms=sample["at_ms"],
                finished_per_second=finished * 1000 / max(1, sample["at_ms"] - before["at_ms"]),
                lag=max([0.0, *(one["lag"] for one in sample["topics"].values())]),
                waiting=sum(one["waiting"] for one in sample["topics"].values()),
            )
        )
    return chart


# Pictures


def _bounds(now_ms: float) -> tuple[list[float], list[float]]:
    """The ends (ms) of this and the next 59 minutes, and of this and the next 23 hours, by the
    project's clock."""
    now = from_ms(now_ms).astimezone(get_current_timezone())
    minute, hour = (
        now.replace(second=0, microsecond=0),
        now.replace(minute=0, second=0, microsecond=0),
    )
    step = timedelta(minutes=1)
    minutes = [(minute + step * n).timestamp() * 1000 for n in range(1, 61)]
    return minutes, [hour.timestamp() * 1000 + 3_600_000 * n for n in range(1, 25)]


def _due(
    ends: Sequence[float], by: Sequence[int], outbox: Mapping[int, int], step_ms: int
) -> list[Bucket]:
    """Counts up to each end as counts of each bar; the first one also has what is overdue."""
    waiting = [0] * (len(ends) + 1)
    for minute, count in outbox.items():
        waiting[bisect_right(ends, minute)] += count
    bars = []
    for n, end in enumerate(ends):
        at = from_ms(end - step_ms).astimezone(get_current_timezone())
        bars.append(
            Bucket(label=f"{at:%H:%M}", count=by[n] - (by[n - 1] if n else 0) + waiting[n], at=at)
        )
    return bars


def _histogram(sql: SqlFigures | None) -> list[Bucket]:
    late = [one for values in sql.lateness_ms.values() for one in values] if sql else []
    lows = (float("-inf"), *LATENESS_MS)
    highs = (*LATENESS_MS, float("inf"))
    labels = [f"≤ {in_words(high / 1000)}" for high in LATENESS_MS] + [
        f"> {in_words(LATENESS_MS[-1] / 1000)}"
    ]
    return [
        Bucket(label=label, count=sum(low < one <= high for one in late))
        for label, low, high in zip(labels, lows, highs, strict=True)
    ]


def _percentile(values: Sequence[float], share: float) -> float | None:
    """Of sorted values: the nearest rank."""
    return values[max(0, ceil(share * len(values)) - 1)] if values else None


def _workers(snapshot: Snapshot, now_ms: float) -> list[WorkerFigures]:
    found = [
        _worker(name, beat, name in snapshot.quiet, now_ms)
        for name, beat in snapshot.heartbeats.items()
    ]
    return sorted(found, key=lambda one: (not one.alive, one.name))


def _worker(name: str, beat: Mapping[str, Any], told_quiet: bool, now_ms: float) -> WorkerFigures:
    return WorkerFigures(
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
        alive=now_ms - beat["at_ms"] <= ALIVE_FOR * 1000,
        draining=bool(beat.get("draining")),
        quiet=bool(beat.get("quiet")),
        told_quiet=told_quiet,
        settled=dict(beat.get("settled", {})),
        services={
            key: value
            for key, value in beat.items()
            if isinstance(value, dict) and key != "settled"
        },
    )
