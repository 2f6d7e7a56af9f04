"""Keeps the figures of recent hours and days up to date, where no Spark does it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta, timezone
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Max, Q

from ..archive.archive_rows import instant_of
from ..core.database import reached
from ..core.service import Service
from ..models import ArchivedMessage, TaskDay, TopicHour
from ..store.store import RedisStore
from . import hourly
from .hourly import DAY, HOUR

logger = logging.getLogger("delayq.worker")

#: Seconds between two looks, and between two computations of the present day.
LOOK, DAY_LOOK = 60.0, 600.0
#: It rests for at least so many times as long as it has computed: two per cent of the time, however
#: busy the hour is.
SHARE = 50.0
#: Beside busy tasks it also rests after each page, for so many times as long as that took.
REST = 4.0
#: An hour, or a day, is computed once more when it has been over for so long: archivers may lag.
SETTLE = timedelta(minutes=5)
#: After so long it looks whether rows have come with smaller ids than those it had seen: of an open
#: transaction.
COMMITTED = timedelta(minutes=3)
#: Rows of the archive in which a new process looks for late ones.
LATE = 100_000
#: How far back what is missing, or late, is made up for.
RECENT = timedelta(hours=48)


class _Look:
    """Rows of the archive that were looked at together: those with ids after `after`, up to
    `upto`."""

    def __init__(self, at: datetime, after: int, upto: int) -> None:
        self.at, self.after, self.upto = at, after, upto
        self._count = self._counted()

    def has_grown(self) -> bool:
        """Whether a transaction that was open then has brought rows."""
        return self._counted() > self._count

    def _counted(self) -> int:
        count: int = ArchivedMessage.objects.filter(pk__gt=self.after, pk__lte=self.upto).count()
        return count


class Stopped(Exception):
    """This process ends."""


class Statistician(Service):
    """One of all processes that archive computes at a time."""

    name = "statistics"
    interval = LOOK

    def __init__(self, store: RedisStore, *, tasks_run: Callable[[], bool] = bool) -> None:
        super().__init__()
        self._store = store
        self._tasks_run = tasks_run
        self._page_began_at = self._worked = 0.0
        self._seen: int | None = None
        """Rows of the archive up to this id are not late; None before the first look."""
        self._looks: list[_Look] = []
        """Those of the last COMMITTED."""
        self._day_at = 0.0
        """When the present day may be computed again."""
        self.computed = 0

    @property
    def figures(self) -> dict[str, Any]:
        """Hours and days that were computed here."""
        return {"computed": self.computed}

    def run_once(self) -> float:
        """Compute what is new. Raises StoreUnavailable and DatabaseUnavailable: it is tried
        again."""
        if not self._store.workers.acquire_lock(self.name, int(LOOK * 900)):
            return self.interval
        self._worked = 0.0
        try:
            with reached():
                self._turn(datetime.now(tz=timezone.utc))
        except Stopped:
            return 0.0
        rest = max(self.interval, SHARE * self._worked)
        self._store.workers.extend_lock(self.name, int(rest * 900))  # the others rest, too
        return rest

    def _turn(self, now: datetime) -> None:
        newest = ArchivedMessage.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        look = _Look(now, max(0, newest - LATE) if self._seen is None else self._seen, newest)
        due = [one for one in self._looks if one.at <= now - COMMITTED]
        late = self._late(now, [look, *(one for one in due if one.has_grown())])
        self._compute({*self._hours(now), *late}, hourly.compute_hour)
        days = self._days(now)
        self._compute({*days, *map(hourly.day_of, late)}, hourly.compute_day)
        # Not before: what a failure has left undone is found again.
        self._seen = newest
        self._looks = [*(one for one in self._looks if one not in due), look]
        if hourly.day_of(now) in days:
            self._day_at = time.monotonic() + DAY_LOOK

    def _compute(self, spans: Iterable[Any], compute: Callable[..., int]) -> None:
        for span in sorted(spans):
            self._page_began_at = time.monotonic()
            # What was pruned meanwhile stays counted; the pipeline, whose lake has it, may have
            # counted it, too.
            compute(span, self._pause, True)
            self.computed += 1

    def _hours(self, now: datetime) -> list[datetime]:
        """Recent hours that are missing, go on, or were computed before they had settled."""
        this = hourly.hour_of(now)
        recent = [this - HOUR * n for n in range(int(RECENT / HOUR))]
        rows = TopicHour.objects.filter(hour__gte=_instant(recent[-1]))
        known = rows.values("hour").annotate(at=Max("computed_at")).values_list("hour", "at")
        computed = {hourly.hour_of(hour): hourly.utc(at) for hour, at in known}
        return [hour for hour in reversed(recent) if self._is_due(hour, HOUR, computed.get(hour))]

    def _days(self, now: datetime) -> list[date]:
        """The same of days; the present one now and then."""
        today = hourly.hour_of(now).replace(hour=0)
        recent = [today - DAY * n for n in range(RECENT // DAY, 0, -1)]
        if time.monotonic() >= self._day_at:
            recent.append(today)
        rows = TaskDay.objects.filter(day__gte=recent[0].date())
        computed = dict(rows.values("day").annotate(at=Max("computed_at")).values_list("day", "at"))
        due = (day for day in recent if self._is_due(day, DAY, _utc(computed.get(day.date()))))
        return [day.date() for day in due]

    def _is_due(self, begin: datetime, span: timedelta, computed: datetime | None) -> bool:
        return (
            self._finished_in(begin, span) if computed is None else computed < begin + span + SETTLE
        )

    def _late(self, now: datetime, looks: Sequence[_Look]) -> set[datetime]:
        """Recent hours that had settled when rows of them came: the archiver had been away."""
        settled = _instant(hourly.hour_of(now - SETTLE))
        within = reduce(or_, (Q(pk__gt=look.after, pk__lte=look.upto) for look in looks))
        rows = ArchivedMessage.objects.filter(within, finished_at__lt=settled)
        if self._seen is None:
            rows = rows.filter(finished_at__gte=_instant(now - RECENT))
        return {
            hourly.hour_of(when) for when in rows.values_list("finished_at", flat=True).iterator()
        }

    def _finished_in(self, begin: datetime, span: timedelta) -> bool:
        rows = ArchivedMessage.objects.filter(
            finished_at__gte=_instant(begin), finished_at__lt=_instant(begin + span)
        )
        return bool(rows.exists())

    def _pause(self) -> None:
        """After a page of rows. Raises Stopped."""
        busy, worked = self._tasks_run(), time.monotonic() - self._page_began_at
        self._worked += worked
        self._store.workers.extend_lock(self.name, int(LOOK * 900))
        if busy and not self.stopping:
            self.sleeper.wait(REST * worked)
        if self.stopping:
            raise Stopped
        self._page_began_at = time.monotonic()


def _instant(when: datetime) -> datetime:
    return instant_of(when.timestamp() * 1000)


def _utc(when: datetime | None) -> datetime | None:
    return when and hourly.utc(when)
