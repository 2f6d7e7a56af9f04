"""What runs now: every leased message, with its worker. A page costs one read of all leases, up to
MOST, and one of its own messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from ..core.message import Message, State
from ..core.task_report import TaskProgress
from ..core.times import from_ms, shown_instant
from ..store import get_store
from ..store.lease import HTTP, holder_code, holder_of
from ..store.queries import HeldLease
from ..tasks import registry
from ..tasks.naming import shown
from .overview import WorkerStatus, worker_statuses

#: Leases that are read, of all topics together. Those that end first are read before the others.
MOST = 10_000
#: A time of claim is believed that is at most so far ahead of Redis' clock (ms): the holder's clock
#: was only near to it. Tokens that others made hold no time at all.
AHEAD_MS, OLDEST_MS = 60_000, 30 * 86_400_000


@dataclass(frozen=True, kw_only=True)
class RunningMessage:
    """A leased message: a worker runs it, or will in a moment, or the worker that held it has
    died."""

    message: Message
    lease_until: datetime
    """When another worker may claim it. The worker extends the lease while the task runs."""
    claimed_at: datetime | None
    """None when who claimed it has not said when."""
    began_at: datetime | None
    """When its task began, as far as the worker has said in its last heartbeat."""
    thread: str
    """Where it runs, as the worker has said; empty for a coroutine, and when it is not known."""
    worker: WorkerStatus | None
    """None for one that Redis has no heartbeat of any more."""
    over_http: bool
    """Whether it is consumed over HTTP."""
    max_runtime: float | None
    """Seconds. None for a task that this code does not know."""
    max_attempts: int | None
    """None for a task that this code does not know."""
    progress: TaskProgress | None
    """What its task has reported last."""

    @property
    def since(self) -> datetime | None:
        """When it began, or was claimed."""
        return self.began_at or self.claimed_at

    def seconds(self, now: datetime) -> float | None:
        """How long it has run, or has been held."""
        return None if self.since is None else max(0.0, (now - self.since).total_seconds())

    def is_over(self, now: datetime) -> bool:
        """Whether it has run for longer than its max_runtime."""
        seconds = self.seconds(now)
        return seconds is not None and self.max_runtime is not None and seconds > self.max_runtime


@dataclass(frozen=True, kw_only=True)
class RunningPage:
    """One page of what runs."""

    at: datetime
    """By Redis' clock."""
    count: int
    """How many messages fit, of those that were read."""
    is_partial: bool
    """Whether there are more leases than were read."""
    rows: Sequence[RunningMessage]
    """Those that have been held for longest first."""
    workers: Sequence[WorkerStatus]
    """All heartbeats."""
    topics: Sequence[str]
    """All topics that have leases."""


def read_running(
    topics: Collection[str] | None = None,
    *,
    topic: str = "",
    worker: str = "",
    offset: int = 0,
    limit: int = 50,
) -> RunningPage:
    """What runs of `topics` (None: of all) that is of this topic and held by this worker. Four
    round trips. Raises StoreUnavailable."""
    store = get_store()
    partitions = [
        partition
        for partition in store.topics.used_partitions()
        if topics is None or partition.topic in topics
    ]
    counts = [
        (partition, count)
        for partition, count in zip(partitions, store.queries.count_leased(partitions), strict=True)
        if count
    ]
    left, asked = MOST, []
    for partition, count in counts:
        if (not topic or partition.topic == topic) and left:
            asked.append((partition, min(count, left)))
            left -= asked[-1][1]
    leases = store.queries.holders(asked)
    if worker:
        code = holder_code(worker)
        leases = [lease for lease in leases if holder_of(lease.token).code == code]
    now_ms = store.clock_ms()
    leases = sorted(leases, key=lambda lease: (_claimed_ms(lease, now_ms) or now_ms, lease.id))
    workers = worker_statuses()
    return RunningPage(
        at=from_ms(now_ms),
        count=len(leases),
        is_partial=not left,
        rows=_rows(leases[offset : offset + limit], workers, now_ms),
        workers=workers,
        topics=sorted({partition.topic for partition, _ in counts}),
    )


def _rows(
    leases: Sequence[HeldLease], workers: Sequence[WorkerStatus], now_ms: float
) -> list[RunningMessage]:
    store = get_store()
    by_code = {holder_code(worker.name): worker for worker in workers}
    found = store.queries.find_leased(leases) if leases else ()
    progress = store.reports.progress_of([(lease.partition, lease.id) for lease in leases])
    rows = []
    for lease, live, reported in zip(leases, found, progress, strict=True):
        if live is None or live.state != State.LEASED:
            continue  # it ended between two reads
        message = shown(lease.partition, live)
        claimed_ms, code = _claimed_ms(lease, now_ms), holder_of(lease.token).code
        worker = by_code.get(code)
        begun = worker.begun.get(message.id) if worker is not None else None
        task = registry.by_name.get(message.task)
        rows.append(
            RunningMessage(
                message=message,
                lease_until=shown_instant(lease.deadline_ms),
                claimed_at=from_ms(claimed_ms) if claimed_ms else None,
                began_at=begun.began_at if begun else None,
                thread=begun.thread if begun else "",
                worker=worker,
                over_http=code == HTTP,
                max_runtime=task.max_runtime_s if task else None,
                max_attempts=task.max_attempts if task else None,
                progress=reported,
            )
        )
    return rows


def _claimed_ms(lease: HeldLease, now_ms: float) -> int | None:
    claimed_ms = holder_of(lease.token).claimed_ms
    return claimed_ms if now_ms - OLDEST_MS < claimed_ms < now_ms + AHEAD_MS else None
