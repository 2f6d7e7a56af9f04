"""Pages of a table by its ids, the newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

SIZE = 50


def newest_first(request: HttpRequest, rows: QuerySet[Any]) -> tuple[Sequence[Any], dict[str, str]]:
    """The page that the parameter `before` selects, and the query strings of the pages around it:
    `older`, `newest`.

    Other parameters are kept. One query; the cost does not grow with the depth.
    """
    text = request.GET.get("before", "")
    is_id = text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < 2**63
    before = int(text) if is_id else None
    if before is not None:
        rows = rows.filter(pk__lt=before)
    found = list(rows.order_by("-pk")[: SIZE + 1])
    links: dict[str, str] = {}
    query = request.GET.copy()
    query.pop("before", None)
    if before is not None:
        links["newest"] = f"?{query.urlencode()}"
    if len(found) > SIZE:
        query["before"] = str(found[SIZE - 1].pk)
        links["older"] = f"?{query.urlencode()}"
    return found[:SIZE], links
