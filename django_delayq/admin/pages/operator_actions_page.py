"""The record of operator actions: who did what, why, and to how many messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ...models import BulkOperation, OperatorAction
from ..keyset import newest_first
from ..site import page, show, url

#: What operations.py, bulk.py, replay.py and prune.py record.
ACTIONS = (
    "replay", "discard", "purge", "prune", "pause", "resume", "cancel", "run now", "reschedule",
    "edit", "schedule",
    "quiet", "unquiet", "cancel bulk", "move", "archive again",
)  # fmt: skip

#: What the words of operations.py and bulk.py begin with, and what they name there.
_WORDS = re.compile(
    r"(?:(?:(?P<row>dead letter [0-9]{1,18}): )?message (?P<message>[0-9a-f]{32}) of |topic "
    r")(?P<topic>[\w.-]{1,64})"
    r"|(?P<bulk>bulk operation [0-9]{1,18}):",
    re.ASCII,
)
#: Characters of the words that are shown.
_SHOWN = 300


@page("actions/", "operator_actions")
def operator_actions(request: HttpRequest) -> HttpResponse:
    """All of them, the newest first; of one operator or one kind of action when the address says
    so."""
    chosen = {name: request.GET.get(name, "").replace("\0", "") for name in ("operator", "action")}
    narrowed = OperatorAction.objects.filter(
        **{name: value for name, value in chosen.items() if value}
    )
    rows, links = newest_first(request, narrowed)
    bulk = _bulk_operations(rows)
    return show(
        request,
        "operator_actions.html",
        _("Operator actions"),
        rows=[(row, bulk.get(row.pk), list(_linked(request, row.selection))) for row in rows],
        links=links,
        chosen=chosen,
        actions=ACTIONS if chosen["action"] in ("", *ACTIONS) else (*ACTIONS, chosen["action"]),
        now=timezone.now(),
    )


def _bulk_operations(rows: Iterable[Any]) -> dict[int, BulkOperation]:
    """The bulk operations that these are the records of, by the id of the action."""
    found = BulkOperation.objects.filter(action__in=[row.pk for row in rows]).only(
        "pk", "action_id", "status"
    )
    return {one.action_id: one for one in found if one.action_id is not None}


def _linked(request: HttpRequest, words: str) -> Iterator[tuple[str, str]]:
    """The words of a record in pieces, each with the address of what it names, or nothing."""
    found, at = _WORDS.match(words), 0
    for name, text in found.groupdict().items() if found else ():
        if found and text:
            start, end = found.span(name)
            yield words[at:start], ""
            yield text, _address(request, name, text)
            at = end
    yield words[at:_SHOWN] + ("…" if len(words) > _SHOWN else ""), ""


def _address(request: HttpRequest, name: str, text: str) -> str:
    if name == "message":
        return f"{url(request, 'find')}?q={text}"
    if name == "topic":
        return url(request, "topic", topic=text)
    return url(request, "archived" if name == "row" else "bulk", pk=int(text.rpartition(" ")[2]))
