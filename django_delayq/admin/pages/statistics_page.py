"""The past by hour or by day: how many messages finished and died, and how late they were."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...operators.topic_permission import permitted_topics
from ...stats.history import MOST_TASKS, PERIODS, History, history
from ...stats.hourly import HOUR
from ...stats.marks import MARK, mark_rows, marks_of
from ...tasks import registry
from ..charts import Axis, Chart, Series
from ..site import register_page, show
from ..timed_charts import mark_words, range_words

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
    topics = permitted_topics(request.user)
    found = history(period, topic, topics, beside=[mark_rows(PERIODS[period][0] + HOUR)])
    return show(
        request,
        "statistics.html",
        _("Statistics"),
        refreshed=True,
        charts=True,
        history=found,
        pictures=_pictures(found, {topic} if topic else topics),
        periods=[(name, WORDS[name]) for name in PERIODS],
        period=period,
        topic=topic,
        topics=sorted(
            (registry.known_topics() if topics is None else topics)
            | {topic, *(one.topic for one in found.tasks)} - {""}
        ),
        most_tasks=MOST_TASKS,
        is_hourly=found.step == HOUR,
    )


def _pictures(found: History, seen: Collection[str] | None) -> list[Chart]:
    """Finished, dead and late, by hour or by day. `seen`: the topics whose marks are drawn."""
    is_hourly = found.step == HOUR
    finished = [step.figures.messages for step in found.steps]
    dead = [step.figures.states["dead"] for step in found.steps]
    late = [(step.figures.late_p99_ms or 0) / 1000 for step in found.steps]
    messages = Axis(title=_("Messages"))
    by = _("%(what)s by hour") if is_hourly else _("%(what)s by day (UTC)")
    marks = [
        (mark.at, mark_words(mark))
        for mark in marks_of(found.beside[0])
        if mark.at >= found.steps[0].at
        and (seen is None or mark.action == MARK or mark.topic in seen)
    ]
    common: dict[str, Any] = {
        "x_title": _("Hour") if is_hourly else _("Day (UTC)"),
        "at": [step.at.timestamp() for step in found.steps],
        "step": found.step.total_seconds(),
        "zone": "" if is_hourly else "UTC",
        "ranges": [
            range_words(step.at, found.step) if is_hourly else f"{step.at:%Y-%m-%d}"
            for step in found.steps
        ],
        "marks": marks,
    }
    return [
        Chart(
            name=name,
            title=by % {"what": what},
            axes=[axis],
            series=[Series(label=what, values=values, colour=colour)],
            **common,
        )
        for name, what, axis, values, colour in (
            ("finished", _("Finished"), messages, finished, "run"),
            ("dead", _("Dead"), messages, dead, "err"),
            ("late", _("p99 lateness"), Axis(title=_("Lateness"), unit="duration"), late, "warn"),
        )
    ]
