"""Reads the JSON of callers: none that two programs could read in two ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from .problems import Problem

T = TypeVar("T")


def read_strict(raw: bytes, decode: Callable[[bytes], T]) -> T:
    """What `decode` of msgspec makes of a text. Raises Problem 400 for what is no JSON, and for a
    name that stands twice in an object: some programs take the first value, some the last. Raises
    msgspec.ValidationError."""
    try:
        value = decode(raw)
        _find_twice(raw.decode())
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Problem(400, "malformed", "The body is not JSON.") from None
    return value


def _refuse_twice(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len(dict(pairs)) < len(pairs):
        raise Problem(400, "malformed", "An object of the body has the same name twice.")


#: Numbers are not read here: a long one would be an error of Python.
_find_twice = json.JSONDecoder(
    object_pairs_hook=_refuse_twice, parse_int=bool, parse_float=bool
).decode
