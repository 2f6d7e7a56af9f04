"""Counts rows of the archive into aggregates, and adds these up to figures of hours and days: on
executors of Spark, or in one process.

It counts with Arrow and numpy: for ten million rows that takes a tenth of the time of Spark's own
expressions.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from heapq import nsmallest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...core.chunks import chunked_by_weight
from ...core.message import Final
from ...stats import histogram
from ...stats.histogram import LARGEST
from .. import schemas
from ..lake.files import LakeFile, Store, open_file
from ..params import Storage
from ..session import configured, parallelism, spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Numbers = np.ndarray[Any, Any]
Batches = Iterator[pa.RecordBatch]

#: Of an hour and a day, in microseconds.
HOUR, DAY = 3_600_000_000, 86_400_000_000


class Unit(NamedTuple):
    """A kind of span, and the columns by which its rows are grouped."""

    name: str
    length: int
    """In microseconds."""
    keys: Sequence[str]
    errors: bool
    """Whether dead letters are counted by error."""


HOURS_AND_DAYS = (Unit("hour", HOUR, ("topic",), False), Unit("day", DAY, ("topic", "task"), True))

#: Parts of the files for each core, so that a core which is done early takes another part.
PARTS = 4
#: Rows that are read from a file at a time.
BATCH = 100_000
#: Rows that are counted at a time: some 50 MB.
ROWS = 400_000
#: Aggregates that are added up at a time, unless an hour or a day has more.
ADDED = 10_000
#: Aggregates that the driver holds of Spark at a time, unless a day has more: some 20 MB.
HELD = 50_000
#: Rows of a batch of aggregates, or of spans: they become objects of Python together.
TOGETHER = 1_000
STATES = tuple(Final.values)
METRICS = ("lateness", "run")

COUNTS = ("messages", *STATES, "attempts", "retried")
#: Whole microseconds of 128 bits: exact for all times, and for any number of them.
_EXACT = pa.decimal128(38)
KEYS = ("unit", "at", "topic", "task")

#: One row per key with the figures, with a null `error`; and one row per key and error with `n`,
#: the number of dead letters. `at` is the beginning of the hour or day in microseconds since 1970;
#: `task` is empty for an hour; histograms are texts of histogram.encode().
AGGREGATES = pa.schema(
    [
        ("unit", pa.string()),  # hour or day
        ("at", pa.int64()),
        ("topic", pa.string()),
        ("task", pa.string()),
        ("error", pa.string()),
        ("n", pa.int64()),
        *((name, pa.int64()) for name in COUNTS),
        *((f"{metric}_sum", _EXACT) for metric in METRICS),
        *((f"{metric}_max", pa.float64()) for metric in METRICS),
        *((metric, pa.string()) for metric in METRICS),
    ]
)
#: One row per key, with the columns of TopicHour and TaskDay. `errors` are the most frequent ones
#: of a day, as TaskDay has them.
SPANS = pa.schema(
    [
        *(AGGREGATES.field(name) for name in KEYS),
        *((name, pa.int64()) for name in COUNTS),
        *((f"{metric}_sum", pa.float64()) for metric in METRICS),
        *((f"{metric}_max", pa.float64()) for metric in METRICS),
        *((metric, pa.string()) for metric in METRICS),
        ("errors", pa.string()),
    ]
)
#: AGGREGATES of one UTC day (the number of the day since 1970) in the bytes of Arrow. Spark moves
#: few values then, and sorts none.
PIECES = pa.schema([("day", pa.int32()), ("rows", pa.int32()), ("aggregates", pa.binary())])
#: In this order they are added up: hours before days.
_IN_ORDER = [("unit", "descending"), ("at", "ascending")]
#: How rows of the archive go to Python: their columns are short. Spark would take 2 us a row to
#: measure each batch by its bytes, as much as for everything else.
_BATCHES = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}
#: A power of two above all buckets.
_BUCKETS = 1024
_UPPER_OF_16 = int(np.float64(16).view(np.int64)) >> 48


class Coded(NamedTuple):
    """Texts as numbers, which are quicker to group."""

    codes: Numbers
    values: pa.Array
    """By their codes; the last one is null."""


class Prepared(NamedTuple):
    """What is counted of a table of rows."""

    finished_us: Numbers
    texts: Mapping[str, Coded]
    """Topic, task and state."""
    added: Mapping[str, Any]
    """Columns that are added up, and times whose maximum is sought."""
    buckets: Mapping[str, Numbers]
    """Per metric; -1 for a row without a time."""
    errors: pa.Table
    """For each dead letter `row`, its number, and `error`: the class, or else the reason."""


def aggregated(
    batches: Batches, since: datetime | None = None, until: datetime | None = None
) -> Batches:
    """Rows with the columns of schemas.FIGURES that finished in [since, until) -> AGGREGATES, to be
    added up. None: without a bound.

    Rows without finished_at are in no hour. A time that is no finite number counts as that of a
    message that never ran. Texts may be dictionaries, which are quicker.
    """
    inside = _inside(batches, since, until)
    for some in chunked_by_weight(inside, attrgetter("num_rows"), ROWS):
        rows = _prepared(pa.Table.from_batches(some))
        for unit in HOURS_AND_DAYS:
            group_of, keys = _groups(rows, unit)
            yield from _as_aggregates(unit, keys, _figures(rows, group_of, keys.num_rows))
            if unit.errors:
                # How many dead letters of each group have each error.
                group = group_of[rows.errors.column("row").to_numpy()]
                dead = {"group": group, "error": rows.errors.column("error")}
                found = _grouped(dead, ["group", "error"], [([], "count_all")])
                counts = {"error": found.column("error"), "n": found.column("count_all")}
                yield from _as_aggregates(unit, keys.take(found.column("group")), counts)


def microseconds_of(milliseconds: Numbers) -> Numbers:
    """histogram.microseconds() of finite numbers. A whole number in a double, so what follows is
    exact."""
    with np.errstate(over="ignore"):  # infinite is beyond LARGEST, too
        exact = np.clip(milliseconds * 1000.0 + 0.5, -LARGEST, LARGEST)
    return np.floor(exact).astype(np.int64)


def buckets(n: Numbers) -> Numbers:
    """histogram.bucket() of whole microseconds that microseconds_of() gave."""
    # The upper bits of a double are its exponent and the four that tell the parts of a power of two
    # apart.
    upper = n.astype(np.float64).view(np.int64) >> 48
    return np.where(n < 16, np.maximum(n, 0), upper - _UPPER_OF_16 + 16)


def _inside(batches: Batches, since: datetime | None, until: datetime | None) -> Batches:
    """The rows of [since, until)."""
    for batch in batches:
        part = batch
        for is_inside, bound in ((pc.greater_equal, since), (pc.less, until)):
            if bound is not None:
                at = part.column("finished_at")
                inside = is_inside(at, pa.scalar(bound, at.type))
                part = part if inside.true_count == len(inside) else part.filter(inside)
        if part.num_rows:
            yield part


def _prepared(table: pa.Table) -> Prepared:
    if table.column("finished_at").null_count:
        table = table.filter(pc.is_valid(table.column("finished_at")))
    finished_us = (
        table.column("finished_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
    )
    texts = {name: _coded(table.column(name)) for name in ("topic", "task", "state")}
    attempts = table.column("attempts")
    added = {
        "attempts": attempts,
        "retried": pc.fill_null(pc.greater(attempts, 1), False).cast(pa.int64()),
    }
    in_buckets = {}
    for metric in METRICS:
        values = table.column(f"{metric}_ms").to_numpy()  # null is NaN here
        absent = ~np.isfinite(values)
        exact = microseconds_of(np.where(absent, 0.0, values))
        added |= {
            f"{metric}_sum": pa.array(exact, mask=absent).cast(_EXACT),
            f"{metric}_max": pa.array(values, mask=absent),
        }
        in_buckets[metric] = np.where(absent, -1, buckets(exact))
    state = texts["state"]
    is_dead = pc.fill_null(pc.equal(state.values, "dead"), False).to_numpy(zero_copy_only=False)
    row = np.flatnonzero(is_dead[state.codes])
    causes = table.select(["error_class", "reason"]).take(row)
    error_class, reason = (pc.fill_null(column.cast(pa.string()), "") for column in causes.columns)
    errors = pc.if_else(pc.not_equal(error_class, ""), error_class, reason)
    return Prepared(finished_us, texts, added, in_buckets, pa.table({"row": row, "error": errors}))


def _coded(column: pa.ChunkedArray) -> Coded:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    codes = whole.indices.cast(pa.int64()).fill_null(len(whole.dictionary)).to_numpy()
    return Coded(codes, pa.concat_arrays([whole.dictionary, pa.nulls(1, whole.dictionary.type)]))


def _groups(rows: Prepared, unit: Unit) -> tuple[Numbers, pa.Table]:
    """Group by one number, which is made of the hour, or day, and the codes of the texts. Returns
    the number of each row's group, and the keys of each group."""
    number = rows.finished_us // unit.length
    for name in unit.keys:
        codes, values = rows.texts[name]
        number = number * len(values) + codes
    found = pa.array(number).dictionary_encode()
    rest = found.dictionary.to_numpy()
    keys = {}
    for name in reversed(unit.keys):
        values = rows.texts[name].values
        rest, codes = np.divmod(rest, len(values))
        keys[name] = values.take(pa.array(codes))
    keys["at"] = pa.array(rest * unit.length)
    return found.indices.to_numpy().astype(np.int64), pa.table(keys)


