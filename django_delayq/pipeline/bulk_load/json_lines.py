"""JSON lines for the job schedule: what stands in a line arrives, to the byte. Types that Spark
finds for all lines together would change what stands in some."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812

from ..errors import Refused
from . import json_columns, messages

#: What the JSON of a value looks like, by the annotation of its parameter.
_LOOKS = {"str": '^"', "int": r"^-?\d+$", "float": r"^-?\d", "bool": "^(true|false)$"}
_KEY = r'^(".*|-?\d+|null)$'


def read_lines(spark: SparkSession, path: str, corrupt: str) -> DataFrame:
    """One object per line. A column for each field that any of them has: its JSON, null where it is
    missing. `corrupt`: the column for a line that is no object. Raises Refused for names that Spark
    cannot tell apart."""
    line = F.col("value")
    fields = messages.arrow_function(_fields, T.MapType(T.StringType(), T.StringType()))(
        line.cast("binary")
    )
    parsed = spark.read.text(path).where(F.trim(line) != "").select(line, fields.alias("fields"))
    found = parsed.select(F.explode(F.map_keys("fields"))).distinct().collect()
    names = sorted(row[0] for row in found)
    same = {
        name
        for name, count in Counter([corrupt, *(name.lower() for name in names)]).items()
        if count > 1
    }
    if twice := [name for name in names if name.lower() in same]:
        raise Refused(
            f"The lines have fields that Spark takes for one column: {', '.join(twice)}. Rename "
            f"one of them."
        )
    values = [F.try_element_at("fields", F.lit(name)).alias(name) for name in names]
    return parsed.select(*values, F.when(F.col("fields").isNull(), line).alias(corrupt))


def _fields(lines: pa.Array) -> pa.Array:
    return pa.array([_split(line) for line in lines.to_pylist()], pa.map_(pa.string(), pa.string()))


def _split(line: bytes) -> list[tuple[str, str]] | None:
    try:
        msgspec.json.decode(line)  # all of it, for what is taken raw is hardly looked at
        found = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        return [(name, bytes(value).decode()) for name, value in found.items()]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def plain(value: Column) -> Column:
    """The text of a string; of anything else its JSON; null for null."""
    text = F.get_json_object(F.concat(F.lit('{"v":'), value, F.lit("}")), "$.v")
    return F.when(value.startswith('"'), text).when(value != "null", value)


def no_key(value: Column) -> Column:
    """Whether it is neither text nor a whole number."""
    return ~value.rlike(_KEY)


def reasons(
    column: str, value: Column, annotation: str, *, nullable: bool, needed: bool
) -> list[Column]:
    """Why a value cannot be the argument that it is meant for."""
    found = [F.when(value.isNull(), F.lit(f"{column} is missing"))] if needed else []
    if annotation:
        fits = value.rlike(_LOOKS[annotation]) | (value == "null") & F.lit(nullable)
        said = F.concat(
            F.lit(f"{column} is "),
            F.substring(value, 1, 80),
            F.lit(f", and the task takes {annotation}"),
        )
        found.append(F.when(~fits, said))
    return found


def body(
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
