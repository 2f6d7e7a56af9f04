"""Rows -> messages: ids, JSON, due times, and what is refused at the start or row by row."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type

from django_delayq.core.message import Record, decode_body, key_id, task_code
from django_delayq.core.times import MAX_DELAY_MS
from django_delayq.pipeline import schemas
from django_delayq.pipeline.bulk_load import (
    json_values,
    message_frames,
    messages,
    pieces,
    row_messages,
    schedule,
    task_specs,
)
from django_delayq.pipeline.bulk_load.row_messages import MADE, MessageMaker
from django_delayq.pipeline.job_errors import Refused
from django_delayq.pipeline.params import ParameterSpec, ScheduleOptions, TaskSpec
from django_delayq.pipeline.sinks.loader import load_arguments
from django_delayq.store.keys import partition_of
from django_delayq.tasks.options import Options
from django_delayq.tasks.task import Definition
from tests.app import tasks as declared

pytestmark = pytest.mark.timeout(300)

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
LIMIT = 200


def parameter(
    name: str, annotation: str = "", *, kind: str = "both", required: bool = True
) -> ParameterSpec:
    return ParameterSpec(name=name, kind=kind, annotation=annotation, required=required)  # type: ignore[arg-type]


def task(*parameters: ParameterSpec, **rest: Any) -> TaskSpec:
    return TaskSpec(
        **{"name": "shop.remind", "topic": "mail", "ttr_ms": 60_000, "parameters": parameters}
        | rest
    )


def options(
    *parameters: ParameterSpec, spec: dict[str, Any] | None = None, **rest: Any
) -> ScheduleOptions:
    given = {
        "job": "night",
        "task": task(*parameters, **spec or {}),
        "source": "",
        "format": "parquet",
        "key": "k",
        "splits": 3,
    }
    return ScheduleOptions(**given | rest)


def planned(given: ScheduleOptions, schema: Any) -> row_messages.Plan:
    return row_messages.plan(given, to_arrow_schema(schema, timezone="UTC"))


def maker_of(frame: Any, given: ScheduleOptions, limit: int = LIMIT) -> MessageMaker:
    """For a topic of four partitions."""
    return MessageMaker(planned=planned(given, frame.schema), now=NOW, limit=limit, partitions=4)


def rows_of(frame: Any, given: ScheduleOptions, limit: int = LIMIT) -> Any:
    """The frame as messages, and as rows that are none."""
    return frame.mapInArrow(maker_of(frame, given, limit), from_arrow_schema(MADE))


def ready(frame: Any, given: ScheduleOptions) -> Any:
    """The messages, each cell in one task and in its order."""
    maker = maker_of(frame, given)

    def messages(cuts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pieces.ready(cuts, maker)

    cuts = schedule.message_pieces(frame, maker)
    return cuts.mapInArrow(messages, from_arrow_schema(schemas.MESSAGES))


def made(spark: Any, rows: list[Any], schema: str, given: ScheduleOptions) -> list[Any]:
    frame = rows_of(spark.createDataFrame(rows, schema), given)
    found: list[Any] = frame.orderBy("name").collect()
    return found


def messages_of(found: list[Any], given: ScheduleOptions) -> list[dict[str, Any]]:
    """The messages of these rows, in their order."""
    rows = pa.Table.from_pylist([row.asDict() for row in found], MADE)
    plan = row_messages.plan(given, pa.schema([("k", pa.string()), ("a", pa.string())]))
    maker = MessageMaker(planned=plan, now=NOW, limit=LIMIT, partitions=4)
    made: list[dict[str, Any]] = maker.as_messages(rows).to_pylist()
    return made


def without_spark(given: ScheduleOptions, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as messages, for the same topic."""
    plan = row_messages.plan(given, rows.schema)
    return MessageMaker(planned=plan, now=NOW, limit=LIMIT, partitions=4).made(rows)


def reasons(found: list[Any]) -> dict[str, str | None]:
    return {row["name"]: row["reason"] for row in found}


# Ids and places


