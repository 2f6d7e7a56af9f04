"""What Spark computes of rows: buckets as Python's, and figures by hour, topic, day and task."""

from __future__ import annotations

import json
import math
import random
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_delayq.pipeline import schemas
from django_delayq.pipeline.sources.archive_source import finished_between
from django_delayq.pipeline.stats import aggregates
from django_delayq.stats import histogram
from django_delayq.stats import hourly as statistics_module
from tests.stats.histograms import bounds
from tests.stats.histograms import histogram as counted

NINE = datetime(2026, 11, 20, 9, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
COUNTS = ("messages", *aggregates.STATES, "attempts", "retried")
FIGURES = (*COUNTS, "lateness_sum", "lateness_max", "run_sum", "run_max", "lateness", "run")


def micros(when: datetime) -> int:
    """Since 1970."""
    return (when - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


def row(when: datetime | None = NINE, **columns: Any) -> dict[str, Any]:
    """An acked message, 2 ms late, that ran for 20 ms, unless told otherwise."""
    plain = {"id": 1, "topic": "orders", "task": "close", "state": "acked", "attempts": 1, "finished_at": when,
             "lateness_ms": 2.0, "run_ms": 20.0, "error_class": "", "reason": ""}  # fmt: skip
    return {**plain, **columns}


def frame(spark: Any, *rows: dict[str, Any], schema: pa.Schema = schemas.FIGURES) -> Any:
    """Of rows of the lake, with the columns that stats reads."""
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=schema))


# Buckets


def doubles() -> Iterator[float]:
    """Every kind: small and huge, around the edges of buckets, any bits at all."""
    chance = random.Random(3)
    for power in range(-40, 80):
        for step in (power, power + 0.5):
            yield from near(2.0**step / 1000)
    for index in range(700):
        yield from near(bounds(index)[0])
        yield from near((bounds(index)[0] * 1000 - 0.5) / 1000)
    yield from (n / 1000 + 0.0005 for n in range(2_000))
    yield from (round(chance.lognormvariate(3, 4), 3) for _ in range(5_000))
    yield from (struct.unpack("<d", chance.randbytes(8))[0] for _ in range(20_000))
    yield from (
        0.0,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        math.inf,
        math.nan,
        1e15,
        2.0**53,
        3.2e14,
    )


def near(value: float) -> Iterator[float]:
    """It, the doubles beside it, and all of them below zero."""
    for one in (math.nextafter(value, 0), value, math.nextafter(value, math.inf)):
        yield from (one, -one)


def from_hypothesis(number: int) -> list[float]:
    """What Hypothesis thinks of: all in one job, not one job for each."""
    seen: list[float] = []

    @settings(max_examples=number, database=None)
    @given(
        st.floats()
        | st.floats(0, 1e6, width=32)
        | st.integers(-(2**63), 2**63).map(lambda n: n / 1000)
    )
    def see(value: float) -> None:
        seen.append(value)

    see()
    return seen


@pytest.mark.long
def test_executors_have_the_bucket_of_the_service_for_every_double() -> None:
    values = [value for value in [*doubles(), *from_hypothesis(3_000)] if math.isfinite(value)]
    assert len(values) > 30_000
    computed = aggregates.buckets(aggregates.microseconds_of(np.array(values))).tolist()
    differ = [
        one
        for one in zip(values, map(histogram.bucket, values), computed, strict=True)
        if one[1] != one[2]
    ]
    assert differ == []


def test_python_has_no_bucket_for_what_is_no_number() -> None:
    with pytest.raises(ValueError, match="NaN"):
        histogram.bucket(math.nan)


def spans(rows: Any, unit: str) -> list[dict[str, Any]]:
    """The figures of a small frame, as they come."""
    found = aggregates.aggregate_frame(rows)
    every = aggregates.figures_by_spark(found, statistics_module.MOST_ERRORS)
    return [dict(one) for one in every if one["unit"] == unit]


def topic_hours(rows: Any) -> list[dict[str, Any]]:
    return spans(rows, "hour")


def task_days(rows: Any) -> list[dict[str, Any]]:
    return spans(rows, "day")


# Hours of topics


def test_messages_count_in_the_hour_in_which_they_finished(spark: Any) -> None:
    tick = timedelta(microseconds=1)
    whens = [
        NINE - tick,
        NINE,
        NINE + HOUR - tick,
        NINE + HOUR,
        datetime(1969, 12, 31, 23, 30, tzinfo=timezone.utc),
    ]
    found = topic_hours(frame(spark, *(row(when) for when in whens)))
    assert [(one["at"], one["messages"]) for one in found] == [
        (-3_600_000_000, 1), (micros(NINE - HOUR), 1), (micros(NINE), 2), (micros(NINE + HOUR), 1),
    ]  # fmt: skip


