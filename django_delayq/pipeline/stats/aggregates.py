"""Counts rows of the archive into aggregates, and has Spark add these up to
figures of hours and days.

The executors count with Arrow and numpy: over ten million rows that takes a tenth of the time of
expressions of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.functions import arrow_udf

from ...core.message import Final
from ...stats import histogram
from ...stats.histogram import LARGEST
from .. import schemas

Numbers = np.ndarray[Any, Any]

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
STATES = tuple(Final.values)
METRICS = ("lateness", "run")

#: The sums of times are those of two halves of 32 bits: exact, whatever the times and however many.
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

#: One row per key with the figures, whose `error` is null, and one per key and error of dead
#: letters with their number `n`. `at` is the beginning of the hour or day in microseconds since
#: 1970; `task` is empty for an hour; histograms are texts of histogram.encode().
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
#: What is read of the archive.
READ = (
    "finished_at",
    "topic",
    "task",
    "state",
    "attempts",
    "lateness_ms",
    "run_ms",
    "error_class",
    "reason",
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
    """What is counted of some rows."""

    finished_us: Numbers
    texts: Mapping[str, Coded]
    """Topic, task and state."""
    added: Mapping[str, Any]
    """What is added up, and the times of which the highest is sought."""
    buckets: Mapping[str, Numbers]
    """Per metric; -1 of what has no time."""
    errors: pa.Table
    """Of each dead letter `row`, its number, and `error`: the class, or the reason where there is
    none."""


class Groups(NamedTuple):
    """Rows of an hour, or a day, that are added up."""

    of_rows: Numbers
    """The number of each row's group."""
    keys: pa.Table
    """Per group."""


