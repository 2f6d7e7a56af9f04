"""Histograms of values, by the definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from django_delayq.stats import histogram as module

#: A percentile is off by at most this share of itself (above 16 microseconds).
RELATIVE_ERROR = 1 / 32


def histogram(values: Iterable[float]) -> dict[int, int]:
    """Of values in milliseconds."""
    return dict(Counter(map(module.bucket, values)))


def bounds(index: int) -> tuple[float, float]:
    """The lowest value of a bucket and that of the next one, in milliseconds."""
    return module._low(index) / 1000, module._low(index + 1) / 1000
