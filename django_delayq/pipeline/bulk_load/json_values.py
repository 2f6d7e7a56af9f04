"""Values of Arrow's columns as JSON has them, without loss. Types that JSON cannot carry unchanged
are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...core.exceptions import UnserialisableArguments
from ...core.message import check_json
from ..job_errors import Refused

#: What to do about a type, by the beginning of its name.
_FIXES = {
    "timestamp": "as text in ISO 8601, or as a whole number of milliseconds",
    "date": "as text, such as 2026-01-31",
    "decimal": "as text, or as a double",
    "binary": "as text in base64",
}
#: What Arrow raises for a value that Python cannot have. UnicodeDecodeError is a ValueError.
NOT_IN_PYTHON = (ValueError, ArithmeticError, KeyError, TypeError)
NOT_JSON = "has a value that JSON has not (NaN, infinite, not UTF-8)"


def is_text(kind: pa.DataType) -> bool:
    """Whether its values are texts."""
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def is_bytes(kind: pa.DataType) -> bool:
    """Whether its values are bytes."""
    plain = (pa.binary(), pa.large_binary(), pa.binary_view())
    return kind in plain or bool(pa.types.is_fixed_size_binary(kind))


def is_whole(kind: pa.DataType) -> bool:
    """Whether its values are whole numbers."""
    return bool(pa.types.is_integer(kind))


def _is_exact(kind: pa.DataType) -> bool:
    """Whether JSON has each of its values."""
    return is_whole(kind) or is_text(kind) or kind in (pa.bool_(), pa.null())


def check_type(kind: pa.DataType, what: str) -> None:
    """Raise Refused, with the fix, when values of this type would not come back from JSON as they
    were."""
    for name, part in _leaves(kind):
        if not (_is_exact(part) or pa.types.is_floating(part)):
            fixes = (fix for start, fix in _FIXES.items() if str(part).startswith(start))
            raise Refused(
                f"{what}{name} is of type {part}, which JSON cannot carry unchanged. Give it "
                f"{next(fixes, 'as text')}."
            )


def _leaves(kind: pa.DataType, name: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """All types within but lists, structs and maps with text as keys."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(kind.value_type, f"{name}[]")
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(field.type, f"{name}.{field.name}")
    elif pa.types.is_map(kind) and is_text(kind.key_type):
        yield from _leaves(kind.item_type, f"{name}{{}}")
    elif pa.types.is_dictionary(kind):
        yield from _leaves(kind.value_type, name)
    else:
        yield name, kind


def values_of(column: pa.Array) -> tuple[list[Any], list[int]]:
    """The values as Python has them, and which of them it cannot have: text that is not UTF-8, a
    date beyond its calendar, a map whose keys are structs. These are None."""
    if pa.types.is_timestamp(column.type):
        zone = None if column.type.tz is None else "UTC"
        # Python has no nanoseconds. Other units stay: in microseconds, a time far ahead would
        # become one of long ago.
        unit = "us" if column.type.unit == "ns" else column.type.unit
        column = column.cast(pa.timestamp(unit, zone), safe=False)
    # Arrow reads plain values five times as fast without this.
    given: Any = {"maps_as_pydicts": "strict"} if pa.types.is_nested(column.type) else {}
    try:
        return column.to_pylist(**given), []
    except NOT_IN_PYTHON:
        pass
    values: list[Any] = []
    wrong = []
    for at, one in enumerate(column):
        try:
            values.append(one.as_py(**given))
        except NOT_IN_PYTHON:
            values.append(None)
            wrong.append(at)
    return values, wrong


def true_at(mask: pa.Array) -> list[int]:
    """Where it is true."""
    found: list[int] = np.flatnonzero(mask.fill_null(False)).tolist()
    return found


def not_json(column: pa.Array, values: list[Any]) -> list[int]:
    """Which of these values of the column JSON does not have."""
    kind = column.type
    if _is_exact(kind):
        return []
    if pa.types.is_floating(kind):
        return true_at(pc.invert(pc.is_finite(column)))
    return [at for at, value in enumerate(values) if value is not None and not _is_json(value)]


def _is_json(value: Any) -> bool:
    try:
        check_json(value)
    except UnserialisableArguments:
        return False
    return True


def object_texts(structs: pa.Array) -> pa.Array:
    """Each struct as a JSON object; null where JSON cannot hold one of its values."""
    values, wrong = values_of(structs)
    bad = {*wrong, *not_json(structs, values)}
    texts = [
        None if at in bad or value is None else msgspec.json.encode(value).decode()
        for at, value in enumerate(values)
    ]
    return pa.array(texts, pa.string())
