"""Makes of dead letters the messages that replay them. DataFrame in, DataFrame out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type

from ...core.exceptions import UndecodableMessage
from ...core.message import LIMITED, VERSION, decode_body, task_code
from ..job_errors import Refused
from ..params import ReplayOptions, TaskSpec
from . import json_values
from .message_frames import arrow_function, id_column

#: States of a dead letter in SQL, as words of the report; an open one has no word.
OPEN, REPLAYED, DISCARDED, GONE = "", "already replayed", "discarded", "no longer in the archive"
#: Columns that say what was done about a letter: the job itself does it.
_CHANGING = ("standing", "replayed_at", "discarded_at")
#: Where SQL says `now`, in one of its ways; and texts, names and comments, which are passed by.
_PRESENT = re.compile(
    r"""(?P<present>
        \b(?:date|timestamp(?:_[ln]tz)?)\s*(['"])\s*(?:now|today|tomorrow|yesterday)\s*\2
        |\b(?:now|curdate|current_date|current_time(?:stamp)?|localtimestamp)\b
        |\bunix_timestamp\s*\(\s*\))
    |'(?:\\.|[^'\\])*' |"(?:\\.|[^"\\])*" |`[^`]*` |--[^\n]* |/\*.*?\*/""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


class _RawBody(msgspec.Struct, omit_defaults=True):
    """The body of a message; the values stay byte by byte as they are archived."""

    args: list[msgspec.Raw]
    kwargs: dict[str, msgspec.Raw]
    key: str | None = None
    headers: msgspec.Raw = msgspec.Raw()
    max_attempts: int | None = None
    replay_of: int | None = None


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
    _checked(DataFrame.where, parsed, where, f"The condition {where!r:.200}")
    return parsed.where(F.expr(where))


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
    more = map(F.col, ("id", "key", "headers", "max_attempts"))
    bodies = arrow_function(_body_maker(options.tasks), T.StringType())
    known = frame.withColumns(
        {
            "newest": F.max("id").over(Window.partitionBy("message_id")),
            "identity": id_column(owner, name),
            "made": bodies(F.col("task"), F.col("body"), edits, *more),
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
        (F.col("made").isNull() | (F.octet_length("made") > body_limit), "arguments refused"),
    ]
    fault = F.coalesce(*[F.when(condition, F.lit(why)) for condition, why in faults])
    closed = F.when(F.col("standing") != OPEN, F.col("standing"))
    return known.select(
        F.col("id").alias("origin"), "topic", F.col("identity").alias("id"),
        F.lit(None).cast("long").alias("due_ms"),
        F.lit("").alias("expires"), _header(options.tasks).alias("header"),
        F.col("made").alias("body"), fault.alias("fault"),
        F.coalesce(closed, fault).alias("reason"),
    )  # fmt: skip


def _header(tasks: Sequence[TaskSpec]) -> Column:
    """Bytes 14 to 22 of the record, as message.HEADER packs them, and the limit of the task."""
    name = F.col("task")
    ends = [F.when(name == task.name, (task_code(task.name) + task.limit).hex()) for task in tasks]
    is_limited = name.isin([task.name for task in tasks if task.limit])
    flags = F.col("priority") + F.lit(VERSION << 4) + F.when(is_limited, LIMITED).otherwise(0)
    start = F.concat(F.lpad(F.hex(flags), 2, "0"), F.lpad(F.hex(F.col("ttr_ms")), 8, "0"))
    return F.unhex(F.concat(start, F.coalesce(*ends, F.lit(""))))


# Edits


def _edited(frame: DataFrame, edits: Mapping[str, str], tasks: Sequence[TaskSpec]) -> Column:
    """The values of the edits as a JSON object; null where JSON cannot hold one of them. Raises
    Refused."""
    columns = []
    for name, text in edits.items():
        parameters = [parameter for task in tasks for parameter in task.parameters]
        if not any(
            known.kind == "others" or (known.name == name and known.kind != "rest")
            for known in parameters
        ):
            raise Refused(f"The edit of {name!r} fits no task: none has such a parameter.")
        edited = _checked(DataFrame.select, frame, text, f"The edit {name}={text!r:.200}")
        kind = edited.schema[0].dataType
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


class _Shape:
    """What a task takes."""

    def __init__(self, task: TaskSpec) -> None:
        def named(*kinds: str) -> list[str]:
            return [known.name for known in task.parameters if known.kind in kinds]

        self.positional = named("positional", "both")
        """Parameters that can be given by position, in their order."""
        self.by_name = set(named("both", "named"))
        self.required = {known.name for known in task.parameters if known.required}
        self.takes_more, self.takes_others = bool(named("rest")), bool(named("others"))
        """Whether it has `*args` and `**kwargs`."""

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the task can be called with these."""
        given, named = set(self.positional[: len(args)]), kwargs.keys()
        complete = not given & named and given | named >= self.required
        known = named <= self.by_name or self.takes_others
        return complete and known and (len(args) <= len(self.positional) or self.takes_more)


def _body_maker(tasks: Sequence[TaskSpec]) -> Callable[..., pa.Array]:
    """Makes the bodies of the messages, with the edits; null for arguments that the task does not
    take, and for those that cannot be read."""
    shapes = {task.name: _Shape(task) for task in tasks}

    def bodies(*columns: pa.Array) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        made: list[str | None] = []
        for task, text, edits, origin, key, headers, max_attempts in rows:
            body = _edited_body(shapes.get(task), text, edits)
            if body is not None:
                body.key, body.max_attempts, body.replay_of = key or None, max_attempts, origin
                if headers:
                    body.headers = msgspec.Raw(headers.encode())
            made.append(None if body is None else _readable(msgspec.json.encode(body)))
        return pa.array(made, pa.string())

    return bodies


def _readable(encoded: bytes) -> str | None:
    """The body as text; null for one that no worker could read: its raw values were not looked
    at."""
    try:
        decode_body(0, encoded, b"")
    except UndecodableMessage:
        return None
    return encoded.decode()


def _edited_body(shape: _Shape | None, text: str | None, edits: str | None) -> _RawBody | None:
    if shape is None or text is None or edits is None:
        return None
    try:
        body = msgspec.json.decode(text, type=_RawBody)
        changes = msgspec.json.decode(edits, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return None
    for name, value in changes.items():
        if name in (positional := shape.positional[: len(body.args)]):
            body.args[positional.index(name)] = value
        else:
            body.kwargs[name] = value
    return body if shape.fits(body.args, body.kwargs) else None


def _checked(
    use: Callable[[DataFrame, Column], DataFrame], frame: DataFrame, text: str, what: str
) -> DataFrame:
    """The frame with the expression in use. Raises Refused for one that does not fit, for one that
    has another value in another run, and for one whose value is not that of one letter.

    It does not see what the job itself changes about a letter: in a repetition it would have
    another value.
    """
    # Spark looks for a column of a condition also behind drop(), but not behind an alias.
    visible = frame.drop(*_CHANGING).alias("delayq_visible")
    try:
        used = use(visible, F.expr(text))
        used.schema  # noqa: B018 - Spark Connect has not looked at it before
    except PySparkException as error:
        first_line = str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]
        raise Refused(f"{what} does not fit: {first_line}") from error
    changes = any(found["present"] for found in _PRESENT.finditer(text))
    other = frame.sparkSession.range(1).toDF("delayq_other")
    try:
        frame.join(other, F.expr(text).isNotNull()).schema  # noqa: B018 - the same
    except AnalysisException as error:
        if "NON_DETERMINISTIC" not in (error.getCondition() or ""):
            raise Refused(
                f"{what} is not a value of one letter. Do without functions over several rows, "
                "without explode() and without *."
            ) from error
        changes = True
    if changes:
        raise Refused(
            f"{what} has another value each time it is read, but every run must select the same. "
            "Do without rand() and now()."
        )
    return used
