"""Where SQL and the lake differ, and how they are made equal again: the rows of SQL are exported
once more, in the place of those that the lake has."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from ...core.times import epoch_us
from ...models import LakeBatch
from ...stats.hourly import beginning_of
from .. import schemas
from ..params import Database
from ..sources.ranges import Range, edges
from ..sources.table_reader import read_rows
from . import batches
from .batches import COMPARED, GONE, SAME, Compared
from .files import Store, new_name, read_file, rewrite, write_rows
from .ledger import Ledger

#: Every instant, in microseconds since 1970.
FIRST, LAST = -(2**62), 2**62


@dataclass
class Differences:
    """What a comparison found, by kind and day."""

    rows: Counter[tuple[str, date]] = field(default_factory=Counter)
    ids: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Of the rows that differ, by kind: not all, when there are many."""

    def count(self, kind: str) -> int:
        """How many rows there are of a kind: see batches.SAME and those beside it."""
        return sum(count for (found, _), count in self.rows.items() if found == kind)

    def days(self) -> list[date]:
        """The days on which rows differ."""
        return sorted({day for (kind, day), count in self.rows.items() if kind != SAME and count})


class Scope(NamedTuple):
    """Which rows are compared."""

    since: datetime | None = None
    """Only those that finished in [since, until)."""
    until: datetime | None = None
    lost_after: date | None = None
    """Then rows that SQL has lost are found, too: those that finished on a later day, of batches
    that no export has pruned."""


ALL = Scope()


def compare_batches(
    spark: SparkSession,
    database: Database,
    ledger: Ledger,
    chosen: Sequence[LakeBatch],
    scope: Scope = ALL,
    most: int = 1_000,
) -> Differences:
    """Compare the rows of these batches, row by row and column by column, on the executors. At most
    `most` ids of each kind are named. Days that a retention has dropped are left out. Raises
    LakeError."""
    lake = ledger.lake
    begin = FIRST if scope.since is None else epoch_us(scope.since)
    if kept := lake.retained_since:
        begin = max(begin, epoch_us(beginning_of(kept)))
    end = LAST if scope.until is None else epoch_us(scope.until)
    parts = []
    for batch in chosen:
        ids = (batch.lo, batch.hi)
        is_whole = scope.lost_after is not None and not batch.pruned
        for some in edges(database, ids, max(1, -(-(batch.rows or 0) // COMPARED))) or [ids]:
            files = [
                file for file in lake.files(ids=some) if file.newest >= begin and file.oldest < end
            ]
            parts.append(Compared(some, files, begin, end, is_whole))
    found = Differences()
    if not parts:
        return found
    for row in batches.compare(spark, database, lake.storage, parts, most).to_pylist():
        if row["kind"] == GONE and scope.lost_after and row["dt"] <= scope.lost_after:
            continue
        found.rows[row["kind"], row["dt"]] += row["rows"]
        ids_of_kind = found.ids[row["kind"]]
        ids_of_kind += row["ids"][: most - len(ids_of_kind)]
    return found


def export_again(database: Database, ledger: Ledger, ids: Sequence[int]) -> set[int]:
    """Put these rows of SQL into the lake, in the place of what it has under these ids, in one
    commit. What SQL does not have any more stays as it is. It needs no Spark. Returns the ids
    that it has. Raises LakeError, LakeConflict."""
    lake = ledger.lake
    store, wanted = Store(lake.storage), sorted(ids)
    span = (wanted[0] - 1, wanted[-1])
    values = pa.array(wanted, pa.int64())
    name = new_name(span)
    there = lake.files(ids=span)
    rows = [
        batch.filter(pc.is_in(batch["id"], values))
        for some in _runs(wanted)
        for batch in read_rows(database, schemas.ARCHIVE, some)
    ]
    values = pa.Table.from_batches(rows, schemas.ARCHIVE)["id"].combine_chunks()

    def without(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.invert(pc.is_in(batch["id"], values)))

    removed, added = [], []
    for number, file in enumerate(there):
        held = sum(
            pc.sum(pc.is_in(batch["id"], values)).as_py() or 0
            for batch in read_file(store, file, ["id"], span)
        )
        if held:
            removed.append(file)
            if held < file.rows:
                path = f"dt={file.dt}/{name}-r{number}.parquet"
                added.append(rewrite(store, file, path, without))
    new = list(write_rows(store, [batch for batch in rows if batch.num_rows], name))
    if new:
        version = lake.replace(
            "repair",
            removed,
            [*added, *new],
            there=(span, there),
            rows=sum(one.rows for one in new),
        )
        ledger.repaired(span, version)
    return set(values.to_pylist())


def _runs(ids: Sequence[int], gap: int = 10_000) -> Iterator[Range]:
    """The ids in ranges without a big gap."""
    first = last = ids[0]
    for one in ids[1:]:
        if one - last > gap:
            yield first - 1, last
            first = one
        last = one
    yield first - 1, last
