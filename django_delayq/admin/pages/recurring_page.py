"""The recurring tasks: their rules, next ticks and last runs, and the buttons that pause, resume
and run one now."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ...core.present import visible
from ...operators import recurring
from ...operators.topic_permission import permitted_topics
from ..site import back, register_action, register_page, show


@register_page("recurring/", "recurring")
def recurring_view(request: HttpRequest) -> HttpResponse:
    """All of them, by name."""
    topics = permitted_topics(request.user)
    return show(
        request,
        "recurring.html",
        _("Recurring tasks"),
        refreshed=True,
        rows=[
            row for row in recurring.recurring_statuses() if topics is None or row.topic in topics
        ],
        now=timezone.now(),
    )


@register_action("recurring/pause/", "recurring_pause", "pause_topic")
def recurring_pause_view(request: HttpRequest) -> HttpResponse:
    """No tick gets a message."""
    name, reason = _posted(request)
    recurring.pause_recurring(request.user, name, reason=reason)
    words = _("The task %(task)s is paused. A tick that is due in a few seconds may still run.")
    messages.success(request, words % {"task": visible(name)})
    return back(request, "recurring")


@register_action("recurring/resume/", "recurring_resume", "pause_topic")
def recurring_resume_view(request: HttpRequest) -> HttpResponse:
    """The next tick gets a message."""
    name, reason = _posted(request)
    recurring.resume_recurring(request.user, name, reason=reason)
    messages.success(
        request, _("The task %(task)s goes on with its next tick.") % {"task": visible(name)}
    )
    return back(request, "recurring")


@register_action("recurring/run/", "recurring_run", "cancel_message")
def recurring_run_view(request: HttpRequest) -> HttpResponse:
    """A message for now, beside the ticks."""
    name, reason = _posted(request)
    handle = recurring.run_recurring_now(request.user, name, reason=reason)
    messages.success(
        request,
        _("The task %(task)s runs now, as message %(id)s.")
        % {"task": visible(name), "id": handle.id},
    )
    return back(request, "recurring")


def _posted(request: HttpRequest) -> tuple[str, str]:
    """The task of the button, and the reason."""
    return request.POST.get("task", ""), request.POST.get("reason", "").strip()
