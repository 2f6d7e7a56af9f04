"""Makes messages of a task from the rows of a source. Columns that do not fit are refused at the
start, values that do not fit row by row."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812

from ...core.times import MAX_DELAY_MS
from ..job_errors import Refused
from ..params import ParameterSpec, ScheduleOptions
from . import json_columns, messages

#: Column in which a reader puts the text of a row that it cannot read.
CORRUPT = "_corrupt_record"

_ANNOTATED: dict[str, tuple[type[T.DataType], ...]] = {
    "str": (T.StringType,),
    "int": json_columns.WHOLE,
    "float": (*json_columns.WHOLE, T.FloatType, T.DoubleType),
    "bool": (T.BooleanType,),
    "UUID": (T.StringType,),
    "datetime": (T.TimestampType, T.StringType),
    "date": (T.DateType, T.StringType),
    "time": (T.StringType,),
    "timedelta": (T.StringType,),
    "Decimal": (*json_columns.WHOLE, T.DecimalType, T.StringType),
    "bytes": (T.BinaryType, T.StringType),
}
#: Of these JSON has the text. The task's own check of an argument is made for each row.
_WRITTEN: dict[str, type] = {
    "UUID": UUID, "datetime": datetime, "date": date, "time": time, "timedelta": timedelta,
    "Decimal": Decimal, "bytes": bytes,
}  # fmt: skip
_CASTS: dict[str, T.DataType] = {
    "int": T.LongType(),
    "float": T.DoubleType(),
    "bool": T.BooleanType(),
}
#: What to do about a due time of another type.
_DUE_FIXES = {
    "timestamp_ntz": "A time without a zone may be any of 24 instants: cast(c AS TIMESTAMP) takes "
    "it as UTC, to_utc_timestamp(c, 'Europe/Berlin') as local",
    "date": "A date begins at another instant in every zone: to_utc_timestamp(c, 'Europe/Berlin')",
    "bigint": "Say what it counts: timestamp_seconds(c) or timestamp_millis(c)",
}
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
    """str, int, float, bool, UUID, datetime and so on; else empty: anything."""
    nullable: bool
    by_position: bool
    is_text: bool
    """The source holds text where the task wants something else (CSV)."""
    required: bool
    source: T.DataType | None = None
    """Type of a column whose text the task gets."""

    @property
    def value(self) -> Column:
        """As the task gets it."""
        column = F.col(_quoted(self.column))
        if self.source is not None:
            return json_columns.text_of(column, self.source)
        return column.try_cast(_CASTS[self.annotation]) if self.is_text else column


class Plan(NamedTuple):
    """How columns become messages."""

    options: ScheduleOptions
    arguments: Sequence[Argument]
    due: T.DataType | None


# Columns


def plan(options: ScheduleOptions, schema: T.StructType) -> Plan:
    """Raises Refused when these columns cannot become messages of the task. The error names the
    column, its type and the fix."""
    arguments = _arguments(options, schema)
    key = _column(schema, options.key, "the key").dataType
    if not isinstance(key, (*json_columns.WHOLE, T.StringType, T.NullType)):
        raise Refused(
            f"The key column {options.key!r} is of type {key.simpleString()}: text or whole "
            f"numbers are wanted. "
            "Cast it first: cast(c AS STRING)."
        )
    due = _column(schema, options.due, "the due time").dataType if options.due else None
    if due and not isinstance(due, (T.TimestampType, T.StringType, T.NullType)):
        name = due.simpleString()
        fix = _DUE_FIXES.get(name, "Use a timestamp, or ISO 8601 text with an offset")
        raise Refused(f"The due column {options.due!r} is of type {name}. {fix}.")
    return Plan(options, arguments, due)


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
            "before it."
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
    union = re.sub(r"^(typing\.)?Optional\[(.*)\]$", r"\2 | None", parameter.annotation)
    kinds = [part.strip() for part in union.split("|")]
    plain = [part for part in kinds if part != "None"]
    annotation = plain[0] if len(plain) == 1 and plain[0] in _ANNOTATED else ""
    is_text, kind = options.format == "csv" and annotation in _CASTS, field.dataType
    source: T.DataType | None = None
    if options.format == "json":  # checked row by row
        kind = T.StringType()
    else:
        if annotation not in _WRITTEN:
            json_columns.check_type(kind, f"The column {field.name!r}")
        allowed = _ANNOTATED.get(annotation, ())
        if annotation and not is_text and not isinstance(kind, (*allowed, T.NullType)):
            raise Refused(
                f"The task {options.task.name} takes {parameter.name}: {parameter.annotation}, but "
                f"the column {field.name!r} is of type {kind.simpleString()}. Cast it first."
            )
        if annotation == "float" or is_text:
            kind = _CASTS[annotation]
        if annotation in _WRITTEN:
            source, kind = kind, T.StringType()
    return Argument(
        parameter.name,
        field.name,
        kind,
        annotation,
        nullable=not annotation or "None" in kinds,
        by_position=parameter.kind == "positional",
        is_text=is_text,
        required=parameter.required,
        source=source,
    )


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
    is_json = options.format == "json"
    name = _text(options, options.key)
    owner = task.topic if options.keyed else f"{options.job}\0{task.topic}"
    due, wrong_due = _due_ms(planned, now)
    unread = [F.col(CORRUPT).isNotNull()] if CORRUPT in frame.columns else []
    wrong_key = ~F.col(_quoted(options.key)).rlike(_JSON_KEY) if is_json else F.lit(False)
    reasons = [
        *(F.when(condition, F.lit("it cannot be read")) for condition in unread),
        F.when(wrong_key, F.lit("its key is neither text nor a whole number")),
        F.when(name.isNull(), F.lit("its key is null")),
        F.when(name == "", F.lit("its key is empty")),
        F.when(F.length(name) > MOST_KEY, F.lit(f"its key has more than {MOST_KEY} characters")),
        F.when(F.instr(name, "\0") > 0, F.lit("its key has the character NUL")),
        F.when(~F.is_valid_utf8(name), F.lit("its key is not UTF-8")),
        *wrong_due,
        *(reason for argument in planned.arguments for reason in _reasons(options, argument)),
    ]
    row = []
    if keep:
        values = {column: F.col(_quoted(column)) for column in frame.columns}
        fields = [
            F.try_parse_json(value).alias(column) if is_json and column != CORRUPT else value
            for column, value in values.items()
        ]
        row = [F.struct(*fields).alias("row")]
    made = frame.select(
        F.lit(task.topic).alias("topic"), messages.ids(F.lit(owner), name).alias("id"),
        due.alias("due_ms"),
        F.lit(task.expires).alias("expires"), F.lit(messages.header(task)).alias("header"),
        _body(planned, name).alias("body"),
        name.alias("name"), F.coalesce(*reasons).alias("reason"), *row,
    )  # fmt: skip
    size = F.octet_length("body")
    too_large = F.format_string(f"its arguments take %,d bytes, the limit is {limit:,}", size)
    return made.withColumn("reason", F.coalesce("reason", F.when(size > limit, too_large)))


def with_copies_refused(frame: DataFrame) -> DataFrame:
    """Refuses all rows that share a key: nobody knows which of them is meant. `copies`: as in
    arranged()."""
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
    """The text of the column with the key or the due time. In JSON: the text of a string, the JSON
    of anything else, null for null."""
    value = F.col(_quoted(column))
    if options.format != "json":
        return value.cast("string")
    text = F.get_json_object(F.concat(F.lit('{"v":'), value, F.lit("}")), "$.v")
    return F.when(value.startswith('"'), text).when(value != "null", value)


def _due_ms(planned: Plan, now: datetime) -> tuple[Column, list[Column]]:
    """Milliseconds since 1970, rounded up: never early; and what may be wrong with them."""
    if planned.due is None:
        return F.lit(None).cast("long"), []
    is_text, column = isinstance(planned.due, T.StringType), planned.options.due
    given = _text(planned.options, column) if is_text else F.col(_quoted(column))
    at = given.try_cast("timestamp") if is_text else given.cast("timestamp")
    ms = F.greatest(F.lit(0), F.ceil(F.unix_micros(at) / F.lit(1000)).cast("long"))
    due, last = F.when(at.isNotNull(), ms), int(now.timestamp() * 1000) + MAX_DELAY_MS
    reasons = [F.when(given.isNull(), F.lit("its due time is null"))]
    if is_text:
        faults = [
            (at.isNull() | ~F.trim(given).rlike(_DATE), " is no ISO 8601 time"),
            (~F.trim(given).rlike(_OFFSET), " has no offset, such as Z or +01:00"),
        ]
        reasons += [
            F.when(condition, F.concat(F.lit("its due time "), given, F.lit(what)))
            for condition, what in faults
        ]
    reasons.append(F.when(due > last, F.lit("its due time is more than ten years ahead")))
    return due, reasons


def _reasons(options: ScheduleOptions, argument: Argument) -> list[Column]:
    """Why a value cannot be the argument that it is meant for."""
    column, annotation, reasons = argument.column, argument.annotation, []
    given, takes = F.col(_quoted(column)), F.lit(f", and the task takes {annotation}")
    if options.format == "json":
        if argument.required or argument.by_position:
            reasons.append(F.when(given.isNull(), F.lit(f"{column} is missing")))
        if annotation:
            fits = (
                messages.arrow_function(_reader(annotation), T.BooleanType())(given)
                if annotation in _WRITTEN
                else given.rlike(_JSON_PATTERNS[annotation])
            )
            fits = fits | (given == "null") & F.lit(argument.nullable)
            wrong = F.concat(F.lit(f"{column} is "), F.substring(given, 1, 80), takes)
            reasons.append(F.when(~fits, wrong))
        return reasons
    if not argument.nullable:
        null = F.lit(f"{column} is null, and the task takes {annotation}")
        reasons.append(F.when(given.isNull(), null))
    if argument.is_text:
        wrong = F.concat(F.lit(f"{column} is "), given, takes)
        reasons.append(F.when(given.isNotNull() & argument.value.isNull(), wrong))
    if annotation in _WRITTEN:
        text = argument.value
        json = json_columns.json_of(text, T.StringType())
        fits = messages.arrow_function(_reader(annotation), T.BooleanType())(json)
        wrong = F.concat(F.lit(f"{column} is "), F.substring(text, 1, 80), takes)
        reasons.append(F.when(text.isNotNull() & ~fits, wrong))
    if (found := json_columns.fault(argument.value, argument.kind)) is not None:
        why = f"{column} has a value that JSON has not (NaN, infinite, not UTF-8)"
        reasons.append(F.when(found, F.lit(why)))
    return reasons


def _reader(annotation: str) -> Callable[[pa.Array], pa.Array]:
    """Whether a worker could make a value of this type from each JSON text; null for null."""
    kind = _WRITTEN[annotation]

    def readable(texts: pa.Array) -> pa.Array:
        found: list[bool | None] = []
        for text in texts.to_pylist():
            try:
                if text is not None:
                    msgspec.json.decode(text, type=kind)
                found.append(None if text is None else True)
            except (msgspec.MsgspecError, UnicodeError):
                found.append(False)
        return pa.array(found, pa.bool_())

    return readable


def _body(planned: Plan, name: Column) -> Column:
    """As message.Body is written. Arguments go by name where they can: whoever adds a parameter to
    the task before the messages are due breaks none of them."""
    options, attempts = planned.options, planned.options.task.max_attempts
    positional = [argument for argument in planned.arguments if argument.by_position]
    named = [argument for argument in planned.arguments if not argument.by_position]
    if options.format == "json":
        return _json_body(positional, named, name if options.keyed else None, attempts)
    fields = [
        argument.value.cast(json_columns.exact(argument.kind)).alias(argument.parameter)
        for argument in named
    ]
    fields = [F.struct(*fields).alias("kwargs")] if fields else []
    fields += [name.alias("key")] if options.keyed else []
    fields += [F.lit(attempts).alias("max_attempts")] if attempts is not None else []
    whole = F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}) if fields else F.lit("[]")
    if not positional:
        return whole
    args = [json_columns.json_of(argument.value, argument.kind) for argument in positional]
    array = F.concat(F.lit("["), F.concat_ws(",", *args), F.lit("]"))
    if not fields:
        return array
    return F.concat(F.lit('{"args":'), array, F.lit(","), F.substring(whole, 2, 2**31 - 1))


def _json_body(
    positional: Sequence[Argument], named: Sequence[Argument], key: Column | None, most: int | None
) -> Column:
    """As message.Body is written, from columns that hold the JSON of their values. An argument by
    name that is missing is left out: the task has its default."""
    parts = []
    if positional:
        args = F.concat_ws(",", *(argument.value for argument in positional))
        parts.append(F.concat(F.lit('"args":['), args, F.lit("]")))
    if named:
        pairs = [
            F.concat(
                F.lit(f"{json.dumps(argument.parameter, ensure_ascii=False)}:"), argument.value
            )
            for argument in named
        ]
        parts.append(F.concat(F.lit('"kwargs":{'), F.concat_ws(",", *pairs), F.lit("}")))
    if key is not None:
        parts.append(F.concat(F.lit('"key":'), json_columns.json_of(key, T.StringType())))
    if most is not None:
        parts.append(F.lit(f'"max_attempts":{most}'))
    return F.concat(F.lit("{"), F.concat_ws(",", *parts), F.lit("}")) if parts else F.lit("[]")
