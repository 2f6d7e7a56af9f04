"""The workers: their heartbeats, and the buttons that make them quiet."""

from __future__ import annotations

from dataclasses import replace

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ...core.conf import get_settings
from ...core.present import visible, word
from ...operators import operations
from ...operators.topic_permission import permitted_topics
from ...stats import overview
from ..site import back, register_action, register_page, show
from .overview_page import overview_for

#: Topics that the banner names.
MOST_UNSERVED = 50


@register_page("workers/", "workers")
def workers_view(request: HttpRequest) -> HttpResponse:
    """All heartbeats, and the topics that nobody serves."""
    found, topics = overview.worker_statuses(), permitted_topics(request.user)
    if topics is not None:
        found = [
            replace(worker, topics=[topic for topic in worker.topics if topic in topics])
            for worker in found
        ]
        found = [worker for worker in found if worker.topics]
    served = {topic for worker in found if worker.serves for topic in worker.topics}
    # Not the overview's own answer: it may be older than the click that led here.
    unserved = [
        row.topic
        for row in overview_for(request).topics
        if row.waiting
        and row.topic not in served
        and not (row.paused or get_settings().is_for_api(row.topic))
    ]
    return show(
        request,
        "workers.html",
        _("Workers"),
        refreshed=True,
        workers=[(worker, sum(worker.settled.values()), _services(worker)) for worker in found],
        living=sum(worker.alive for worker in found),
        unserved=unserved[:MOST_UNSERVED],
        more_unserved=max(0, len(unserved) - MOST_UNSERVED),
        now=timezone.now(),
    )


@register_action("workers/quiet/", "worker_quiet", "pause_topic")
def worker_quiet_view(request: HttpRequest) -> HttpResponse:
    """A worker claims nothing more."""
    worker = request.POST.get("worker", "")
    operations.quiet(request.user, worker, reason=request.POST.get("reason", "").strip())
    messages.success(
        request,
        _("Worker %(worker)s claims no more messages. Its running messages go on.")
        % {"worker": visible(worker)},
    )
    return back(request, "workers")


@register_action("workers/unquiet/", "worker_unquiet", "pause_topic")
def worker_unquiet_view(request: HttpRequest) -> HttpResponse:
    """It claims again."""
    worker = request.POST.get("worker", "")
    operations.unquiet(request.user, worker, reason=request.POST.get("reason", "").strip())
    messages.success(request, _("Worker %(worker)s claims again.") % {"worker": visible(worker)})
    return back(request, "workers")


def _services(worker: overview.WorkerStatus) -> list[tuple[str, str]]:
    """The name of each service and its figures in words; a figure that is false is left out."""
    return [
        (
            name,
            ", ".join(
                word(figure) if value is True else f"{word(figure)} {value}"
                for figure, value in figures.items()
                if value is not False
            ),
        )
        for name, figures in worker.services.items()
    ]
