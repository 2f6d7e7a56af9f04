"""Keeps the figures of recent hours and days up to date, where no Spark does it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta, timezone
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Q

from ..archive.selection import newest_id
from ..core.database import reached
from ..core.service import Service
from ..core.times import stored, utc
from ..models import ArchivedMessage, DayTotal, HourTotal
from ..store.store import RedisStore
from . import hourly
from .busiest import keep_busiest
from .hourly import DAY, HOUR

logger = logging.getLogger("delayq.worker")

#: Seconds between two runs, and between two computations of the present day.
INTERVAL, DAY_INTERVAL = 60.0, 600.0
#: It rests at least so many times as long as it computed: it works at most two per cent of the
#: time.
SHARE = 50.0
#: While tasks run, it also rests after each page, so many times as long as the page took.
REST = 4.0
#: An hour, or a day, is computed once more so long after its end: archivers may lag.
SETTLE = timedelta(minutes=5)
#: A transaction that was open may add rows with smaller ids than those that were read. So long
#: after a run the service checks for them.
COMMITTED = timedelta(minutes=3)
#: A new process searches so many of the newest rows for late ones.
LATE = 100_000
#: Hours and days that are missing or late are computed as far back as this.
RECENT = timedelta(hours=48)


class _Range:
    """Rows of the archive that were read together: those with ids after `after`, up to `upto`."""

    def __init__(self, at: datetime, after: int, upto: int) -> None:
        self.at, self.after, self.upto = at, after, upto
        self._rows = ArchivedMessage.objects.filter(pk__gt=after, pk__lte=upto)
        self._count = self._rows.count()

    def has_grown(self) -> bool:
        """Whether a transaction that was open then has added rows."""
        return bool(self._rows.count() > self._count)


class ServiceStops(Exception):
    """The process stops: the computation is given up."""


class StatsService(Service):
    """Runs in each process that archives. One of them computes at a time."""

    name = "statistics"
    interval = INTERVAL

    def __init__(self, store: RedisStore, *, tasks_run: Callable[[], bool] = bool) -> None:
        super().__init__()
        self._store = store
        self._tasks_run = tasks_run
        self._page_began_at = self._worked = 0.0
        self._seen: int | None = None
        """Rows of the archive up to this id are not late; None before the first run."""
        self._ranges: list[_Range] = []
        """Those of the runs within COMMITTED."""
        self._day_at = 0.0
        """When the present day may be computed again."""
        self.computed = 0

    @property
    def figures(self) -> dict[str, Any]:
        """Hours and days that were computed here."""
        return {"computed": self.computed}

    def run_once(self) -> float:
        """Compute new hours and days. Raises StoreUnavailable and DatabaseUnavailable: the service
        tries again."""
        if not self._store.workers.acquire_lock(self.name, int(INTERVAL * 900)):
            return self.interval
        self._worked = 0.0
        try:
            with reached():
                self._compute_due(datetime.now(tz=timezone.utc))
        except ServiceStops:
            return 0.0
        rest = max(self.interval, SHARE * self._worked)
        self._store.workers.extend_lock(self.name, int(rest * 900))  # the others rest, too
        return rest

    def _compute_due(self, now: datetime) -> None:
        newest = newest_id()
        new = _Range(now, max(0, newest - LATE) if self._seen is None else self._seen, newest)
        due = [ids for ids in self._ranges if ids.at <= now - COMMITTED]
        ranges = [new, *(ids for ids in due if ids.has_grown())]
        # Recent hours that had settled when rows of them came: the archiver had been away.
        rows = ArchivedMessage.objects.filter(
            reduce(or_, (Q(pk__gt=ids.after, pk__lte=ids.upto) for ids in ranges)),
            finished_at__lt=stored(hourly.hour_of(now - SETTLE)),
        )
        if self._seen is None:
            rows = rows.filter(finished_at__gte=stored(now - RECENT))
        finished = rows.values_list("finished_at", flat=True)
        late = {hourly.hour_of(when) for when in finished.iterator()}
        self._compute({*self._hours(now), *late}, hourly.compute_hour)
        days = self._days(now)
        self._compute({*days, *map(hourly.day_of, late)}, hourly.compute_day)
        if days:
            begun = time.monotonic()
            keep_busiest(now)
            self._worked += time.monotonic() - begun
        # Only now: after a failure the same rows have to be found again.
        self._seen = newest
        self._ranges = [*(ids for ids in self._ranges if ids not in due), new]
        if hourly.day_of(now) in days:
            self._day_at = time.monotonic() + DAY_INTERVAL

    def _compute(self, spans: Iterable[Any], compute: Callable[..., int]) -> None:
        for span in sorted(spans):
            self._page_began_at = time.monotonic()
            compute(span, self._pause)
            self.computed += 1

    def _hours(self, now: datetime) -> list[datetime]:
        """Recent hours that are missing, go on, or were computed before they had settled."""
        this = hourly.hour_of(now)
        recent = [this - HOUR * n for n in range(int(RECENT / HOUR))]
        rows = HourTotal.objects.filter(hour__gte=stored(recent[-1]))
        known = rows.values_list("hour", "computed_at")
        computed = {hourly.hour_of(hour): at for hour, at in known}
        return [hour for hour in reversed(recent) if self._is_due(hour, HOUR, computed.get(hour))]

    def _days(self, now: datetime) -> list[date]:
        """The same of days; the present one now and then."""
        today = hourly.hour_of(now).replace(hour=0)
        recent = [today - DAY * n for n in range(RECENT // DAY, 0, -1)]
        if time.monotonic() >= self._day_at:
            recent.append(today)
        rows = DayTotal.objects.filter(day__gte=recent[0].date())
        computed = dict(rows.values_list("day", "computed_at"))
        return [day.date() for day in recent if self._is_due(day, DAY, computed.get(day.date()))]

    def _is_due(self, begin: datetime, span: timedelta, computed_at: datetime | None) -> bool:
        if computed_at is not None:
            return utc(computed_at) < begin + span + SETTLE
        rows = ArchivedMessage.objects.filter(
            finished_at__gte=stored(begin), finished_at__lt=stored(begin + span)
        )
        return bool(rows.exists())

    def _pause(self) -> None:
        """After a page of rows. Raises ServiceStops."""
        busy = self._tasks_run()
        worked = time.monotonic() - self._page_began_at
        self._worked += worked
        self._store.workers.extend_lock(self.name, int(INTERVAL * 900))
        if busy and not self.stopping:
            self.sleeper.wait(REST * worked)
        if self.stopping:
            raise ServiceStops
        self._page_began_at = time.monotonic()
