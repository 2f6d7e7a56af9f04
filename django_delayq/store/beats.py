"""Says by its heartbeat whether a worker lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Seconds between two heartbeats of a worker, unless its heartbeat says otherwise.
BEAT_S = 10.0


def is_alive(beat: Mapping[str, Any], now_ms: float, beats: float = 2.5) -> bool:
    """Whether a worker lives by its heartbeat: it has not missed so many."""
    return bool(now_ms - beat["at_ms"] <= 1000 * beats * beat.get("every", BEAT_S))