@pytest.mark.long
def test_an_hour_of_a_topic_is_what_its_rows_say(spark: Any) -> None:
    rows = [
        row(),
        row(attempts=3, lateness_ms=0.1, run_ms=0.2),
        row(state="dead", lateness_ms=0.2, run_ms=None, error_class="ValueError"),
        row(state="expired", attempts=0, lateness_ms=None, run_ms=None),
        row(state="cancelled", attempts=0, lateness_ms=None, run_ms=None, task="other"),
        row(topic="mail", lateness_ms=-3.5, run_ms=0.0),
    ]
    names = ("at", "topic", *FIGURES)
    assert [tuple(one[name] for name in names) for one in topic_hours(frame(spark, *rows))] == [
        (micros(NINE), "mail", 1, 1, 0, 0, 0, 1, 0, -3.5, -3.5, 0.0, 0.0, '{"0":1}', '{"0":1}'),
        (micros(NINE), "orders", 5, 2, 1, 1, 1, 5, 1, 2.3, 2.0, 20.2, 20.0, '{"57":1,"73":1,"127":1}',
         '{"73":1,"179":1}'),
    ]  # fmt: skip
    assert histogram.encode(counted([2.0, 0.1, 0.2])) == '{"57":1,"73":1,"127":1}'


def test_a_group_of_what_never_ran_has_no_times(spark: Any) -> None:
    (one,) = topic_hours(frame(spark, row(state="expired", lateness_ms=None, run_ms=None)))
    assert [one[name] for name in FIGURES[7:]] == [0.0, None, 0.0, None, "{}", "{}"]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_as_what_never_ran(spark: Any, odd: float) -> None:
    (one,) = topic_hours(frame(spark, row(lateness_ms=odd), row(lateness_ms=4.0, run_ms=odd)))
    assert (one["lateness_sum"], one["lateness_max"], one["run_sum"], one["run_max"]) == (
        4.0,
        4.0,
        20.0,
        20.0,
    )
    assert one["lateness"] == histogram.encode(counted([4.0]))
    sums = statistics_module.Sums()
    for late, ran in ((odd, 20.0), (4.0, odd)):
        sums.add("acked", 1, late, ran, "")
    assert {name: one[name] for name in FIGURES} == sums.fields()


def test_sums_are_exact_however_huge_or_many_the_values(spark: Any) -> None:
    """56 years late: due in seconds where milliseconds were meant. A sum of longs would not hold
    it."""
    years = 1.7e12 + 0.001
    values = [years] * 6_000 + [0.001] * 10 + [1.7e308, 1e17]
    (one,) = topic_hours(frame(spark, *(row(lateness_ms=value) for value in values)))
    wanted = sum(histogram.microseconds(value) for value in values) / 1000
    assert (one["lateness_sum"], one["lateness_max"]) == (wanted, 1.7e308)


def test_rows_without_a_time_of_ending_are_in_no_hour_and_no_day(spark: Any) -> None:
    nowhere = frame(spark, row(None), row(None, state="dead"))
    assert topic_hours(nowhere) == task_days(nowhere) == []


def test_nothing_has_no_hours_and_no_days(spark: Any) -> None:
    assert topic_hours(frame(spark)) == task_days(frame(spark)) == []
    assert list(aggregates.figures_of_aggregates(iter(()), 1)) == []


def test_figures_have_the_columns_of_the_models(spark: Any) -> None:
    (hour,), (day,) = topic_hours(frame(spark, row())), task_days(frame(spark, row()))
    assert hour.keys() == day.keys() == {"unit", "at", "topic", "task", "errors", *FIGURES}


@pytest.mark.long
def test_rows_in_many_parts_give_the_figures_of_all(spark: Any) -> None:
    rows = [row(NINE + HOUR * (n % 3), lateness_ms=n / 7, run_ms=n % 5 or None, state=("acked", "dead")[n % 2],
                error_class=f"E{n % 4}") for n in range(60)]  # fmt: skip
    whole, parts = (frame(spark, *rows).repartition(number) for number in (1, 13))
    assert topic_hours(parts) == topic_hours(whole)
    assert task_days(parts) == task_days(whole)