def test_ids_of_keyed_messages_are_those_of_their_keys(spark: Any) -> None:
    rows = [(key,) for key in ("1", "käse 🧀", "x" * 256, *map(str, range(300)))]
    found = made(spark, rows[1:], "k string", options())
    assert {row["name"]: bytes(row["id"]) for row in found} == {
        key: key_id("mail", key) for (key,) in rows[1:]
    }
    places = messages_of(found, options())
    for row in places:
        assert row["partition"] == partition_of("mail", bytes(row["id"]), 4).number
        assert 0 <= row["split"] < 3
    assert set(Counter(row["split"] for row in places)) == {0, 1, 2}


def test_ids_without_keys_are_as_certain_and_never_those_of_keys(spark: Any) -> None:
    (one,) = made(spark, [("1",)], "k string", options(keyed=False))
    (again,) = made(spark, [("1",)], "k string", options(keyed=False))
    (other,) = made(spark, [("1",)], "k string", options(keyed=False, job="other"))
    assert one["id"] == again["id"] == key_id("night\0mail", "1")
    assert len({bytes(row["id"]) for row in (one, other)} | {key_id("mail", "1")}) == 3
    assert one["body"] == "[]"


def test_each_split_is_in_one_task_and_in_the_order_of_its_ids(spark: Any) -> None:
    frame = spark.range(2_000).selectExpr("cast(id AS string) AS k")
    chosen = ready(frame, options()).select(*schemas.SPLIT, "id")
    tasks: list[list[Any]] = chosen.rdd.glom().collect()
    seen = [{tuple(row[:3]) for row in rows} for rows in tasks]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 12
    for rows in tasks:
        order = [(*row[:3], bytes(row["id"])) for row in rows]
        assert order == sorted(order)


def test_a_frame_without_rows_gives_one_without_messages(spark: Any) -> None:
    frame = spark.createDataFrame([], "k string")
    assert ready(frame, options()).collect() == []
    assert schedule.message_pieces(frame, maker_of(frame, options())).collect() == []


def test_the_sum_is_of_the_rows_and_not_of_their_order(spark: Any) -> None:
    def summed(rows: list[Any]) -> Any:
        frame = spark.createDataFrame(rows, from_arrow_schema(schemas.MESSAGES))
        return tuple(message_frames.with_hashes(frame).agg(*message_frames.summed()).first())

    one = ("mail", 0, 0, b"a" * 16, 5, "", b"h", "[1]")
    other = ("mail", 0, 1, b"b" * 16, 5, "", b"h", "[22]")
    assert summed([one, other]) == summed([other, one])
    assert summed([one])[:2] == (1, 3)
    for changed in ((*one[:4], 6, *one[5:]), (*one[:7], "[2]"), (*one[:5], "9", *one[6:])):
        assert summed([changed, other])[2] != summed([one, other])[2]


# Arguments


VALUES: list[tuple[Any, str]] = [
    ('"\\ \n\u2028\x01 käse 🧀', "string"),
    ("", "string"),
    (9_007_199_254_740_993, "bigint"),
    (-128, "tinyint"),
    (0.1, "double"),
    (1e300, "double"),
    (-0.0, "double"),
    (True, "boolean"),
    (None, "string"),
    (None, "bigint"),
    (None, "void"),
    ([1, None, 3], "array<int>"),
    ([], "array<string>"),
    ({"a": 1, "b": None}, "struct<a:int,b:string>"),
    ([{"x": [True]}], "array<struct<x:array<boolean>>>"),
    ({"k": 1.5}, "map<string,double>"),
]


def test_arguments_come_back_as_they_were(spark: Any) -> None:
    names = [f"v{number}" for number in range(len(VALUES))]
    schema = ", ".join(
        ["k string", *(f"{name} {kind}" for name, (_, kind) in zip(names, VALUES, strict=True))]
    )
    given = options(*(parameter(name) for name in names), spec={"max_attempts": 7})
    frame = spark.createDataFrame([("1", *(value for value, _ in VALUES))], schema)
    (row,) = rows_of(frame, given, 10_000).collect()
    body = decode_body(0, row["body"].encode(), b"")
    assert row["reason"] is None
    assert body.kwargs == {name: value for name, (value, _) in zip(names, VALUES, strict=True)}
    assert math.copysign(1, body.kwargs["v6"]) == -1
    assert (body.args, body.key, body.max_attempts) == ([], "1", 7)


