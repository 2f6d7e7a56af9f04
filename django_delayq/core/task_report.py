"""What a task has to say beside how it ended: its result and its progress. Most tasks say
nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec

from .exceptions import InvalidMessage, InvalidResult, UnserialisableArguments

#: Most characters of a progress' note.
MOST_NOTE = 200
#: Numbers of a progress are below this: a percentage can be made of them.
MOST_DONE = 10**18


class TaskProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far a task has come."""

    done: int | float
    """The amount that is done."""
    total: int | float | None = None
    """The amount of the whole; None: unknown."""
    note: str = ""
    """The text beside the numbers; at most 200 characters."""
    attempt: int = 0
    """The attempt that reported it, 1 for the first."""

    @property
    def percent(self) -> float | None:
        """0 to 100; None without a total."""
        return None if not self.total else max(0.0, min(100.0, 100 * self.done / self.total))


def checked_progress(done: Any, total: Any, note: Any, attempt: int) -> TaskProgress:
    """The progress. Raises InvalidMessage for what is no number and no text."""
    for name, value in (("done", done), ("total", total)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number and not (value is None and name == "total"):
            raise InvalidMessage(f"progress(): {name} is a number, not {value!r:.80}.")
        if is_number and not abs(value) < MOST_DONE:  # NaN is not either
            raise InvalidMessage(f"progress(): {name} is not a finite number below {MOST_DONE:g}.")
    if not isinstance(note, str):
        raise InvalidMessage(f"progress(): note is text, not of type {type(note).__name__}.")
    note = note.encode("utf-8", "replace").decode()
    return TaskProgress(done, total, note[:MOST_NOTE], attempt)


class TaskReport:
    """Belongs to one lease."""

    __slots__ = ("archived", "may_run_until", "progress", "result", "sent_at")

    def __init__(self) -> None:
        self.result: bytes | None = None
        """JSON; None for a task that keeps none, and before its end."""
        self.progress: TaskProgress | None = None
        self.archived = False
        """Whether the run was committed together with its row of the archive."""
        self.sent_at = 0.0
        """Local monotonic time at which a progress was sent last."""
        self.may_run_until = 0.0
        """Local monotonic time until which the run may go on beyond its max_runtime; 0 when it has
        not asked."""

    def keep_progress(self, progress: TaskProgress) -> None:
        """The task has come so far."""
        self.progress = progress

    def allow(self, seconds: float) -> None:
        """The run may go on for so long from now. Never shortens it."""
        self.may_run_until = max(self.may_run_until, time.monotonic() + seconds)

    def fields(self) -> bytes:
        """For the JSON of the finished entry: `,"result":...,"progress":...,"archived":true`."""
        parts = b"" if self.result is None else b',"result":' + self.result
        if self.progress is not None:
            parts += b',"progress":' + msgspec.json.encode(self.progress)
        if self.archived:
            parts += b',"archived":true'
        return parts


def encode_result(value: Any, limit: int) -> bytes:
    """JSON of a return value. Raises InvalidResult when it is no JSON, or takes more than `limit`
    bytes."""
    try:
        text = json.dumps(
            value,
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
            default=msgspec.to_builtins,
        )
        encoded = text.encode()
    except (TypeError, ValueError, RecursionError, UnserialisableArguments) as error:
        raise InvalidResult(
            f"The return value, of type {type(value).__name__}, is no JSON: {error}."[:200]
        ) from None
    if len(encoded) > limit:
        raise InvalidResult(
            f"The return value takes {len(encoded):,} bytes, the limit is {limit:,}. Store the "
            "data and return its key."
        )
    return encoded
