"""Counts rows of the archive into aggregates, and lets Spark add these up to figures of hours and
days.

The executors count with Arrow and numpy: for ten million rows that takes a tenth of the time of
Spark's own expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema

from ...core.message import Final
from ...stats import histogram
from ...stats.histogram import LARGEST
from .. import schemas
from ..lake.files import LakeFile, Store, open_file
from ..lake.lake import Lake
from ..params import Storage
from ..session import parallelism, spread

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
STATES = tuple(Final.values)
METRICS = ("lateness", "run")

#: Times are summed in two halves of 32 bits: exact for all times, and for any number of them.
SUMS = (
    "messages",
    *STATES,
    "attempts",
    "retried",
    "lateness_high",
    "lateness_low",
    "run_high",
    "run_low",
)
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
        *((name, pa.int64()) for name in SUMS),
        ("lateness_max", pa.float64()),
        ("run_max", pa.float64()),
        ("lateness", pa.string()),
        ("run", pa.string()),
    ]
)
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


class Groups(NamedTuple):
    """Which rows are added up together: those of an hour or a day with equal texts."""

    of_rows: Numbers
    """The number of each row's group."""
    keys: pa.Table
    """Per group."""


def aggregated(
    batches: Batches, since: datetime | None = None, until: datetime | None = None
) -> Batches:
    """Rows with the columns of schemas.FIGURES that finished in [since, until) -> AGGREGATES, to be
    added up. None: without a bound.

    Rows without finished_at are in no hour. A time that is no finite number counts as that of a
    message that never ran. Texts may be dictionaries, which are quicker.
    """
    for table in _gathered(batches, since, until):
        rows = _prepared(table)
        for unit in HOURS_AND_DAYS:
            groups = _groups(rows, unit)
            yield from _as_aggregates(unit, groups.keys, _figures(rows, groups))
            if unit.errors:
                # How many dead letters of each group have each error.
                group = groups.of_rows[rows.errors.column("row").to_numpy()]
                dead = {"group": group, "error": rows.errors.column("error")}
                found = _grouped(dead, ["group", "error"], [([], "count_all")])
                counts = {"error": found.column("error"), "n": found.column("count_all")}
                yield from _as_aggregates(unit, groups.keys.take(found.column("group")), counts)


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


def merged_histograms(histograms: pa.Array) -> pa.Array:
    """The sum of each list of histograms. A histogram is a text."""
    sums: list[str | None] = []
    for texts in histograms.to_pylist():
        if len(texts) > 1:
            sums.append(histogram.encode(histogram.merge_histograms(map(histogram.decode, texts))))
        else:
            sums.append(texts[0] if texts else None)
    return pa.array(sums, pa.string())


def _gathered(
    batches: Batches, since: datetime | None, until: datetime | None
) -> Iterator[pa.Table]:
    """The rows of [since, until), about ROWS at a time."""
    kept: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        part = batch
        for is_inside, bound in ((pc.greater_equal, since), (pc.less, until)):
            if bound is not None:
                at = part.column("finished_at")
                inside = is_inside(at, pa.scalar(bound, at.type))
                part = part if inside.true_count == len(inside) else part.filter(inside)
        kept.append(part)
        rows += part.num_rows
        if rows >= ROWS:
            yield pa.Table.from_batches(kept)
            kept, rows = [], 0
    if rows:
        yield pa.Table.from_batches(kept)


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
            f"{metric}_high": pa.array(exact >> 32, mask=absent),
            f"{metric}_low": pa.array(exact & (2**32 - 1), mask=absent),
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


def _groups(rows: Prepared, unit: Unit) -> Groups:
    """Group by one number, which is made of the hour, or day, and the codes of the texts."""
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
    return Groups(found.indices.to_numpy().astype(np.int64), pa.table(keys))


def _figures(rows: Prepared, groups: Groups) -> dict[str, Any]:
    """Sums, maxima and histograms per group."""
    sums = [(name, "max" if name.endswith("_max") else "sum") for name in rows.added]
    found = _grouped({"group": groups.of_rows, **rows.added}, ["group"], sums).sort_by("group")
    # How many messages are in each state, and in all of them.
    state, height = rows.texts["state"], groups.keys.num_rows
    width = len(state.values)
    table = np.bincount(groups.of_rows * width + state.codes, minlength=width * height)
    counts = dict(zip(state.values.to_pylist(), table.reshape(height, width).T, strict=True))
    nothing = np.zeros(height, np.int64)
    states = {name: counts.get(name, nothing) for name in STATES}
    return {
        "messages": sum(states.values(), nothing),
        **states,
        **{name: found.column(f"{name}_{how}") for name, how in sums},
        **{metric: _histograms(rows.buckets[metric], groups) for metric in METRICS},
    }


def _histograms(in_buckets: Numbers, groups: Groups) -> pa.Array:
    """As histogram.encode() writes them."""
    ran = in_buckets >= 0
    pairs, counts = pc.value_counts(
        pa.array(groups.of_rows[ran] * _BUCKETS + in_buckets[ran])
    ).flatten()
    order = pc.sort_indices(pairs)
    group, bucket = np.divmod(pairs.take(order).to_numpy(), _BUCKETS)
    texts = (pa.array(bucket).cast(pa.string()), counts.take(order).cast(pa.string()))
    ends = np.searchsorted(group, np.arange(groups.keys.num_rows + 1)).astype(np.int32)
    of_groups = pa.ListArray.from_arrays(pa.array(ends), _joined('"', texts[0], '":', texts[1]))
    return _joined("{", pc.binary_join(of_groups, ","), "}")


