"""The counts of a forecast: minutes and hours of all topics, hours and days of each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from ..core.times import epoch_us, from_ms, stored_ms
from ..models import Forecast, ForecastCount
from ..store.due_minutes import MINUTE_MS

#: Stands for all topics together.
ALL = ""
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
MS = timedelta(milliseconds=1)
#: How far minutes (of all topics) and hours of each topic reach from now.
NEAR = timedelta(hours=24)
#: How far hours of all topics and days of each topic reach. Days of all topics have no end.
FAR = timedelta(days=14)


class DueCounts:
    """Adds up what falls due. Its size grows with topics and minutes, never with messages."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._near_ms, self._far_ms = (now_ms + span // MS for span in (NEAR, FAR))
        self.waiting, self.overdue = Counter[str](), Counter[str]()
        """By topic."""
        self._minutes = Counter[int]()
        """Of all topics. What is overdue is in the minute of now, as in the hours and days."""
        self._hours, self._days = Counter[tuple[str, int]](), Counter[tuple[str, int]]()

    def add(self, topic: str, minute_ms: int, messages: int, overdue: int = 0) -> None:
        """Count messages of a minute; what is overdue is among them, and in the minute of now."""
        self.waiting[topic] += messages
        self.overdue[topic] += overdue
        self._minutes[minute_ms] += messages
        if minute_ms < self._near_ms:
            self._hours[topic, minute_ms - minute_ms % HOUR_MS] += messages
        if minute_ms < self._far_ms:
            self._days[topic, minute_ms - minute_ms % DAY_MS] += messages

    def rows(self, forecast: Forecast) -> Iterator[ForecastCount]:
        """All minutes, hours and days in which something falls due."""
        minutes, hours, days = (Counter[tuple[str, int]]() for _ in range(3))
        for at, messages in self._minutes.items():
            if at < self._near_ms:
                minutes[ALL, at] = messages
            if at < self._far_ms:
                hours[ALL, at - at % HOUR_MS] += messages
            days[ALL, at - at % DAY_MS] += messages
        for unit, counts in (
            ("minute", minutes), ("hour", hours + self._hours), ("day", days + self._days),
        ):  # fmt: skip
            for (topic, at), messages in sorted(counts.items()):
                yield ForecastCount(
                    forecast=forecast, unit=unit, at=stored_ms(at), topic=topic, messages=messages
                )

    def due_in_hour(self, topic: str, hour: datetime) -> int:
        """Messages of a topic that fall due then, without those that are overdue. Only of the next
        24 hours."""
        begin = epoch_us(hour) // 1000
        is_now = begin <= self._now_ms < begin + HOUR_MS
        return self._hours[topic, begin] - (self.overdue[topic] if is_now else 0)

    def peak(self, until: datetime | None = None) -> tuple[datetime | None, int]:
        """The minute to come in which most messages of all topics fall due, the first of several,
        and how many; None when none do."""
        limit = math.inf if until is None else epoch_us(until) / 1000
        late = {self._now_ms - self._now_ms % MINUTE_MS: self.overdue.total()}
        counts = ((n - late.get(at, 0), -at) for at, n in self._minutes.items() if at < limit)
        most, at = max(counts, default=(0, 0))
        return (from_ms(-at), most) if most else (None, 0)
