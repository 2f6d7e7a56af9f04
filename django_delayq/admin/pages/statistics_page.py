"""The past by hour or by day: how many messages finished and died, and how late they were."""

from __future__ import annotations

from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...operators.topic_permission import permitted_topics
from ...stats.history import PERIODS, History, history
from ...stats.hourly import HOUR
from ...stats.overview import Bucket
from .. import charts
from ..site import register_page, show

WORDS = {
    "24h": gettext_lazy("24 hours"),
    "7d": gettext_lazy("7 days"),
    "30d": gettext_lazy("30 days"),
    "90d": gettext_lazy("90 days"),
}


@register_page("statistics/", "statistics")
def statistics_view(request: HttpRequest) -> HttpResponse:
    """One period, of one topic or of all."""
    period = request.GET.get("period", "24h")
    topic = request.GET.get("topic", "")
    period = period if period in PERIODS else "24h"
    found = history(period, topic, permitted_topics(request.user))
    hourly = found.step == HOUR
    unit = _("Hour (UTC)") if hourly else _("Day (UTC)")
    caption = _("%(what)s by hour (UTC)") if hourly else _("%(what)s by day (UTC)")
    finished = _buckets(found, [step.figures.messages for step in found.steps])
    dead = _buckets(found, [step.figures.states["dead"] for step in found.steps])
    late = _buckets(found, [step.figures.late_p99_ms or 0 for step in found.steps])
    return show(
        request,
        "statistics.html",
        _("Statistics"),
        history=found,
        pictures=[
            charts.bars("finished", finished, what=caption % {"what": _("Finished")}, unit=unit),
            charts.bars("dead", dead, what=caption % {"what": _("Dead")}, unit=unit),
            charts.bars(
                "late",
                late,
                what=caption % {"what": _("Lateness, p99 in ms,")},
                unit=unit,
                summed=False,
            ),
        ],
        periods=[(name, WORDS[name]) for name in PERIODS],
        period=period,
        topic=topic,
        topics=sorted({*found.topics, topic} - {""}),
        is_hourly=hourly,
    )


def _buckets(found: History, values: Sequence[float]) -> list[Bucket]:
    """Hours and days are those of UTC, and are labelled so."""
    label = "%H:%M" if found.step == HOUR else "%m-%d"
    return [
        Bucket(label=f"{step.at:{label}}", count=round(value), at=step.at)
        for step, value in zip(found.steps, values, strict=True)
    ]
