"""Cursors: the place where a page of a list begins, as text for a URL."""

from __future__ import annotations

from .exceptions import InvalidMessage


def cursor_of(*numbers: int) -> str:
    """The cursor of the place that the numbers name."""
    return ".".join(map(str, numbers))


def numbers_of(cursor: str, *limits: int) -> tuple[int, ...]:
    """The numbers of a cursor: as many as there are limits, each from 0 and below its limit. Raises
    InvalidMessage."""
    parts = cursor.split(".")
    if len(parts) == len(limits) and all(
        part.isascii() and part.isdecimal() and len(part) < 40 and int(part) < limit
        for part, limit in zip(parts, limits, strict=True)
    ):
        return tuple(map(int, parts))
    raise InvalidMessage(f"{cursor!r:.80} is not a place in this list: begin at its start.")
