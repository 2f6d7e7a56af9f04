"""Pages of a table by its ids, the newest first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

from ..core.cursors import cursor_of, numbers_of
from ..core.exceptions import InvalidMessage

SIZE = 50


def newest_first(request: HttpRequest, rows: QuerySet[Any]) -> tuple[Sequence[Any], dict[str, str]]:
    """The page that the parameter `before` selects, and the query strings of the pages around it:
    `older`, `newest`.

    Other parameters are kept. One query; the cost does not grow with the depth.
    """
    before: int | None = None
    with suppress(InvalidMessage):  # then the page is the first one
        (before,) = numbers_of(request.GET.get("before", ""), 2**63)
        rows = rows.filter(pk__lt=before)
    found = list(rows.order_by("-pk")[: SIZE + 1])
    query = request.GET.copy()
    query.pop("before", None)
    links = {} if before is None else {"newest": f"?{query.urlencode()}"}
    if len(found) > SIZE:
        query["before"] = cursor_of(found[SIZE - 1].pk)
        links["older"] = f"?{query.urlencode()}"
    return found[:SIZE], links
