"""What runs: all leased messages with their workers, and the button that cancels some of them."""

from __future__ import annotations

from collections import Counter
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.exceptions import MessageNotFound
from ...core.present import amount
from ...operators import operations
from ...operators.topic_permission import permitted_topics
from ...stats.held_messages import MOST, read_running
from ..forms.message_forms import CancelForm
from ..site import back, may, register_action, register_page, show, url

#: Messages on a page.
LIMIT = 50


@register_page("running/", "running")
def running_view(request: HttpRequest) -> HttpResponse:
    """All of it, or what runs of one topic or in one worker; the longest first."""
    asked = {name: request.GET.get(name, "") for name in ("topic", "worker")}
    after = request.GET.get("after", "")
    offset = min(int(after), MOST) if after.isascii() and after.isdecimal() else 0
    allowed = permitted_topics(request.user)
    found = read_running(allowed, **asked, offset=offset, limit=LIMIT)
    may_see = may(request, "view_payload")
    here = url(request, "running")
    query = urlencode({name: value for name, value in asked.items() if value})
    names = {
        worker.name
        for worker in found.workers
        if allowed is None or any(topic in found.topics for topic in worker.topics)
    }
    return show(
        request,
        "running.html",
        _("Running messages"),
        refreshed=True,
        found=found,
        rows=[(row, row.seconds(found.at), row.is_over(found.at)) for row in found.rows],
        may_see=may_see,
        asked=asked,
        workers=sorted({*names, asked["worker"]} - {""}),
        topics=sorted({*found.topics, asked["topic"]} - {""}),
        first=f"{here}?{query}" if offset else "",
        further=(f"{here}?{query}&after={offset + LIMIT}" if found.count > offset + LIMIT else ""),
        most=MOST,
        here=request.get_full_path(),
    )


@register_action("running/cancel/", "running_cancel", "cancel_message")
def running_cancel_view(request: HttpRequest) -> HttpResponse:
    """Cancel the messages that are ticked, each with the same reason."""
    form = CancelForm(request.POST)
    chosen = [one.partition("/") for one in request.POST.getlist("message")[:LIMIT]]
    if not form.is_valid() or not chosen:
        messages.error(request, _("Tick the messages, and give a reason."))
        return back(request, "running")
    done = Counter[str]()
    for topic, _slash, message_id in chosen:
        try:
            operations.cancel_running(
                request.user, topic, message_id, reason=form.cleaned_data["reason"]
            )
        except MessageNotFound:
            done["ended"] += 1
        else:
            done["cancelled"] += 1
    if count := done["cancelled"]:
        words = ngettext(
            "%(count)s message is cancelled.", "%(count)s messages are cancelled.", count
        )
        messages.success(request, words % {"count": amount(count)})
    if count := done["ended"]:
        words = ngettext(
            "%(count)s message had ended before.", "%(count)s messages had ended before.", count
        )
        messages.warning(request, words % {"count": amount(count)})
    return back(request, "running")
