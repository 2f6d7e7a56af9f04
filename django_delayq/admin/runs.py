"""The timeline of a message: one entry for each run that has ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..core.times import from_ms


def shown_run(run: Mapping[str, Any], may_see: bool) -> dict[str, Any]:
    """For _timeline.html. `may_see`: with the message of the error, and not only its class."""
    started, ended = _instant(run.get("started_ms")), _instant(run.get("ended_ms"))
    error = str(run.get("error") or "")
    if not may_see:
        named = re.match(r"([A-Za-z_][\w.]*):", error)
        error = named[1] if named else ""
    return {
        "started_at": started,
        "ended_at": ended,
        # The two are rounded: a run of no time may seem to end before it starts.
        "took": max(0.0, (ended - started).total_seconds()) if started and ended else None,
        "outcome": str(run.get("outcome", "")),
        "worker": str(run.get("worker") or ""),
        "error": error,
    }


def _instant(milliseconds: Any) -> datetime | None:
    """None for a value that is no instant: a history may be damaged, a crash has only an end."""
    try:
        return from_ms(milliseconds) if milliseconds else None
    except (TypeError, ValueError, OverflowError, OSError):
        return None
