"""What the worker processes ran, from the lines that their tasks write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from django_delayq import Handle


class Run(NamedTuple):
    """One line of the history."""

    id: str
    attempt: int
    started: float
    """time.time() of the worker: the clock of the server too, unless a test has bent one of them.
    """
    pid: int
    what: str
    """`start`, `done`, or what the task says."""


class History:
    """The runs of all tasks of one queue, written by the workers with O_APPEND: it survives kill
    -9."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ahead: dict[int, float] = {}
        """Pid -> by how many seconds the clock of that worker is bent."""
        self._position = 0
        self._runs: list[Run] = []

    def all(self) -> list[Run]:
        """Every line so far."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._position)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._position += len(whole)
            self._runs += map(_parse, whole.decode().splitlines())
        return self._runs

    def starts(self, *handles: Handle) -> list[Run]:
        """The starts of these messages, or of all."""
        ids = {handle.id for handle in handles}
        return [run for run in self.all() if run.what == "start" and (not ids or run.id in ids)]

    def count(self, *handles: Handle) -> int:
        """How many different messages have been started."""
        return len({run.id for run in self.starts(*handles)})

    def lost(self, handles: Iterable[Handle]) -> set[str]:
        """Accepted, never started."""
        return {handle.id for handle in handles} - {run.id for run in self.starts()}

    def early(self, handles: Iterable[Handle], server_ahead: float = 0.0) -> dict[str, float]:
        """First starts before the due time by the server's clock: id -> seconds."""
        return {
            message: -late
            for message, late in self.lateness(handles, server_ahead).items()
            if late < 0
        }

    def lateness(self, handles: Iterable[Handle], server_ahead: float = 0.0) -> dict[str, float]:
        """Id -> first start minus due time in seconds. `server_ahead`: by how much the server's
        clock is bent."""
        first = {run.id: run for run in reversed(self.starts())}
        at = {
            message: run.started - self.ahead.get(run.pid, 0.0) + server_ahead
            for message, run in first.items()
        }
        return {
            h.id: at[h.id] - h.due_ms / 1000 for h in handles if h.id in at and h.due_ms is not None
        }

    def duplicates(self, *handles: Handle) -> dict[str, int]:
        """Messages that were started more than once."""
        counts = Counter(run.id for run in self.starts(*handles))
        return {message: count for message, count in counts.items() if count > 1}

    def done(self, *handles: Handle) -> list[Run]:
        """The ends of `hold` and `spin`."""
        ids = {handle.id for handle in handles}
        return [run for run in self.all() if run.what == "done" and (not ids or run.id in ids)]


def _parse(line: str) -> Run:
    message, attempt, started, pid, what = line.split(" ", 4)
    return Run(message, int(attempt), float(started), int(pid), what)
