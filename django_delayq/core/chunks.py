"""Cuts many items into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def chunked_by_weight(
    items: Iterable[T], weight: Callable[[T], int], most: int
) -> Iterator[Sequence[T]]:
    """Lists whose weights add up to `most` at the most. A heavier item is in a list of its own."""
    chunk: list[T] = []
    total = 0
    for item in items:
        total += weight(item)
        if chunk and total > most:
            yield chunk
            chunk, total = [], weight(item)
        chunk.append(item)
    if chunk:
        yield chunk


def chunked(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    """Lists of `size` items each; the last one may be shorter. Reads `items` only as far as the
    lists that it has returned."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
