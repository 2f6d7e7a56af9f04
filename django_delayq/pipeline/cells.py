"""Counts rows of the archive into cells: what Spark adds up to figures of hours and days (transforms.py).

In Arrow and numpy on the executors: over ten million rows a tenth of the time of the same as expressions of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..histogram import LARGEST

#: Of an hour and a day, in microseconds.
HOUR, DAY = 3_600_000_000, 86_400_000_000


class Unit(NamedTuple):
    """Spans of time, and what is told apart in each."""

    name: str
    length: int
    """In microseconds."""
    keys: Sequence[str]
    errors: bool
    """Whether dead letters are counted by error."""


HOURS_AND_DAYS = (Unit("hour", HOUR, ("topic",), False), Unit("day", DAY, ("topic", "task"), True))

#: Rows that are counted at a time: some 50 MB.
ROWS = 400_000
STATES = ("acked", "dead", "cancelled", "expired")
METRICS = ("lateness", "run")

#: The sums of times are those of two halves of 32 bits: exact, whatever the times and however many.
SUMS = ("messages", *STATES, "attempts", "retried", "lateness_high", "lateness_low", "run_high", "run_low")
KEYS = ("unit", "at", "topic", "task")

#: One row per key and kind: `counts` has the sums and maxima, `lateness` and `run` a bucket and `n`, `error` an error
#: and `n`. `at` is the beginning of the hour or day in microseconds since 1970; `task` is empty for an hour.
CELLS = pa.schema(
    [
        ("unit", pa.string()),  # hour or day
        ("at", pa.int64()),
        ("topic", pa.string()),
        ("task", pa.string()),
        ("kind", pa.string()),
        ("bucket", pa.int32()),
        ("error", pa.string()),
        ("n", pa.int64()),
        *((name, pa.int64()) for name in SUMS),
        ("lateness_max", pa.float64()),
        ("run_max", pa.float64()),
    ]
)
#: What is read of the archive.
READ = ("finished_at", "topic", "task", "state", "attempts", "lateness_ms", "run_ms", "error_class", "reason")


def cells(batches: Iterator[pa.RecordBatch], units: Sequence[Unit] = HOURS_AND_DAYS) -> Iterator[pa.RecordBatch]:
    """For DataFrame.mapInArrow: rows with the columns READ -> CELLS, to be added up. Rows without finished_at are in no
    hour; times that are no finite number are as those of what never ran."""
    for table in _gathered(batches):
        rows = _prepared(table)
        for unit in units:
            yield from _counted(rows, unit)


def microseconds(milliseconds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """histogram.microseconds() of finite numbers. A whole number in a double, so what follows is exact."""
    with np.errstate(over="ignore"):  # infinite is beyond LARGEST, too
        exact = np.clip(milliseconds * 1000.0 + 0.5, -LARGEST, LARGEST)
    return np.floor(exact).astype(np.int64)


def buckets(n: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """histogram.bucket() of whole microseconds that microseconds() gave."""
    exponent = np.frexp(np.maximum(n, 16).astype(np.float64))[1].astype(np.int64) - 5
    found: np.ndarray[Any, Any] = np.where(n < 16, np.maximum(n, 0), 16 * exponent + (np.maximum(n, 16) >> exponent))
    return found


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    kept: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        kept.append(batch)
        rows += batch.num_rows
        if rows >= ROWS:
            yield pa.Table.from_batches(kept)
            kept, rows = [], 0
    if rows:
        yield pa.Table.from_batches(kept)


def _prepared(table: pa.Table) -> pa.Table:
    """With what is added up as columns of numbers."""
    if table.column("finished_at").null_count:
        table = table.filter(pc.is_valid(table.column("finished_at")))
    state, attempts = table.column("state"), table.column("attempts")
    columns = {
        "finished_us": table.column("finished_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64()),
        "topic": table.column("topic"),
        "task": table.column("task"),
        "attempts": attempts,
        "retried": _one(pc.greater(attempts, 1)),
        "messages": _one(pc.is_in(state, pa.array(STATES))),
        **{name: _one(pc.equal(state, name)) for name in STATES},
        "error": _errors(table, state),
    }
    for metric in METRICS:
        columns |= _times(metric, table.column(f"{metric}_ms"))
    return pa.table(columns)


def _one(flags: Any) -> Any:
    return pc.fill_null(flags, False).cast(pa.int64())


def _errors(table: pa.Table, state: Any) -> Any:
    """Of dead letters the class, or the reason where there is none; null of others."""
    named = pc.not_equal(table.column("error_class"), "")
    error = pc.if_else(
        pc.fill_null(named, False), table.column("error_class"), pc.fill_null(table.column("reason"), "")
    )
    return pc.if_else(pc.equal(state, "dead"), error, pa.scalar(None, pa.string()))


def _times(metric: str, column: Any) -> dict[str, Any]:
    """Both halves of its microseconds, the bucket, and as it is; all null of what is not finite."""
    values = column.to_numpy()  # null is NaN here
    absent = ~np.isfinite(values)
    exact = microseconds(np.where(absent, 0.0, values))
    return {
        f"{metric}_high": pa.array(exact >> 32, mask=absent),
        f"{metric}_low": pa.array(exact & (2**32 - 1), mask=absent),
        f"{metric}_bucket": pa.array(buckets(exact).astype(np.int32), mask=absent),
        f"{metric}_max": pa.array(values, mask=absent),
    }


def _counted(rows: pa.Table, unit: Unit) -> Iterator[pa.RecordBatch]:
    at = rows.column("finished_us").to_numpy()
    rows = rows.append_column("at", pa.array(at - at % unit.length))
    keys = ["at", *unit.keys]
    sums = [*((name, "sum") for name in SUMS), *((f"{metric}_max", "max") for metric in METRICS)]
    yield from _as_cells(_grouped(rows, keys, sums), unit, "counts")
    for metric in METRICS:
        ran = rows.select([*keys, f"{metric}_bucket"]).rename_columns([*keys, "bucket"]).drop_null()
        yield from _as_cells(_grouped(ran, [*keys, "bucket"], [([], "count_all")]), unit, metric)
    if unit.errors:
        dead = rows.select([*keys, "error"]).filter(pc.is_valid(rows.column("error")))
        yield from _as_cells(_grouped(dead, [*keys, "error"], [([], "count_all")]), unit, "error")


def _grouped(rows: pa.Table, keys: Sequence[str], aggregations: Any) -> pa.Table:
    found = pa.TableGroupBy(rows, list(keys), use_threads=False).aggregate(aggregations)
    names = {f"{name}_sum": name for name in SUMS} | {f"{metric}_max_max": f"{metric}_max" for metric in METRICS}
    return found.rename_columns([{**names, "count_all": "n"}.get(name, name) for name in found.column_names])


def _as_cells(found: pa.Table, unit: Unit, kind: str) -> Iterator[pa.RecordBatch]:
    """With all columns of CELLS."""
    given = {"unit": unit.name, "kind": kind, "task": ""}
    columns = []
    for field in CELLS:
        if field.name in found.column_names:
            columns.append(found.column(field.name).cast(field.type))
        else:
            columns.append(pa.repeat(pa.scalar(given.get(field.name), field.type), found.num_rows))
    yield from pa.table(columns, schema=CELLS).to_batches()
