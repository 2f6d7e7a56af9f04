"""The shape of what the operators' overview shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .forecasts import KeptForecast


@dataclass(frozen=True, kw_only=True)
class TopicFigures:
    """One row of the overview."""

    topic: str
    delayed: int
    ready: int
    """Due and waiting for a worker: the backlog."""
    leased: int
    unarchived: int
    """Finished, and waiting for the archiver."""
    outbox: int
    """Waiting in SQL: far from due, or Redis was away. Of the nearest OUTBOX_CAP of all topics."""
    lag: float
    """Seconds since the oldest waiting message fell due; 0 without a backlog."""
    next_due_at: datetime | None
    paused: dict[str, Any] | None
    """by, reason, at (ms), until (ms or None)."""
    counters: dict[str, int]
    """Since the first message: enqueued, acked, retried, dead, cancelled, expired, reclaimed."""
    per_second: float | None
    """Finished messages per second over the last minutes; None until there are two samples."""
    late_p50_ms: float | None
    late_p99_ms: float | None
    """Of those of the newest 200 acked runs that are not older than a day."""
    dead_letters: int
    """Open ones, of the newest DEAD_CAP of all topics."""
    workers: int
    """Living workers that serve the topic and are not told to be quiet."""
    quiet_workers: int = 0
    """Living workers that would serve it, but are told to be quiet."""
    declared: bool = True
    """Whether the code of this process declares it."""

    @property
    def waiting(self) -> int:
        """All that is to be run: in Redis, leased or not, and in the outbox."""
        return self.ready + self.delayed + self.leased + self.outbox

    @property
    def is_past(self) -> bool:
        """Nothing is left of it: no code here declares it, no worker serves it, and there is
        nothing to do about it."""
        return not (
            self.declared or self.workers or self.waiting or self.unarchived or self.dead_letters
        )

    @property
    def without_worker(self) -> bool:
        """Nobody works on it, and no pause says that this is meant."""
        return not self.workers and not self.paused

    @property
    def unserved(self) -> bool:
        """Nobody works on it although messages wait: somebody has to do something."""
        return self.without_worker and self.waiting > 0


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One bar of a picture."""

    label: str
    count: int
    at: datetime | None = None
    in_full: str = ""
    """What the table says where the label, below the bar, has no room for it."""

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


@dataclass(frozen=True, kw_only=True)
class WorkerFigures:
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
    """Claims nothing, because it was told so."""
    told_quiet: bool
    """Told to claim nothing: it obeys at its next heartbeat but five at the latest."""
    settled: dict[str, int]
    services: dict[str, dict[str, Any]]
    """archiver, relay ...: what they have done."""

    @property
    def held(self) -> int:
        """Messages that it has claimed and does not run."""
        return max(0, self.in_flight - self.running)

    @property
    def serves(self) -> bool:
        """Whether it claims messages of its topics."""
        return self.alive and not self.draining and not self.told_quiet

    @property
    def keeps_quiet(self) -> bool:
        """Whether it would claim them, had nobody told it not to."""
        return self.alive and not self.draining and self.told_quiet


@dataclass(frozen=True, kw_only=True)
class Overview:
    """All of it, of one moment."""

    at: datetime
    """By Redis' clock."""
    topics: Sequence[TopicFigures]
    minutes: Sequence[Bucket]
    """Due in each of the next 60 minutes, from Redis and the outbox; the first one also has what is
    overdue."""
    hours: Sequence[Bucket]
    """Due in each of the next 24 hours."""
    lateness: Sequence[Bucket]
    """Newest runs of all topics, none older than a day, by lateness: up to 1 ms, 2, 5, 10 ... and
    more."""
    samples: Sequence[Sample]
    """The last three hours by minute, the oldest first."""
    workers: Sequence[WorkerFigures]
    forecast: KeptForecast | None = None
    """The newest that the pipeline has made."""
    dead_capped: bool = False
    """Whether there are more open dead letters than are counted."""
    outbox_capped: bool = False
    """Whether there are more waiting rows in the outbox than are counted."""
    unarchivable: bool = False
    """Whether the archive has refused messages, which are put aside."""
    stale: bool = False
    """Whether Redis could not be read: then everything is as it was at `at`."""
    problem: str = ""
    """Why Redis or the database could not be read: then what they know is as it was at `at`, or
    empty."""
