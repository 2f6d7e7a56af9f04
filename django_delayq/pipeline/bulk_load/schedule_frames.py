"""Rows of a source -> messages of a task. What the columns show is refused at the start, the rest
row by row."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812

from ...core.times import MAX_DELAY_MS
from ..job_errors import Refused
from ..params import ParameterSpec, ScheduleOptions
from . import json_columns, messages

#: Column in which a reader puts the text of a row that it cannot read.
CORRUPT = "_corrupt_record"

_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_ANNOTATED: dict[str, tuple[type[T.DataType], ...]] = {
    "str": (T.StringType,),
    "int": _WHOLE,
    "float": (*_WHOLE, T.FloatType, T.DoubleType),
    "bool": (T.BooleanType,),
}
_CASTS = {"int": "bigint", "float": "double", "bool": "boolean"}
_CAST_TYPES = {"int": T.LongType(), "float": T.DoubleType(), "bool": T.BooleanType()}
_OFFSET = r"(?i)\d(Z|UTC|GMT|[+-]\d{2}:?\d{2})$"
#: Without a date Spark takes that of today.
_DATE = r"^[+-]?\d{4,}-"
MOST_KEY = 256
#: JSON of a value by the annotation of its parameter.
_JSON_PATTERNS = {"str": '^"', "int": r"^-?\d+$", "float": r"^-?\d", "bool": "^(true|false)$"}
_JSON_KEY = r'^(".*|-?\d+|null)$'


class Argument(NamedTuple):
    """A column that is an argument."""

    parameter: str
    column: str
    kind: T.DataType
    annotation: str
    """str, int, float, bool; else empty: anything."""
    nullable: bool
    by_position: bool
    is_text: bool
    """The source holds text where the task wants something else (CSV)."""
    required: bool

    @property
    def value(self) -> Column:
        """As the task gets it."""
        column = F.col(_quoted(self.column))
        return column.try_cast(_CASTS[self.annotation]) if self.is_text else column


class Plan(NamedTuple):
    """What is made of which columns."""

    options: ScheduleOptions
    arguments: Sequence[Argument]
    due: T.DataType | None


# What can be told from the columns


def plan(options: ScheduleOptions, schema: T.StructType) -> Plan:
    """Raises Refused when these columns cannot be messages of the task: with the column, its type
    and the fix."""
    arguments = _arguments(options, schema)
    key = _column(schema, options.key, "the key").dataType
    if not isinstance(key, (*_WHOLE, T.StringType, T.NullType)):
        raise Refused(
            f"The key column {options.key!r} is of type {key.simpleString()}: text or whole "
            f"numbers are wanted. "
            "Cast it first: cast(c AS STRING)."
        )
    return Plan(options, arguments, _due(options, schema))


def _arguments(options: ScheduleOptions, schema: T.StructType) -> list[Argument]:
    task = options.task
    known = {
        parameter.name: parameter for parameter in task.parameters if parameter.kind != "others"
    }
    columns = dict(options.columns) or {name: name for name in known if name in schema.names}
    others = any(parameter.kind == "others" for parameter in task.parameters)
    for name in columns:
        if name not in known and not others:
            raise Refused(f"The task {task.name} has no parameter {name!r}.{_near(name, known)}")
    missing = [
        parameter.name
        for parameter in known.values()
        if parameter.required and parameter.name not in columns
    ]
    if missing:
        raise Refused(
            f"The task {task.name} needs {', '.join(missing)}: name the columns for it. "
            f"The source has {', '.join(schema.names)}."
        )
    positional = [parameter.name for parameter in task.parameters if parameter.kind == "positional"]
    given = [name for name in positional if name in columns]
    if given != positional[: len(given)]:
        gap = next(name for name in positional if name not in columns)
        raise Refused(
            f"The parameter {given[-1]} of {task.name} is given by position: {gap} is needed "
            f"before it."
        )
    extra = [ParameterSpec(name=name, kind="named") for name in columns if name not in known]
    return [
        _argument(
            options,
            parameter,
            _column(schema, columns[parameter.name], f"the parameter {parameter.name}"),
        )
        for parameter in (*known.values(), *extra)
        if parameter.name in columns
    ]


def _argument(options: ScheduleOptions, parameter: ParameterSpec, field: T.StructField) -> Argument:
    kinds = [
        part.strip()
        for part in re.sub(
            r"^(typing\.)?Optional\[(.*)\]$", r"\2 | None", parameter.annotation
        ).split("|")
    ]
    plain = [part for part in kinds if part != "None"]
    annotation = plain[0] if len(plain) == 1 and plain[0] in _ANNOTATED else ""
    nullable = not annotation or "None" in kinds
    if options.format == "json":  # looked at row by row
        by_position = parameter.kind == "positional"
        return Argument(
            parameter.name,
            field.name,
            T.StringType(),
            annotation,
            nullable,
            by_position,
            False,
            parameter.required,
        )
    is_text = options.format == "csv" and annotation in _CASTS
    json_columns.check_type(field.dataType, f"The column {field.name!r}")
    allowed = _ANNOTATED.get(annotation, ())
    if annotation and not is_text and not isinstance(field.dataType, (*allowed, T.NullType)):
        raise Refused(
            f"The task {options.task.name} takes {parameter.name}: {parameter.annotation}, but the "
            f"column {field.name!r} is of type {field.dataType.simpleString()}. Cast it first."
        )
    kind = (
        T.DoubleType()
        if annotation == "float"
        else _CAST_TYPES[annotation]
        if is_text
        else field.dataType
    )
    return Argument(
        parameter.name,
        field.name,
        kind,
        annotation,
        nullable,
        parameter.kind == "positional",
        is_text,
        parameter.required,
    )


def _due(options: ScheduleOptions, schema: T.StructType) -> T.DataType | None:
    if not options.due:
        return None
    kind = _column(schema, options.due, "the due time").dataType
    if isinstance(kind, (T.TimestampType, T.StringType, T.NullType)):
        return kind
    fix = {
        "timestamp_ntz": "A time without a zone may be any of 24 instants: "
        "cast(c AS TIMESTAMP) takes it as UTC, "
        "to_utc_timestamp(c, 'Europe/Berlin') as local",
        "date": "A date begins at another instant in every zone: "
        "to_utc_timestamp(c, 'Europe/Berlin')",
        "bigint": "Say what it counts: timestamp_seconds(c) or timestamp_millis(c)",
    }.get(kind.simpleString(), "Use a timestamp, or ISO 8601 text with an offset")
    raise Refused(f"The due column {options.due!r} is of type {kind.simpleString()}. {fix}.")


def _column(schema: T.StructType, name: str, what: str) -> T.StructField:
    if name not in schema.names:
        raise Refused(
            f"The source has no column {name!r} for {what}.{_near(name, schema.names)} "
            f"It has {', '.join(schema.names)}."
        )
    return schema[name]


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=2)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# Row by row


def message_rows(
    frame: DataFrame, planned: Plan, now: datetime, limit: int, *, keep: bool = False
) -> DataFrame:
    """Messages, but for partition and split; with `reason` (why a row cannot be one, else null) and
    `name`, its key.

    `limit`: most bytes of a body. `now`: due times more than ten years after it are refused.
    `keep`: with `row`, the row itself.
    """
    options, task = planned.options, planned.options.task
    name = _text(options, options.key)
    owner = task.topic if options.keyed else messages.unkeyed(options.job, task.topic)
    due, wrong_due = _due_ms(planned, now)
    body = _body(planned, name)
    reasons = [
        *([F.when(F.col(CORRUPT).isNotNull(),
        F.lit("it cannot be read"))] if CORRUPT in frame.columns else []),
        *_key_reasons(options, name), *wrong_due,
        *(reason for one in planned.arguments for reason in _reasons(options, one)),
    ]  # fmt: skip
    made = frame.select(
        F.lit(task.topic).alias("topic"), messages.ids(F.lit(owner), name).alias("id"),
        due.alias("due_ms"),
        F.lit(task.expires).alias("expires"), F.lit(messages.header(task)).alias("header"),
        body.alias("body"),
        name.alias("name"), F.coalesce(*reasons).alias("reason"),
        *([F.struct(*[_kept(options, one) for one in frame.columns]).alias("row")] if keep else []),
    )  # fmt: skip
    size = F.octet_length("body")
    text = F.format_string(f"its arguments take %,d bytes, the limit is {limit:,}", size)
    return made.withColumn("reason", F.coalesce("reason", F.when(size > limit, text)))


def with_copies_refused(frame: DataFrame) -> DataFrame:
    """Rows that share a key are refused, all of them: which one is meant nobody knows. `copies`: as
    in arranged()."""
    copies = F.concat(
        F.lit("its key stands "), F.col("copies").cast("string"), F.lit(" times in the source")
    )
    twice = F.when(F.col("id").isNotNull() & (F.col("copies") > 1), copies)
    return frame.withColumn("reason", F.coalesce("reason", twice))


def rejects(frame: DataFrame, planned: Plan, now: datetime, limit: int) -> DataFrame:
    """Each row that cannot be a message, and why."""
    made = message_rows(frame, planned, now, limit, keep=True)
    counted = made.withColumn("copies", F.count(F.lit(1)).over(Window.partitionBy("id")))
    return with_copies_refused(counted).where(F.col("reason").isNotNull()).select("reason", "row")


def _text(options: ScheduleOptions, column: str) -> Column:
    """Of the column with the key or the due time."""
    value = F.col(_quoted(column))
    return _json_text(value) if options.format == "json" else value.cast("string")


def _kept(options: ScheduleOptions, column: str) -> Column:
    """For the rejects."""
    value = F.col(_quoted(column))
    return (
        F.try_parse_json(value).alias(column)
        if options.format == "json" and column != CORRUPT
        else value
    )


def _key_reasons(options: ScheduleOptions, name: Column) -> list[Column]:
    wrong = (
        ~F.col(_quoted(options.key)).rlike(_JSON_KEY) if options.format == "json" else F.lit(False)
    )
    return [
        F.when(wrong, F.lit("its key is neither text nor a whole number")),
        F.when(name.isNull(), F.lit("its key is null")),
        F.when(name == "", F.lit("its key is empty")),
        F.when(F.length(name) > MOST_KEY, F.lit(f"its key has more than {MOST_KEY} characters")),
        F.when(F.instr(name, "\0") > 0, F.lit("its key has the character NUL")),
        F.when(~F.is_valid_utf8(name), F.lit("its key is not UTF-8")),
    ]


def _due_ms(planned: Plan, now: datetime) -> tuple[Column, list[Column]]:
    """Milliseconds since 1970, rounded up: never early; and what may be wrong with them."""
    if planned.due is None:
        return F.lit(None).cast("long"), []
    is_text = isinstance(planned.due, T.StringType)
    given = (
        _text(planned.options, planned.options.due)
        if is_text
        else F.col(_quoted(planned.options.due))
    )
    at = given.try_cast("timestamp") if is_text else given.cast("timestamp")
    due = F.when(
        at.isNotNull(), F.greatest(F.lit(0), F.ceil(F.unix_micros(at) / F.lit(1000)).cast("long"))
    )
    last = int(now.timestamp() * 1000) + MAX_DELAY_MS
    reasons = [F.when(given.isNull(), F.lit("its due time is null"))]
    if is_text:
        naive = F.concat(
            F.lit("its due time "), given, F.lit(" has no offset, such as Z or +01:00")
        )
        reasons.append(
            F.when(
                at.isNull() | ~F.trim(given).rlike(_DATE),
                F.concat(F.lit("its due time "), given, F.lit(" is no ISO 8601 time")),
            )
        )
        reasons.append(F.when(~F.trim(given).rlike(_OFFSET), naive))
    reasons.append(F.when(due > last, F.lit("its due time is more than ten years ahead")))
    return due, reasons


def _reasons(options: ScheduleOptions, argument: Argument) -> list[Column]:
    given = F.col(_quoted(argument.column))
    if options.format == "json":
        needed = argument.required or argument.by_position
        return _json_reasons(
            argument.column, given, argument.annotation, nullable=argument.nullable, needed=needed
        )
    reasons = []
    if not argument.nullable:
        reasons.append(
            F.when(
                given.isNull(),
                F.lit(f"{argument.column} is null, and the task takes {argument.annotation}"),
            )
        )
    if argument.is_text:
        wrong = F.concat(
            F.lit(f"{argument.column} is "),
            given,
            F.lit(f", and the task takes {argument.annotation}"),
        )
        reasons.append(F.when(given.isNotNull() & argument.value.isNull(), wrong))
    found = json_columns.fault(argument.value, argument.kind)
    if found is not None:
        reasons.append(
            F.when(
                found,
                F.lit(
                    f"{argument.column} has a value that JSON has not (NaN, infinite, not UTF-8)"
                ),
            )
        )
    return reasons


def _body(planned: Plan, name: Column) -> Column:
    """As message.Body is written. Arguments go by name where they can: whoever adds a parameter to
    the task before the messages are due breaks none of them."""
    options, attempts = planned.options, planned.options.task.max_attempts
    if options.format == "json":
        given = [argument.value for argument in planned.arguments if argument.by_position]
        named = [
            (argument.parameter, argument.value)
            for argument in planned.arguments
            if not argument.by_position
        ]
        return _json_body(given, named, name if options.keyed else None, attempts)
    args = [
        json_columns.text(argument.value, argument.kind)
        for argument in planned.arguments
        if argument.by_position
    ]
    kwargs = [
        argument.value.cast(json_columns.exact(argument.kind)).alias(argument.parameter)
        for argument in planned.arguments
        if not argument.by_position
    ]
    fields = [F.struct(*kwargs).alias("kwargs")] if kwargs else []
    fields += [name.alias("key")] if options.keyed else []
    fields += [F.lit(attempts).alias("max_attempts")] if attempts is not None else []
    if not args:
        return (
            F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}) if fields else F.lit("[]")
        )
    array = F.concat(F.lit("["), F.concat_ws(",", *args), F.lit("]"))
    if not fields:
        return array
    rest = F.substring(F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}), 2, 2**31 - 1)
    return F.concat(F.lit('{"args":'), array, F.lit(","), rest)


# JSON lines: a column holds the JSON of its value


def _json_text(value: Column) -> Column:
    """The text of a string; of anything else its JSON; null for null."""
    text = F.get_json_object(F.concat(F.lit('{"v":'), value, F.lit("}")), "$.v")
    return F.when(value.startswith('"'), text).when(value != "null", value)


def _json_reasons(
    column: str, value: Column, annotation: str, *, nullable: bool, needed: bool
) -> list[Column]:
    """Why a value cannot be the argument that it is meant for."""
    found = [F.when(value.isNull(), F.lit(f"{column} is missing"))] if needed else []
    if annotation:
        fits = value.rlike(_JSON_PATTERNS[annotation]) | (value == "null") & F.lit(nullable)
        wrong = F.concat(
            F.lit(f"{column} is "),
            F.substring(value, 1, 80),
            F.lit(f", and the task takes {annotation}"),
        )
        found.append(F.when(~fits, wrong))
    return found


def _json_body(
    args: Sequence[Column],
    kwargs: Sequence[tuple[str, Column]],
    key: Column | None,
    most: int | None,
) -> Column:
    """As message.Body is written. An argument by name that is missing is left out: the task has its
    default."""
    parts = []
    if args:
        parts.append(F.concat(F.lit('"args":['), F.concat_ws(",", *args), F.lit("]")))
    if kwargs:
        named = [
            F.concat(F.lit(f"{json.dumps(name, ensure_ascii=False)}:"), value)
            for name, value in kwargs
        ]
        parts.append(F.concat(F.lit('"kwargs":{'), F.concat_ws(",", *named), F.lit("}")))
    if key is not None:
        parts.append(F.concat(F.lit('"key":'), json_columns.text(key, T.StringType())))
    if most is not None:
        parts.append(F.lit(f'"max_attempts":{most}'))
    return F.concat(F.lit("{"), F.concat_ws(",", *parts), F.lit("}")) if parts else F.lit("[]")
