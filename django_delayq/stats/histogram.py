"""Histograms that can be added: of lateness and run times, per hour, by Spark, by a worker and by a
page alike.

A value in microseconds falls into one of 16 equal parts of its power of two, so a bucket is at most
1/16 as wide as its lower end and its middle is off by 3.1 % at most (HdrHistogram's scheme, with 4
significant bits). numpy gives the same bucket for every value in pipeline/stats/aggregates.py.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

#: Microseconds (36,000 years). A larger value counts as this one, so that every double has a bucket
#: in Spark, too.
LARGEST = 2.0**60

_PARTS = 16
_BITS = 4

Number = TypeVar("Number", int, float)

Histogram = Mapping[int, int]
"""Bucket -> count."""


def microseconds(milliseconds: float) -> int:
    """The value in whole microseconds, halves rounded up. A value beyond LARGEST, on either side,
    counts as LARGEST. Raises ValueError for NaN."""
    return math.floor(min(max(milliseconds * 1000 + 0.5, -LARGEST), LARGEST))


def bucket(milliseconds: float) -> int:
    """The bucket of a value; everything up to 0 is in bucket 0. Raises ValueError for NaN."""
    n = microseconds(milliseconds)
    if n < _PARTS:
        return max(n, 0)
    exponent = n.bit_length() - 1 - _BITS
    return _PARTS * exponent + (n >> exponent)


def middle(index: int) -> float:
    """What stands for the values of a bucket, in milliseconds."""
    if index < _PARTS:
        return index / 1000
    return (_low(index) + _low(index + 1)) / 2000


def merge_histograms(histograms: Iterable[Histogram]) -> dict[int, int]:
    """The sum of several histograms. Their order does not matter."""
    counts = Counter[int]()
    for counted in histograms:
        counts.update(counted)
    return counts


def percentile(counts: Histogram, share: float) -> float | None:
    """The value (ms) below or at which this share (0 to 1) of all lies; None of nothing."""
    index = nearest_rank(counts, share)
    return None if index is None else middle(index)


def nearest_rank(counts: Mapping[Number, int], share: float) -> Number | None:
    """The key below or at which this share (0 to 1) of all counts lies; None without any."""
    rank = max(1, math.ceil(share * sum(counts.values())))
    for key in sorted(counts):
        rank -= counts[key]
        if rank <= 0:
            return key
    return None


class Times(NamedTuple):
    """Lateness or run times, in milliseconds; None when nothing ran."""

    p50: float | None
    p99: float | None
    highest: float | None

    @classmethod
    def of(cls, counts: Histogram, highest: float | None) -> Times:
        """Of a histogram and the highest value in it."""
        # The middle of a bucket may lie above the highest value in it.
        p50, p99 = (
            value if value is None or highest is None else min(value, highest)
            for value in (percentile(counts, 0.5), percentile(counts, 0.99))
        )
        return cls(p50, p99, highest)


def encode(counts: Histogram) -> str:
    """As JSON, buckets in order: equal histograms are equal texts."""
    return json.dumps(
        {str(index): counts[index] for index in sorted(counts)}, separators=(",", ":")
    )


def decode(text: str) -> dict[int, int]:
    """From encode()."""
    return {int(index): int(count) for index, count in json.loads(text or "{}").items()}


def _low(index: int) -> int:
    """In microseconds."""
    if index < 2 * _PARTS:
        return index
    exponent = index // _PARTS - 1
    return (_PARTS + index % _PARTS) << exponent
