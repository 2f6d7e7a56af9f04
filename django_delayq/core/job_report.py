"""The result of a job, as a person reads it and as a program does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from .present import table

Tell = Callable[..., object]
"""Takes a line about the progress of a job; also how many are done, and of how many, when that is
known."""


def ignore(line: str, done: int = 0, total: int = 0) -> None:
    """A Tell that drops the line."""


class Code(IntEnum):
    """Exit codes of a job."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    DIFFERENT = 3
    """The audit or the doctor found differences, or the check a limit that is broken."""


class Report(msgspec.Struct, kw_only=True):
    """The result of a job."""

    job: str
    code: Code = Code.DONE
    figures: dict[str, Any] = msgspec.field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    """A table, if there is one."""
    problems: list[str] = msgspec.field(default_factory=list)
    """Sentences that a person should read."""

    def as_json(self) -> str:
        """One JSON document; instants in ISO 8601, the code as a number."""
        return msgspec.json.format(msgspec.json.encode(self, enc_hook=str), indent=1).decode()

    def as_text(self) -> str:
        """The table if there is one, a line with the figures, and a line for each problem."""
        lines: list[str] = []
        if rows := self.rows:
            names = list(dict.fromkeys(name for row in rows for name in row))
            head = [name.replace("_", " ") for name in names]
            cells = [[_cell(row.get(name)) for name in names] for row in rows]
            lines += table(
                [head, *cells],
                [
                    all(isinstance(row.get(name), int | float | None) for row in rows)
                    for name in names
                ],
            )
        if self.figures:
            words = ", ".join(
                f"{name.replace('_', ' ')} {_cell(value)}" for name, value in self.figures.items()
            )
            lines.append(f"{self.job}: {words}")
        elif not lines:
            lines.append(f"{self.job}: done")
        return "\n".join([*lines, *(f"! {problem}" for problem in self.problems)])


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{_cell(name)} {_cell(part)}" for name, part in value.items()]
    if isinstance(value, list | tuple | set):
        return ", ".join(map(_cell, value)) or "-"
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        whole = isinstance(value, int) or abs(value) >= 1000
        return f"{value:,.0f}" if whole else f"{value:.3f}".rstrip("0").rstrip(".")
    # Without control characters: the text of a message must not steer the terminal.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))
