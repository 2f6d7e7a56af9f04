"""How a run ended, as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, overload

import msgspec

from ..core.exceptions import UndecodableMessage
from ..core.message import Record, decode_body
from ..core.signals import Event
from ..store.clock import ServerClock
from ..store.lease import Lease
from ..tasks.task import Task

#: Most characters of an error in a line of a message's history.
MAX_HISTORY_ERROR = 300


class Result(str, Enum):
    """What becomes of the message.

    A text too, for its hash: that of an Enum is a function of Python, and takes 2 % of the worker's
    time for a message of a batch.
    """

    ACKED = "acked"
    """The task returned."""
    RETRIED = "retried"
    """It failed and has attempts left."""
    SNOOZED = "snoozed"
    """It asked for another time. Does not count."""
    PUT_OFF = "put off"
    """The code of this worker cannot run it, that of another may. Does not count."""
    RELEASED = "released"
    """It was not run: given back with its attempt."""
    DEAD = "dead"
    """It failed for the last time, or can never run."""


@dataclass(slots=True, eq=False)
class Outcome:
    """The end of one run, on its way to the settler."""

    lease: Lease
    task: Task[..., object] | None
    result: Result
    ended_at: float
    reason: str = ""
    """One word for the archive, or the reason of Reject."""
    task_name: str = ""
    """Name of a task that is not declared here, if the partition knows it."""
    error: BaseException | None = None
    """What the task raised, until the signals are sent. It keeps the frames of the task alive, and
    with them the objects that the task worked on."""
    error_class: str = ""
    """Full name of the exception's class."""
    error_message: str = ""
    traceback: str = ""
    delay_ms: int | None = None
    repeated: bool = False
    """An earlier try to settle it had an unknown outcome."""

    @property
    def run_ms(self) -> float:
        """How long the task ran."""
        return (self.ended_at - self.lease.started_at) * 1000 if self.lease.started_at else 0.0

    @property
    def text(self) -> str:
        """Why, in one line for people."""
        if not self.error_class:
            return self.reason
        return f"{self.error_class.rpartition('.')[2]}: {self.error_message}"

    def detail(self, worker: str, clock: ServerClock) -> bytes:
        """The archive's facts beside the record, as JSON on one line."""
        started_ms = clock.at_ms(self.lease.started_at) if self.lease.started_at else 0
        # Built by hand: a third of the encoder's time, once per message.
        if self.result is Result.ACKED:
            detail = b'{"worker":"%s","started_ms":%.3f,"run_ms":%.3f}' % (
                worker.encode(),
                started_ms,
                self.run_ms,
            )
            report = self.lease.report
            return detail if report is None else detail[:-1] + report.fields() + b"}"
        fields: dict[str, Any] = {"worker": worker, "started_ms": round(started_ms, 3)}
        if self.result is not Result.DEAD:  # it goes on, and this becomes a line of its history
            fields |= {
                "ended_ms": round(clock.at_ms(self.ended_at), 3),
                "outcome": self.result.value,
                "error": self.text[:MAX_HISTORY_ERROR],
            }
            if self.error_class:
                fields["error_class"] = self.error_class
        else:
            if self.lease.report and self.lease.report.progress:
                fields["progress"] = self.lease.report.progress
            fields |= {
                "run_ms": round(self.run_ms, 3),
                "reason": self.reason,
                "error": self.error_class,
                "message": self.error_message,
                "traceback": self.traceback,
            }
        return msgspec.json.encode(fields)

    def event(self, clock: ServerClock) -> Event:
        """For signals."""
        lease = self.lease
        try:
            record = Record.decode(lease.record)
            key = decode_body(record.flags, record.body, lease.id).key
        except UndecodableMessage:
            key = None
        return Event(
            id=lease.id.hex(),
            task=self.task.name if self.task else self.task_name,
            key=key,
            attempt=lease.attempts.attempt,
            lateness_ms=clock.at_ms(lease.started_at or self.ended_at) - lease.attempts.due_at_ms,
            run_ms=self.run_ms,
            delay_ms=self.delay_ms,
            reason=self.text,
            error=self.error,
        )


class ClassifiedElsewhere(Exception):
    """Stands for what a task has raised in a child process, which has classified it there."""

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self._fields = fields
        """Those of the outcome."""

    def apply_to(self, outcome: Outcome) -> Outcome:
        """The outcome as it was classified."""
        for name, value in self._fields.items():
            setattr(outcome, name, value)
        return outcome


class Events(Sequence[Event]):
    """The events of a batch, each built when it is looked at: a receiver that only counts pays for
    no more."""

    def __init__(self, outcomes: Sequence[Outcome], clock: ServerClock) -> None:
        self._outcomes = outcomes
        self._clock = clock

    def __len__(self) -> int:
        return len(self._outcomes)

    def times(self) -> Mapping[str, tuple[list[float], list[float]]]:
        """Lateness and run times (ms) of those that ran, by task. Reads no record: this costs a
        tenth of the events."""
        at_ms, times = self._clock.at_ms, dict[str, tuple[list[float], list[float]]]()
        for outcome in self._outcomes:
            lease = outcome.lease
            if lease.started_at and outcome.task is not None:
                lateness, run = times.get(outcome.task.name) or times.setdefault(
                    outcome.task.name, ([], [])
                )
                lateness.append(at_ms(lease.started_at) - lease.attempts.due_at_ms)
                run.append((outcome.ended_at - lease.started_at) * 1000)
        return times

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Events: ...
    def __getitem__(self, index: int | slice) -> Event | Events:
        if isinstance(index, slice):
            return Events(self._outcomes[index], self._clock)
        return self._outcomes[index].event(self._clock)