def in_aggregates(*tables: pa.Table) -> list[dict[str, Any]]:
    """What an executor makes of them."""
    batches = (batch for table in tables for batch in table.to_batches())
    return [one for batch in aggregates.aggregated(batches) for one in batch.to_pylist()]


def test_texts_may_be_dictionaries_and_another_one_in_each_batch() -> None:
    rows = [row(topic=topic, task=task, state=state, error_class=error, reason=error)
            for topic in ("mail", "orders", None) for task in ("a", None) for state, error in (("acked", ""),
            ("dead", "x"), ("dead", None), ("unheard of", "x"), (None, "x"))]  # fmt: skip
    plain = [
        pa.Table.from_pylist(part, schema=schemas.FIGURES) for part in (rows, rows[::-1], rows[7:])
    ]
    texts = [field.name for field in schemas.FIGURES if pa.types.is_string(field.type)]

    def encoded(table: pa.Table) -> pa.Table:
        return pa.table({name: table[name].dictionary_encode() if name in texts else table[name]
                         for name in table.column_names})  # fmt: skip

    found = in_aggregates(*map(encoded, plain))
    assert found == in_aggregates(*plain)
    of_days = [one for one in found if one["unit"] == "day" and one["error"] is None]
    assert len(of_days) == 6
    assert {(one["acked"], one["dead"], one["messages"]) for one in of_days} == {
        (2, 4, 6),
        (3, 6, 9),
        (2, 5, 7),
    }