def _figures(rows: Prepared, group_of: Numbers, height: int) -> dict[str, Any]:
    """Sums, maxima and histograms of so many groups."""
    sums = {name: "max" if name.endswith("_max") else "sum" for name in rows.added}
    found = _grouped({"group": group_of, **rows.added}, ["group"], list(sums.items()))
    found = found.sort_by("group")
    # How many messages are in each state, and in all of them.
    state = rows.texts["state"]
    width = len(state.values)
    table = np.bincount(group_of * width + state.codes, minlength=width * height)
    counts = dict(zip(state.values.to_pylist(), table.reshape(height, width).T, strict=True))
    nothing = np.zeros(height, np.int64)
    states = {name: counts.get(name, nothing) for name in STATES}
    return {
        "messages": sum(states.values(), nothing),
        **states,
        **{name: found.column(f"{name}_{how}") for name, how in sums.items()},
        **{metric: _histograms(rows.buckets[metric], group_of, height) for metric in METRICS},
    }


def _histograms(in_buckets: Numbers, group_of: Numbers, height: int) -> pa.Array:
    """As histogram.encode() writes them."""
    ran = in_buckets >= 0
    pairs, counts = pc.value_counts(pa.array(group_of[ran] * _BUCKETS + in_buckets[ran])).flatten()
    order = pc.sort_indices(pairs)
    group, bucket = np.divmod(pairs.take(order).to_numpy(), _BUCKETS)
    texts = (pa.array(bucket).cast(pa.string()), counts.take(order).cast(pa.string()))
    ends = np.searchsorted(group, np.arange(height + 1)).astype(np.int32)
    of_groups = pa.ListArray.from_arrays(pa.array(ends), _joined('"', texts[0], '":', texts[1]))
    return _joined("{", pc.binary_join(of_groups, ","), "}")


