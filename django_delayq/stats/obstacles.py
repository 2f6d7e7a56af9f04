"""Why nothing of a topic starts although it is due."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..client import topics
from ..core.exceptions import StoreError
from ..core.times import shown_instant
from . import overview


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Somebody holds the topic."""

    by: str
    reason: str
    since: datetime | None
    until: datetime | None
    """None until somebody resumes it."""


@dataclass(frozen=True, kw_only=True)
class Obstacles:
    """What keeps messages of a topic from being started."""

    pause: Pause | None = None
    unserved: bool = False
    """No living worker serves it; false when that is not known."""


def obstacles(topic: str) -> Obstacles:
    """Of now; workers as they were at most a second ago. Nothing is known while Redis is away.
    Raises UnknownTopic."""
    with suppress(StoreError):
        note = topics.topic_stats(topic).paused
        return Obstacles(pause=pause_of(note), unserved=is_unserved(topic))
    return Obstacles()


def is_unserved(topic: str) -> bool:
    """Whether no living worker serves the topic; false when that is not known."""
    now = overview.overview()
    one = next((one for one in now.topics if one.topic == topic), None)
    return one is not None and not now.problem and not one.workers


def pause_of(note: Mapping[str, Any] | None) -> Pause | None:
    """What TopicStats.paused means."""
    if note is None:
        return None
    since, until = note.get("at"), note.get("until")
    return Pause(
        by=str(note.get("by") or ""),
        reason=str(note.get("reason") or ""),
        since=shown_instant(since) if since else None,
        until=shown_instant(until) if until else None,
    )