def test_arguments_by_position_come_back_as_they_were(spark: Any) -> None:
    names = [f"v{number}" for number in range(len(VALUES))]
    schema = ", ".join(
        ["k string", *(f"{name} {kind}" for name, (_, kind) in zip(names, VALUES, strict=True))]
    )
    frame = spark.createDataFrame([("1", *(value for value, _ in VALUES))], schema)
    for keyed in (True, False):
        given = options(*(parameter(name, kind="positional") for name in names), keyed=keyed)
        (row,) = rows_of(frame, given, 10_000).collect()
        body = decode_body(0, row["body"].encode(), b"")
        assert body.args == [value for value, _ in VALUES]
        assert (body.kwargs, body.key) == ({}, "1" if keyed else None)


TYPED = {
    "id": "UUID", "at": "datetime", "day": "date | None", "amount": "Decimal", "raw": "bytes", "wait": "timedelta",
}  # fmt: skip
SOME_ID = "0190a5f0-0000-7000-8000-000000000001"


def read_by_a_worker(body: str) -> dict[str, Any]:
    """The values that a task with these parameters gets."""

    def remind(
        id: UUID,  # noqa: A002
        at: datetime,
        day: date | None,
        amount: Decimal,
        raw: bytes,
        wait: timedelta,
    ) -> None: ...

    found = decode_body(0, body.encode(), b"")
    annotations = Definition(remind, "shop.remind", Options()).annotations
    return annotations.read(found.args, found.kwargs)[1]


@pytest.mark.parametrize("as_text", [False, True], ids=["columns of types", "text"])
def test_typed_arguments_are_written_as_the_task_reads_them(spark: Any, as_text: bool) -> None:
    given = options(*(parameter(name, kind) for name, kind in TYPED.items()))
    frame = spark.sql(
        f"""SELECT '1' AS k, '{SOME_ID}' AS id, timestamp'2026-11-20T10:00:00.123456+01:00' AS at,
        date'2026-11-21' AS day, cast(9.90 AS DECIMAL(38,2)) AS amount, unhex(repeat('00ff', 60)) AS raw, 'PT90S' AS wait"""
    )
    if as_text:
        frame = frame.selectExpr(
            "k", "id", "'2026-11-20T09:00:00.123456Z' AS at", "'2026-11-21' AS day",
            "cast(amount AS STRING) AS amount", "replace(base64(raw), '\r\n') AS raw", "wait",
        )  # fmt: skip
    (row,) = rows_of(frame, given, 1_000).collect()
    assert row["reason"] is None
    assert read_by_a_worker(row["body"]) == {
        "id": UUID(SOME_ID),
        "at": datetime(2026, 11, 20, 9, 0, 0, 123456, tzinfo=timezone.utc),
        "day": date(2026, 11, 21),
        "amount": Decimal("9.90"),
        "raw": b"\x00\xff" * 60,
        "wait": timedelta(seconds=90),
    }


def test_text_that_is_no_value_of_its_type_is_refused_row_by_row(spark: Any) -> None:
    given = options(parameter("id", "UUID"), parameter("day", "date | None"))
    rows = [("1", SOME_ID, None), ("2", "5", None), ("3", SOME_ID, "21.11.2026"), ("4", None, None)]
    assert reasons(made(spark, rows, "k string, id string, day string", given)) == {
        "1": None,
        "2": "id is 5, and the task takes UUID",
        "3": "day is 21.11.2026, and the task takes date",
        "4": "id is null, and the task takes UUID",
    }
    texts = [
        ("1", f'"{SOME_ID}"', "null"),
        ("2", "5", '"2026-11-21"'),
        ("3", f'"{SOME_ID}"', '"x"'),
    ]
    given = options(parameter("id", "UUID"), parameter("day", "date | None"), format="json")
    found = made(
        spark, [(f'"{k}"', *rest) for k, *rest in texts], "k string, id string, day string", given
    )
    assert reasons(found) == {
        "1": None,
        "2": "id is 5, and the task takes UUID",
        "3": 'day is "x", and the task takes date',
    }


