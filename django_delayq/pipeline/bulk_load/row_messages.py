"""Makes messages of a task from rows. Columns that do not fit are refused at the start, values that
do not fit row by row.

Batches of Arrow in, batches of Arrow out: the tasks of Spark and `delayq send --file` call the
same.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...core.message import Body, write_body
from ...core.times import MAX_DELAY_MS
from .. import schemas
from ..job_errors import Refused
from ..params import ParameterSpec, ScheduleOptions
from . import json_values, messages

#: Column in which a reader puts the text of a row that it cannot read.
CORRUPT = "_corrupt_record"
MOST_KEY = 256

#: Of each row: what its message has of its own (MessageMaker.as_messages() adds what all share),
#: its key, the reason why it cannot be a message, its cell, its hash (see messages.py), and the row
#: itself as JSON if it is refused.
MADE = pa.schema(
    [
        ("id", pa.binary()),
        ("due_ms", pa.int64()),
        ("body", pa.string()),
        ("name", pa.string()),
        ("reason", pa.string()),
        ("cell", pa.int32()),
        ("hash", pa.int64()),
        ("row", pa.string()),
    ]
)

_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
#: MADE where the texts of a column may be more than 2 GiB together.
LARGE = pa.schema([field.with_type(_LARGE.get(field.type, field.type)) for field in MADE])

Kinds = Callable[[pa.DataType], bool]


def _any_of(*kinds: Kinds) -> Kinds:
    return lambda kind: any(is_one(kind) for is_one in kinds)


_text, _whole = json_values.is_text, json_values.is_whole
_ANNOTATED: Mapping[str, Kinds] = {
    "str": _text,
    "int": _whole,
    "float": _any_of(_whole, pa.types.is_floating),
    "bool": pa.types.is_boolean,
    "UUID": _text,
    "datetime": _any_of(lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, _text),
    "date": _any_of(pa.types.is_date, _text),
    "time": _text,
    "timedelta": _text,
    "Decimal": _any_of(_whole, pa.types.is_decimal, _text),
    "bytes": _any_of(json_values.is_bytes, _text),
}
#: Of these JSON has the text.
_WRITTEN: Mapping[str, type] = {
    "UUID": UUID, "datetime": datetime, "date": date, "time": time, "timedelta": timedelta,
    "Decimal": Decimal, "bytes": bytes,
}  # fmt: skip
#: JSON of a value by the annotation of its parameter.
_JSON_PATTERNS = {"str": '"', "int": r"-?\d+$", "float": r"-?\d", "bool": "(true|false)$"}
_JSON_KEY = re.compile(r'".*"$|-?\d+$|null$', re.DOTALL)
#: What names of msgspec's fields may not have.
_NO_FIELD = re.compile(r'["\\\x00-\x1f]')
_TRUE, _FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")


# Columns


class Argument(NamedTuple):
    """A column that is an argument."""

    parameter: str
    column: str
    annotation: str
    """str, int, float, bool, UUID, datetime and so on; else empty: anything."""
    nullable: bool
    by_position: bool
    is_text: bool
    """The source holds text where the task wants something else (CSV)."""
    required: bool


class Plan(NamedTuple):
    """How columns become messages."""

    options: ScheduleOptions
    arguments: Sequence[Argument]
    columns: Sequence[str]
    """That the source has."""


def plan(options: ScheduleOptions, schema: pa.Schema) -> Plan:
    """Raises Refused when these columns cannot become messages of the task. The error names the
    column, its type and the fix."""
    arguments = _arguments(options, schema)
    key = _column(schema, options.key, "the key").type
    if not (_whole(key) or _text(key) or pa.types.is_null(key)):
        raise Refused(
            f"The key column {options.key!r} is of type {key}: text or whole numbers are wanted."
        )
    if options.due:
        due = _column(schema, options.due, "the due time").type
        aware = pa.types.is_timestamp(due) and due.tz is not None
        if not (aware or _text(due) or pa.types.is_null(due)):
            raise Refused(f"The due column {options.due!r} is of type {due}. {_due_fix(due)}.")
    return Plan(options, arguments, schema.names)


def _due_fix(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "A time without a zone may be any of 24 instants: give it its zone"
    if pa.types.is_date(kind):
        return "A date begins at another instant in every zone: give a time with a zone"
    if _whole(kind):
        return "Nobody knows what it counts: give a time with a zone"
    return "Give a time with a zone, or ISO 8601 text with an offset"


def _arguments(options: ScheduleOptions, schema: pa.Schema) -> list[Argument]:
    task = options.task
    known = {
        parameter.name: parameter
        for parameter in task.parameters
        if parameter.kind not in ("rest", "others")
    }
    columns = dict(options.columns) or {name: name for name in known if name in schema.names}
    others = any(parameter.kind == "others" for parameter in task.parameters)
    for name in columns:
        if name not in known and not others:
            raise Refused(f"The task {task.name} has no parameter {name!r}.{_near(name, known)}")
        if _NO_FIELD.search(name):
            raise Refused(
                f"The name {name!r} of an argument has a quote, a backslash or a control character:"
                f" give it another one."
            )
    missing = [
        parameter.name
        for parameter in known.values()
        if parameter.required and parameter.name not in columns
    ]
    if missing:
        raise Refused(
            f"The task {task.name} needs {', '.join(missing)}: name the columns for it. "
            f"{_columns_of(schema)}"
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


def _argument(options: ScheduleOptions, parameter: ParameterSpec, field: pa.Field) -> Argument:
    union = re.sub(r"^(typing\.)?Optional\[(.*)\]$", r"\2 | None", parameter.annotation)
    kinds = [part.strip() for part in union.split("|")]
    plain = [part for part in kinds if part != "None"]
    annotation = plain[0] if len(plain) == 1 and plain[0] in _ANNOTATED else ""
    is_text = options.format == "csv" and annotation in ("int", "float", "bool")
    if options.format != "json" and not is_text:  # JSON is checked row by row
        fits = not annotation or _ANNOTATED[annotation](field.type) or pa.types.is_null(field.type)
        if annotation not in _WRITTEN:
            json_values.check_type(field.type, f"The column {field.name!r}")
        if not fits:
            raise Refused(
                f"The task {options.task.name} takes {parameter.name}: {parameter.annotation}, but "
                f"the column {field.name!r} is of type {field.type}. Cast it first."
            )
    return Argument(
        parameter.name,
        field.name,
        annotation,
        nullable=not annotation or "None" in kinds,
        by_position=parameter.kind == "positional",
        is_text=is_text,
        required=parameter.required,
    )


def _columns_of(schema: pa.Schema) -> str:
    names = [name for name in schema.names if name != CORRUPT]
    return f"The source has {', '.join(names)}." if names else "The source has no row with columns."


def _column(schema: pa.Schema, name: str, what: str) -> pa.Field:
    if name not in schema.names:
        raise Refused(
            f"The source has no column {name!r} for {what}.{_near(name, schema.names)} "
            f"{_columns_of(schema)}"
        )
    if schema.names.count(name) > 1:
        raise Refused(f"The source has several columns {name!r} for {what}: rename the others.")
    return schema.field(name)


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=2)
    return f" Did you mean {' or '.join(near)}?" if near else ""


# Row by row


@dataclass(frozen=True, kw_only=True)
class MessageMaker:
    """Makes MADE of the rows of a source. It can be pickled."""

    planned: Plan
    now: datetime
    """Due times more than ten years after it are refused."""
    limit: int
    """Most bytes of a body."""
    partitions: int
    """Of the topic of the task."""
    keep: bool = False
    """Give `row` of every row, not only of those that are refused: which keys stand twice is known
    later."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batch by batch."""
        return map(self.made, batches)

    def made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """MADE of these rows, in their order."""
        rows = _CheckedRows(self.planned.options, batch)
        names = rows.names()
        has_due = bool(self.planned.options.due)
        due = rows.due_ms(self._last_ms) if has_due else pa.nulls(len(batch), pa.int64())
        arguments = [(argument, rows.argument(argument)) for argument in self.planned.arguments]
        bodies = rows.bodies(arguments, names, self.limit)
        return self._columns(rows, names, due, bodies)

    def as_messages(self, made: pa.Table) -> pa.Table:
        """schemas.MESSAGES of rows of MADE (or LARGE) that are messages; less than 2 GiB."""
        options, task = self.planned.options, self.planned.options.task
        cell = made["cell"].to_numpy()
        columns = {
            "topic": pa.repeat(task.topic, len(made)),
            "partition": cell // options.splits,
            "split": cell % options.splits,
            "id": made["id"], "due_ms": made["due_ms"],
            "expires": pa.repeat(task.expires, len(made)),
            "header": pa.repeat(messages.header(task), len(made)),
            "body": made["body"],
        }  # fmt: skip
        return pa.table(columns).cast(schemas.MESSAGES)

    def rows_as_json(self, batch: pa.RecordBatch, at: Iterable[int]) -> Iterator[str]:
        """Rows as people get them back: JSON objects without what is null."""
        is_json = self.planned.options.format == "json"
        for number in at:
            row: dict[str, Any] = {}
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                (value,), _ = json_values.values_of(column.slice(number, 1))
                if value is not None:
                    raw = is_json and name != CORRUPT
                    row[name] = msgspec.Raw(value.encode()) if raw else value
            yield msgspec.json.encode(row, enc_hook=repr).decode()

    @cached_property
    def _last_ms(self) -> int:
        return int(self.now.timestamp() * 1000) + MAX_DELAY_MS

    def _columns(
        self,
        rows: _CheckedRows,
        names: Sequence[str | None],
        due: pa.Array,
        bodies: pa.Array,
    ) -> pa.RecordBatch:
        options, task, count = self.planned.options, self.planned.options.task, len(rows.batch)
        owner = task.topic if options.keyed else f"{options.job}\0{task.topic}"
        name = pa.array(names, pa.string())
        ids = messages.ids(pa.repeat(owner, count), name)
        counts = {task.topic: self.partitions}
        places = messages.cells(pa.repeat(task.topic, count), ids, counts, options.splits)
        expires, header = pa.scalar(task.expires), pa.scalar(messages.header(task))
        reason = pa.array(rows.reasons, pa.string())
        body = pc.if_else(reason.is_null(), bodies, pa.scalar(None, pa.binary()))
        shown = [at for at, why in enumerate(rows.reasons) if self.keep or why is not None]
        kept: list[str | None] = [None] * count
        for at, text in zip(shown, self.rows_as_json(rows.batch, shown), strict=True):
            kept[at] = text
        columns = {
            "id": ids, "due_ms": due, "body": body.cast(pa.string()), "name": name,
            "reason": reason, "cell": pc.struct_field(places, "cell"),
            "hash": messages.hashes(ids, due, expires, header, body),
            "row": pa.array(kept, pa.string()),
        }  # fmt: skip
        return pa.RecordBatch.from_arrays([columns[name] for name in MADE.names], schema=MADE)


