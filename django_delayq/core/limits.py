"""Limits: how many messages may start in a time, and how many may run at the same time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, NamedTuple

_RATE = re.compile(r"([1-9][0-9]{0,6})/(s|m|h)")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}
#: Most starts in a second.
MAX_RATE = 100_000
#: Most messages that the limit of a key lets run at the same time.
MAX_CONCURRENCY = 1_000


class LimitRule(NamedTuple):
    """What a topic, or a task for each of its keys, allows. None: no limit."""

    rate: str | None = None
    concurrency: int | None = None
    too_late_ms: int | None = None
    """A message that is claimed later than this after its due time does not run."""

    @property
    def holds_back(self) -> bool:
        """Whether it lets due messages wait."""
        return self.rate is not None or self.concurrency is not None


@dataclass(frozen=True)
class TopicLimits:
    """All that a claim under limits has to know of a topic."""

    rule: LimitRule = field(default_factory=LimitRule)
    """Of the topic itself."""
    release_rate: str | None = None
    """Of the messages that are more than 5 s late."""
    tasks: Mapping[bytes, LimitRule] = field(default_factory=dict)
    """Of single keys, by the code of their task."""

    @property
    def holds_back(self) -> bool:
        """Whether due messages may have to wait."""
        rules = (self.rule, *self.tasks.values())
        return self.release_rate is not None or any(rule.holds_back for rule in rules)

    def arguments(self) -> list[Any]:
        """What claim_limited.lua takes."""
        rate, concurrency, too_late_ms = self.rule
        args: list[Any] = [interval_ms(rate), concurrency]
        args += [interval_ms(self.release_rate), too_late_ms]
        for code, (rate, concurrency, too_late_ms) in self.tasks.items():
            args += [code, interval_ms(rate), concurrency, too_late_ms]
        return ["" if arg is None else arg for arg in args]


def interval_ms(rate: str | None) -> float | None:
    """Milliseconds between two starts at this rate; None without one."""
    if rate is None:
        return None
    count, _, unit = rate.partition("/")
    return _UNIT_MS[unit] / int(count)


def rate_of(rate: str) -> tuple[int, int]:
    """How many, and in how many seconds."""
    count, _, unit = rate.partition("/")
    return int(count), _UNIT_MS[unit] // 1000


def rate_problem(value: Any) -> str:
    """Why this is no rate; empty when it is one."""
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return f'must be a text as "10/s", "100/m" or "1000/h", not {value!r:.80}.'
    if int(match[1]) * 1000 > MAX_RATE * _UNIT_MS[match[2]]:
        return f"may be {MAX_RATE:,}/s at most, not {value}."
    return ""


def names_in(template: str) -> list[str]:
    """The arguments that the template of a limit's name uses. Raises ValueError for what is no
    template."""
    found = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    return [re.split(r"[.\[]", name, maxsplit=1)[0] for name in found]
