"""The record of operator actions: who did what, why, and to how many messages."""

from __future__ import annotations

from django.db.models import F, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ...models import OperatorAction
from ...operators.topic_permission import permitted_topics
from ..forms.archive_form import PERIOD_WORDS, PERIODS
from ..keyset import newest_first
from ..site import register_page, show

#: What operations.py, bulk.py, replay.py and prune.py record.
ACTIONS = (
    "replay", "discard", "purge", "prune", "pause", "resume", "cancel", "cancel running",
    "run now", "reschedule", "edit", "schedule", "quiet", "unquiet",
    "cancel bulk", "move", "shift", "archive again",
    "create token", "revoke token", "move store", "partition archive", "mark",
    "download", "erase", "audit repair",
)  # fmt: skip
#: The filters.
CHOSEN = ("operator", "action", "topic", "period", "text")
#: A text is sought in so many of the newest records: no index has it.
SEARCHED = 50_000


@register_page("actions/", "operator_actions")
def operator_actions_view(request: HttpRequest) -> HttpResponse:
    """All of them, the newest first; those that the filters of the address leave."""
    chosen = {name: request.GET.get(name, "").replace("\0", "")[:200] for name in CHOSEN}
    narrowed = _narrowed(chosen)
    topics = permitted_topics(request.user)
    if topics is not None:
        own = Q(topic="", operator=request.user.get_username())
        narrowed = narrowed.filter(own | Q(topic__in=topics))
    rows, links = newest_first(request, narrowed)
    return show(
        request,
        "operator_actions.html",
        _("Operator actions"),
        refreshed=True,
        rows=rows,
        links=links,
        chosen=chosen,
        is_narrowed=any(chosen.values()),
        actions=ACTIONS if chosen["action"] in ("", *ACTIONS) else (*ACTIONS, chosen["action"]),
        periods=PERIOD_WORDS,
        most_searched=SEARCHED,
        now=timezone.now(),
    )


def _narrowed(chosen: dict[str, str]) -> QuerySet[OperatorAction]:
    rows: QuerySet[OperatorAction] = OperatorAction.objects.select_related("bulk_operation")
    plain = {name: chosen[name] for name in ("operator", "action", "topic") if chosen[name]}
    rows = rows.filter(**plain)
    if length := PERIODS.get(chosen["period"]):
        rows = rows.filter(started_at__gte=timezone.now() - length)
    if text := chosen["text"]:
        newest = OperatorAction.objects.order_by("-pk").values(floor=F("pk") - SEARCHED)[:1]
        said = Q(reason__icontains=text) | Q(selection__icontains=text)
        rows = rows.filter(said, pk__gt=Subquery(newest))
    return rows
