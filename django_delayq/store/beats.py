"""Heartbeats of workers: how they are read, and whether a worker lives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Seconds between two heartbeats of a worker, unless its heartbeat says otherwise.
BEAT_S = 10.0


def decode_beats(answer: Mapping[bytes, bytes]) -> dict[str, dict[str, Any]]:
    """The heartbeats by worker, from the hash of Redis."""
    return {name.decode(): json.loads(beat) for name, beat in answer.items()}


def is_alive(beat: Mapping[str, Any], now_ms: float, beats: float = 2.5) -> bool:
    """Whether a worker lives by its heartbeat: it has not missed so many."""
    return bool(now_ms - beat["at_ms"] <= 1000 * beats * beat.get("every", BEAT_S))