def _joined(*texts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*texts, "")


def _grouped(
    columns: Mapping[str, Any], keys: Sequence[str], aggregations: Sequence[Any]
) -> pa.Table:
    return pa.TableGroupBy(pa.table(columns), list(keys), use_threads=False).aggregate(aggregations)


def _as_aggregates(unit: Unit, keys: pa.Table, figures: Mapping[str, Any]) -> Batches:
    """With all columns of AGGREGATES, in one batch: _by_day() takes a day for over when a batch of
    later ones comes."""
    columns = {field.name: pa.nulls(keys.num_rows, field.type) for field in AGGREGATES}
    columns["unit"] = pa.repeat(unit.name, keys.num_rows)
    columns["task"] = pa.repeat("", keys.num_rows)
    columns |= zip(keys.column_names, keys.columns, strict=True)
    yield from pa.table({**columns, **figures}).cast(AGGREGATES).combine_chunks().to_batches()


# Adding up


def added_up(batches: Iterable[pa.RecordBatch], most_errors: int) -> Batches:
    """AGGREGATES of parts of the rows, in the order _IN_ORDER -> SPANS, in the order of their keys.
    It holds all aggregates of an hour, or a day, and few others."""
    for table in _whole(batches):
        yield from _spans(table, most_errors).to_batches(TOGETHER)


