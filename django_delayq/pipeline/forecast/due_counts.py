"""The counts of a forecast: minutes and hours of all topics, hours and days of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from ...core.times import from_ms

#: Stands for all topics together.
ALL = ""
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
#: How far minutes (of all topics) and hours of each topic reach from now.
NEAR = timedelta(hours=24)
#: How far hours of all topics and days of each topic reach. Days of all topics have no end.
FAR = timedelta(days=14)


class DueCount(NamedTuple):
    """Messages that fall due in a minute, an hour or a day."""

    unit: str
    at: datetime
    topic: str
    """ALL or a topic."""
    messages: int


class DueCounts:
    """Adds up what falls due. Its size grows with topics and minutes, never with messages."""

    def __init__(self, now_ms: int) -> None:
        self._near_ms = now_ms + int(NEAR.total_seconds() * 1000)
        self._far_ms = now_ms + int(FAR.total_seconds() * 1000)
        self.waiting, self.overdue = Counter[str](), Counter[str]()
        """By topic."""
        self._coming = Counter[int]()
        """Minute -> messages of all topics that are not overdue."""
        self._minutes, self._all_hours, self._all_days = (Counter[int]() for _ in range(3))
        self._hours, self._days = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        self._due_hours = Counter[tuple[str, int]]()

    def add(self, topic: str, minute_ms: int, messages: int, overdue: int = 0) -> None:
        """Count messages of a minute; what is overdue is among them."""
        hour, day = minute_ms - minute_ms % HOUR_MS, minute_ms - minute_ms % DAY_MS
        self.waiting[topic] += messages
        self.overdue[topic] += overdue
        self._coming[minute_ms] += messages - overdue
        if minute_ms < self._near_ms:
            self._minutes[minute_ms] += messages
            self._hours[topic, hour] += messages
            self._due_hours[topic, hour] += messages - overdue
        if minute_ms < self._far_ms:
            self._all_hours[hour] += messages
            self._days[topic, day] += messages
        self._all_days[day] += messages

    def spans(self) -> Iterator[DueCount]:
        """All of them; without those in which nothing falls due."""
        for unit, counts in (
            ("minute", self._minutes), ("hour", self._all_hours), ("day", self._all_days),
        ):  # fmt: skip
            for at, messages in sorted(counts.items()):
                yield DueCount(unit, from_ms(at), ALL, messages)
        for unit, of_topics in (("hour", self._hours), ("day", self._days)):
            for (topic, at), messages in sorted(of_topics.items()):
                yield DueCount(unit, from_ms(at), topic, messages)

    def due_in_hour(self, topic: str, hour: datetime) -> int:
        """Messages of a topic that fall due then, without those that are overdue. Only of the next
        24 hours."""
        return self._due_hours[topic, int(hour.timestamp() * 1000)]

    def peak(self, until: datetime | None = None) -> tuple[datetime | None, int]:
        """The minute to come in which most messages of all topics fall due, the first of several,
        and how many; None when none do."""
        limit = None if until is None else until.timestamp() * 1000
        at, most = min(
            (
                (at, count)
                for at, count in self._coming.items()
                if count and (limit is None or at < limit)
            ),
            key=lambda pair: (-pair[1], pair[0]),
            default=(None, 0),
        )
        return (None if at is None else from_ms(at)), most
