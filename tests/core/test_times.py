"""times.py: delays and instants at the door."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.core.exceptions import InvalidDelay, InvalidMessage, NaiveDatetime
from django_delayq.core.times import (
    MAX_DELAY_MS,
    duration_ms,
    from_ms,
    in_words,
    instant_ms,
    now_ms,
)

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (0, 0), (0.0, 0), (-0.0, 0), (1, 1000), (1.5, 1500), (0.3, 300), (0.1 + 0.2, 300), (1e-9, 1), (1e-10, 0),
        (0.0001, 1), (0.0011, 2), (timedelta(minutes=30), 1_800_000), (timedelta(microseconds=1), 1), (timedelta(0), 0),
        (timedelta(milliseconds=1, microseconds=1), 2), (MAX_DELAY_MS / 1000, MAX_DELAY_MS),
    ],
)  # fmt: skip
def test_a_duration_is_whole_milliseconds_rounded_up(value: Any, milliseconds: int) -> None:
    assert duration_ms(value) == milliseconds


@given(st.integers(0, MAX_DELAY_MS))
def test_a_number_of_milliseconds_survives_seconds_and_timedelta(milliseconds: int) -> None:
    assert duration_ms(milliseconds / 1000) == milliseconds
    assert duration_ms(timedelta(milliseconds=milliseconds)) == milliseconds


@given(st.floats(0, 1e8))
def test_a_duration_is_never_shorter_than_said(seconds: float) -> None:
    assert duration_ms(seconds) / 1000 >= seconds - 1e-8
    assert duration_ms(seconds) <= math.ceil(seconds * 1000) + 1


@pytest.mark.parametrize("value", ["5", None, True, Decimal(5), [5], datetime.now(), 5j])
def test_another_type_is_refused(value: Any) -> None:
    text = f"backoff must be a timedelta or a number of seconds, not {type(value).__name__}"
    with pytest.raises(InvalidDelay, match=text):
        duration_ms(value, "backoff")


@pytest.mark.parametrize(
    "value", [-1, -0.001, timedelta(seconds=-1), float("nan"), float("inf"), -float("inf")]
)
def test_a_negative_or_endless_duration_is_refused(value: Any) -> None:
    with pytest.raises(InvalidDelay, match="zero or more seconds and finite"):
        duration_ms(value)


@pytest.mark.parametrize("value", [MAX_DELAY_MS, timedelta(days=3661), 1e300])
def test_milliseconds_given_as_seconds_are_noticed(value: Any) -> None:
    with pytest.raises(InvalidDelay):
        duration_ms(value)


def test_the_refusal_of_a_long_delay_asks_for_the_unit() -> None:
    with pytest.raises(
        InvalidDelay, match=r"delay is 1763632200123: more than ten years. Is it in seconds\?"
    ):
        duration_ms(1_763_632_200_123)


@given(st.datetimes(datetime(1970, 1, 2), datetime(2030, 1, 1)))
def test_an_instant_is_rounded_up_in_every_zone(naive: datetime) -> None:
    for zone in (timezone.utc, timezone(timedelta(hours=5, minutes=45)), ZoneInfo("Europe/Berlin")):
        instant = naive.replace(tzinfo=zone)
        microseconds = (instant - EPOCH) // timedelta(microseconds=1)
        assert instant_ms(instant) == max(-(-microseconds // 1000), 0)


def test_an_instant_of_a_whole_millisecond_is_that_millisecond() -> None:
    assert (
        instant_ms(datetime(2025, 11, 20, 9, 50, 0, 123_000, tzinfo=timezone.utc))
        == 1_763_632_200_123
    )
    assert (
        instant_ms(datetime(2025, 11, 20, 9, 50, 0, 122_001, tzinfo=timezone.utc))
        == 1_763_632_200_123
    )


def test_an_instant_before_the_epoch_is_due_at_once() -> None:
    assert instant_ms(datetime(1900, 1, 1, tzinfo=timezone.utc)) == 0


def test_a_naive_datetime_is_refused() -> None:
    with pytest.raises(
        NaiveDatetime,
        match=r"due_at is 2025-11-20T09:50:00 without a time zone. Use django.utils.timezone",
    ):
        instant_ms(datetime(2025, 11, 20, 9, 50))


@pytest.mark.parametrize("value", ["2025-11-20", 1_763_632_200, None, datetime.now().date()])
def test_what_is_not_a_datetime_is_refused(value: Any) -> None:
    with pytest.raises(InvalidDelay, match="must be an aware datetime"):
        instant_ms(value)


def test_an_instant_too_far_ahead_is_refused() -> None:
    assert instant_ms(from_ms(now_ms() + MAX_DELAY_MS - 10_000))
    with pytest.raises(InvalidDelay, match="more than ten years ahead"):
        instant_ms(from_ms(now_ms() + MAX_DELAY_MS + 10_000))


def test_both_refusals_are_invalid_messages() -> None:
    assert issubclass(InvalidDelay, InvalidMessage) and issubclass(NaiveDatetime, InvalidMessage)


@given(st.integers(0, 4_000_000_000_000))
def test_milliseconds_and_instants_are_the_same(milliseconds: int) -> None:
    assert from_ms(milliseconds).tzinfo is timezone.utc
    assert round(from_ms(milliseconds).timestamp() * 1000) == milliseconds


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.012, "12 ms"),
        (2.4, "2.4 s"),
        (0, "0 ms"),
        (0.9997, "1 s"),
        (59.4, "59.4 s"),
        (59.7, "1 min"),
        (119, "1 min 59 s"),
        (598, "9 min 58 s"),
        (1860, "31 min"),
        (3599, "1 h"),
        (4380, "1 h 13 min"),
        (12_600, "3 h 30 min"),
        (2 * 86_400 - 1, "2 d"),
        (3 * 86_400 + 7200, "3 d 2 h"),
        (777_600, "9 d"),
        (10 * 86_400 - 1, "10 d"),
        (400 * 86_400, "400 d"),
        (-3, "-3 s"),
    ],
)
def test_a_duration_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
