"""Histograms: every value has its bucket, percentiles are near the truth, and sums do not depend on
their order."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.stats.histogram import (
    Histogram,
    bucket,
    decode,
    encode,
    merge_histograms,
    middle,
    percentile,
)
from tests.stats.histograms import RELATIVE_ERROR, bounds, histogram

#: From one microsecond to 35 years.
LARGEST = 2**50

microseconds = st.integers(0, LARGEST) | st.builds(
    lambda power, off: max(0, 2**power + off), st.integers(0, 50), st.integers(-2, 2)
)
milliseconds = st.floats(-1e9, 1e12)
histograms = st.dictionaries(st.integers(0, 700), st.integers(1, 10**9), max_size=20)


def off_by(said: float, exact: float) -> float:
    """How wrong something is, as a part of the truth."""
    return abs(said - exact) / exact


# Buckets


@given(microseconds)
def test_every_microsecond_lies_within_the_bounds_of_its_bucket(n: int) -> None:
    low, next_low = bounds(bucket(n / 1000))
    assert round(low * 1000) <= n < round(next_low * 1000)


@given(microseconds.filter(lambda n: n >= 16))
def test_the_middle_is_near_each_value_of_its_bucket(n: int) -> None:
    index = bucket(n / 1000)
    low, next_low = bounds(index)
    assert low <= middle(index) <= next_low
    assert off_by(middle(index) * 1000, n) <= RELATIVE_ERROR + 1e-12 < 0.045


@pytest.mark.parametrize("n", range(16))
def test_the_smallest_values_are_exact(n: int) -> None:
    assert middle(bucket(n / 1000)) == n / 1000


def test_buckets_lie_side_by_side_without_a_gap() -> None:
    assert bounds(0)[0] == 0
    for index in range(700):
        assert bounds(index)[1] == bounds(index + 1)[0] > bounds(index)[0]
        assert bucket(bounds(index)[0]) == index


@given(st.tuples(milliseconds, milliseconds).map(sorted))
def test_larger_values_are_never_in_lower_buckets(values: list[float]) -> None:
    assert bucket(values[0]) <= bucket(values[1])


@pytest.mark.parametrize("value", [0, -0.0, 0.0004, -0.001, -3.5, -1e12])
def test_what_is_not_above_zero_is_in_the_lowest_bucket(value: float) -> None:
    assert bucket(value) == 0
    assert percentile(histogram([value]), 0.5) == 0


@pytest.mark.parametrize(
    ("value", "index"),
    [
        (0.001, 1),
        (0.016, 16),
        (0.031, 31),
        (0.032, 32),
        (0.033, 32),
        (0.034, 33),
        (1.0, 111),
        (1000.0, 270),
        (3.6e6, 458),
    ],
)
def test_buckets_stay_what_they_are(value: float, index: int) -> None:
    """They are stored, and computed by others: another numbering would make wrong what is there."""
    assert bucket(value) == index


def test_halves_of_microseconds_are_rounded_up() -> None:
    assert [bucket(value) for value in (0.0005, 0.0015, 0.0025)] == [1, 2, 3]


# Sums


@given(histograms, histograms, histograms)
def test_the_order_of_a_sum_does_not_matter(a: Histogram, b: Histogram, c: Histogram) -> None:
    assert merge_histograms([a, b]) == merge_histograms([b, a])
    assert (
        merge_histograms([merge_histograms([a, b]), c])
        == merge_histograms([a, merge_histograms([b, c])])
        == merge_histograms([c, b, a])
    )
    assert sum(merge_histograms([a, b, c]).values()) == sum(sum(one.values()) for one in (a, b, c))


@given(histograms)
def test_a_sum_is_a_new_histogram(a: dict[int, int]) -> None:
    before = dict(a)
    assert merge_histograms([a]) == merge_histograms([a, {}]) == a
    assert merge_histograms([a, a]) == {index: 2 * count for index, count in a.items()}
    assert a == before
    assert merge_histograms([]) == {}


@given(st.lists(milliseconds, max_size=50), st.lists(milliseconds, max_size=50))
def test_the_sum_of_two_is_the_histogram_of_all_their_values(
    some: list[float], others: list[float]
) -> None:
    assert merge_histograms([histogram(some), histogram(others)]) == histogram(some + others)


# Percentiles


def exact(values: list[float], share: float) -> float:
    """By nearest rank."""
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


@given(st.lists(st.floats(0.02, 1e9), min_size=1, max_size=200), st.floats(0, 1))
def test_a_percentile_is_near_the_exact_one(values: list[float], share: float) -> None:
    said = percentile(histogram(values), share)
    assert said is not None
    # Half a microsecond is lost by rounding, before the bucket.
    assert said == pytest.approx(exact(values, share), rel=RELATIVE_ERROR, abs=0.00052)


@given(st.lists(milliseconds, min_size=1, max_size=50), st.floats(0, 1), st.floats(0, 1))
def test_percentiles_grow_with_their_share(values: list[float], one: float, other: float) -> None:
    low, high = (percentile(histogram(values), share) for share in sorted((one, other)))
    assert low is not None and high is not None and low <= high


def test_the_median_of_a_few() -> None:
    assert percentile({5: 1, 9: 1}, 0.5) == middle(5)
    assert percentile({5: 1, 7: 1, 9: 1}, 0.5) == middle(7)
    assert percentile({9: 1, 5: 99}, 0.99) == middle(5)
    assert percentile({9: 2, 5: 98}, 0.99) == middle(9)
    assert (percentile({5: 1, 9: 1}, 0), percentile({5: 1, 9: 1}, 1)) == (middle(5), middle(9))


def test_hundreds_have_their_99th_without_an_error_of_rounding() -> None:
    for hundreds in range(1, 2000):
        assert percentile({5: 99 * hundreds, 9: hundreds}, 0.99) == middle(5)


@pytest.mark.parametrize("nothing", [{}, {5: 0}])
def test_nothing_has_no_percentile(nothing: Histogram) -> None:
    assert percentile(nothing, 0.5) is None


# Texts


@given(histograms)
def test_what_was_written_is_read(a: Histogram) -> None:
    assert decode(encode(a)) == a


@given(histograms, st.randoms(use_true_random=False))
def test_equal_histograms_are_equal_texts(a: Histogram, random: Any) -> None:
    shuffled = list(a.items())
    random.shuffle(shuffled)
    assert encode(dict(shuffled)) == encode(a)


def test_the_text_is_json_with_buckets_in_order() -> None:
    assert encode({100: 2, 9: 1}) == '{"9":1,"100":2}'
    assert json.loads(encode({100: 2, 9: 1})) == {"9": 1, "100": 2}


@pytest.mark.parametrize("text", ["", "{}"])
def test_no_text_is_the_empty_histogram(text: str) -> None:
    assert decode(text) == {}