def test_a_column_that_cannot_be_the_type_is_refused(spark: Any) -> None:
    for annotation, column in (
        ("UUID", "bigint"),
        ("date", "timestamp"),
        ("Decimal", "double"),
        ("bytes", "date"),
    ):
        frame = spark.createDataFrame([], f"k string, v {column}")
        with pytest.raises(Refused, match=rf"takes v: {annotation}, but the column 'v' is of type"):
            planned(options(parameter("v", annotation)), frame.schema)


def test_a_float_is_the_number_that_it_is(spark: Any) -> None:
    given = options(parameter("a"), parameter("b", "float"))
    frame = spark.createDataFrame([("1", 0.1, 3)], "k string, a float, b int")
    (row,) = rows_of(frame, given, LIMIT).collect()
    assert json.loads(row["body"])["kwargs"] == {"a": 0.10000000149011612, "b": 3.0}


def test_arguments_go_by_name_where_they_can(spark: Any) -> None:
    given = options(
        parameter("a", kind="positional"), parameter("b", kind="positional", required=False), parameter("c"),
        parameter("d", kind="named"), parameter("rest", kind="others", required=False), keyed=False,
        columns={"a": "x", "c": "x", "d": "x", "more": "x"},
    )  # fmt: skip
    (row,) = made(spark, [("1", 5)], "k string, x int", given)
    assert json.loads(row["body"]) == {"args": [5], "kwargs": {"c": 5, "d": 5, "more": 5}}


def test_a_line_without_an_argument_by_position_is_refused_alone() -> None:
    given = options(parameter("a", kind="positional"), parameter("b"), format="json", keyed=False)
    columns = {"k": ['"1"', '"2"'], "a": [None, "[1]"], "b": ['"x"', '"\\u00e4"']}
    found = without_spark(given, pa.RecordBatch.from_pydict(columns)).to_pylist()
    assert [row["reason"] for row in found] == ["a is missing", None]
    assert found[1]["body"] == '{"args":[[1]],"kwargs":{"b":"\\u00e4"}}'


def test_a_record_is_as_a_producer_makes_it(spark: Any) -> None:
    given = options(parameter("a"), spec={"priority": 2, "expires": "+5000"}, keyed=False)
    (row,) = made(spark, [("1", "x" * 150)], "k string, a string", given)
    batch = pa.RecordBatch.from_pylist(messages_of([row], given), schemas.MESSAGES)
    for above, compressed in ((100, True), (1000, False)):
        ((identity, when, expires, record),) = load_arguments(batch, 777, above)
        found = Record.decode(bytes(14) + record)
        assert (identity, when, expires) == (bytes(row["id"]), "777", "+5000")
        assert (int(found.priority), found.ttr_ms, found.task_code) == (
            2,
            60_000,
            task_code("shop.remind"),
        )
        assert bool(found.flags & 0b0100) == compressed and bool(found.flags & 0b1000)
        assert decode_body(found.flags, found.body, b"").kwargs == {"a": "x" * 150}


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("a timestamp", "column 'a' is of type timestamp.*ISO 8601"),
        ("a timestamp_ntz", r"timestamp\[us\]"),
        ("a date", "type date.*2026-01-31"),
        ("a decimal(10,2)", r"decimal128\(10, 2\).*double"),
        ("a binary", "base64"),
        ("a array<struct<at:date>>", r"'a'\[\]\.at is of type date"),
        ("a map<int,int>", r"map<int32, int32>"),
        ("a string", "takes a: int.*'a' is of type string"),
        ("b int", "needs a.*has k, b"),
    ],
)
def test_columns_that_cannot_be_arguments_are_refused_at_the_start(
    spark: Any, column: str, words: str
) -> None:
    schema = spark.createDataFrame([], f"k string, {column}").schema
    annotation = "int" if "takes" in words else ""
    with pytest.raises(Refused, match=words):
        planned(options(parameter("a", annotation)), schema)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"columns": {"amuont": "amount"}}, "no parameter 'amuont'.*Did you mean amount"),
        ({"columns": {"amount": "amuont"}}, "no column 'amuont'.*Did you mean amount"),
        ({"key": "kk"}, "no column 'kk' for the key"),
        ({"key": "amount"}, "key column 'amount' is of type double"),
        ({"due": "day"}, "'day' is of type date"),
        ({"due": "naive"}, "'naive' is of type timestamp\\[us\\].*24 instants"),
        ({"due": "n"}, "'n' is of type int64.*what it counts"),
        ({"due": "dew"}, "no column 'dew' for the due time"),
    ],
)
def test_options_that_fit_no_column_are_refused_at_the_start(
    spark: Any, changes: Any, words: str
) -> None:
    schema = spark.createDataFrame(
        [], "k string, amount double, day date, naive timestamp_ntz, n bigint"
    ).schema
    with pytest.raises(Refused, match=words):
        planned(options(parameter("amount"), **changes), schema)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb"])
