"""Runs a program and watches the memory of its process tree."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psutil

#: A program is killed that takes more of the machine's memory, or longer, than this: others work
#: here too.
SHARE, SECONDS = 0.85, 1800.0
EVERY = 0.05


class Outcome(NamedTuple):
    """How it went."""

    seconds: float
    peak: int
    """Bytes: the highest sum of the resident memory of its processes. Pages that they share count
    once for each."""
    answer: Mapping[str, Any]
    """What it printed; empty when it failed."""
    failure: str = ""


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Outcome:
    """Run it in a process of its own, from nothing to its end."""
    most = int(psutil.virtual_memory().total * SHARE)
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complaints:
        begun, peak, failure = time.perf_counter(), 0, ""
        process = psutil.Popen(
            command,
            stdout=said,
            stderr=complaints,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            while process.poll() is None and not failure:
                peak = max(peak, resident(process))
                failure = _too_much(peak, most, time.perf_counter() - begun)
                time.sleep(EVERY)
        finally:
            seconds = time.perf_counter() - begun
            end(process)  # when it is too large, or somebody pressed Ctrl-C
        process.wait()
        lines, last = _text(said), (_text(complaints) or ["nothing"])[-1]
    if not failure and process.returncode:
        failure = f"failed ({process.returncode}): {last[:200]}"
    return Outcome(seconds, peak, {} if failure else json.loads(lines[-1]), failure)


def _too_much(peak: int, most: int, seconds: float) -> str:
    if peak > most:
        return f"out of memory: ended at {peak / 1e9:.0f} GB"
    return f"ended after {SECONDS:,.0f} s" if seconds > SECONDS else ""


def resident(process: psutil.Process) -> int:
    """Bytes of a process and its children now."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
    return total


def end(process: psutil.Process) -> None:
    """kill -9 to all of them, the first one first: it sees none of the others go."""
    with suppress(psutil.NoSuchProcess):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                one.kill()


def _text(file: Any) -> list[str]:
    file.seek(0)
    return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
