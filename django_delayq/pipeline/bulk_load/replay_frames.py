"""Makes of dead letters the messages that replay them. DataFrame in, DataFrame out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type

from ..job_errors import Refused
from ..params import ReplayOptions, TaskSpec
from . import json_values
from .message_frames import arrow_function, id_column

#: States of a dead letter in SQL, as words of the report; an open one has no word.
OPEN, REPLAYED, DISCARDED, GONE = "", "already replayed", "discarded", "no longer in the archive"


class _LetterArguments(msgspec.Struct):
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


def selected_letters(frame: DataFrame, where: str) -> DataFrame:
    """Dead letters that fulfil the condition; with `args` and `kwargs`, as VARIANT, for the
    condition and the edits.

    Raises Refused when it is not a condition over these columns.
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
        found.schema  # noqa: B018 - Spark Connect has not looked at it before
    except PySparkException as error:
        raise Refused(f"The condition {where!r:.200} does not fit: {_first_line(error)}") from error
    _check_certain(parsed, where, f"The condition {where!r:.200}")
    return found


def with_standing(frame: DataFrame) -> DataFrame:
    """With `standing` by replayed_at and discarded_at: OPEN, REPLAYED or DISCARDED."""
    closed = F.when(F.col("replayed_at").isNotNull(), REPLAYED).when(
        F.col("discarded_at").isNotNull(), DISCARDED
    )
    return frame.withColumn("standing", closed.otherwise(OPEN))


def replays(
    frame: DataFrame, options: ReplayOptions, topics: Sequence[str], body_limit: int
) -> DataFrame:
    """Messages, but for partition and split; with `origin` (id in the archive), `reason`: why a row
    is left alone, and `fault`: the same, whatever SQL says of it. Rows without a fault are the same
    in each run of a job.

    `frame`: of selected_letters(), with `standing` (OPEN, REPLAYED, DISCARDED or GONE). `topics`:
    all that are declared. `body_limit`: most bytes of a body.
    """
    edits = _edited(frame, options.edits, options.tasks)
    keyed = F.col("key") != ""
    unkeyed = F.concat(F.lit(f"{options.job}\0"), F.col("topic"))
    owner = F.when(keyed, F.col("topic")).otherwise(unkeyed)
    name = F.when(keyed, F.col("key")).otherwise(F.col("id").cast("string"))
    merge = arrow_function(_merger(options.tasks), T.StringType())
    known = frame.withColumns(
        {
            "newest": F.max("id").over(Window.partitionBy("message_id")),
            "identity": id_column(owner, name),
            "arguments": merge(F.col("body"), F.col("task"), edits),
        }
    )
    redaction = F.try_variant_get("parsed", "$.redaction", "string")
    wrong_id = F.lower(F.hex("identity")) != F.regexp_replace("message_id", "-", "")
    unread = F.col("parsed").isNull() | F.col("kwargs").isNull() | F.col("args").isNull()
    faults = [
        (~F.col("task").isin([task.name for task in options.tasks]), "unknown task"),
        (~F.col("topic").isin(list(topics)), "unknown topic"),
        (unread, "undecodable"),
        # The archive cannot hold NUL in a key: then the row does not have the key.
        (keyed & wrong_id, "undecodable"),
        (F.coalesce(redaction, F.lit("")) != "", "redacted"),
        (keyed & (F.col("id") < F.col("newest")), "newer one with this key"),
        (F.col("arguments").isNull(), "arguments refused"),
    ]
    fault = F.coalesce(*[F.when(condition, F.lit(why)) for condition, why in faults])
    made = known.select(
        F.col("id").alias("origin"), "topic", F.col("identity").alias("id"),
        F.lit(None).cast("long").alias("due_ms"),
        F.lit("").alias("expires"), _header(options.tasks).alias("header"), _body().alias("body"),
        "standing", fault.alias("fault"),
    )  # fmt: skip
    too_large = F.when(F.octet_length("body") > body_limit, F.lit("arguments refused"))
    closed = F.when(F.col("standing") != OPEN, F.col("standing"))
    fault = F.coalesce("fault", too_large)
    return made.withColumns({"fault": fault, "reason": F.coalesce(closed, fault)}).drop("standing")


def _header(tasks: Sequence[TaskSpec]) -> Column:
    """Bytes 14 to 22 of the record, as message.HEADER packs them, and the limit of the task."""
    from ...core.message import LIMITED, VERSION, task_code

    name = F.col("task")
    ends = [F.when(name == task.name, (task_code(task.name) + task.limit).hex()) for task in tasks]
    is_limited = name.isin([task.name for task in tasks if task.limit])
    flags = F.col("priority") + F.lit(VERSION << 4) + F.when(is_limited, LIMITED).otherwise(0)
    start = F.concat(F.lpad(F.hex(flags), 2, "0"), F.lpad(F.hex(F.col("ttr_ms")), 8, "0"))
    return F.unhex(F.concat(start, F.coalesce(*ends, F.lit(""))))