def test_names_of_arguments_that_no_field_can_have_are_refused(name: str) -> None:
    given = options(parameter("rest", kind="others", required=False), columns={name: "n"})
    with pytest.raises(Refused, match="has a quote, a backslash or a control character"):
        row_messages.plan(given, pa.schema([("k", pa.string()), ("n", pa.int64())]))


@pytest.mark.parametrize("name", ["k", "x"])
def test_several_columns_of_one_name_are_refused_where_it_counts(name: str) -> None:
    names = ["k", "x", name]
    rows = pa.RecordBatch.from_arrays([pa.array(["1"])] * 3, names=names)
    with pytest.raises(Refused, match=f"several columns '{name}' for the"):
        without_spark(options(parameter("x")), rows)
    other = "x" if name == "k" else "k"
    assert len(without_spark(options(key=other), rows)) == 1


def test_a_parameter_by_position_needs_those_before_it(spark: Any) -> None:
    schema = spark.createDataFrame([], "k string, b int").schema
    given = options(
        parameter("a", kind="positional", required=False), parameter("b", kind="positional")
    )
    with pytest.raises(Refused, match="a is needed before it"):
        planned(given, schema)


# Row by row


def test_keys_that_can_be_none_are_refused(spark: Any) -> None:
    rows = [(None,), ("",), ("x" * 257,), ("a\0b",), ("good",)]
    found = made(spark, rows, "k string", options())
    said = {row["name"]: row["reason"] for row in found}
    assert said == {
        None: "its key is null",
        "": "its key is empty",
        "x" * 257: "its key has more than 256 characters",
        "a\0b": "its key has the character NUL",
        "good": None,
    }
    assert [row["id"] is None for row in found if row["name"] is None] == [True]


def test_values_that_json_has_not_are_refused(spark: Any) -> None:
    given = options(parameter("a"), parameter("b"), parameter("c", "int"))
    nan, inf = float("nan"), float("inf")
    rows = [("1", nan, [1.0], 1), ("2", 1.0, [None, inf], 1), ("3", None, None, 1), ("4", -inf, [], 1),
            ("5", 1.0, [2.0], None), ("6", 1.0, [2.0], 1)]  # fmt: skip
    found = reasons(made(spark, rows, "k string, a double, b array<double>, c int", given))
    json_has_not = "has a value that JSON has not (NaN, infinite, not UTF-8)"
    assert found == {
        "1": f"a {json_has_not}", "2": f"b {json_has_not}", "3": None, "4": f"a {json_has_not}",
        "5": "c is null, and the task takes int", "6": None,
    }  # fmt: skip


def test_text_that_is_not_utf_8_is_refused(spark: Any) -> None:
    frame = spark.sql(
        "SELECT '1' AS k, cast(unhex('ff') AS string) AS a, array(struct(cast(unhex('ff') AS "
        "string) AS x)) AS b"
    )
    for column in ("a", "b"):
        (row,) = rows_of(frame, options(parameter(column))).collect()
        assert "not UTF-8" in row["reason"]


