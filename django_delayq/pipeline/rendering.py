"""A Report as a person reads it, and as a program does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..core.present import table
from .params import Report


def as_json(report: Report) -> str:
    """One JSON document; instants in ISO 8601, the code as a number."""
    return msgspec.json.format(msgspec.json.encode(report, enc_hook=str), indent=1).decode()


def as_text(report: Report) -> str:
    """The table if there is one, a line with the figures, and a line for each problem."""
    lines: list[str] = []
    if rows := report.rows:
        names = list(dict.fromkeys(name for row in rows for name in row))
        head = [name.replace("_", " ") for name in names]
        cells = [[_cell(row.get(name)) for name in names] for row in rows]
        lines += table(
            [head, *cells],
            [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names],
        )
    if report.figures:
        words = ", ".join(
            f"{name.replace('_', ' ')} {_cell(value)}" for name, value in report.figures.items()
        )
        lines.append(f"{report.job}: {words}")
    elif not lines:
        lines.append(f"{report.job}: done")
    return "\n".join([*lines, *(f"! {problem}" for problem in report.problems)])


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
