"""Who did what, why, and to how many messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ..models import BulkOperation, OperatorAction
from .keyset import newest_first
from .pages import page, show

#: What operations.py, bulk.py, replay.py and prune.py record.
ACTIONS = (
    "replay", "discard", "purge", "prune", "pause", "resume", "cancel", "run now", "reschedule", "edit", "schedule",
    "quiet", "unquiet",
)  # fmt: skip


@page("actions/", "operator_actions")
def operator_actions(request: HttpRequest) -> HttpResponse:
    """All of them, the newest first; of one operator or one kind of action when the address says so."""
    chosen = {name: request.GET.get(name, "").replace("\0", "") for name in ("operator", "action")}
    narrowed = OperatorAction.objects.filter(**{name: value for name, value in chosen.items() if value})
    rows, links = newest_first(request, narrowed)
    bulk = _bulk_operations(rows)
    return show(
        request,
        "operator_actions.html",
        _("Operator actions"),
        rows=[(row, bulk.get(row.pk)) for row in rows],
        links=links,
        chosen=chosen,
        actions=ACTIONS if chosen["action"] in ("", *ACTIONS) else (*ACTIONS, chosen["action"]),
        now=timezone.now(),
    )


def _bulk_operations(rows: Iterable[Any]) -> dict[int, BulkOperation]:
    """The bulk operations that these are the records of, by the id of the action."""
    found = BulkOperation.objects.filter(action__in=[row.pk for row in rows]).only("pk", "action_id", "status")
    return {one.action_id: one for one in found if one.action_id is not None}
