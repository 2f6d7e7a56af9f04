"""The options of our data sources of Spark. Each is a text; a place or a load is JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ..core.exceptions import ConfigurationError

T = TypeVar("T")


def encoded(value: msgspec.Struct) -> str:
    """The text of an option."""
    return msgspec.json.encode(value).decode()


def read_option(options: Mapping[str, str], name: str, kind: type[T]) -> T:
    """What encoded() made a text of. Raises ConfigurationError."""
    if name not in options:
        raise ConfigurationError(
            f"The option `{name}` is missing: JSON of {kind.__module__}.{kind.__name__}."
        )
    try:
        return msgspec.json.decode(options[name], type=kind)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"The option `{name}` cannot be read: {error}") from None


def number_of(options: Mapping[str, str], name: str, default: float | None = None) -> Any:
    """The number in this option, 0 or more: a whole one, unless the default is a float. Raises
    ConfigurationError."""
    if (text := options.get(name)) is None:
        return default
    kind = float if isinstance(default, float) else int
    try:
        number = kind(text)
    except ValueError:
        number = -1
    if not 0 <= number < math.inf:
        what = "whole number" if kind is int else "number"
        raise ConfigurationError(
            f"The option `{name}` is {text!r}, which is no {what}: give one such as 60."
        )
    return number
