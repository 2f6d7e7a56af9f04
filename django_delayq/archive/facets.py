"""How many of the newest rows have which state, topic, task and error: a look at a list before one
filters it. The cost has a bound: it counts among the newest rows of the period."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

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
    """How many rows were looked at, of the topics that the user may see."""
    is_all: bool
    """Whether these are all rows of the period."""


def has_facets(selection: Selection) -> bool:
    """Not one of few rows, or by an argument or a key: there nothing has to be narrowed down."""
    by_one = selection.ids or selection.message_id or selection.key
    return not (by_one or selection.argument or selection.key_prefix)


def facet_rows(selection: Selection) -> QuerySet[Any, Any]:
    """What facets_of() counts: the newest rows of the period."""
    period = Selection(
        since=selection.since,
        until=selection.until,
        open=selection.open,  # an index of their own has them
    )
    return period.rows().order_by("-finished_at").values_list(*_COLUMNS)[: NEWEST + 1]


def facets_of(selection: Selection, newest: Sequence[tuple[Any, ...]]) -> Facets:
    """The facets of a selection, by what its facet_rows() are."""
    rows: list[_Row] = [dict(zip(_COLUMNS, row, strict=True)) for row in newest[:NEWEST]]
    seen = selection.topics
    # Not by the query: rows of a rare topic may be far away.
    rows = [
        dict(row, error=row["error_class"] or row["reason"])
        for row in rows
        if seen is None or row["topic"] in seen
    ]
    conditions = _conditions(selection)
    counts: dict[str, Sequence[tuple[str, int]]] = {}
    for name in ("state", "topic", "task", "error"):
        others = [fits for other, fits in conditions.items() if other != name]
        found = Counter(
            row[name] for row in rows if row[name] and all(fits(row) for fits in others)
        )
        counts[name] = found.most_common(MOST_VALUES)
    return Facets(counts=counts, read=len(rows), is_all=len(newest) <= NEWEST)


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