def _joined(*texts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*texts, "")


def _grouped(
    columns: Mapping[str, Any], keys: Sequence[str], aggregations: Sequence[Any]
) -> pa.Table:
    return pa.TableGroupBy(pa.table(columns), list(keys), use_threads=False).aggregate(aggregations)


def _as_aggregates(unit: Unit, keys: pa.Table, figures: Mapping[str, Any]) -> Batches:
    """With all columns of AGGREGATES."""
    columns = {field.name: pa.nulls(keys.num_rows, field.type) for field in AGGREGATES}
    columns["unit"] = pa.repeat(unit.name, keys.num_rows)
    columns["task"] = pa.repeat("", keys.num_rows)
    columns |= zip(keys.column_names, keys.columns, strict=True)
    yield from pa.table({**columns, **figures}).cast(AGGREGATES).to_batches()


# By Spark


def aggregate_frame(frame: DataFrame) -> DataFrame:
    """Rows of the archive -> what topic_hours() and task_days() are made of, in one pass over the
    rows."""
    rows = frame.select(*schemas.FIGURES.names)
    return added_up(rows.mapInArrow(aggregated, from_arrow_schema(AGGREGATES)))


def aggregate_files(
    spark: SparkSession,
    lake: Lake,
    files: Sequence[LakeFile],
    since: datetime | None,
    until: datetime | None,
) -> DataFrame:
    """The same of the rows in these files that finished in [since, until); None: without a bound.
    An action raises LakeError when a file is not as the log says."""
    count = partial(aggregated, since=since, until=until)
    return added_up(mapped_files(spark, lake, files, count))


def mapped_files(
    spark: SparkSession, lake: Lake, files: Sequence[LakeFile], count: Callable[[Batches], Batches]
) -> DataFrame:
    """AGGREGATES of files, which the Python of the executors reads itself: through Java, the rows
    would take four times as long. `count` is like aggregated(), and gets texts as dictionaries."""
    parts = _parted(files, min(len(files), PARTS * parallelism(spark)))
    work = partial(_counted, storage=lake.storage, count=count, size=BATCH)
    return spread(spark, parts, work, AGGREGATES)


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
    files: Sequence[LakeFile], storage: Storage, count: Callable[[Batches], Batches], size: int
) -> Batches:
    """On an executor: the files, counted."""
    texts = [field.name for field in schemas.FIGURES if pa.types.is_string(field.type)]
    store = Store(storage)

    def rows() -> Batches:
        for file in files:
            with open_file(store, file, read_dictionary=texts) as source:
                yield from source.iter_batches(
                    size, columns=schemas.FIGURES.names, use_threads=False
                )

    return count(rows())


def added_up(found: DataFrame) -> DataFrame:
    """Aggregates of parts of the rows -> aggregates of all rows: one for each key and error."""
    sums = [F.sum(name).alias(name) for name in ("n", *SUMS)]
    highest = [F.max(f"{metric}_max").alias(f"{metric}_max") for metric in METRICS]
    merge = arrow_udf(merged_histograms, "string")  # type: ignore[call-overload]  # with the kind, it warns
    histograms = [merge(F.collect_list(metric)).alias(metric) for metric in METRICS]
    return found.groupBy(*KEYS, "error").agg(*sums, *highest, *histograms)


def topic_hours(found: DataFrame) -> DataFrame:
    """aggregate_frame() -> one row per hour (UTC, its beginning in microseconds since 1970) and
    topic, with the columns of TopicHour. Histograms are the JSON of histogram.encode(). Rows
    without finished_at are in no hour."""
    return span_figures(found, "hour").withColumnRenamed("at", "hour").drop("task")


def task_days(found: DataFrame, most_errors: int) -> DataFrame:
    """aggregate_frame() -> one row per day (UTC, like the hour above), topic and task, with the
    columns of TaskDay. `errors` is an array of (error, n) with the most frequent errors, null when
    nothing died."""
    keys = ["at", "topic", "task"]
    dead = found.where((F.col("unit") == "day") & F.col("error").isNotNull())
    # There may be as many reasons as messages: they are cut on the executors.
    order = Window.partitionBy(*keys).orderBy(F.desc("n"), F.asc("error"))
    numbered = dead.withColumn("place", F.row_number().over(order))
    frequent = numbered.where(F.col("place") <= most_errors).groupBy(*keys)
    errors = frequent.agg(F.collect_list(F.struct("error", "n")).alias("errors"))
    return span_figures(found, "day").join(errors, keys, "left").withColumnRenamed("at", "day")


def span_figures(found: DataFrame, unit: str) -> DataFrame:
    """aggregate_frame() -> counts, sums and histograms per group."""
    exact = [name for name in SUMS if not name.startswith(METRICS)]
    sums = []
    for metric in METRICS:
        # Milliseconds from sums of whole numbers: exact, in any order.
        high, low = (F.col(f"{metric}_{half}").cast("decimal(20,0)") for half in ("high", "low"))
        total = high * F.lit(2**32).cast("decimal(10,0)") + low
        milliseconds = F.coalesce((total / F.lit(1000)).cast("double"), F.lit(0.0))
        sums.append(milliseconds.alias(f"{metric}_sum"))
    highest = [f"{metric}_max" for metric in METRICS]
    of_unit = found.where((F.col("unit") == unit) & F.col("error").isNull())
    return of_unit.select("at", "topic", "task", *exact, *sums, *highest, *METRICS)