class _CheckedRows:
    """The rows of a batch. The first reason that is found against a row stays."""

    def __init__(self, options: ScheduleOptions, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.reasons: list[str | None] = [None] * len(batch)
        self._options, self._is_json = options, options.format == "json"
        if CORRUPT in batch.schema.names:
            corrupt = batch.column(CORRUPT)
            if corrupt.null_count < len(batch):
                unread = corrupt.is_valid().to_numpy(zero_copy_only=False)
                self._refuse(np.flatnonzero(unread).tolist(), "it cannot be read")

    def names(self) -> list[str | None]:
        """Their keys as text."""
        given, wrong = json_values.values_of(self.batch.column(self._options.key))
        self._refuse(wrong, "its key is not UTF-8")
        if self._is_json:
            what = "its key is neither text nor a whole number"
            self._refuse(
                [at for at, raw in enumerate(given) if raw and not _JSON_KEY.match(raw)], what
            )
            given = [_of_json(raw) for raw in given]
        names = [None if value is None else str(value) for value in given]
        texts = pa.array(names, pa.string())
        self._refuse(json_values.true_at(texts.is_null()), "its key is null")
        self._refuse(json_values.true_at(pc.equal(texts, "")), "its key is empty")
        long = pc.greater(pc.utf8_length(texts), MOST_KEY)
        self._refuse(json_values.true_at(long), f"its key has more than {MOST_KEY} characters")
        has_nul = pc.match_substring(texts, "\0")
        self._refuse(json_values.true_at(has_nul), "its key has the character NUL")
        return names

    def due_ms(self, last: int) -> pa.Array:
        """Milliseconds since 1970, rounded up: never early."""
        column = self.batch.column(self._options.due)
        if pa.types.is_timestamp(column.type):
            self._refuse(json_values.true_at(column.is_null()), "its due time is null")
            found = _ceiled(column, last)
        else:
            given, wrong = json_values.values_of(column)
            self._refuse(wrong, "its due time is not UTF-8")
            instants = [
                self._instant(at, text)
                for at, text in enumerate(map(_of_json, given) if self._is_json else given)
            ]
            millis = (None if one is None else -(-_epoch_us(one) // 1000) for one in instants)
            found = pa.array([None if ms is None else max(0, ms) for ms in millis], pa.int64())
        late = json_values.true_at(pc.greater(found, last))
        self._refuse(late, "its due time is more than ten years ahead")
        return found

    def _instant(self, at: int, text: Any) -> datetime | None:
        if text is None:
            self._refuse([at], "its due time is null")
            return None
        try:
            instant = datetime.fromisoformat(re.sub("[Zz]$", "+00:00", str(text).strip()))
        except ValueError:
            self._refuse([at], f"its due time {text} is no ISO 8601 time")
            return None
        if instant.tzinfo is None:
            self._refuse([at], f"its due time {text} has no offset, such as Z or +01:00")
            return None
        return instant

    def argument(self, argument: Argument) -> list[Any]:
        """Its values as the body has them: plain values, or raw JSON."""
        column = self.batch.column(argument.column)
        given, wrong = json_values.values_of(column)
        self._refuse(wrong, f"{argument.column} {json_values.NOT_JSON}")
        if self._is_json:
            return self._raw_values(argument, given)
        if not argument.nullable:
            what = f"{argument.column} is null, and the task takes {argument.annotation}"
            self._refuse_null(given, what, but=wrong)
        if argument.is_text:
            given = self._read(argument, given, _PARSERS[argument.annotation])
        elif argument.annotation == "float" and _whole(column.type):
            given = [None if value is None else float(value) for value in given]
        if argument.annotation in _WRITTEN:
            kind = _WRITTEN[argument.annotation]
            return self._read(argument, given, lambda value: _as_text(value, kind))
        if argument.is_text:  # a float may be NaN
            column = pa.array(given)
        self._refuse(
            json_values.not_json(column, given), f"{argument.column} {json_values.NOT_JSON}"
        )
        return given

    def _read(self, argument: Argument, given: list[Any], read: Callable[[Any], Any]) -> list[Any]:
        values: list[Any] = []
        for at, value in enumerate(given):
            try:
                values.append(None if value is None else read(value))
            except (ValueError, msgspec.ValidationError, OverflowError):
                what = f"{argument.column} is {str(value)[:80]}"
                self._refuse([at], f"{what}, and the task takes {argument.annotation}")
                values.append(None)
        return values

    def _raw_values(self, argument: Argument, given: list[Any]) -> list[Any]:
        if argument.required or argument.by_position:
            self._refuse_null(given, f"{argument.column} is missing")
        fits = _json_check(argument.annotation)
        values: list[Any] = []
        for at, raw in enumerate(given):
            if raw is not None and not (raw == "null" and argument.nullable) and not fits(raw):
                what = f"{argument.column} is {raw[:80]}"
                self._refuse([at], f"{what}, and the task takes {argument.annotation}")
            absent = None if argument.by_position else msgspec.UNSET
            values.append(absent if raw is None else msgspec.Raw(raw.encode()))
        return values

    def bodies(
        self,
        arguments: Sequence[tuple[Argument, list[Any]]],
        names: Sequence[str | None],
        limit: int,
    ) -> pa.Array:
        """As enqueue() writes them. Arguments go by name where they can: whoever adds a parameter
        to the task before the messages are due breaks none of them."""
        attempts = self._options.task.max_attempts
        keys = names if self._options.keyed else repeat(None, len(names))
        positional = [values for argument, values in arguments if argument.by_position]
        named = {
            argument.parameter: values for argument, values in arguments if not argument.by_position
        }
        # No frame of Python for a row, and no body that outlives its row, since the garbage
        # collector would look at all of them: each would double the time.
        args = map(list, zip(*positional, strict=True)) if positional else repeat([])
        kwargs = self._kwargs(named) if named else repeat({})
        contents: Iterator[Any] = map(Body, args, kwargs, keys, repeat({}), repeat(attempts))
        if not self._options.keyed and attempts is None:
            contents = (content if content.kwargs else content.args for content in contents)
        bodies = list(map(write_body, contents, repeat(sys.maxsize)))
        found = pa.array(bodies, pa.binary())
        sizes = pc.binary_length(found)
        for at in json_values.true_at(pc.greater(sizes, limit)):
            what = f"its arguments take {sizes[at].as_py():,} bytes, the limit is {limit:,}"
            self._refuse([at], what)
        return found

    def _kwargs(self, named: Mapping[str, list[Any]]) -> Iterator[Any]:
        """The named arguments of each row. Fields that are UNSET are left out: then the task has
        its default. A dict for each row takes longer."""
        fields = [f"field_{number}" for number in range(len(named))]
        kwargs_of = msgspec.defstruct(
            "Kwargs", fields, rename=dict(zip(fields, named, strict=True)), gc=False
        )
        if not self._is_json:
            return map(kwargs_of, *named.values())
        unset = (msgspec.UNSET,) * len(named)
        rows = zip(*named.values(), strict=True)
        return ({} if values == unset else kwargs_of(*values) for values in rows)

    def _refuse(self, rows: Iterable[int], reason: str) -> None:
        for at in rows:
            if self.reasons[at] is None:
                self.reasons[at] = reason

    def _refuse_null(self, values: Sequence[Any], reason: str, but: Sequence[int] = ()) -> None:
        if None in values:
            self._refuse([at for at, value in enumerate(values) if value is None], reason)


# Values


def _ceiled(column: pa.Array, last: int) -> pa.Array:
    """Instants as milliseconds, rounded up. Those after `last` are after it also here, but may be
    nearer: so that no number is too large."""
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[column.type.unit]
    times, per_ms = max(1, 1000 // per_second), max(1, per_second // 1000)
    numbers = column.cast(pa.int64()).fill_null(0).to_numpy()
    near = np.clip(numbers, 0, last * per_ms // times + per_ms)
    found = -(-near * times // per_ms)
    return pa.array(found, mask=column.is_null().to_numpy(zero_copy_only=False))


def _epoch_us(instant: datetime) -> int:
    """Also of an instant before 1970."""
    since = instant - datetime(1970, 1, 1, tzinfo=instant.tzinfo)
    offset = instant.utcoffset() or timedelta()
    return (since - offset) // timedelta(microseconds=1)


def _of_json(raw: str | None) -> Any:
    """The text of a JSON string, the JSON of anything else, None of null."""
    if raw is None or raw == "null":
        return None
    return msgspec.json.decode(raw) if raw.startswith('"') else raw


def _as_text(value: Any, kind: type) -> Any:
    """The text that JSON has for a value of this type. Raises ValidationError for a text that is
    no such value."""
    if isinstance(value, str):
        msgspec.convert(value, kind)
        return value
    return str(value) if isinstance(value, int) else msgspec.to_builtins(value)


def _json_check(annotation: str) -> Callable[[str], Any]:
    """Tells whether a worker could make a value of the annotation from a JSON text."""
    if annotation in _WRITTEN:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_WRITTEN[annotation])

        def readable(raw: str) -> bool:
            try:
                decoder.decode(raw)
            except (msgspec.MsgspecError, UnicodeError):
                return False
            return True

        return readable
    return re.compile(_JSON_PATTERNS.get(annotation, "")).match


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text) or not -(2**63) <= int(text) < 2**63:
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    if "_" in text:
        raise ValueError
    return float(text)


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word not in (*_TRUE, *_FALSE):
        raise ValueError
    return word in _TRUE


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "int": _whole_number,
    "float": _number,
    "bool": _truth,
}
