"""Reads the newest forecast that the pipeline has written, for the overview."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Sum

from ..archive.archive_rows import instant_of
from ..models import Forecast, ForecastCount, ForecastUnit
from .hourly import DAY, utc

#: Days that are shown, that of the forecast included.
DAYS = 14
#: After this a forecast says little of what waits now.
OLD_AFTER = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class KeptForecast:
    """What waited at one instant, and when it falls due."""

    taken_at: datetime
    waiting: int
    overdue: int
    peak_at: datetime | None
    """The minute to come in which most fall due."""
    peak: int
    drain_rate: float | None
    """Messages a second; None: not known."""
    days: Sequence[tuple[datetime, int]]
    """Beginning (UTC) and messages of each of the next DAYS; what was overdue is in the first."""

    @property
    def work(self) -> float | None:
        """Seconds that the messages of the peak take."""
        return self.peak / self.drain_rate if self.drain_rate else None

    @property
    def later(self) -> int:
        """Messages that fall due after those days."""
        return self.waiting - sum(messages for _, messages in self.days)

    def is_old(self, now: datetime) -> bool:
        """Whether there should have been another one."""
        return now - self.taken_at > OLD_AFTER


def newest_forecast() -> KeptForecast | None:
    """None when there is none. Two queries. Raises django.db.Error."""
    kept = Forecast.objects.order_by("-taken_at").first()
    if kept is None:
        return None
    taken_at = utc(kept.taken_at)
    begin = taken_at.replace(hour=0, minute=0, second=0, microsecond=0)
    until = instant_of((begin + DAYS * DAY).timestamp() * 1000)
    rows = ForecastCount.objects.filter(
        forecast=kept, unit=ForecastUnit.DAY, at__lt=until
    ).values_list("at")
    counts = {utc(at): messages for at, messages in rows.annotate(Sum("messages"))}
    return KeptForecast(
        taken_at=taken_at,
        waiting=kept.waiting,
        overdue=kept.overdue,
        peak_at=utc(kept.peak_at) if kept.peak_at else None,
        peak=kept.peak,
        drain_rate=kept.drain_rate,
        days=[(begin + nth * DAY, counts.get(begin + nth * DAY, 0)) for nth in range(DAYS)],
    )