def test_a_body_above_the_limit_is_refused(spark: Any) -> None:
    given = options(parameter("a"), keyed=False)
    room = LIMIT - len('{"kwargs":{"a":""}}')
    rows = [("1", "x" * room), ("2", "x" * (room + 1)), ("3", "ä" * room)]
    found = reasons(made(spark, rows, "k string, a string", given))
    assert found == {
        "1": None,
        "2": f"its arguments take {LIMIT + 1} bytes, the limit is {LIMIT}",
        "3": f"its arguments take {LIMIT + room} bytes, the limit is {LIMIT}",
    }


def test_due_times_are_rounded_up_to_milliseconds(spark: Any) -> None:
    at = NOW + timedelta(microseconds=1)
    last = NOW + timedelta(milliseconds=MAX_DELAY_MS)
    rows = [
        ("1", at),
        ("2", NOW),
        ("3", None),
        ("4", last),
        ("5", last + timedelta(milliseconds=1)),
    ]
    rows.append(("6", datetime(1950, 1, 1, tzinfo=timezone.utc)))
    found = made(spark, rows, "k string, at timestamp", options(due="at"))
    start = int(NOW.timestamp() * 1000)
    assert [row["due_ms"] for row in found] == [
        start + 1,
        start,
        None,
        start + MAX_DELAY_MS,
        start + MAX_DELAY_MS + 1,
        0,
    ]
    assert [row["reason"] for row in found] == [
        None, None, "its due time is null", None, "its due time is more than ten years ahead", None,
    ]  # fmt: skip


def test_due_times_as_text_need_an_offset(spark: Any) -> None:
    texts = [
        "2026-11-20T13:00:00+01:00", "2026-11-20T12:00:00Z", "2026-11-20T12:00:00", "tomorrow", "2026-11-20", None,
        "T12:00:00Z",
    ]  # fmt: skip
    found = made(
        spark, list(zip("1234567", texts, strict=True)), "k string, at string", options(due="at")
    )
    start = int(NOW.timestamp() * 1000)
    assert [row["due_ms"] for row in found[:2]] == [start, start]
    assert [(row["reason"] or "")[-40:] for row in found] == [
        "", "", "12:00:00 has no offset, such as Z or +01:00"[-40:], "its due time tomorrow is no ISO 8601 time"[-40:],
        "2026-11-20 has no offset, such as Z or +01:00"[-40:], "its due time is null",
        "its due time T12:00:00Z is no ISO 8601 time"[-40:],
    ]  # fmt: skip


def test_without_a_due_column_the_load_says_when(spark: Any) -> None:
    (row,) = made(spark, [("1",)], "k string", options())
    assert row["due_ms"] is None


def test_text_of_csv_is_read_as_the_task_takes_it(spark: Any) -> None:
    names = {"i": "int", "f": "float | None", "b": "Optional[bool]", "s": "str"}
    given = options(*(parameter(name, kind) for name, kind in names.items()), format="csv")
    rows = [("1", "12", "0.5", "true", "007"), ("2", "1.5", None, None, "x"), ("3", "1", "x", None, "x"),
            ("4", "1", None, "maybe", "x"), ("5", None, None, None, "x"), ("6", "1", "NaN", None, "x"),
            ("7", "1", None, None, "x")]  # fmt: skip
    found = made(spark, rows, "k string, i string, f string, b string, s string", given)
    assert list(json.loads(found[0]["body"])["kwargs"].values()) == [12, 0.5, True, "007"]
    assert list(json.loads(found[6]["body"])["kwargs"].values()) == [1, None, None, "x"]
    assert [row["reason"] for row in found[1:6]] == [
        "i is 1.5, and the task takes int", "f is x, and the task takes float", "b is maybe, and the task takes bool",
        "i is null, and the task takes int", "f has a value that JSON has not (NaN, infinite, not UTF-8)",
    ]  # fmt: skip


