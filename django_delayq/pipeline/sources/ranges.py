"""Divides the ids of a table into ranges with about as many rows each, by a few queries that the
index answers.

Ids are seldom dense: rows are pruned, except open dead letters, and a sequence may jump by a
billion.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ..params import Database
from .databases import connected, select_rows

Range = tuple[int, int]
"""lo < id <= hi."""

#: Ids that are read at each end of a span to learn how dense they are there.
SAMPLE = 64
#: A range with fewer rows is not divided.
LEAST = 1_000
#: Most ranges that are read side by side, by default.
PARTS = 8
#: Rows of a part that will be written to files: each part becomes a file per date, and many small
#: files are slow to read.
ROWS_OF_PART = 50_000


class IdSpan(NamedTuple):
    """Ids from the first to the last, both of which exist."""

    rows: float
    """About how many rows there are."""
    first: int
    last: int


def edges(database: Database, ids: Range, parts: int) -> list[Range]:
    """The range in at most this number of parts, without a gap between them; an empty range has
    none.

    Fewer than 1,000 rows are not divided. Raises DatabaseUnavailable, ConfigurationError.
    """
    lo, hi = ids
    if hi <= lo:
        return []
    with connected(database) as connection:
        spans = _spans(connection, database.table, ids, max(1, parts))
    return list(pairwise([lo, *_cuts(spans, parts), hi]))


def range_of_all(database: Database) -> Range:
    """The range of all rows that exist now; (0, 0) for an empty table."""
    with connected(database) as connection:
        table = connection.ops.quote_name(database.table)
        ((first, last),) = select_rows(connection, f"SELECT min(id), max(id) FROM {table}")
    return (0, 0) if first is None else (first - 1, last)


def _spans(connection: Any, table: str, ids: Range, parts: int) -> list[IdSpan]:
    """Spans in the order of ids, none with many rows: the one with the most rows is halved again
    and again."""
    ops = connection.ops
    select, limit = f"SELECT id FROM {ops.quote_name(table)}", ops.limit_offset_sql(0, SAMPLE)

    def find_span(lo: int, hi: int) -> IdSpan | None:
        """The span of the rows with lo < id <= hi; None when there are none."""
        where = f"{select} WHERE id > {lo} AND id <= {hi} ORDER BY id"
        lowest = [row[0] for row in select_rows(connection, f"{where} {limit}")]
        if len(lowest) < SAMPLE:
            return IdSpan(len(lowest), lowest[0], lowest[-1]) if lowest else None
        highest = [row[0] for row in select_rows(connection, f"{where} DESC {limit}")]
        first, last = lowest[0], highest[0]
        # The denser end counts. A span with too high an estimate is divided further; one with too
        # low an estimate would stay as it is.
        for_sample = min(lowest[-1] - first, last - highest[-1]) + 1
        return IdSpan(max(SAMPLE, (last - first + 1) * SAMPLE / for_sample), first, last)

    whole = find_span(*ids)
    heap = [(-whole.rows, whole)] if whole else []
    for _ in range(50 * parts):
        if not heap or -heap[0][0] <= max(LEAST, -sum(rows for rows, _ in heap) / (4 * parts)):
            break
        _, span = heapq.heappop(heap)
        middle = (span.first + span.last) // 2
        for half in (find_span(span.first - 1, middle), find_span(middle, span.last)):
            if half:
                heapq.heappush(heap, (-half.rows, half))
    return sorted((span for _, span in heap), key=lambda span: span.first)


def _cuts(spans: Sequence[IdSpan], parts: int) -> Iterator[int]:
    """The last ids of all parts but the last part."""
    total = sum(span.rows for span in spans)
    parts = min(parts, -int(-total // LEAST))
    done, cut = 0.0, 1
    for span in spans:
        while cut < parts and done + span.rows > total * cut / parts:
            share, ids = (total * cut / parts - done) / span.rows, span.last - span.first + 1
            yield min(span.last - 1, span.first - 1 + max(1, round(share * ids)))
            cut += 1
        done += span.rows
