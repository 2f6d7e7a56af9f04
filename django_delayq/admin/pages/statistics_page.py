"""What happened: how much finished, how late it was and what died, by hour or by day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...stats.history import PERIODS, History, Span, history
from ...stats.hourly import HOUR
from ...stats.overview import Bucket
from .. import charts
from ..site import page, show

WORDS = {
    "24h": gettext_lazy("24 hours"),
    "7d": gettext_lazy("7 days"),
    "30d": gettext_lazy("30 days"),
    "90d": gettext_lazy("90 days"),
}


@page("statistics/", "statistics")
def statistics(request: HttpRequest) -> HttpResponse:
    """One period, of one topic or of all."""
    period = request.GET.get("period", "24h")
    topic = request.GET.get("topic", "")
    period = period if period in PERIODS else "24h"
    found = history(period, topic)
    return show(
        request,
        "statistics.html",
        _("Statistics"),
        history=found,
        pictures=_pictures(found),
        periods=[(name, WORDS[name]) for name in PERIODS],
        period=period,
        topic=topic,
        topics=sorted({*found.topics, topic} - {""}),
        is_hourly=found.step == HOUR,
    )


def _pictures(found: History) -> list[SafeString]:
    hourly = found.step == HOUR
    unit = _("Hour (UTC)") if hourly else _("Day (UTC)")
    caption = _("%(what)s by hour (UTC)") if hourly else _("%(what)s by day (UTC)")
    finished = _buckets(found, [span.figures.messages for span in found.spans])
    dead = _buckets(found, [span.figures.states["dead"] for span in found.spans])
    late = _buckets(found, [span.figures.late_p99_ms or 0 for span in found.spans])
    return [
        charts.bars("finished", finished, what=caption % {"what": _("Finished")}, unit=unit),
        charts.bars("dead", dead, what=caption % {"what": _("Dead")}, unit=unit),
        charts.bars(
            "late",
            late,
            what=caption % {"what": _("Lateness, p99 in ms,")},
            unit=unit,
            summed=False,
        ),
    ]


def _buckets(found: History, values: Sequence[float]) -> list[Bucket]:
    return [
        Bucket(label=_label(span, found.step), count=round(value), at=span.at)
        for span, value in zip(found.spans, values, strict=True)
    ]


def _label(span: Span, step: timedelta) -> str:
    """Hours and days are those of UTC, and are labelled so."""
    return f"{span.at:%H:%M}" if step == HOUR else f"{span.at:%m-%d}"
