"""backoff.py: how long to wait before the next attempt."""

from __future__ import annotations

import doctest
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.tasks import backoff
from django_delayq.tasks.backoff import constant, exponential, ladder
from django_delayq.tasks.options import Options


def test_the_examples_in_the_docstrings_are_right() -> None:
    results = doctest.testmod(backoff)
    assert results.attempted >= 3
    assert results.failed == 0


@given(failures=st.integers(1, 10**9))
def test_a_wait_stays_within_its_jitter_and_maximum(failures: int) -> None:
    exact, jittered = exponential(5, 2, 3600, 0)(failures), exponential(5, 2, 3600, 0.25)(failures)
    assert 5 <= exact <= 3600
    assert 0.75 * exact <= jittered <= 1.25 * exact


def test_waits_grow_until_the_maximum() -> None:
    waits = [exponential(base=5, maximum=60, jitter=0)(n) for n in range(1, 8)]
    assert waits == [5, 10, 20, 40, 60, 60, 60]


def test_jitter_spreads_the_waits() -> None:
    assert len({exponential()(3) for _ in range(20)}) > 1


@pytest.mark.parametrize(
    ("value", "waits"),
    [
        (30, [30, 30, 30]),
        (1.5, [1.5, 1.5, 1.5]),
        (timedelta(minutes=1), [60, 60, 60]),
        ([1, 5], [1, 5, 5]),
        ((7,), [7, 7, 7]),
    ],
)
def test_a_number_a_timedelta_and_a_sequence_are_understood(value: Any, waits: list[float]) -> None:
    backoff = Options.declared({"backoff": value}).backoff
    assert [backoff(n) for n in (1, 2, 3)] == waits


def test_a_function_stays_itself() -> None:
    own = constant(3)
    assert Options.declared({"backoff": own}).backoff is own


def test_a_ladder_does_not_change_with_its_list() -> None:
    steps = [1.0, 2.0]
    wait = ladder(steps)
    steps.clear()
    assert wait(9) == 2.0
