"""Counts runs, their lateness and their run times in memory that all processes of one command
share. So one process can answer for all of them, and a count outlives the process that made it."""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..core import signals
from ..core.signals import Event, Topic
from ..worker.outcome import Events

#: How a run can end. `lost`: its lease had ended, and its result was refused.
RESULTS = ("acked", "retried", "snoozed", "dead", "lost")
#: Upper ends of the buckets, in seconds. The last bucket has no end.
LATENESS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 10, 60, 600)
RUN_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 5, 10, 60, 600)
#: Stands for all topics, or tasks, beyond the limit.
OTHER = "other"

_SIGNALS = {
    signals.acked: "acked",
    signals.retried: "retried",
    signals.snoozed: "snoozed",
    signals.dead: "dead",
    signals.lease_lost: "lost",
}
_LATE_AT = len(RESULTS)
#: Behind the buckets is the sum, in microseconds.
_RUN_AT = _LATE_AT + len(LATENESS_S) + 2
_ROW = _RUN_AT + len(RUN_S) + 2
#: Bytes of a row's name: topic (64 at most), a zero byte and task (200 characters at most).
_NAME = 272
#: The bucket of a time in milliseconds.
_late_bucket = partial(bisect_left, [end * 1000 for end in LATENESS_S])
_run_bucket = partial(bisect_left, [end * 1000 for end in RUN_S])


class RunFigures(NamedTuple):
    """The runs of one task in one topic."""

    topic: str
    task: str
    results: Sequence[int]
    """In the order of RESULTS."""
    lateness: Sequence[int]
    """Runs by bucket, not added up; the last one is above all ends."""
    lateness_sum: float
    """Seconds."""
    run: Sequence[int]
    run_sum: float


class RunCounts:
    """A table for each process: a row for each topic and task, up to a limit, and one for the
    rest. Made before the fork; each process counts in its own table, and reads all."""

    def __init__(self, processes: int, limit: int) -> None:
        self._limit = limit
        self._cells = 1 + (limit + 1) * _ROW
        self._size = 8 * self._cells + (limit + 1) * _NAME
        self._size += -self._size % 8
        # Pages that nobody writes to take no memory.
        self._memory = memoryview(mmap.mmap(-1, max(1, processes) * self._size))
        self._processes = processes
        self._rows: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._receivers: list[tuple[Any, Any]] = []
        self._names_read: list[list[tuple[str, str]]] = [[] for _ in range(processes)]
        """The names of each table, as far as read() has come: a row keeps its name."""

    def begin(self, index: int) -> None:
        """Count in this process' table, which an earlier process may have begun. Connects to the
        signals."""
        table = self._memory[index * self._size : (index + 1) * self._size]
        self._numbers = table[: 8 * self._cells].cast("q")
        self._names = table[8 * self._cells :]
        self._rows = {
            name: 1 + row * _ROW for row, name in enumerate(_names_in(table, self._cells, 0))
        }
        for signal, result in _SIGNALS.items():
            receiver = partial(self._receive, RESULTS.index(result))
            signal.connect(receiver, weak=False)
            self._receivers.append((signal, receiver))

    def end(self) -> None:
        """Count no more."""
        for signal, receiver in self._receivers:
            signal.disconnect(receiver)
        self._receivers.clear()

    def _receive(self, result: int, sender: Topic, events: Sequence[Event], **kwargs: Any) -> None:
        # A dead letter that no run has made, for example after a crash, has another kind of events.
        if not isinstance(events, Events):
            return
        with self._lock:
            for task, (lateness, run) in events.times().items():
                numbers, at = (
                    self._numbers,
                    self._rows.get((sender, task)) or self._add(sender, task),
                )
                numbers[at + result] += len(run)
                # Counted in C: this is the time of a worker that is busy.
                for bucket, count in Counter(map(_late_bucket, lateness)).items():
                    numbers[at + _LATE_AT + bucket] += count
                numbers[at + _RUN_AT - 1] += round(1000 * sum(lateness))
                for bucket, count in Counter(map(_run_bucket, run)).items():
                    numbers[at + _RUN_AT + bucket] += count
                numbers[at + _ROW - 1] += round(1000 * sum(run))

    def _add(self, topic: str, task: str) -> int:
        """Where the row of this pair begins."""
        full = len(self._rows) >= self._limit
        pair = (OTHER, OTHER) if full else (topic, task)
        if pair not in self._rows:
            row = self._numbers[0]
            name = f"{pair[0]}\0{pair[1]}".encode()[:_NAME]
            self._names[row * _NAME : row * _NAME + len(name)] = name
            self._numbers[0] += 1  # only now does a reader see it
            self._rows[pair] = 1 + row * _ROW
        return self._rows[pair]

    def read(self) -> Sequence[RunFigures]:
        """The sums over all processes, by topic and task."""
        sums: dict[tuple[str, str], list[int]] = {}
        for index in range(self._processes):
            table = self._memory[index * self._size : (index + 1) * self._size]
            numbers = table[: 8 * self._cells].cast("q")
            names = self._names_read[index]
            with self._lock:
                names += _names_in(table, self._cells, len(names))
            for row, name in enumerate(names):
                values = numbers[1 + row * _ROW : 1 + (row + 1) * _ROW].tolist()
                before = sums.get(name)
                sums[name] = (
                    values
                    if before is None
                    else [a + b for a, b in zip(before, values, strict=True)]
                )
        return [
            RunFigures(
                topic,
                task,
                results=values[:_LATE_AT],
                lateness=values[_LATE_AT : _RUN_AT - 1],
                lateness_sum=values[_RUN_AT - 1] / 1_000_000,
                run=values[_RUN_AT : _ROW - 1],
                run_sum=values[_ROW - 1] / 1_000_000,
            )
            for (topic, task), values in sorted(sums.items())
        ]


def _names_in(table: memoryview, cells: int, known: int) -> Iterator[tuple[str, str]]:
    """The topic and the task of each row behind those that are known."""
    count = table[:8].cast("q")[0]
    for row in range(known, count):
        at = 8 * cells + row * _NAME
        name = bytes(table[at : at + _NAME]).rstrip(b"\0").decode("utf-8", "replace")
        topic, _, task = name.partition("\0")
        yield topic, task
