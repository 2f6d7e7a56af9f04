"""Cuts many items into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def chunked(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    """Lists of `size` items each; the last one may be shorter. Reads `items` only as far as the
    lists that it has returned."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