def test_a_row_that_is_refused_is_given_back_whole(spark: Any) -> None:
    frame = spark.createDataFrame([("1", 5), ("2", 6), ("2", 7), (None, 8)], "k string, x int")
    found = schedule.rejects(frame, maker_of(frame, options())).collect()
    assert sorted((row["reason"], row["row"].toPython()["x"]) for row in found) == [
        ("its key is null", 8),
        ("its key stands 2 times in the source", 6),
        ("its key stands 2 times in the source", 7),
    ]


def test_a_row_is_given_back_without_a_value_that_python_cannot_have() -> None:
    point = pa.struct([("x", pa.int64())])
    rows = pa.record_batch(
        {"k": [None, "2"], "x": [1, 2], "m": pa.array([[({"x": 1}, 1)]] * 2, pa.map_(point, "int64"))}
    )  # fmt: skip
    found = without_spark(options(), rows).to_pylist()
    assert [(row["reason"], row["row"]) for row in found] == [
        ("its key is null", '{"x":1}'),
        (None, None),
    ]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_time_far_ahead_is_refused_and_no_other_time_is_sent(unit: str) -> None:
    most = 2**63 // 1000 - 1 if unit == "s" else 2**63 - 1  # Parquet keeps seconds as milliseconds
    times = pa.array([most, 0], pa.timestamp(unit, "Asia/Kolkata"))
    rows = pa.record_batch({"k": ["1", "2"], "at": times})
    found = without_spark(options(parameter("at", "datetime")), rows).to_pylist()
    assert [row["reason"] for row in found] == [f"at {json_values.NOT_JSON}", None]
    assert json.loads(found[1]["body"])["kwargs"] == {"at": "1970-01-01T00:00:00Z"}


# Types without rows


def test_types_say_what_is_wrong_with_them(spark: Any) -> None:
    kind = spark.createDataFrame([], "a struct<x:array<interval day>>").schema["a"].dataType
    with pytest.raises(Refused, match=r"It\.x\[\] is of type duration"):
        json_values.check_type(to_arrow_type(kind), "It")


# Tasks


def test_a_task_is_described_by_its_signature(declared: Any) -> None:
    from django_delayq import delayed_task

    @delayed_task(name="test.described", topic="mail", ttr=90, priority="low", expires=5)
    def described(
        a: int,
        /,
        b: str | None = None,
        *more: int,
        c: float,
        at: datetime,
        owner: UUID | None = None,
        **rest: Any,
    ) -> None: ...

    spec = task_specs.spec_of("test.described")
    assert (spec.topic, spec.ttr_ms, spec.priority, spec.max_attempts, spec.expires) == (
        "mail",
        90_000,
        2,
        None,
        "+5000",
    )
    assert [(one.name, one.kind, one.annotation, one.required) for one in spec.parameters] == [
        ("a", "positional", "int", True), ("b", "both", "str | None", False),
        ("more", "rest", "int", False), ("c", "named", "float", True),
        ("at", "named", "datetime", True), ("owner", "named", "UUID | None", False),
        ("rest", "others", "Any", False),
    ]  # fmt: skip


def test_a_task_with_a_limit_says_so_and_one_with_many_is_refused(declared: Any) -> None:
    from django_delayq import delayed_task
    from django_delayq.core.message import Record, limit_id

    @delayed_task(name="test.limited", rate="5/s")
    def limited(a: int) -> None: ...

    @delayed_task(name="test.keyed", rate="5/s", limit_by="{a}")
    def keyed(a: int) -> None: ...

    raw = bytes(14) + messages.header(task_specs.spec_of("test.limited")) + b"[1]"
    record = Record.decode(raw)
    assert (record.limit, record.body) == (limit_id("test.limited"), b"[1]")
    with pytest.raises(Refused, match="has limit_by"):
        task_specs.spec_of("test.keyed")
    assert "test.keyed" not in {spec.name for spec in task_specs.all_specs()}


def test_a_task_that_does_not_exist_is_refused_with_its_neighbours() -> None:
    name = declared.record.name
    with pytest.raises(Refused, match=rf"no task '{name}x'\. Did you mean .*{name}"):
        task_specs.spec_of(f"{name}x")
    with pytest.raises(Refused, match=r"Declared are: .*tests\.app\.tasks\.record"):
        task_specs.spec_of("zzz")
