"""The options of our data sources of Spark. Each is a text; a place or a load is JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

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


def number_of(options: Mapping[str, str], name: str) -> int | None:
    """The whole number in this option, 0 or more; None when it is not given. Raises
    ConfigurationError."""
    if (text := options.get(name)) is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ConfigurationError(
            f"The option `{name}` is {text!r}, which is no whole number: give one such as 8."
        )
    return number


def seconds_of(options: Mapping[str, str], name: str) -> float | None:
    """The seconds in this option, 0 or more; None when it is not given. Raises
    ConfigurationError."""
    if (text := options.get(name)) is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigurationError(
            f"The option `{name}` is {text!r}, which is no number of seconds: give one such as 60."
        )
    return seconds