def test_chunks_of_a_few_rows_add_up_to_the_figures_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(NINE + HOUR * (n // 8), attempts=n) for n in range(20)]
    batches = pa.Table.from_pylist(rows, schema=schemas.FIGURES).to_batches(max_chunksize=3)
    whole = in_aggregates(pa.Table.from_batches(batches))
    monkeypatch.setattr(aggregates, "ROWS", 5)
    parts = in_aggregates(*map(pa.Table.from_batches, [[one] for one in batches]))
    assert len(parts) > len(whole)

    def total(found: list[dict[str, Any]]) -> dict[Any, int]:
        sums: Counter[Any] = Counter()
        for one in found:
            sums[one["unit"], one["at"]] += one["attempts"]
        return dict(sums)

    assert total(parts) == total(whole)


def test_one_process_adds_up_as_spark_does_however_few_at_a_time(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(NINE + HOUR * (n * 7 % 40), lateness_ms=n / 7, run_ms=n % 5 or None, state=("acked", "dead")[n % 2],
                error_class=f"E{n % 9}", topic=f"t{n % 3}", task=f"k{n % 4}") for n in range(300)]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=schemas.FIGURES)
    monkeypatch.setattr(aggregates, "ROWS", 20)  # aggregates of many parts
    wanted = [*topic_hours(frame(spark, *rows)), *task_days(frame(spark, *rows))]
    assert len(wanted) > 60
    for most in (1, 10_000):
        monkeypatch.setattr(aggregates, "ADDED", most)
        parts = aggregates.aggregated(iter(table.to_batches(max_chunksize=7)))
        found = aggregates.figures_of_aggregates(parts, statistics_module.MOST_ERRORS)
        # Day after day, and in each the hours before the day.
        assert sorted(found, key=lambda one: one["unit"], reverse=True) == wanted


def test_one_process_holds_as_many_aggregates_as_there_are_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [row(NINE, topic=f"t{n % 3}", state="dead", error_class=f"E{n % 2}") for n in range(600)]
    table = pa.Table.from_pylist(rows, schema=schemas.FIGURES)
    monkeypatch.setattr(aggregates, "ROWS", 6)
    monkeypatch.setattr(aggregates, "ADDED", 20)
    merged, held = vars(aggregates)["_merged"], list[int]()

    def watched(found: pa.Table) -> pa.Table:
        held.append(found.num_rows)
        return merged(found)

    monkeypatch.setattr(aggregates, "_merged", watched)
    parts = aggregates.aggregated(iter(table.to_batches(max_chunksize=6)))
    found = list(aggregates.figures_of_aggregates(parts, statistics_module.MOST_ERRORS))
    assert [one["messages"] for one in found] == [200] * 6
    assert len(held) > 20 and max(held) < 60  # of 12 keys, in 100 parts


def test_one_process_holds_no_more_of_many_days_in_many_parts() -> None:
    rows = [row(NINE + 24 * HOUR * n, topic=f"t{n % 3}") for n in range(200)]
    part = pa.Table.from_pylist(rows, schemas.FIGURES)
    parts, held, begun = 100, list[int](), pa.total_allocated_bytes()

    def read() -> Iterator[pa.RecordBatch]:
        for _ in range(parts):
            yield from aggregates.aggregated(iter(part.to_batches()))
            held.append(pa.total_allocated_bytes() - begun)

    assert [one["messages"] for one in aggregates.figures_of_aggregates(read(), 1)] == [parts] * 400
    # Each day kept up to 10,000 aggregates once: then the last part finds 100 times the first.
    assert max(held) < 50 * held[0]


def test_one_process_adds_up_one_day_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(NINE + 24 * HOUR * (n % 5), topic=f"t{n}") for n in range(50)]
    merged, days = vars(aggregates)["_merged"], list[set[int]]()

    def watched(found: pa.Table) -> pa.Table:
        days.append({at // aggregates.DAY for at in found["at"].to_pylist()})
        return merged(found)

    monkeypatch.setattr(aggregates, "_merged", watched)
    parts = aggregates.aggregated(iter(pa.Table.from_pylist(rows, schemas.FIGURES).to_batches()))
    assert len(list(aggregates.figures_of_aggregates(parts, 1))) == 100
    assert [len(together) for together in days] == [1] * 5


# Days of tasks


def test_days_are_those_of_utc_by_topic_and_task(spark: Any) -> None:
    midnight = NINE.replace(hour=0)
    rows = [
        row(midnight - timedelta(microseconds=1)),
        row(midnight),
        row(task="remind"),
        row(topic="mail"),
    ]
    found = task_days(frame(spark, *rows, row()))
    assert [(one["at"], one["topic"], one["task"], one["messages"]) for one in found] == [
        (micros(midnight - 24 * HOUR), "orders", "close", 1),
        (micros(midnight), "mail", "close", 1),
        (micros(midnight), "orders", "close", 2),
        (micros(midnight), "orders", "remind", 1),
    ]


def errors_of(spark: Any, rows: Sequence[dict[str, Any]]) -> Any:
    """The errors of the only day of a task: name -> n."""
    (one,) = task_days(frame(spark, *rows))
    return json.loads(one["errors"])


@pytest.mark.long
def test_errors_are_those_of_the_dead_by_class_or_by_reason(spark: Any) -> None:
    rows = [
        row(state="dead", error_class="ValueError", reason="Reject"),
        row(state="dead", error_class="ValueError"),
        row(state="dead", reason="poison"),
        row(state="dead", error_class=None, reason=None),
        row(state="acked", error_class="TypeError"),
        row(state="expired", reason="expired"),
    ]
    assert errors_of(spark, rows) == {"ValueError": 2, "": 1, "poison": 1}
    assert errors_of(spark, [row()]) == {}


def test_the_fifty_most_frequent_errors_are_kept_and_of_equal_ones_the_first_by_name(
    spark: Any,
) -> None:
    names = [f"E{n:02}" for n in range(60)] + ["Ä", "🦊", "a", "Z", "\uffee"]
    random.Random(1).shuffle(names)
    rows = [
        row(state="dead", error_class=name)
        for name in names
        for _ in range(2 if name in ("🦊", "E59") else 1)
    ]
    found = errors_of(spark, rows)
    counts = {name: 2 if name in ("🦊", "E59") else 1 for name in names}
    assert len(found) == 50
    assert statistics_module.encode_errors(dict(found)) == statistics_module.encode_errors(counts)


# The rest


@pytest.mark.long
def test_the_session_s_time_zone_changes_no_hour(spark: Any) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    rows = frame(spark, row(), row(NINE + 15 * HOUR))
    wanted = topic_hours(rows), task_days(rows)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        assert (topic_hours(rows), task_days(rows)) == wanted
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_a_period_begins_with_its_first_instant_and_ends_before_its_last(spark: Any) -> None:
    some = [*(row(NINE + HOUR * n, id=n) for n in range(4)), row(None, id=9)]
    rows = frame(spark, *some, schema=schemas.ARCHIVE)

    def ids(*bounds: Any) -> list[int]:
        return sorted(one.id for one in finished_between(rows, *bounds).collect())

    assert ids(NINE + HOUR, NINE + 3 * HOUR) == [1, 2]
    assert ids(None, NINE + HOUR) == [0]
    assert ids(NINE + 3 * HOUR, None) == [3]
    assert ids(None, None) == [0, 1, 2, 3, 9]
    assert ids(None, NINE + HOUR, "mail") == []
