"""Dead letters -> messages that replay them. DataFrame in, DataFrame out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812

from ..job_errors import Refused
from ..params import ReplayOptions, TaskSpec
from . import json_columns, messages

#: States of a dead letter in SQL, as words of the report; OPEN is none.
OPEN, REPLAYED, DISCARDED, GONE = "", "already replayed", "discarded", "no longer in the archive"


class Declared(NamedTuple):
    """What the project has."""

    tasks: Sequence[TaskSpec]
    topics: Mapping[str, int]
    """Every topic that is declared -> its number of partitions."""
    body_limit: int


class _LetterArguments(msgspec.Struct):
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


def selected_letters(frame: DataFrame, where: str) -> DataFrame:
    """Dead letters that the condition is true of; with `args` and `kwargs`, as VARIANT, for it and
    the edits.

    Raises Refused for what is no condition over these columns.
    """
    body = F.try_parse_json("body")
    parsed = frame.where(F.col("state") == "dead").withColumns(
        {
            "parsed": body,
            "args": F.try_variant_get(body, "$.args", "array<variant>"),
            "kwargs": F.try_variant_get(body, "$.kwargs", "variant"),
        }
    )
    if not where.strip():
        return parsed
    try:
        found = parsed.where(F.expr(where))
    except PySparkException as error:
        raise Refused(f"The condition {where!r:.200} does not fit: {_said(error)}") from error
    _check_certain(found, f"The condition {where!r:.200}")
    return found


def replays(frame: DataFrame, options: ReplayOptions, declared: Declared) -> DataFrame:
    """Messages, but for partition and split; with `origin` (id in the archive), `reason`: why a row
    is left alone, and `fault`: the same, whatever SQL says of it. Rows without one are the same in
    each run of a job.

    `frame`: of selected_letters(), with `standing` (OPEN, REPLAYED, DISCARDED or GONE).
    """
    edits = _edited(frame, options.edits, declared.tasks)
    keyed = F.col("key") != ""
    owner = F.when(keyed, F.col("topic")).otherwise(
        F.concat(F.lit(f"{options.job}\0"), F.col("topic"))
    )
    name = F.when(keyed, F.col("key")).otherwise(F.col("id").cast("string"))
    same_key = Window.partitionBy("message_id")
    merge = messages.arrow_function(
        _merger([_shape(task) for task in declared.tasks]), T.StringType()
    )
    known = frame.withColumns(
        {
            "newest": F.max("id").over(same_key),
            "identity": messages.ids(owner, name),
            "merged": merge(F.col("body"), F.col("task"), edits),
        }
    )
    made = known.select(
        F.col("id").alias("origin"), "topic", F.col("identity").alias("id"),
        F.lit(None).cast("long").alias("due_ms"),
        F.lit("").alias("expires"), _header(declared.tasks).alias("header"), _body().alias("body"),
        "standing", _fault(declared, keyed).alias("fault"),
    )  # fmt: skip
    too_large = F.when(F.octet_length("body") > declared.body_limit, F.lit("arguments refused"))
    closed = F.when(F.col("standing") != OPEN, F.col("standing"))
    fault = F.coalesce("fault", too_large)
    return made.withColumns({"fault": fault, "reason": F.coalesce(closed, fault)}).drop("standing")


def _fault(declared: Declared, keyed: Column) -> Column:
    redaction = F.try_variant_get("parsed", "$.redaction", "string")
    wrong_id = F.lower(F.hex("identity")) != F.regexp_replace("message_id", "-", "")
    found = [
        (~F.col("task").isin([task.name for task in declared.tasks]), F.lit("unknown task")),
        (~F.col("topic").isin(list(declared.topics)), F.lit("unknown topic")),
        (
            F.col("parsed").isNull() | F.col("kwargs").isNull() | F.col("args").isNull(),
            F.lit("undecodable"),
        ),
        # The archive cannot hold NUL in a key: then the row does not have the key.
        (keyed & wrong_id, F.lit("undecodable")),
        (F.coalesce(redaction, F.lit("")) != "", F.lit("redacted")),
        (keyed & (F.col("id") < F.col("newest")), F.lit("newer one with this key")),
        (F.col("merged").isNull(), F.lit("arguments refused")),
    ]
    return F.coalesce(*[F.when(condition, why) for condition, why in found])


def _header(tasks: Iterable[TaskSpec]) -> Column:
    """Bytes 14 to 22 of the record, as message.HEADER packs them."""
    from ...core.message import VERSION, task_code

    code = F.lit("")
    for known in tasks:
        code = F.when(F.col("task") == known.name, F.lit(task_code(known.name).hex())).otherwise(
            code
        )
    flags = F.lpad(F.hex(F.col("priority") + F.lit(VERSION << 4)), 2, "0")
    return F.unhex(F.concat(flags, F.lpad(F.hex(F.col("ttr_ms")), 8, "0"), code))


def _body() -> Column:
    """The arguments as they are archived, to the byte but for what is edited; and what stood beside
    them."""
    merged = F.col("merged")
    key = F.when(
        F.col("key") != "",
        F.concat(F.lit(',"key":'), json_columns.text(F.col("key"), T.StringType())),
    )
    headers = F.when(F.col("headers") != "", F.concat(F.lit(',"headers":'), F.col("headers")))
    attempts = F.concat(F.lit(',"max_attempts":'), F.col("max_attempts").cast("string"))
    more = [F.coalesce(text, F.lit("")) for text in (key, headers, attempts)]
    origin = F.concat(F.lit(',"replay_of":'), F.col("id").cast("string"), F.lit("}"))
    return F.concat(F.substring(merged, F.lit(1), F.length(merged) - 1), *more, origin)


# Edits


def _edited(frame: DataFrame, edits: Mapping[str, str], tasks: Sequence[TaskSpec]) -> Column:
    """The values of the edits as a JSON object; null where one is none that JSON has. Raises
    Refused."""
    columns, faults = [], []
    for name, text in edits.items():
        parameters = [parameter for task in tasks for parameter in task.parameters]
        if not any(one.kind == "others" or one.name == name for one in parameters):
            raise Refused(f"The edit of {name!r} fits no task: none has such a parameter.")
        try:
            edited = frame.select(F.expr(text).alias(name))
            kind = edited.schema[name].dataType
        except PySparkException as error:
            raise Refused(f"The edit {name}={text!r:.200} does not fit: {_said(error)}") from error
        _check_certain(edited, f"The edit {name}={text!r:.200}")
        json_columns.check_type(kind, f"The edit of {name!r}")
        value = F.expr(text)
        columns.append(value.cast(json_columns.exact(kind)).alias(name))
        faults += [one for one in [json_columns.fault(value, kind)] if one is not None]
    if not columns:
        return F.lit("{}")
    whole = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
    for fault in faults:
        whole = F.when(~fault, whole)
    return whole


class _Shape(NamedTuple):
    """What a task takes, picklable."""

    task: str
    positional: list[str]
    """Parameters that can be given by position, in their order."""
    named: list[str]
    """Those that can be given by name."""
    required: list[str]
    open: bool
    """Has `**kwargs`."""


def _shape(task: TaskSpec) -> _Shape:
    every = task.parameters
    return _Shape(
        task.name,
        [parameter.name for parameter in every if parameter.kind in ("positional", "both")],
        [parameter.name for parameter in every if parameter.kind in ("both", "named")],
        [parameter.name for parameter in every if parameter.required],
        any(parameter.kind == "others" for parameter in every),
    )


def _merger(shapes: Sequence[_Shape]) -> Callable[[pa.Array, pa.Array, pa.Array], pa.Array]:
    """Puts edits into archived arguments; null for what the task does not take, and for what cannot
    be read."""
    by_task = {shape.task: shape for shape in shapes}

    def merge(bodies: pa.Array, tasks: pa.Array, edits: pa.Array) -> pa.Array:
        rows = zip(bodies.to_pylist(), tasks.to_pylist(), edits.to_pylist(), strict=True)
        return pa.array(
            [_merged(by_task.get(task), body, changes) for body, task, changes in rows], pa.string()
        )

    return merge


def _merged(shape: _Shape | None, body: str | None, edits: str | None) -> str | None:
    if shape is None or body is None or edits is None:
        return None
    try:
        found = msgspec.json.decode(body, type=_LetterArguments)
        changes = msgspec.json.decode(edits, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return None
    for name, value in changes.items():
        place = shape.positional.index(name) if name in shape.positional else len(found.args)
        if place < len(found.args):
            found.args[place] = value
        else:
            found.kwargs[name] = value
    return msgspec.json.encode(found).decode() if _fits(shape, found) else None


def _fits(shape: _Shape, found: _LetterArguments) -> bool:
    """Whether the task can be called with these; how many it takes by position is not known of one
    with `*args`."""
    given = set(shape.positional[: len(found.args)])
    if given & found.kwargs.keys() or not given.union(found.kwargs).issuperset(shape.required):
        return False
    return shape.open or found.kwargs.keys() <= set(shape.named)


def _check_certain(frame: Any, what: str) -> None:
    if not frame._jdf.queryExecution().analyzed().deterministic():
        raise Refused(
            f"{what} has another value at every look: what is replayed must be certain. Do without "
            f"rand()."
        )


def _said(error: PySparkException) -> str:
    return str(error).partition("\n")[0].partition(" SQLSTATE")[0]
