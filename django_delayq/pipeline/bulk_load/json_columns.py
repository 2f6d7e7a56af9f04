"""Writes columns as JSON text without loss, and refuses types that JSON cannot carry unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812

from ..job_errors import Refused

WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_FRACTION = (T.FloatType, T.DoubleType)
_PLAIN = (*WHOLE, *_FRACTION, T.StringType, T.BooleanType, T.NullType)
#: What to do about a type, by its name in Spark.
_FIXES = {
    "timestamp": "date_format(c, \"yyyy-MM-dd'T'HH:mm:ss.SSSXXX\") or unix_millis(c)",
    "timestamp_ntz": "date_format(c, \"yyyy-MM-dd'T'HH:mm:ss.SSS\")",
    "date": "cast(c AS STRING)",
    "decimal": "cast(c AS STRING) or cast(c AS DOUBLE)",
    "binary": "base64(c)",
    "variant": "variant_get(c, '$', 'STRING') or another type",
}


def check_type(kind: T.DataType, what: str) -> None:
    """Raise Refused, with the fix, when values of this type would not come back from JSON as they
    were."""
    for name, part in _parts(kind):
        if not isinstance(part, _PLAIN):
            fix = _FIXES.get(part.typeName(), "cast(c AS STRING)")
            raise Refused(
                f"{what}{name} is of type {part.simpleString()}, which JSON cannot carry "
                f"unchanged. Cast it first: {fix}."
            )


def _parts(kind: T.DataType, name: str = "") -> Iterator[tuple[str, T.DataType]]:
    """The leaves of a type: all but arrays, structs and maps with text as keys."""
    if isinstance(kind, T.ArrayType):
        yield from _parts(kind.elementType, f"{name}[]")
    elif isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _parts(field.dataType, f"{name}.{field.name}")
    elif isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        yield from _parts(kind.valueType, f"{name}{{}}")
    else:
        yield name, kind


def json_of(value: Column, kind: T.DataType) -> Column:
    """The JSON of a value of a type that check_type() lets pass; `null` for null."""
    if isinstance(kind, T.NullType):
        return F.lit("null")
    if isinstance(kind, (*WHOLE, T.BooleanType)):
        return F.coalesce(value.cast("string"), F.lit("null"))
    # {"v":...}: Spark writes JSON of structs only.
    whole = F.to_json(F.struct(value.cast(exact(kind)).alias("v")), {"ignoreNullFields": "false"})
    return F.substring(whole, F.lit(6), F.length(whole) - 6)


def text_of(value: Column, kind: T.DataType) -> Column:
    """The text that JSON has for a timestamp, a date, a decimal, a whole number or bytes."""
    if isinstance(kind, T.TimestampType):
        return F.date_format(value, "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")
    if isinstance(kind, T.BinaryType):
        return F.regexp_replace(F.base64(value), "\\s", "")
    return value.cast("string")


def exact(kind: T.DataType) -> T.DataType:
    """The type that a value is cast to before it becomes JSON: double for float, because the 0.1 of
    a float is another number than that of JSON."""
    if isinstance(kind, T.FloatType):
        return T.DoubleType()
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(exact(kind.elementType), kind.containsNull)
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, exact(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        fields = [(field.name, exact(field.dataType), field.nullable) for field in kind.fields]
        return T.StructType([T.StructField(*field) for field in fields])
    return kind


def fault(value: Column, kind: T.DataType) -> Column | None:
    """Whether JSON cannot hold a value or a value within it; None when JSON can hold all values of
    the type."""
    if isinstance(kind, _FRACTION):
        number = value.cast("double")
        return F.coalesce(F.isnan(number) | (F.abs(number) == F.lit(float("inf"))), F.lit(False))
    if isinstance(kind, T.StringType):
        return ~F.coalesce(F.is_valid_utf8(value), F.lit(True))
    if isinstance(kind, T.ArrayType):
        return _any(value, kind.elementType)
    if isinstance(kind, T.MapType):
        keys, values = (
            _any(F.map_keys(value), kind.keyType),
            _any(F.map_values(value), kind.valueType),
        )
        return keys if values is None else values if keys is None else keys | values
    if isinstance(kind, T.StructType):
        found = (fault(value.getField(field.name), field.dataType) for field in kind.fields)
        faults = [column for column in found if column is not None]
        return reduce(or_, faults) if faults else None
    return None


def _any(values: Column, kind: T.DataType) -> Column | None:
    if fault(values.getItem(0), kind) is None:
        return None

    def bad(value: Column) -> Column:
        found = fault(value, kind)
        return F.lit(False) if found is None else found

    return F.coalesce(F.exists(values, bad), F.lit(False))