def _whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """About ADDED aggregates at a time. None of them is of an hour, or a day, that goes on."""
    kept: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        kept.append(batch)
        rows += batch.num_rows
        if rows >= ADDED:
            table = pa.Table.from_batches(kept)
            last = [pc.equal(table[name], table[name][-1]) for name in ("unit", "at")]
            begin = pc.index(pc.and_(*last), True).as_py()
            if begin:
                yield table.slice(0, begin)
                kept, rows = table.slice(begin).to_batches(), rows - begin
    if kept:
        yield pa.Table.from_batches(kept)


def _spans(table: pa.Table, most_errors: int) -> pa.Table:
    merged = _merged(table)
    found = merged.filter(pc.is_null(merged["error"]))
    found = found.sort_by([*_IN_ORDER, ("topic", "ascending"), ("task", "ascending")])
    columns = {field.name: found[field.name] for field in SPANS if field.name in table.column_names}
    for metric in METRICS:
        # Milliseconds from whole numbers: exact, in any order.
        columns[f"{metric}_sum"] = [
            int(us or 0) / 1000 for us in found[f"{metric}_sum"].to_pylist()
        ]
    dead = merged.filter(pc.is_valid(merged["error"]))
    errors: dict[Any, list[tuple[int, str]]] = defaultdict(list)
    for *key, error, n in _rows(dead, (*KEYS, "error", "n")):
        errors[tuple(key)].append((-n, error))
    columns["errors"] = [
        json.dumps({error: -n for n, error in nsmallest(most_errors, errors[key])}, sort_keys=True)
        for key in _rows(found, KEYS)
    ]
    return pa.table(columns, schema=SPANS)


def _merged(table: pa.Table) -> pa.Table:
    """AGGREGATES with a row for each key and error."""
    ways = dict.fromkeys(("n", *COUNTS, *(f"{metric}_sum" for metric in METRICS)), "sum")
    ways |= {f"{metric}_max": "max" for metric in METRICS} | dict.fromkeys(METRICS, "list")
    keys = (*KEYS, "error")
    found = _grouped({name: table[name] for name in (*keys, *ways)}, keys, list(ways.items()))
    columns = {name: found[name] for name in keys}
    columns |= {name: found[f"{name}_{how}"] for name, how in ways.items()}
    columns |= {metric: list(map(_sum_of, columns[metric].to_pylist())) for metric in METRICS}
    return pa.table(columns, schema=AGGREGATES)


def _sum_of(histograms: Sequence[str | None]) -> str | None:
    """All histograms in one; None when there is none."""
    texts = [text for text in histograms if text is not None]
    if len(texts) < 2:
        return texts[0] if texts else None
    return histogram.encode(histogram.merge_histograms(map(histogram.decode, texts)))


