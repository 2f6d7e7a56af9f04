"""The figures of a topic: the sums over its partitions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ..core.times import shown_instant
from .queries import COUNTERS, PartitionStats, lag_of


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Somebody holds the topic."""

    by: str
    reason: str
    since: datetime | None
    until: datetime | None
    """None until somebody resumes it."""


@dataclass(frozen=True, kw_only=True)
class TopicStats:
    """Figures of a topic; each partition's are of one instant."""

    topic: str
    delayed: int
    """Messages that wait for their due time."""
    backlog: int
    """Messages that are due and wait for a worker (ready)."""
    leased: int
    """Messages that workers hold."""
    finished: int
    """Entries of the finished streams that are not yet archived."""
    lag: float
    """Seconds since the oldest waiting message fell due; 0 without a backlog."""
    next_due_at: datetime | None
    """When the next message is due; in the past with a backlog."""
    paused: Pause | None
    """Who paused the topic, why and until when; None while it runs."""
    held: int = 0
    """Messages of the backlog that wait until the limit of their key lets them start."""
    counters: dict[str, int] = field(default_factory=dict)
    """Since the first message: enqueued, acked, retried, dead, cancelled, expired, reclaimed."""


def stats_of_topic(topic: str, parts: Sequence[PartitionStats]) -> TopicStats:
    """Sums over the partitions of a topic; all zero without a partition."""
    heads = [part.next_due_ms for part in parts if part.next_due_ms is not None]
    return TopicStats(
        topic=topic,
        delayed=sum(part.waiting - part.ready for part in parts),
        backlog=sum(part.ready for part in parts),
        leased=sum(part.leased for part in parts),
        held=sum(part.held for part in parts),
        finished=sum(part.finished for part in parts),
        lag=lag_of(parts),
        next_due_at=shown_instant(min(heads)) if heads else None,
        paused=next(
            (pause_of(part.meta["paused"], part.now_ms) for part in parts if "paused" in part.meta),
            None,
        ),
        counters={name: sum(int(part.meta.get(name, 0)) for part in parts) for name in COUNTERS},
    )


def pause_of(note: str | None, now_ms: float) -> Pause | None:
    """The pause that a partition's note describes; None when it has ended. The next claim removes
    such a note."""
    stored = json.loads(note) if note else None
    if stored is None or (stored.get("until") and stored["until"] <= now_ms):
        return None
    since, until = stored.get("at"), stored.get("until")
    return Pause(
        by=str(stored.get("by") or ""),
        reason=str(stored.get("reason") or ""),
        since=shown_instant(since) if since else None,
        until=shown_instant(until) if until else None,
    )
