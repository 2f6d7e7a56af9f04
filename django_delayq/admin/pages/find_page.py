"""Finds one message by its id or its key, exactly, wherever it is."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from ...core.exceptions import InvalidMessage, OutcomeUnknown, StoreUnavailable
from ...core.message import parse_id
from ...operators import message_search
from ...operators.message_search import SearchResult
from ...operators.topic_permission import permitted_topics
from ..forms.archive_form import search_parts
from ..site import register_page, show, url

_KEY = "key:"
#: Arguments are searched in what ended within this time: each row of it is read.
_PERIOD = "24h"


@register_page("find/", "find")
def find_view(request: HttpRequest) -> HttpResponse:
    """Redirects to the message; lists the messages when several topics have such a key.

    `args.name:value` goes on to the archive. While Redis is away SQL alone is searched, and the
    page says so.
    """
    query, topic = request.GET.get("q", "").strip(), request.GET.get("topic", "")
    with suppress(InvalidMessage):  # else it is an id or a key
        # A key that looks like args.order_id:1042 needs key: before it.
        if "argument" in search_parts(query):
            narrowed = {"q": query, "period": _PERIOD, **({"topic": topic} if topic else {})}
            return redirect(f"{url(request, 'archive')}?{urlencode(narrowed)}")
    hits, problem, away = list[SearchResult](), "", ""
    if query:
        try:
            hits = _hits(request, query, topic, redis=True)
        except InvalidMessage as error:
            problem = str(error)
        except (StoreUnavailable, OutcomeUnknown) as error:
            hits, away = _hits(request, query, topic, redis=False), str(error)
    if len(hits) == 1 and not away:
        return redirect(result_url(request, hits[0]))
    return show(
        request,
        "find.html",
        _("Find a message"),
        query=query,
        topic=topic,
        rows=[(hit, result_url(request, hit)) for hit in hits],
        problem=problem,
        away=away,
    )


def _hits(request: HttpRequest, query: str, topic: str, *, redis: bool) -> list[SearchResult]:
    """Those in topics that the user may see. Raises InvalidMessage."""
    topics = permitted_topics(request.user)
    if topics is None:
        return _every_hit(query, topic, redis)
    if topic and topic not in topics:
        return []
    return [hit for hit in _every_hit(query, topic, redis) if hit.topic in topics]


def _every_hit(query: str, topic: str, redis: bool) -> list[SearchResult]:
    """By id when it looks like one, then by key: a key may look like an id. Raises
    InvalidMessage."""
    if query.startswith(_KEY):
        return message_search.by_key(query.removeprefix(_KEY), topic, redis=redis)
    is_id = False
    with suppress(InvalidMessage):
        is_id = bool(parse_id(query))
    hit = message_search.by_id(query, topic, redis=redis) if is_id else None
    return [hit] if hit else message_search.by_key(query, topic, redis=redis)


def result_url(request: HttpRequest, hit: SearchResult) -> str:
    """The page of a message: of its row, or of the live message."""
    if hit.row is not None:
        return url(request, "archived", pk=hit.row)
    return url(request, "message", topic=hit.topic, message_id=hit.message_id)
