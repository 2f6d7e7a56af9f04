"""Patterns of topic names: `*` matches any characters."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from .exceptions import InvalidName

PATTERN = re.compile(r"[A-Za-z0-9_.*-]{1,64}\Z")


def check_patterns(value: Any, where: str, error: type[Exception] = InvalidName) -> tuple[str, ...]:
    """The patterns as a tuple. Raises `error` for anything but a list of names, in which `*` stands
    for any characters."""
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise error(f"{where} must be a list of topic names, not {value!r:.80}.")
    for pattern in value:
        if not isinstance(pattern, str) or not PATTERN.match(pattern):
            raise error(
                f"{where}: {pattern!r:.80} is no topic name. {InvalidName.meaning()} "
                "* matches any characters."
            )
    return tuple(value)


@lru_cache(maxsize=4096)
def is_matched(patterns: tuple[str, ...], topic: str) -> bool:
    """Whether one of the patterns fits the name."""
    return any(fnmatchcase(topic, pattern) for pattern in patterns)