def aggregated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows with the columns READ -> AGGREGATES, to be added up. Rows without finished_at are in no
    hour; times that are no finite number count as those of what never ran. Texts may be
    dictionaries, which are quicker."""
    for table in _gathered(batches):
        rows = _prepared(table)
        for unit in HOURS_AND_DAYS:
            groups = _groups(rows, unit)
            yield from _as_aggregates(unit, groups.keys, _figures(rows, groups))
            if unit.errors:
                yield from _as_aggregates(unit, *_errors(rows, groups))


def of_span(
    batches: Iterator[pa.RecordBatch], since: datetime | None, until: datetime | None
) -> Iterator[pa.RecordBatch]:
    """aggregated() of the rows that finished in [since, until); None: without a bound."""
    return aggregated(_within(batch, since, until) for batch in batches)


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
    found: Numbers = np.where(n < 16, np.maximum(n, 0), upper - _UPPER_OF_16 + 16)
    return found


def merged_histograms(histograms: pa.Array) -> pa.Array:
    """Of lists of histograms, each as text, the sum of each list as text."""
    return pa.array([_sum(texts) for texts in histograms.to_pylist()], pa.string())


def _sum(texts: Sequence[str]) -> str | None:
    if len(texts) > 1:
        return histogram.encode(histogram.merge_histograms(map(histogram.decode, texts)))
    return texts[0] if texts else None


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


def _within(
    batch: pa.RecordBatch, since: datetime | None, until: datetime | None
) -> pa.RecordBatch:
    for is_inside, bound in ((pc.greater_equal, since), (pc.less, until)):
        if bound is not None:
            at = batch.column("finished_at")
            inside = is_inside(at, pa.scalar(bound, at.type))
            batch = batch if inside.true_count == batch.num_rows else batch.filter(inside)
    return batch


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
        times, in_buckets[metric] = _times(metric, table.column(f"{metric}_ms"))
        added |= times
    return Prepared(finished_us, texts, added, in_buckets, _dead(table, texts["state"]))


def _coded(column: pa.ChunkedArray) -> Coded:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    codes = whole.indices.cast(pa.int64()).fill_null(len(whole.dictionary)).to_numpy()
    return Coded(codes, pa.concat_arrays([whole.dictionary, pa.nulls(1, whole.dictionary.type)]))


def _times(metric: str, column: pa.ChunkedArray) -> tuple[dict[str, Any], Numbers]:
    """Both halves of its microseconds, and as it is, null of what is not finite; and the
    buckets."""
    values = column.to_numpy()  # null is NaN here
    absent = ~np.isfinite(values)
    exact = microseconds_of(np.where(absent, 0.0, values))
    added = {
        f"{metric}_high": pa.array(exact >> 32, mask=absent),
        f"{metric}_low": pa.array(exact & (2**32 - 1), mask=absent),
        f"{metric}_max": pa.array(values, mask=absent),
    }
    return added, np.where(absent, -1, buckets(exact))


def _dead(table: pa.Table, state: Coded) -> pa.Table:
    is_dead = pc.fill_null(pc.equal(state.values, "dead"), False).to_numpy(zero_copy_only=False)
    row = np.flatnonzero(is_dead[state.codes])
    causes = table.select(["error_class", "reason"]).take(row)
    error_class, reason = (pc.fill_null(column.cast(pa.string()), "") for column in causes.columns)
    return pa.table(
        {"row": row, "error": pc.if_else(pc.not_equal(error_class, ""), error_class, reason)}
    )


def _groups(rows: Prepared, unit: Unit) -> Groups:
    """By one number, which is made of the hour, or day, and the codes of the texts."""
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
    wanted = [(name, "max" if name.endswith("_max") else "sum") for name in rows.added]
    found = _grouped({"group": groups.of_rows, **rows.added}, ["group"], wanted).sort_by("group")
    figures = {name: found.column(f"{name}_{how}") for name, how in wanted}
    return {
        **_states(rows.texts["state"], groups),
        **figures,
        **{metric: _histograms(rows.buckets[metric], groups) for metric in METRICS},
    }


def _states(state: Coded, groups: Groups) -> dict[str, Numbers]:
    """How many messages are in each, and how many there are."""
    width, height = len(state.values), groups.keys.num_rows
    table = np.bincount(groups.of_rows * width + state.codes, minlength=width * height).reshape(
        height, width
    )
    counts = dict(zip(state.values.to_pylist(), table.T, strict=True))
    nothing = np.zeros(height, np.int64)
    known = {name: counts.get(name, nothing) for name in STATES}
    return {"messages": sum(known.values(), nothing), **known}


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


def _errors(rows: Prepared, groups: Groups) -> tuple[pa.Table, dict[str, Any]]:
    """Keys, and how many dead letters have them and this error."""
    group = groups.of_rows[rows.errors.column("row").to_numpy()]
    found = _grouped(
        {"group": group, "error": rows.errors.column("error")},
        ["group", "error"],
        [([], "count_all")],
    )
    return groups.keys.take(found.column("group")), {
        "error": found.column("error"),
        "n": found.column("count_all"),
    }


def _grouped(
    columns: Mapping[str, Any], keys: Sequence[str], aggregations: Sequence[Any]
) -> pa.Table:
    return pa.TableGroupBy(pa.table(columns), list(keys), use_threads=False).aggregate(aggregations)


def _as_aggregates(
    unit: Unit, keys: pa.Table, figures: Mapping[str, Any]
) -> Iterator[pa.RecordBatch]:
    """With all columns of AGGREGATES."""
    nothing = {field.name: pa.nulls(keys.num_rows, field.type) for field in AGGREGATES}
    given = {
        name: pa.repeat(text, keys.num_rows) for name, text in (("unit", unit.name), ("task", ""))
    }
    of_keys = dict(zip(keys.column_names, keys.columns, strict=True))
    yield from pa.table({**nothing, **given, **of_keys, **figures}).cast(AGGREGATES).to_batches()


# By Spark


def aggregate_frame(frame: DataFrame) -> DataFrame:
    """Rows of the archive -> what topic_hours() and task_days() are made of, in one pass over the
    rows."""
    return added_up(frame.select(*READ).mapInArrow(aggregated, schemas.spark_schema(AGGREGATES)))


def added_up(found: DataFrame) -> DataFrame:
    """Cells of parts of the rows -> those of all rows: one for each of their keys and errors."""
    sums = [F.sum(name).alias(name) for name in ("n", *SUMS)]
    highest = [F.max(f"{metric}_max").alias(f"{metric}_max") for metric in METRICS]
    merge = arrow_udf(merged_histograms, "string")  # type: ignore[call-overload]  # told the kind, it warns
    histograms = [merge(F.collect_list(metric)).alias(metric) for metric in METRICS]
    return found.groupBy(*KEYS, "error").agg(*sums, *highest, *histograms)


def topic_hours(found: DataFrame) -> DataFrame:
    """Of aggregate_frame(): one row per hour (UTC, its beginning in microseconds since 1970) and
    topic, with the columns of TopicHour; histograms are the JSON of histogram.encode(). Rows
    without finished_at are in no hour."""
    return span_figures(found, "hour").withColumnRenamed("at", "hour").drop("task")


def task_days(found: DataFrame, most_errors: int) -> DataFrame:
    """Of aggregate_frame(): one row per day (UTC, as the hour above), topic and task, with the
    columns of TaskDay; `errors` is an array of (error, n), the most frequent ones, null when
    nothing died."""
    dead = found.where((F.col("unit") == "day") & F.col("error").isNotNull())
    errors = _frequent_errors(dead, most_errors)
    whole = span_figures(found, "day").join(errors, ["at", "topic", "task"], "left")
    return whole.withColumnRenamed("at", "day")


def span_figures(found: DataFrame, unit: str) -> DataFrame:
    """Of aggregate_frame(): counts, sums and histograms per group."""
    exact = [name for name in SUMS if not name.startswith(METRICS)]
    sums = [_milliseconds(metric).alias(f"{metric}_sum") for metric in METRICS]
    highest = [f"{metric}_max" for metric in METRICS]
    of_unit = found.where((F.col("unit") == unit) & F.col("error").isNull())
    return of_unit.select("at", "topic", "task", *exact, *sums, *highest, *METRICS)


def _milliseconds(metric: str) -> Column:
    """The sum was made in integers: exact, in whatever order."""
    high, low = (F.col(f"{metric}_{half}").cast("decimal(20,0)") for half in ("high", "low"))
    total = high * F.lit(2**32).cast("decimal(10,0)") + low
    return F.coalesce((total / F.lit(1000)).cast("double"), F.lit(0.0))


def _frequent_errors(dead: DataFrame, most: int) -> DataFrame:
    """Reasons may be as many as messages: they are cut here, not where all figures come
    together."""
    keys = ("at", "topic", "task")
    order = Window.partitionBy(*keys).orderBy(F.desc("n"), F.asc("error"))
    frequent = dead.withColumn("place", F.row_number().over(order)).where(F.col("place") <= most)
    return frequent.groupBy(*keys).agg(F.collect_list(F.struct("error", "n")).alias("errors"))
