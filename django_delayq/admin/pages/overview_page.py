"""The first page: what waits, what is due next, how late recent runs were. Also the part of it that
the script fetches again and again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils.cache import get_conditional_response
from django.utils.http import quote_etag
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.chunks import chunked
from ...core.present import amount, next_due, seconds
from ...core.times import from_ms
from ...operators.topic_permission import permitted_topics
from ...stats import overview as stats
from ...stats import overview_sql
from ...stats.overview import Bucket, Overview
from ...store.queries import COUNTERS
from .. import charts
from ..attention_links import shown_attention
from ..site import register_page, show

#: The table of the chart's numbers has one row for so many samples (minutes).
MINUTES_IN_A_ROW = 10


@register_page("", "changelist")
def changelist_view(request: HttpRequest) -> HttpResponse:
    """All topics."""
    return show(request, "overview.html", _("Delay queue"), **context_of(request))


@register_page("live/", "live")
def live_view(request: HttpRequest) -> HttpResponseBase:
    """The changing part of the page, with an ETag: nothing is sent when it has not changed."""
    response = render(request, "django_delayq/_overview.html", context_of(request))
    response["ETag"] = etag = quote_etag(
        hashlib.blake2b(response.content, digest_size=12).hexdigest()
    )
    response["Cache-Control"] = "no-store"
    return get_conditional_response(request, etag=etag, response=response) or response


def overview_for(request: HttpRequest) -> Overview:
    """Of the topics that the user may see."""
    topics = permitted_topics(request.user)
    return stats.overview() if topics is None else stats.overview_of(topics)


def context_of(request: HttpRequest) -> dict[str, Any]:
    """What _overview.html shows."""
    now = overview_for(request)
    totals, samples = totals_of(now), now.samples
    lines = {
        "rate": ([sample.finished_per_second for sample in samples], _("Finished per second")),
        "lag": ([sample.lag for sample in samples], _("Lag")),
        "waiting": ([float(sample.waiting) for sample in samples], _("Waiting messages")),
    }
    kept, forecast = now.forecast, None  # projects without the pipeline have no forecast
    if kept is not None:
        days = [Bucket(label=f"{at:%m-%d}", count=messages, at=at) for at, messages in kept.days]
        picture = charts.bars(
            "delayq-forecast-days", days, what=_("Due by day (UTC)"), unit=_("Day (UTC)")
        )
        forecast = {"kept": kept, "is_old": kept.is_old(now.at), "picture": picture}
    groups = list(chunked(samples, MINUTES_IN_A_ROW))
    return {
        "overview": now,
        "totals": totals,
        "topics": now.topics,
        "paused": [topic for topic in now.topics if topic.paused],
        # Without Redis the banner says what is wrong, and nothing else is known.
        "attention": [] if now.stale else shown_attention(request),
        "held": [
            topic for topic in now.topics if topic.waiting and (topic.paused or topic.unserved)
        ],
        "runs_of_each": overview_sql.RUNS,
        "unused": not now.problem
        and not any(topic.waiting or topic.counters.get("enqueued") for topic in now.topics),
        "counters": [
            (topic, [topic.counters.get(name, 0) for name in COUNTERS]) for topic in now.topics
        ],
        "summary": _summary(now, totals),
        "pictures": {
            "minutes": charts.bars(
                "delayq-minutes",
                _from_now(now.minutes),
                what=_("Due in the next hour"),
                unit=_("Minute"),
            ),
            "hours": charts.bars(
                "delayq-hours", _from_now(now.hours), what=_("Due in the next day"), unit=_("Hour")
            ),
            "lateness": charts.bars(
                "delayq-lateness",
                now.lateness,
                what=_("Newest runs by lateness"),
                unit=_("Late by up to"),
            ),
        },
        "forecast": forecast,
        "sparks": {
            name: charts.sparkline(
                values, title=_("%(what)s over the last three hours") % {"what": what}
            )
            for name, (values, what) in lines.items()
        },
        # For the script: the samples, and the newest point, which it appends at each refresh.
        "chart": {
            "at": [sample.at_ms / 1000 for sample in samples],
            "rate": [round(sample.finished_per_second, 3) for sample in samples],
            "lag": [round(sample.lag, 3) for sample in samples],
            "now": None
            if now.problem
            else [now.at.timestamp(), totals["per_second"], totals["lag"]],
        },
        # The chart as a table, the newest first.
        "past": [
            {
                "at": from_ms(group[0].at_ms),
                "rate": sum(sample.finished_per_second for sample in group) / len(group),
                "lag": max(sample.lag for sample in group),
                "waiting": group[-1].waiting,
            }
            for group in reversed(groups)
        ],
    }


def totals_of(now: Overview) -> dict[str, Any]:
    """The sums over all topics."""
    rates = [topic.per_second for topic in now.topics if topic.per_second is not None]
    due = [(topic.next_due_at, topic.topic) for topic in now.topics if topic.next_due_at]
    next_due_at, next_topic = min(due, default=(None, ""))
    summed = ("backlog", "delayed", "leased", "outbox", "finished", "dead_letters")
    return {
        **{name: sum(getattr(topic, name) for topic in now.topics) for name in summed},
        "lag": max((topic.lag for topic in now.topics), default=0.0),  # the greatest of all topics
        "per_second": sum(rates) if rates else None,  # None as long as no topic has a rate
        "workers": sum(worker.alive for worker in now.workers),
        "quiet_workers": sum(worker.alive and worker.quiet_requested for worker in now.workers),
        "next_due_at": next_due_at,
        "next_topic": next_topic,
    }


def _summary(now: Overview, totals: dict[str, Any]) -> str:
    """For those who listen to the page: it is read out once a minute."""
    if now.problem:
        return _("Redis or the database could not be read. The figures are old.")
    dead = ngettext(
        "%(number)s open dead letter", "%(number)s open dead letters", totals["dead_letters"]
    )
    workers = ngettext("%(number)s worker", "%(number)s workers", totals["workers"])
    return _("Backlog %(ready)s, lag %(lag)s, next due %(next)s, %(dead)s, %(workers)s.") % {
        "ready": amount(totals["backlog"]),
        "lag": seconds(totals["lag"]),
        "next": next_due(totals["next_due_at"], now.at),
        "dead": dead % {"number": amount(totals["dead_letters"])},
        "workers": workers % {"number": amount(totals["workers"])},
    }


def _from_now(buckets: Sequence[Bucket]) -> list[Bucket]:
    """The first one says that it also has what is overdue."""
    return [
        replace(bucket, label=_("now"), in_full=_("%(label)s or overdue") % {"label": bucket.label})
        if not nth
        else bucket
        for nth, bucket in enumerate(buckets)
    ]
