"""Finds one page of the archive, the newest rows first, in a time that grows with neither the table
nor the depth.

No index serves every combination of filters, so rows are read in windows, and a page that is not
full says how far back the search went. There are few rows that are not acked: an index of their own
(delayq_archive_others) holds all that filters ask for, and a window is 100,000 of its entries.
For other rows a window is a number of rows in the order in which they finished, when a period is
given. Without a period it is a range of ids: 20,000 at first, then as many as the time that is left
allows. A rare task or topic needs no window: its index gives all of its rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from time import monotonic
from typing import Any, NamedTuple, cast

from django.db import connections
from django.db.models import BigIntegerField, ExpressionWrapper, Q, Subquery, Value
from django.db.models.functions import Coalesce

from ..core.cursors import cursor_of, numbers_of
from ..core.exceptions import InvalidMessage
from ..core.times import epoch_us, stored_ms
from ..models import ArchivedMessage, Final
from ..models.functions import Octets
from ..models.one_statement import Query, read_together
from ..tasks.redaction import check_search
from .argument_match import ArgumentMatch
from .selection import Rows, Selection

#: What the list shows. Bodies, headers and tracebacks stay in the database.
LISTED = (
    "message_id", "topic", "task", "key", "state", "reason", "attempts", "due_at", "finished_at",
    "lateness_ms", "run_ms", "error_class", "replay_of", "replayed_by", "replayed_at",
    "discarded_at",
)  # fmt: skip
SIZE = 100
#: Ids of the first window.
FIRST_IDS = 20_000
#: Seconds that the second window may take, by what the first one took.
BUDGET = 0.06
#: Rows in one window of a period; when an index without the acked ones has them; when bodies are
#: searched.
PERIOD_ROWS, FEW_ROWS, SEARCHED_ROWS = 60_000, 100_000, 25_000
#: A task or a topic with at most as many rows is looked up in its index, without windows.
RARE = 5_000
#: At most so many bodies are read: one may have 60 KB and more.
CANDIDATES = 300
#: Bytes of bodies in one window that is searched, as far as those of its first rows tell.
SEARCHED_BYTES, SAMPLE = 64 * 1024 * 1024, 200

_RARE, _COMMON = -1, 1

Edge = tuple[datetime | None, int]
"""Where a page begins, itself not included: finished_at (in lists that are in its order) and the id
of a row."""

LAST_ID = 2**62

#: The last day of the calendar, in microseconds since then.
_LAST_US = 253_402_214_400_000_000


@dataclass(frozen=True, kw_only=True)
class ArchivePage:
    """Consecutive rows of a selection, the newest first."""

    rows: Sequence[ArchivedMessage]
    older: str | None
    """Pass it as `before` for what comes below; None when nothing does."""
    newer: str | None
    """Pass it as `after` for what comes above; None at the top."""
    searched_back_to: datetime | None
    """The page is not full because the search stopped there for now; None when it is full or
    complete."""
    complete: bool
    """Whether the search came to the end: nothing lies beyond this page."""
    beside: Sequence[Any] = ()
    """What was read beside it."""


@dataclass(frozen=True, kw_only=True)
class _WalkedRows:
    """What a walk has found, in its direction."""

    rows: list[ArchivedMessage]
    edge: Edge | None
    """Where the next walk begins; None when nothing is left."""
    stopped_at: datetime | None = None


class _Beyond(NamedTuple):
    """The first row beyond a window."""

    pk: int
    finished_at: datetime
    mark: int


def page_of(
    selection: Selection,
    *,
    before: str | None = None,
    after: str | None = None,
    size: int = SIZE,
    columns: Sequence[str] = LISTED,
    beside: Sequence[Query] = (),
) -> ArchivePage:
    """The `size` newest rows; the next older ones than the cursor `before`, or the next newer ones
    than `after`.

    In the order of finishing, or (all rows or acked ones, without a period) in that of archiving,
    which is nearly the same. Two short queries at most. `columns`: the fields to read. `beside`:
    queries that the first one reads with it, as read_together() does. Raises InvalidMessage for a
    cursor that is not of this selection's pages, and for a search for an argument or a key prefix
    without a period, or for a secret argument.
    """
    reads_rows = selection.argument or selection.key_prefix
    if reads_rows and not (selection.since or selection.until):
        raise InvalidMessage(
            "A search for an argument or the beginning of a key needs a period. Choose one."
        )
    if selection.argument:
        check_search(selection.argument, selection.task)
    kind = _kind(selection)
    edge = _edge_of(before or after, kind is _ByFinishing)
    walk = kind(selection, columns, beside, upwards=bool(after and not before))
    found = walk.walk(edge, size)
    rows, beyond = found.rows, _text_of(found.edge)
    if after and not before:
        rows.reverse()
        older, newer = _text_of(_after(rows[-1], kind) if rows else _stepped(edge, 1)), beyond
    else:
        older, newer = (
            beyond,
            _text_of(_after(rows[0], kind) if rows else _stepped(edge, -1)) if before else None,
        )
    return ArchivePage(
        rows=rows,
        older=older,
        newer=newer,
        searched_back_to=found.stopped_at if len(rows) < size else None,
        complete=found.edge is None,
        beside=walk.found_beside,
    )


def every_row(
    selection: Selection, columns: Sequence[str], size: int = 500
) -> Iterator[ArchivedMessage]:
    """All rows, page by page. Raises InvalidMessage."""
    before: str | None = None
    while True:
        page = page_of(selection, before=before, size=size, columns=columns)
        yield from page.rows
        if page.older is None:
            return
        before = page.older


class _ArchiveWalk:
    """One page of a selection, upwards or downwards."""

    def __init__(
        self,
        selection: Selection,
        columns: Sequence[str],
        beside: Sequence[Query] = (),
        *,
        upwards: bool,
    ) -> None:
        self.selection, self.columns, self.upwards = selection, columns, upwards
        self.found_beside: Sequence[Any] = ()
        self._beside = beside
        self.rows: Rows = selection.rows().only("pk", *columns)
        self.table: Rows = ArchivedMessage.objects.using(self.rows.db).only("pk", *columns)
        self.features = connections[self.rows.db].features
        if selection.topic and not selection.state:
            # All states that there are, because the index begins with the state.
            self.rows = self.rows.filter(state__in=Final.values)

    def mark(self) -> Any:
        """In SQL: _RARE when so few rows have this task, or topic, that an index gives all of them
        at once."""
        column = "task" if self.selection.task else "topic"
        name = self.selection.task or self.selection.topic
        if not name:
            return Value(_COMMON)
        states = [self.selection.state] if self.selection.state else Final.values
        same = self.table.filter(**{column: name, "state__in": states})
        rare = Subquery(same.order_by().values("pk")[RARE : RARE + 1])
        return Coalesce(rare, Value(_RARE), output_field=BigIntegerField())

    def read(self, *queries: Query) -> Sequence[Any]:
        """What these find, in no order. The first time with what is to be read beside them."""
        found = read_together(*queries, *self._beside)
        if self._beside:
            self.found_beside, self._beside = found[len(queries) :], ()
        return found[: len(queries)]

    def read_rows(self, rows: Rows, limit: int, *others: Query) -> Sequence[Any]:
        """The first of these rows, in the order of their ids; and what the others find."""
        read, *found = self.read(rows[:limit], *others)
        return [sorted(read, key=lambda row: row.pk, reverse=not self.upwards), *found]

    def order(self, *names: str) -> list[str]:
        """For order_by."""
        return [name if self.upwards else f"-{name}" for name in names]


class _Ids(_ArchiveWalk):
    """In the order of archiving."""

    def walk(self, edge: Edge | None, size: int) -> _WalkedRows:
        """At most `size` rows from the edge on."""
        start = edge and edge[1]
        if _is_exact(self.selection):
            return self._rest(start, size, [])
        begun = monotonic()
        rows, beyond = self._window(start, FIRST_IDS, size + 1)
        if len(rows) <= size and beyond:
            start = self._next_to(beyond)
            if beyond.mark == _RARE:
                return self._rest(start, size, rows)
            span = FIRST_IDS * BUDGET / max(monotonic() - begun, 1e-6)
            more, beyond = self._window(start, int(span), size + 1 - len(rows))
            rows += more
        if len(rows) > size or not beyond:
            return _cut(rows, size, _Ids)
        return _WalkedRows(
            rows=rows, edge=(None, self._next_to(beyond)), stopped_at=beyond.finished_at
        )

    def _rest(self, start: int | None, size: int, rows: list[ArchivedMessage]) -> _WalkedRows:
        """All rows from there on, added to these rows."""
        rest = self._from(self.rows, start).order_by(*self.order("pk"))
        (found,) = self.read_rows(rest, size + 1 - len(rows))
        return _cut([*rows, *found], size, _Ids)

    def _window(
        self, start: int | None, span: int, limit: int
    ) -> tuple[list[ArchivedMessage], _Beyond | None]:
        """The first rows of the selection among `span` ids, and the first row of the table beyond
        those."""
        if start is None:
            newest = Subquery(self.table.order_by("-pk").values("pk")[:1])
            end: Any = ExpressionWrapper(newest - Value(span), output_field=BigIntegerField())
        else:
            end = start + span if self.upwards else max(start - span, 0)
        inside, outside = (
            (Q(pk__lte=end), Q(pk__gt=end)) if self.upwards else (Q(pk__gte=end), Q(pk__lt=end))
        )
        rows = self._from(self.rows, start).filter(inside).order_by(*self.order("pk"))
        others = self.table.filter(outside).annotate(mark=self.mark()).order_by(*self.order("pk"))
        within, beyond = self.read_rows(
            rows, limit, others.values_list("pk", "finished_at", "mark")[:1]
        )
        return within, _Beyond(*beyond[0]) if beyond else None

    def _from(self, rows: Rows, start: int | None) -> Rows:
        if start is None:
            return rows
        return rows.filter(pk__gt=start) if self.upwards else rows.filter(pk__lt=start)

    def _next_to(self, row: _Beyond) -> int:
        """The edge before which a walk begins with this row."""
        return row.pk - 1 if self.upwards else row.pk + 1


class _ByFinishing(_ArchiveWalk):
    """In the order of finishing."""

    def __init__(self, selection: Selection, *given: Any, upwards: bool) -> None:
        super().__init__(selection, *given, upwards=upwards)
        self.few = _is_few(selection)
        if self.few:
            # The query has to name the condition of the index.
            self.rows = self.rows.exclude(state=Final.ACKED)

    def walk(self, edge: Edge | None, size: int) -> _WalkedRows:
        """At most `size` rows from the edge on."""
        rows, end = self._from(self.rows, edge), self._end(edge)
        if end is not None:
            rows = rows.filter(Q(finished_at__lte=end) if self.upwards else Q(finished_at__gte=end))
        rows = rows.order_by(*self.order("finished_at", "pk"))
        if self.selection.argument:
            argument = ArgumentMatch.read(self.selection.argument, self.selection.value)
            rows = argument.narrowed(rows).only(
                "pk", *{*self.columns, "topic", "task", "message_id", "body"}
            )
            candidates = list(rows[:CANDIDATES])
            found = [row for row in candidates if argument.is_seen_in(row)]
            found = found[: size + 1]
            if len(found) <= size and len(candidates) == CANDIDATES:
                last = candidates[-1]
                return _WalkedRows(
                    rows=found, edge=_after(last, _ByFinishing), stopped_at=last.finished_at
                )
        else:
            if self.few and self.features.allow_sliced_subqueries_with_in:
                # The index of the others alone tells which rows these are.
                pks = rows.values("pk")[: size + 1]
                rows = self.table.filter(pk__in=pks).order_by(*self.order("finished_at", "pk"))
            found = list(rows[: size + 1])
        if end is None or len(found) > size:
            return _cut(found, size, _ByFinishing)
        # All rows that finished in the last instant of the window belong to it.
        return _WalkedRows(rows=found, edge=(end, LAST_ID if self.upwards else 0), stopped_at=end)

    def _end(self, edge: Edge | None) -> datetime | None:
        """When the last row of this window finished; None when nothing lies beyond. It takes an
        OFFSET of this many entries of an index. A range of ids would not do, because rows of any id
        may have finished in the period."""
        scope = Selection(since=self.selection.since, until=self.selection.until).rows()
        if self.few:
            scope = scope.exclude(state=Final.ACKED)
        ends = self._from(scope, edge).order_by(*self.order("finished_at"))
        if self.selection.argument:
            return self._end_of_searched(ends)
        count = FEW_ROWS if self.few else PERIOD_ROWS
        ends = ends.annotate(mark=Value(_COMMON) if self.few else self.mark())
        (found,) = self.read(ends.values_list("finished_at", "mark")[count : count + 1])
        end, mark = next(iter(found), (None, _COMMON))
        return None if mark == _RARE else end

    def _end_of_searched(self, ends: Rows) -> datetime | None:
        """Where the window of a search in bodies ends: nearer where these are long, as far as its
        first rows tell."""
        counts = [SEARCHED_ROWS]
        while counts[-1] // 2 > SAMPLE:
            counts.append(counts[-1] // 2)
        first, *found = self.read(
            ends.values_list("finished_at", Octets("body"))[: SAMPLE + 1],
            *(ends.values_list("finished_at")[count : count + 1] for count in counts),
        )
        first.sort(reverse=not self.upwards)
        total = 0
        for (_, size), (beyond, _) in pairwise(first):
            total += size
            if total > SEARCHED_BYTES:
                return cast("datetime", beyond)
        if len(first) <= SAMPLE:
            return None
        most = SAMPLE * SEARCHED_BYTES // max(total, 1)
        for count, end in zip(counts, found, strict=True):
            if count <= most:
                return end[0][0] if end else None
        return cast("datetime", first[-1][0])

    def _from(self, rows: Rows, edge: Edge | None) -> Rows:
        if edge is None:
            return rows
        when, pk = edge
        further: Rows
        if self.upwards:
            further = rows.filter(finished_at__gte=when).exclude(finished_at=when, pk__lte=pk)
        else:
            further = rows.filter(finished_at__lte=when).exclude(finished_at=when, pk__gte=pk)
        return further


def _cut(rows: list[ArchivedMessage], size: int, kind: type[_ArchiveWalk]) -> _WalkedRows:
    """A page of rows of which one more was asked for, to know whether there is one."""
    return _WalkedRows(
        rows=rows[:size], edge=_after(rows[size - 1], kind) if len(rows) > size else None
    )


def _kind(selection: Selection) -> type[_Ids | _ByFinishing]:
    by_time = selection.since or selection.until or _is_few(selection)
    return _ByFinishing if by_time and not _is_exact(selection) else _Ids


def _is_exact(selection: Selection) -> bool:
    """Whether few rows can be meant, and an index has them."""
    return bool(selection.message_id or selection.key or selection.ids) and not selection.argument


def _is_few(selection: Selection) -> bool:
    """Whether no acked row is meant, and the index of the others is there
    (delayq_archive_others)."""
    others = selection.open or selection.error or selection.state not in ("", Final.ACKED)
    return bool(others and connections[selection.rows().db].features.supports_partial_indexes)


def _after(row: ArchivedMessage, kind: type[_ArchiveWalk]) -> Edge:
    """The edge that this row is."""
    return (row.finished_at if kind is _ByFinishing else None, row.pk)


# Cursors


def _stepped(edge: Edge | None, by: int) -> Edge | None:
    """The same place for a walk in the other direction: it does not see the edge itself, but one
    row less or more."""
    return edge and (edge[0], max(0, edge[1] + by))


def _text_of(edge: Edge | None) -> str | None:
    """The id of a row; behind the microseconds since 1970 in a list by time."""
    if edge is None:
        return None
    when, pk = edge
    if when is None:
        return cursor_of(pk)
    return cursor_of(epoch_us(when), pk)


def _edge_of(text: str | None, timed: bool) -> Edge | None:
    """From _text_of(). Raises InvalidMessage, also for a cursor of a list in another order."""
    if not text:
        return None
    if not timed:
        return None, numbers_of(text, LAST_ID + 2)[0]
    us, pk = numbers_of(text, _LAST_US, LAST_ID + 2)
    return stored_ms(us / 1000), pk
