"""The search: one message by its id or its key; what has an argument; keys that are like a word. It
says what it did not search, and offers it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from ...core.exceptions import InvalidMessage, OutcomeUnknown, StoreUnavailable
from ...core.message import parse_id
from ...operators import message_search, wider_search
from ...operators.message_search import SearchResult
from ...operators.topic_permission import permitted_topics
from ..forms.archive_form import search_parts
from ..site import may, register_page, show, url

Recent = Sequence[Sequence[tuple[str, str]]]
"""What wider_search.recent_rows() found."""

#: Topics with a message of the same key that are listed. For others one names the topic.
MOST_HITS = 200

_KEY = "key:"
#: How far back the archive is searched for an argument or the beginning of a key, as its page says
#: it.
_PERIOD = "24h"


@register_page("find/", "find")
def find_view(request: HttpRequest) -> HttpResponse:
    """Redirects to the message of an id or a key; lists several. While Redis is away SQL alone is
    searched, and the page says so."""
    query, topic = request.GET.get("q", "").strip(), request.GET.get("topic", "")
    parts: dict[str, str] = {}
    with suppress(InvalidMessage):  # else it is an id or a key
        # A key that looks like args.order_id:1042 needs key: before it.
        parts = search_parts(query)
    if "argument" in parts:
        return _argument_page(request, query, topic, parts)
    hits, problem, away = list[SearchResult](), "", ""
    recent: Recent = ()
    if query:
        try:
            hits, recent = _hits(request, query, topic, redis=True)
        except InvalidMessage as error:
            problem = str(error)
        except (StoreUnavailable, OutcomeUnknown) as error:
            (hits, recent), away = _hits(request, query, topic, redis=False), str(error)
    if len(hits) == 1 and not away:
        return redirect(result_url(request, hits[0]))
    word = query.removeprefix(_KEY).removesuffix("*")
    similar: Any = []
    if word and not hits and not problem and not away:
        similar = wider_search.similar_keys(word, recent, topic, permitted_topics(request.user))
    offers = _offers(request, word, topic) if word and not hits else []
    return _page(
        request, query, topic, hits, problem=problem, away=away, similar=similar, offers=offers
    )


def _argument_page(
    request: HttpRequest, query: str, topic: str, parts: dict[str, str]
) -> HttpResponse:
    """Messages with an argument, live and archived."""
    name, value = parts["argument"], parts["value"]
    if not may(request, "view_payload"):
        problem = _("To search for an argument you need the permission to see arguments.")
        return _page(request, query, topic, [], problem=problem)
    away, offers = "", []
    try:
        found = wider_search.by_argument(name, value, topic, permitted_topics(request.user))
    except InvalidMessage as error:
        return _page(request, query, topic, [], problem=str(error))
    except (StoreUnavailable, OutcomeUnknown) as error:
        away = str(error)
        found = wider_search.ArgumentHits(hits=[], all_waiting=True, all_ended=False)
    waiting = _query(topic=topic, argument=f"{name}={value}")
    if not found.all_waiting:
        offers.append((_("All waiting messages"), f"{url(request, 'waiting')}?{waiting}"))
    for period, words in (("24h", ""), ("7d", _("What ended in the last 7 days"))):
        if words or not found.all_ended:
            there = f"{url(request, 'archive')}?{_query(q=query, period=period, topic=topic)}"
            offers.append((words or _("All that ended in the last 24 hours"), there))
    return _page(
        request, query, topic, list(found.hits), away=away, offers=offers, is_argument=True
    )


def _offers(request: HttpRequest, word: str, topic: str) -> list[tuple[str, str]]:
    """What was not searched, and where it can be."""
    waiting, archive = url(request, "waiting"), url(request, "archive")
    offers = [
        (
            _("Waiting messages whose keys begin with %(word)s"),
            f"{waiting}?{_query(topic=topic, key_prefix=word)}",
        ),
        (
            _("Keys of the last 24 hours that begin with %(word)s"),
            f"{archive}?{_query(q=f'{_KEY}{word}*', period=_PERIOD, topic=topic)}",
        ),
    ]
    if may(request, "view_payload"):
        find = url(request, "find")
        offers.insert(
            0,
            (
                _("Any argument that is %(word)s: waiting, or ended in the last 24 hours"),
                f"{find}?{_query(q=f'args.*:{word}', topic=topic)}",
            ),
        )
    return [(text % {"word": word[:60]}, address) for text, address in offers]


def _query(**parts: str) -> str:
    return urlencode({name: value for name, value in parts.items() if value})


def _page(
    request: HttpRequest, query: str, topic: str, hits: list[SearchResult], **context: Any
) -> HttpResponse:
    similar, more = context.pop("similar", ()), max(0, len(hits) - MOST_HITS)
    return show(
        request,
        "find.html",
        _("Find a message"),
        query=query,
        topic=topic,
        rows=[(hit, result_url(request, hit)) for hit in hits[:MOST_HITS]],
        more=more,
        similar=[(hit, result_url(request, hit)) for hit in similar],
        **context,
    )


def _hits(
    request: HttpRequest, query: str, topic: str, *, redis: bool
) -> tuple[list[SearchResult], Recent]:
    """Those in topics that the user may see, and what the search for similar keys needs. Raises
    InvalidMessage."""
    topics = permitted_topics(request.user)
    if topics is None:
        return _every_hit(query, topic, redis)
    if topic and topic not in topics:
        return [], ()
    hits, recent = _every_hit(query, topic, redis)
    return [hit for hit in hits if hit.topic in topics], recent


def _every_hit(query: str, topic: str, redis: bool) -> tuple[list[SearchResult], Recent]:
    """By id when it looks like one, then by key: a key may look like an id. Raises
    InvalidMessage."""
    is_id = False
    if not query.startswith(_KEY):
        with suppress(InvalidMessage):
            is_id = bool(parse_id(query))
    if is_id and (hit := message_search.by_id(query, topic, redis=redis)):
        return [hit], ()
    key = query.removeprefix(_KEY)
    return message_search.by_key_and(key, topic, *wider_search.recent_rows(), redis=redis)


def result_url(request: HttpRequest, hit: SearchResult) -> str:
    """The page of a message: of its row, or of the live message."""
    if hit.row is not None:
        return url(request, "archived", pk=hit.row)
    return url(request, "message", topic=hit.topic, message_id=hit.message_id)