def _body() -> Column:
    """The arguments as they are archived, byte by byte except for the edits, and the other fields
    of the body."""
    arguments = F.col("arguments")
    key = F.when(
        F.col("key") != "",
        F.concat(F.lit(',"key":'), _string_text(F.col("key"))),
    )
    headers = F.when(F.col("headers") != "", F.concat(F.lit(',"headers":'), F.col("headers")))
    attempts = F.concat(F.lit(',"max_attempts":'), F.col("max_attempts").cast("string"))
    more = [F.coalesce(text, F.lit("")) for text in (key, headers, attempts)]
    origin = F.concat(F.lit(',"replay_of":'), F.col("id").cast("string"), F.lit("}"))
    return F.concat(F.substring(arguments, F.lit(1), F.length(arguments) - 1), *more, origin)


# Edits


def _edited(frame: DataFrame, edits: Mapping[str, str], tasks: Sequence[TaskSpec]) -> Column:
    """The values of the edits as a JSON object; null where JSON cannot hold one of them. Raises
    Refused."""
    columns = []
    for name, text in edits.items():
        parameters = [parameter for task in tasks for parameter in task.parameters]
        if not any(known.kind == "others" or known.name == name for known in parameters):
            raise Refused(f"The edit of {name!r} fits no task: none has such a parameter.")
        try:
            edited = frame.select(F.expr(text).alias(name))
            kind = edited.schema[name].dataType
        except PySparkException as error:
            raise Refused(
                f"The edit {name}={text!r:.200} does not fit: {_first_line(error)}"
            ) from error
        _check_certain(frame, text, f"The edit {name}={text!r:.200}")
        if isinstance(kind, T.VariantType):
            raise Refused(
                f"The edit of {name!r} is a variant, which may have any type. Say which: "
                "variant_get(c, '$', 'STRING')."
            )
        json_values.check_type(to_arrow_type(kind, timezone="UTC"), f"The edit of {name!r}")
        columns.append(F.expr(text).alias(name))
    if not columns:
        return F.lit("{}")
    return arrow_function(json_values.object_texts, T.StringType())(F.struct(*columns))


def _string_text(column: Column) -> Column:
    """As a JSON string."""
    return arrow_function(json_values.string_texts, T.StringType())(column)


class _Shape(NamedTuple):
    """What a task takes."""

    positional: list[str]
    """Parameters that can be given by position, in their order."""
    named: set[str]
    """Those that can be given by name."""
    required: set[str]
    open: bool
    """Has `**kwargs`."""


def _merger(tasks: Sequence[TaskSpec]) -> Callable[[pa.Array, pa.Array, pa.Array], pa.Array]:
    """Puts edits into archived arguments; null for arguments that the task does not take, and for
    those that cannot be read."""
    shapes = {
        task.name: _Shape(
            [known.name for known in task.parameters if known.kind in ("positional", "both")],
            {known.name for known in task.parameters if known.kind in ("both", "named")},
            {known.name for known in task.parameters if known.required},
            any(known.kind == "others" for known in task.parameters),
        )
        for task in tasks
    }

    def merge(bodies: pa.Array, names: pa.Array, edits: pa.Array) -> pa.Array:
        rows = zip(bodies.to_pylist(), names.to_pylist(), edits.to_pylist(), strict=True)
        return pa.array(
            [_edited_arguments(shapes.get(name), body, changes) for body, name, changes in rows],
            pa.string(),
        )

    return merge


def _edited_arguments(shape: _Shape | None, body: str | None, edits: str | None) -> str | None:
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
    # Can the task be called with these? How many it takes by position is not known with `*args`.
    given, named = set(shape.positional[: len(found.args)]), found.kwargs.keys()
    fits = not given & named and given | named >= shape.required
    fits = fits and (shape.open or named <= shape.named)
    return msgspec.json.encode(found).decode() if fits else None


def _check_certain(frame: DataFrame, text: str, what: str) -> None:
    """Raise Refused for an expression that is not deterministic: Spark takes none as the condition
    of a join."""
    other = frame.sparkSession.range(1).toDF("delayq_other")
    try:
        frame.join(other, F.expr(text).isNotNull()).schema  # noqa: B018
    except AnalysisException as error:
        if "NON_DETERMINISTIC" not in (error.getCondition() or ""):
            raise
        raise Refused(
            f"{what} has another value each time it is read, but every run must select the same. "
            "Do without rand()."
        ) from error


def _first_line(error: PySparkException) -> str:
    return str(error).partition("\n")[0].partition(" SQLSTATE")[0]
