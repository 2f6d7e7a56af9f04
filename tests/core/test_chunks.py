"""Many items, cut into batches."""

from __future__ import annotations

from itertools import count

import pytest

from django_delayq.core.chunks import chunked, chunked_by_weight


def test_chunks_are_full_but_the_last() -> None:
    assert list(chunked("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(chunked("", 2)) == []


def test_no_more_is_read_than_the_chunk_needs() -> None:
    numbers = count()
    assert next(chunked(numbers, 3)) == [0, 1, 2]
    assert next(numbers) == 3


@pytest.mark.parametrize(
    ("weights", "chunks"),
    [
        ([], []),
        ([9], [[9]]),
        ([2, 3, 1, 4], [[2, 3], [1, 4]]),
        ([1, 9, 1, 1], [[1], [9], [1, 1]]),
    ],
)
def test_weights_of_a_chunk_add_up_to_the_most(weights: list[int], chunks: list[list[int]]) -> None:
    assert list(chunked_by_weight(weights, int, 5)) == chunks