def _rows(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def figures_of_aggregates(
    aggregates: Batches, most_errors: int, *, sorted_days: bool = False
) -> Iterator[Mapping[str, Any]]:
    """AGGREGATES -> rows of SPANS, day after day. It holds about twice as many aggregates as there
    are keys, however many rows are counted. `sorted_days`: the rows came day after day; then it
    holds those of the newest days only."""
    for _, of_day in _by_day(aggregates, sorted_days=sorted_days):
        for batch in added_up(_in_order(of_day), most_errors):
            yield from batch.to_pylist()


def _by_day(
    aggregates: Batches, *, sorted_days: bool
) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Days since 1970, and AGGREGATES of each: see figures_of_aggregates(). Where `sorted_days` is
    not true of the rows, a day comes several times."""
    days: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    rows, most = 0, ADDED
    for batch in aggregates:
        day_of = batch["at"].to_numpy() // DAY
        found = np.unique(day_of).tolist()
        for day in found:
            whole = len(found) == 1
            days[day].append(batch if whole else batch.filter(pa.array(day_of == day)))
        rows += batch.num_rows
        if sorted_days:
            for day in [day for day in days if day < found[0]]:
                over = days.pop(day)
                rows -= sum(one.num_rows for one in over)
                yield day, over
        if rows >= most:
            for of_day in days.values():
                of_day[:] = _put_together(of_day)
            rows = sum(one.num_rows for of_day in days.values() for one in of_day)
            most = max(ADDED, 2 * rows)
    for day in sorted(days):
        yield day, days.pop(day)


def _put_together(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """AGGREGATES with one row for each key and error."""
    if len(batches) == 1:
        return batches  # a batch has them once
    merged = map(_merged, _whole(_in_order(batches)))
    return [one for part in merged for one in part.to_batches()]


def _in_order(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    found: Sequence[pa.RecordBatch] = (
        pa.Table.from_batches(batches, AGGREGATES).sort_by(_IN_ORDER).to_batches(TOGETHER)
    )
    return found


# In one process


def figures_of_files(
    storage: Storage,
    files: Sequence[LakeFile],
    since: datetime | None,
    until: datetime | None,
    most_errors: int,
) -> Iterator[Mapping[str, Any]]:
    """Rows of SPANS of the rows in these files, which are in the order of their dates. Raises
    LakeError when a file is not as the log says."""
    counted = _counted(files, storage, partial(aggregated, since=since, until=until))
    return figures_of_aggregates(counted, most_errors, sorted_days=True)


# By Spark


def figures_by_spark(found: DataFrame, most_errors: int) -> Iterator[Mapping[str, Any]]:
    """A frame of PIECES -> rows of SPANS, day after day. The driver adds them up: it holds some
    aggregates at a time, and at least those of one day. An action raises LakeError when a file is
    not as the log says."""
    # Kept, so that the rows are read once: the aggregates are few.
    found.persist()
    try:
        sizes = Counter[int]()
        with configured(found.sparkSession, _BATCHES):
            for day, rows in found.select("day", "rows").collect():
                sizes[day] += rows
        for days in chunked_by_weight(sorted(sizes), sizes.__getitem__, HELD):
            pieces = found.where(found["day"].between(days[0], days[-1])).select("aggregates")
            packed = (pa.py_buffer(row[0]) for row in pieces.collect())
            batches = (pa.ipc.read_record_batch(piece, AGGREGATES) for piece in packed)
            yield from figures_of_aggregates(batches, most_errors)
    finally:
        found.unpersist()


def aggregate_frame(
    frame: DataFrame, since: datetime | None = None, until: datetime | None = None
) -> DataFrame:
    """PIECES of the rows of the archive that finished in [since, until); None: without a bound."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def count(rows: Batches) -> Batches:
        return _in_pieces(aggregated(rows, since, until))

    return frame.select(*schemas.FIGURES.names).mapInArrow(count, from_arrow_schema(PIECES))


def aggregate_files(
    spark: SparkSession,
    storage: Storage,
    files: Sequence[LakeFile],
    count: Callable[[Batches], Batches] = aggregated,
) -> DataFrame:
    """PIECES of files, which the Python of the executors reads itself: through Java, the rows would
    take four times as long. `count` gets texts as dictionaries."""
    parts = _parted(files, min(len(files), PARTS * parallelism(spark)))

    def work(part: Sequence[LakeFile]) -> Batches:
        return _in_pieces(_counted(part, storage, count))

    return spread(spark, parts, work, PIECES)


def _in_pieces(aggregates: Batches) -> Batches:
    for day, of_day in _by_day(aggregates, sorted_days=True):
        for some in chunked_by_weight(_put_together(of_day), attrgetter("num_rows"), HELD):
            (piece,) = pa.Table.from_batches(some).combine_chunks().to_batches()
            packed = {"day": day, "rows": len(piece), "aggregates": piece.serialize().to_pybytes()}
            yield pa.RecordBatch.from_pylist([packed], schema=PIECES)


def _parted(files: Sequence[LakeFile], number: int) -> list[list[LakeFile]]:
    """The files in this number of parts with about as many rows each. They keep their order,
    because neighbours have rows of one hour."""
    parts: list[list[LakeFile]] = [[] for _ in range(number)]
    rows, seen = max(1, sum(file.rows for file in files)), 0
    for file in files:
        parts[min(number - 1, number * (2 * seen + file.rows) // (2 * rows))].append(file)
        seen += file.rows
    return parts


def _counted(
    files: Sequence[LakeFile], storage: Storage, count: Callable[[Batches], Batches]
) -> Batches:
    """The files, counted one after the other."""
    texts = [field.name for field in schemas.FIGURES if pa.types.is_string(field.type)]
    store = Store(storage)

    def rows() -> Batches:
        for file in files:
            with open_file(store, file, read_dictionary=texts) as source:
                yield from source.iter_batches(
                    BATCH, columns=schemas.FIGURES.names, use_threads=False
                )

    return count(rows())
