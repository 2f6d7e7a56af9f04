"""What executors do for a lake: copy rows of the archive to files, rewrite files, and compare SQL
with the lake. None of the files counts before the driver commits it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from ...core.job_report import Tell
from .. import schemas
from ..params import Database, Storage
from ..session import parallelism, spread, watched
from ..sources.ranges import ROWS_OF_PART, Range, edges
from ..sources.table_reader import read_rows
from .files import (
    FILES,
    LakeFile,
    Store,
    bits,
    new_name,
    read_file,
    row_groups,
    write_file,
    write_rows,
)

#: Rows that one task compares; both sides are in its memory.
COMPARED = 100_000
#: What a comparison says of the rows of a day: the same on both sides; only in SQL; in both but
#: different, or twice in the lake; in both, but of different messages; only in the lake.
SAME, LATE, CHANGED, ANOTHER, GONE = "same", "late", "changed", "another", "gone"
DIFFERENCES = pa.schema(
    {"dt": pa.date32(), "kind": pa.string(), "rows": pa.int64(), "ids": pa.list_(pa.int64())}
)


# SQL -> lake


def copy(
    spark: SparkSession, database: Database, storage: Storage, ids: Range, rows: int, tell: Tell
) -> list[LakeFile]:
    """Write the (about) `rows` rows of the archive with lo < id <= hi as files, in tasks that each
    compare what they wrote. Returns the files of the attempts that counted."""
    least = max(1, rows // ROWS_OF_PART)
    ranges = edges(database, ids, min(least, 4 * parallelism(spark)))
    work = partial(_copied, database=database, storage=storage)
    begun = time.monotonic()

    def show(share: float) -> None:
        done, took = round(rows * share), time.monotonic() - begun
        if done:
            tell(
                f"copying the rows up to id {ids[1]:,}: {done / took:,.0f} rows/s, "
                f"{took / share - took:,.0f} s left",
                done,
                rows,
            )

    with watched(spark, show):
        return _files(spread(spark, ranges, work, FILES))


def _copied(ids: Range, database: Database, storage: Storage) -> Iterator[pa.RecordBatch]:
    batches = read_rows(database, schemas.ARCHIVE, ids)
    for file in write_rows(Store(storage), batches, new_name(ids)):
        yield reported([file])


def reported(files: Iterable[LakeFile]) -> pa.RecordBatch:
    """Files as a task returns them."""
    return pa.RecordBatch.from_pylist([file._asdict() for file in files], schema=FILES)


def _files(frame: DataFrame) -> list[LakeFile]:
    """What reported() has returned, in the order of the tasks."""
    return [LakeFile(**row) for row in frame.toArrow().to_pylist()]


# Lake -> lake


def merge(
    spark: SparkSession, storage: Storage, groups: Sequence[Sequence[LakeFile]]
) -> list[LakeFile]:
    """Write one file with the rows of each group, whose files are of one day. Returns the new files
    in the same order."""
    return _files(spread(spark, groups, partial(_merged, storage=storage), FILES))


def _merged(files: Sequence[LakeFile], storage: Storage) -> Iterator[pa.RecordBatch]:
    store = Store(storage)

    def chunks() -> Iterator[pa.Table]:
        for rows in row_groups(batch for file in files for batch in read_file(store, file)):
            yield rows.sort_by([("topic", "ascending"), ("finished_at", "ascending")])

    name = new_name((min(file.lowest for file in files), max(file.highest for file in files)))
    path = f"dt={files[0].dt}/{name}.parquet"
    yield reported([write_file(store, path, files[0].dt, chunks)])


# SQL <-> lake


class Compared(NamedTuple):
    """Rows that one task compares."""

    ids: Range
    files: Sequence[LakeFile]
    """All that may have rows with these ids."""
    since: int
    """Only rows that finished in [since, until), in microseconds since 1970."""
    until: int
    whole: bool
    """Whether rows that only the lake has are to be found, too."""


def compare(
    spark: SparkSession,
    database: Database,
    storage: Storage,
    parts: Sequence[Compared],
    most: int,
) -> pa.Table:
    """DIFFERENCES of these parts, row by row and column by column: how many rows there are of each
    day and kind, and at most `most` ids of those that differ, of each task."""
    work = partial(_compared, database=database, storage=storage, most=most)
    return spread(spark, parts, work, DIFFERENCES).toArrow()


def _compared(
    part: Compared, database: Database, storage: Storage, most: int
) -> Iterator[pa.RecordBatch]:
    ours = _table(read_rows(database, schemas.ARCHIVE, part.ids), part)
    store = Store(storage)

    def lake() -> Iterator[pa.RecordBatch]:
        for file in part.files:
            for batch in read_file(store, file, ids=part.ids):
                if not part.whole:
                    batch = batch.filter(pc.is_in(batch["id"], ours["id"]))  # noqa: PLW2901
                yield batch

    theirs = _table(lake(), part)
    at = pc.index_in(ours["id"], value_set=theirs["id"])
    late = pc.is_null(at)
    both, same = ours.filter(pc.invert(late)), theirs.take(at.drop_null())
    differ = _differing(both, same, both.column_names)
    another = _differing(both, same, ("message_id", "enqueued_at"))
    counts = pc.value_counts(theirs["id"])
    twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    differ = pc.or_(differ, pc.is_in(both["id"], twice))
    gone = theirs.filter(pc.invert(pc.is_in(theirs["id"], ours["id"])))
    for kind, rows in (
        (SAME, both.filter(pc.invert(differ))),
        (LATE, ours.filter(late)),
        (CHANGED, both.filter(pc.and_not(differ, another))),
        (ANOTHER, both.filter(another)),
        (GONE, gone),
    ):
        days = rows["finished_at"].cast(pa.date32())
        for found in days.value_counts().to_pylist():
            ids: list[int] = []
            if kind != SAME:
                ids = rows.filter(pc.equal(days, found["values"]))["id"].to_pylist()[:most]
            row = {"dt": found["values"], "kind": kind, "rows": found["counts"], "ids": ids}
            yield pa.RecordBatch.from_pylist([row], schema=DIFFERENCES)


def _table(batches: Iterator[pa.RecordBatch], part: Compared) -> pa.Table:
    rows = pa.Table.from_batches(batches, schemas.ARCHIVE)
    when = rows["finished_at"].cast(pa.int64())
    inside = pc.and_(pc.greater_equal(when, part.since), pc.less(when, part.until))
    return bits(rows.filter(inside)).combine_chunks()


def _differing(ours: pa.Table, theirs: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    """Which of the rows, side by side, differ in any of these columns."""
    differ = pa.chunked_array([pa.repeat(False, ours.num_rows)], pa.bool_())
    for name in names:
        a, b = ours[name], theirs[name]
        equal = pc.fill_null(pc.equal(a, b), pc.and_(pc.is_null(a), pc.is_null(b)))
        differ = pc.or_(differ, pc.invert(equal))
    return differ
