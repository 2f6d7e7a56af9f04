"""Delays and instants: checks what callers give, and converts between milliseconds, aware datetimes
and the datetimes of the models."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

from django.conf import settings
from django.utils.timezone import (
    get_default_timezone,
    is_naive,
    localtime,
    make_aware,
    make_naive,
)

from .exceptions import InvalidDelay, InvalidMessage, NaiveDatetime

Duration = timedelta | float

#: Ten years. Longer delays are mistakes of unit (milliseconds given as seconds) more often than
#: plans.
MAX_DELAY_MS = 10 * 366 * 24 * 3600 * 1000

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class When(str):
    """When a message is due or expires: the text that the scripts read, and what it means.

    `+ms` is a delay, `ms` an instant, `@stamp_us:ms` the instant of a message that SQL accepted at
    that stamp. Empty: never. The scripts take this text, so that sending it costs nothing.
    """

    __slots__ = ("is_delay", "ms", "stamp_us")

    is_delay: bool
    ms: int
    """Of the delay or the instant; 0 for never."""
    stamp_us: int
    """When SQL accepted the message, in microseconds; 0: Redis has yet to accept it."""

    def __new__(cls, text: str = "") -> When:
        """From the text."""
        self = super().__new__(cls, text)
        stamp, _, ms = text.rpartition(":")
        self.stamp_us = int(stamp[1:] or 0)
        self.is_delay = ms[:1] == "+"
        self.ms = int(ms or 0)
        return self

    @classmethod
    def after(cls, delay_ms: int) -> When:
        """A delay."""
        return cls(f"+{delay_ms}")

    @classmethod
    def at(cls, instant_ms: int) -> When:
        """An instant."""
        return cls(str(instant_ms))

    @classmethod
    def accepted(cls, stamp_us: int, due_ms: int) -> When:
        """The due time of a message that SQL accepted at this stamp."""
        return cls(f"@{stamp_us}:{due_ms}")

    @classmethod
    def given(cls, delay: Duration | None, due_at: datetime | None) -> When:
        """The delay or the instant that a caller gave. Raises InvalidMessage unless it is exactly
        one of the two."""
        if (delay is None) == (due_at is None):
            raise InvalidMessage("Give either delay or due_at.")
        return cls.after(duration_ms(delay)) if due_at is None else cls.at(instant_ms(due_at))

    def from_ms(self, start_ms: int) -> int:
        """The instant, for a delay that counts from `start_ms`."""
        return start_ms + self.ms if self.is_delay else self.ms


def duration_ms(value: Any, name: str = "delay") -> int:
    """The duration in whole milliseconds, rounded up so that nothing is early.

    Accepts a timedelta or a number of seconds from 0 to ten years.
    Raises InvalidDelay for anything else (bool, negative, NaN, infinite, longer).
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidDelay(
            f"{name} must be a timedelta or a number of seconds, not {type(value).__name__}."
        )
    if not 0 <= seconds < math.inf:  # NaN is not either
        raise InvalidDelay(f"{name} must be zero or more seconds and finite, not {value!s:.40}.")
    if seconds * 1000 > MAX_DELAY_MS:
        raise InvalidDelay(f"{name} is {value!r:.40}: more than ten years. Is it in seconds?")
    # Six digits first: 0.3 * 1000 is 300.00000000000006 in binary and must stay 300.
    return math.ceil(round(seconds * 1000, 6))


def instant_ms(value: Any, name: str = "due_at") -> int:
    """The aware datetime as milliseconds since 1970 UTC, rounded up.

    Raises NaiveDatetime without a time zone, InvalidDelay for another type or more than ten years
    ahead.
    """
    if not isinstance(value, datetime):
        raise InvalidDelay(f"{name} must be an aware datetime, not {type(value).__name__}.")
    if value.tzinfo is None or value.utcoffset() is None:
        raise NaiveDatetime(
            f"{name} is {value.isoformat()} without a time zone. Use django.utils.timezone."
        )
    milliseconds = -(-epoch_us(value) // 1000)
    if milliseconds > now_ms() + MAX_DELAY_MS:
        raise InvalidDelay(f"{name} is {value.isoformat()}: more than ten years ahead.")
    return max(milliseconds, 0)


def now_ms() -> int:
    """This machine's clock. Only for bounds and display: Redis decides what is due."""
    return int(datetime.now(tz=timezone.utc).timestamp() * 1000)


def from_ms(milliseconds: float) -> datetime:
    """The aware UTC datetime of an instant in milliseconds."""
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)


def epoch_us(when: datetime) -> int:
    """Whole microseconds since 1970 UTC. Integers only: a float would lose microseconds. Naive
    datetimes are in the project's time zone."""
    return (aware(when) - _EPOCH) // timedelta(microseconds=1)


def aware(when: datetime) -> datetime:
    """The datetime with a time zone. Naive ones, without USE_TZ, are in the project's time zone."""
    return make_aware(when, get_default_timezone()) if is_naive(when) else when


def local(when: datetime) -> datetime:
    """The datetime in the current time zone; naive ones, without USE_TZ, already are."""
    return when if is_naive(when) else localtime(when)


def utc(when: datetime) -> datetime:
    """aware(), in UTC."""
    return aware(when).astimezone(timezone.utc)


def stored(when: datetime) -> datetime:
    """The datetime as this project's models hold it: in UTC, or naive without USE_TZ."""
    return utc(when) if settings.USE_TZ else make_naive(aware(when), get_default_timezone())


def stored_ms(milliseconds: float) -> datetime:
    """stored() of an instant in milliseconds, to the microsecond."""
    return stored(datetime.fromtimestamp(round(milliseconds * 1000) / 1e6, tz=timezone.utc))


def shown_instant(milliseconds: float) -> datetime:
    """from_ms() for people. An instant beyond the calendar (a foreign producer's microseconds)
    becomes its last day."""
    return from_ms(max(0.0, min(milliseconds, 253_402_214_400_000.0)))


def duration_parts(seconds: float, digits: int = 3) -> list[tuple[float, str]]:
    """A duration as one or two numbers with their units: ms, s, min, h or d. A single number has at
    most so many digits, unless the whole number has more."""
    if seconds < 0.9995:
        return [(round(seconds * 1000), "ms")]
    if seconds < 59.5:
        whole = seconds >= 10 ** (digits - 1)
        number = round(seconds) if whole else float(f"{seconds:.{digits}g}")
        return [(int(number) if number == int(number) else number, "s")]
    if seconds < 599.5:
        parts = (*divmod(round(seconds), 60), "min", "s")
    elif seconds < 3570:
        parts = (round(seconds / 60), 0, "min", "s")
    elif seconds < 2 * 86_400 - 30:
        parts = (*divmod(round(seconds / 60), 60), "h", "min")
    elif seconds < 10 * 86_400 - 1800:
        parts = (*divmod(round(seconds / 3600), 24), "d", "h")
    else:
        parts = (round(seconds / 86_400), 0, "d", "h")
    first, second, unit, smaller = parts
    return [(first, unit), *([(second, smaller)] if second else [])]


def in_words(seconds: float, digits: int = 3) -> str:
    """A duration for logs and commands, in English: `12 ms`, `2.4 s`, `31 min`, `1 h 13 min`,
    `2 d 3 h`. On pages: present.seconds()."""
    sign = "-" if seconds < 0 else ""
    return sign + " ".join(
        f"{number:g} {unit}" for number, unit in duration_parts(abs(seconds), digits)
    )
