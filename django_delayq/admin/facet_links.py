"""The facets of the archive as links: each narrows the list down to one value, or takes the filter
away again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import QueryDict
from django.utils.translation import gettext as _

from ..archive.facets import Facets
from ..core.present import word


@dataclass(frozen=True, kw_only=True)
class FacetLink:
    """One value of one filter."""

    text: str
    count: int
    query: str
    """The query string of the list with it."""
    is_chosen: bool


def facet_links(facets: Facets, query: QueryDict) -> Sequence[tuple[str, Sequence[FacetLink]]]:
    """The labels of the filters, and the values of each that more than one row could have."""
    labels = {"state": _("State"), "topic": _("Topic"), "task": _("Task"), "error": _("Error")}
    found = []
    for name, label in labels.items():
        links = [
            _link(name, value, count, query, f"={value}" if name == "error" else value)
            for value, count in facets.counts[name]
        ]
        if len(links) > 1 or any(link.is_chosen for link in links):
            found.append((label, links))
    return found


def _link(name: str, value: str, count: int, query: QueryDict, asked: str) -> FacetLink:
    there = query.copy()
    for gone in ("before", "after", name):
        there.pop(gone, None)
    is_chosen = query.get(name, "") in (value, asked)
    if not is_chosen:
        there[name] = asked
    text = word(value) if name == "state" else value
    return FacetLink(text=text, count=count, query=f"?{there.urlencode()}", is_chosen=is_chosen)
