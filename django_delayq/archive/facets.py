"""How many of the newest rows have which state, topic, task and error: a look at a list before one
filters it. The cost has a bound: it counts among the newest rows of the period."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..models import Final
from .selection import Selection

#: Rows that are counted.
NEWEST = 2_000
#: Values of one facet that are shown.
MOST_VALUES = 8

_COLUMNS = ("state", "topic", "task", "error_class", "reason", "replayed_at", "discarded_at")
_Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Facets:
    """Counts by the name of a filter of Selection: state, topic, task and error."""

    counts: dict[str, Sequence[tuple[str, int]]]
    """The most frequent values of each, with how many rows fit the other filters too."""
    read: int
    """How many rows were looked at."""
    is_all: bool
    """Whether these are all rows of the period."""


def facets_of(selection: Selection) -> Facets | None:
    """The facets of a selection. None for one of few rows, or by an argument or a key: there
    nothing has to be narrowed down."""
    if selection.ids or selection.message_id or selection.key or selection.argument:
        return None
    if selection.key_prefix:
        return None
    period = Selection(
        since=selection.since,
        until=selection.until,
        open=selection.open,  # an index of their own has them
    )
    newest = list(period.rows().order_by("-finished_at").values(*_COLUMNS)[: NEWEST + 1])
    rows = [dict(row, error=row["error_class"] or row["reason"]) for row in newest]
    read, seen = min(len(rows), NEWEST), selection.topics
    # Not by the query: rows of a rare topic may be far away.
    rows = [row for row in rows[:NEWEST] if seen is None or row["topic"] in seen]
    conditions = _conditions(selection)
    counts: dict[str, Sequence[tuple[str, int]]] = {}
    for name in ("state", "topic", "task", "error"):
        others = [fits for other, fits in conditions.items() if other != name]
        found = Counter(
            row[name] for row in rows if row[name] and all(fits(row) for fits in others)
        )
        counts[name] = found.most_common(MOST_VALUES)
    return Facets(counts=counts, read=read, is_all=len(newest) <= NEWEST)


def _conditions(selection: Selection) -> dict[str, Callable[[_Row], bool]]:
    """What the filters ask of a row, as Selection.rows() asks the database."""
    error = selection.error

    def fits_error(row: _Row) -> bool:
        if error.startswith("="):
            return bool(row["error"] == error[1:])
        return error in (row["error_class"], row["reason"]) or bool(
            row["error_class"].endswith(f".{error}")
        )

    asked: dict[str, Callable[[_Row], bool]] = {
        "state": lambda row: row["state"] == selection.state,
        "topic": lambda row: row["topic"] == selection.topic,
        "task": lambda row: row["task"] == selection.task,
        "error": fits_error,
    }
    conditions = {name: fits for name, fits in asked.items() if getattr(selection, name)}
    if selection.open:
        conditions["open"] = lambda row: (
            row["state"] == Final.DEAD and not row["replayed_at"] and not row["discarded_at"]
        )
    return conditions
