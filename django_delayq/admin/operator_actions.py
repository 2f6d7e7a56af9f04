"""Who did what, why, and to how many messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ..models import BulkOperation, OperatorAction
from .keyset import newest_first
from .pages import page, show, url

#: What operations.py, bulk.py, replay.py and prune.py record.
ACTIONS = (
    "replay", "discard", "purge", "prune", "pause", "resume", "cancel", "run now", "reschedule", "edit", "schedule",
    "quiet", "unquiet", "cancel bulk",
)  # fmt: skip

#: What the words of operations.py and bulk.py begin with, and what is named there.
_ROW = re.compile(r"dead letter ([0-9]{1,18}):")
_MESSAGE = re.compile(r"(?:dead letter [0-9]+: )?message ([0-9a-f]{32}) of ")
_TOPIC = re.compile(r"(?:topic|(?:dead letter [0-9]+: )?message [0-9a-f]{32} of) ([^\s,/]+)")
_BULK = re.compile(r"bulk operation ([0-9]{1,18}):")


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
        rows=[(row, bulk.get(row.pk), list(_named(request, row.selection))) for row in rows],
        links=links,
        chosen=chosen,
        actions=ACTIONS if chosen["action"] in ("", *ACTIONS) else (*ACTIONS, chosen["action"]),
        now=timezone.now(),
    )


def _bulk_operations(rows: Iterable[Any]) -> dict[int, BulkOperation]:
    """The bulk operations that these are the records of, by the id of the action."""
    found = BulkOperation.objects.filter(action__in=[row.pk for row in rows]).only("pk", "action_id", "status")
    return {one.action_id: one for one in found if one.action_id is not None}


def _named(request: HttpRequest, words: str) -> Iterator[tuple[str, str]]:
    """What the words of a record name: what each is, and where it is shown."""
    if found := _ROW.match(words):
        yield _("row %(pk)s") % {"pk": found[1]}, url(request, "archived", pk=int(found[1]))
    if found := _MESSAGE.match(words):
        yield _("message %(id)s") % {"id": found[1][:8]}, f"{url(request, 'find')}?q={found[1]}"
    if found := _TOPIC.match(words):
        yield _("topic %(topic)s") % {"topic": found[1]}, url(request, "topic", topic=found[1])
    if found := _BULK.match(words):
        yield _("bulk operation %(pk)s") % {"pk": found[1]}, url(request, "bulk", pk=int(found[1]))
