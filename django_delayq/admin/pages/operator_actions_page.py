"""The record of operator actions: who did what, why, and to how many messages."""

from __future__ import annotations

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ...models import OperatorAction
from ...operators.topic_permission import permitted_topics
from ..keyset import newest_first
from ..site import register_page, show

#: What operations.py, bulk.py, replay.py and prune.py record.
ACTIONS = (
    "replay", "discard", "purge", "prune", "pause", "resume", "cancel", "cancel running",
    "run now", "reschedule", "edit", "schedule", "quiet", "unquiet",
    "cancel bulk", "move", "shift", "archive again",
    "create token", "revoke token", "move store", "mark", "download",
)  # fmt: skip


@register_page("actions/", "operator_actions")
def operator_actions_view(request: HttpRequest) -> HttpResponse:
    """All of them, the newest first; of one operator or one kind of action when the address says
    so."""
    chosen = {name: request.GET.get(name, "").replace("\0", "") for name in ("operator", "action")}
    narrowed = OperatorAction.objects.select_related("bulk_operation").filter(
        **{name: value for name, value in chosen.items() if value}
    )
    topics = permitted_topics(request.user)
    if topics is not None:
        own = Q(topic="", operator=request.user.get_username())
        narrowed = narrowed.filter(own | Q(topic__in=topics))
    rows, links = newest_first(request, narrowed)
    return show(
        request,
        "operator_actions.html",
        _("Operator actions"),
        rows=rows,
        links=links,
        chosen=chosen,
        actions=ACTIONS if chosen["action"] in ("", *ACTIONS) else (*ACTIONS, chosen["action"]),
        now=timezone.now(),
    )
