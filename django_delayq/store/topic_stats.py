"""The figures of a topic, summed up from those of its partitions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..core.times import shown_instant
from .queries import COUNTERS, PartitionStats, lag_of


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
    paused: dict[str, Any] | None
    """Who paused the topic (by), when (at), why (reason) and at most until when (until, or None);
    None while it runs.

    Instants are milliseconds since 1970.
    """
    counters: dict[str, int] = field(default_factory=dict)
    """Since the first message: enqueued, acked, retried, dead, cancelled, expired, reclaimed."""


def stats_of_topic(topic: str, parts: Sequence[PartitionStats]) -> TopicStats:
    """Sums over the partitions of a topic, at least one."""
    heads = [part.next_due_ms for part in parts if part.next_due_ms is not None]
    paused = next((part.meta["paused"] for part in parts if "paused" in part.meta), None)
    return TopicStats(
        topic=topic,
        delayed=sum(part.waiting - part.ready for part in parts),
        backlog=sum(part.ready for part in parts),
        leased=sum(part.leased for part in parts),
        finished=sum(part.finished for part in parts),
        lag=lag_of(parts),
        next_due_at=shown_instant(min(heads)) if heads else None,
        paused=lasting_pause(paused, parts[0].now_ms),
        counters={name: sum(int(part.meta.get(name, 0)) for part in parts) for name in COUNTERS},
    )


def lasting_pause(note: str | None, now_ms: float) -> dict[str, Any] | None:
    """The note of a pause that lasts: one that has ended goes with the next claim."""
    pause: dict[str, Any] | None = json.loads(note) if note else None
    return None if pause and pause.get("until") and pause["until"] <= now_ms else pause
