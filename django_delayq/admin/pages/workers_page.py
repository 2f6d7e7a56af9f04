"""Who works: heartbeats of all workers, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ...core.present import visible
from ...operators import operations
from ...stats import overview
from ..site import action, back, page, show


@page("workers/", "workers")
def workers(request: HttpRequest) -> HttpResponse:
    """All heartbeats, and the topics that nobody serves."""
    found = overview.workers()
    return show(
        request,
        "workers.html",
        _("Workers"),
        workers=[(one, _services(one)) for one in found],
        living=sum(one.alive for one in found),
        unserved=_unserved(found),
        now=timezone.now(),
    )


@action("workers/quiet/", "worker_quiet", "pause_topic")
def worker_quiet(request: HttpRequest) -> HttpResponse:
    """A worker claims nothing more."""
    worker = request.POST.get("worker", "")
    operations.quiet(request.user, worker, reason=request.POST.get("reason", "").strip())
    messages.success(
        request,
        _("Worker %(worker)s claims nothing more. What it runs goes on.")
        % {"worker": visible(worker)},
    )
    return back(request, "workers")


@action("workers/unquiet/", "worker_unquiet", "pause_topic")
def worker_unquiet(request: HttpRequest) -> HttpResponse:
    """It claims again."""
    worker = request.POST.get("worker", "")
    operations.unquiet(request.user, worker, reason=request.POST.get("reason", "").strip())
    messages.success(request, _("Worker %(worker)s claims again.") % {"worker": visible(worker)})
    return back(request, "workers")


def _services(worker: overview.WorkerStatus) -> list[tuple[str, str]]:
    """Each service's name and, in words, what it says of itself; what is no is left out."""
    return [
        (
            name,
            ", ".join(
                word if value is True else f"{word} {value}"
                for word, value in said.items()
                if value is not False
            ),
        )
        for name, said in worker.services.items()
    ]


def _unserved(workers: Sequence[overview.WorkerStatus]) -> list[str]:
    """Topics in use that no living worker claims from, but for those that somebody has paused.
    Counted anew: the overview's own answer may be older than the click that has just brought us
    here."""
    served = {topic for one in workers if one.serves for topic in one.topics}
    return [
        row.topic
        for row in overview.overview().topics
        if row.topic not in served and not row.paused
    ]
