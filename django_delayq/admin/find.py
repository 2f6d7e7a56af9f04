"""Finds one message by its id or its key, exactly, wherever it is."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from .. import lookup
from ..exceptions import InvalidMessage
from ..identity import parse_id
from ..lookup import Hit
from .pages import page, show, url

_KEY = "key:"


@page("find/", "find")
def find(request: HttpRequest) -> HttpResponse:
    """The message itself when there is one, a list when several topics have such a key, else words."""
    query, topic = request.GET.get("q", "").strip(), request.GET.get("topic", "")
    try:
        hits, problem = _hits(query, topic) if query else [], ""
    except InvalidMessage as error:
        hits, problem = [], str(error)
    if len(hits) == 1:
        return redirect(_address(request, hits[0]))
    rows = [(hit, _address(request, hit)) for hit in hits]
    return show(request, "find.html", _("Find a message"), query=query, topic=topic, rows=rows, problem=problem)


def _hits(query: str, topic: str) -> list[Hit]:
    """By id when it looks like one, then by key: a key may look like an id. Raises InvalidMessage."""
    if query.startswith(_KEY):
        return lookup.by_key(query.removeprefix(_KEY), topic)
    hit = lookup.by_id(query, topic) if _is_id(query) else None
    return [hit] if hit else lookup.by_key(query, topic)


def _is_id(query: str) -> bool:
    try:
        parse_id(query)
    except InvalidMessage:
        return False
    return True


def _address(request: HttpRequest, hit: Hit) -> str:
    if hit.row is not None:
        return url(request, "archived", pk=hit.row)
    return url(request, "message", topic=hit.topic, message_id=hit.message_id)
