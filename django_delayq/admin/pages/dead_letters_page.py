"""Dead letters that nobody has replayed or discarded, in groups."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ...archive.dead_letters import MOST_GROUPS, MOST_ROWS, WINDOWS, grouped
from ...archive.facets import facet_rows, facets_of
from ...archive.selection import Selection
from ...core.exceptions import InvalidName
from ...models import Final
from ...operators.topic_permission import permitted_topics
from ...tasks import registry
from ..facet_links import facet_links
from ..forms.archive_form import query_of
from ..site import may, register_page, show
from .unarchivable_page import seen_entries


@dataclass(frozen=True, kw_only=True)
class LinkedCount:
    """A count, and the query string of the archive's page that lists what was counted."""

    count: int
    is_partial: bool
    query: str


@register_page("dead-letters/", "dead_letters")
def dead_letters_view(request: HttpRequest) -> HttpResponse:
    """Open dead letters by task and error, with how many died in the last hour, day and week."""
    may_see, topics = may(request, "view_payload"), permitted_topics(request.user)
    week = Selection(
        open=True,
        since=timezone.now() - WINDOWS["week"],
        topics=None if topics is None else tuple(topics),
    )
    refused = seen_entries(request).filter(state=Final.DEAD).values_list("pk")[:1]
    beside = [refused, facet_rows(week)]
    # PostgreSQL knows no text with the character 0.
    task, error = (request.GET.get(name, "").replace("\0", "") for name in ("task", "error"))
    try:
        found = grouped(
            request.GET.get("topic", ""),
            task=task,
            error=error,
            messages=may_see,
            topics=topics,
            beside=beside,
        )
    except InvalidName as problem:
        messages.error(request, str(problem))
        found = grouped(messages=may_see, topics=topics, beside=beside)
    # Of the newest open ones.
    chosen = week.narrowed(topic=found.topic, task=found.task, error=found.asked_error)
    facets = facets_of(chosen, found.beside[1])
    windows = {window: query_of(Selection(since=found.since(window))) for window in WINDOWS}
    rows = []
    for group in found.groups:
        named = query_of(found.selection(group).narrowed(since=None))
        numbers = [
            LinkedCount(
                count=getattr(group, window),
                is_partial=found.is_partial(window),
                query=f"{named}&{since}",
            )
            for window, since in windows.items()
        ]
        # The query is of everything in the line, for bulk operations.
        query = f"{named}&{windows['week']}"
        rows.append({"group": group, "numbers": numbers, "query": query})
    return show(
        request,
        "dead_letters.html",
        _("Dead letters"),
        refreshed=True,
        found=found,
        unarchivable=bool(found.beside[0]),
        totals=[
            LinkedCount(
                count=found.total(window),
                is_partial=found.is_partial(window) or found.more_groups,
                query=query_of(found.selection(None, window)),
            )
            for window in WINDOWS
        ],
        rows=rows,
        older=LinkedCount(
            count=found.older,
            is_partial=found.is_older_partial,
            query=query_of(found.older_selection()),
        ),
        topics=sorted(
            (registry.known_topics() if topics is None else topics) | {found.topic} - {""}
        ),
        facets=facets,
        facet_links=facet_links(facets, request.GET),
        most_rows=MOST_ROWS,
        most_groups=MOST_GROUPS,
    )
