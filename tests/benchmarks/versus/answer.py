"""The question: per hour (UTC), topic and task the counts by state, attempts, sums, maxima, and
percentiles of lateness and run time. And what each program prints in the end. Plain Python: it also
runs where our package is not installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

KEYS = ("hour", "topic", "task")
COLUMNS = ("topic", "task", "state", "attempts", "finished_at", "lateness_ms", "run_ms")
SHARES = (0.5, 0.95, 0.99)


def paths() -> list[str]:
    """The files of the lake: the first argument names a JSON list of them."""
    return list(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))


def give(
    rows: Iterable[tuple[int, int, Sequence[float | None], Sequence[float | None]]], **more: Any
) -> None:
    """Print what can be compared, of rows (messages, attempts, percentiles of lateness, percentiles
    of run time)."""
    groups = messages = attempts = 0
    lateness, run = [0.0] * len(SHARES), [0.0] * len(SHARES)
    for count, tries, late, ran in rows:
        groups, messages, attempts = groups + 1, messages + int(count), attempts + int(tries)
        lateness = [total + (value or 0) for total, value in zip(lateness, late, strict=True)]
        run = [total + (value or 0) for total, value in zip(run, ran, strict=True)]
    said = {
        "groups": groups,
        "messages": messages,
        "attempts": attempts,
        "lateness": lateness,
        "run": run,
    }
    print(json.dumps({**said, **more}), flush=True)
