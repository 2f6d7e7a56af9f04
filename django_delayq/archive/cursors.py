"""Where pages of the archive begin and end, and how an address carries that."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from django.utils import timezone as zones

from ..core.exceptions import InvalidMessage
from .archive_rows import instant_of

Edge = tuple[datetime | None, int]
"""Where a page begins, itself not included: finished_at (in lists that are in its order) and the id
of a row."""

LAST_ID = 2**62

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def stepped(edge: Edge | None, by: int) -> Edge | None:
    """The same place for a walk in the other direction: it does not see the edge itself, but one
    row less or more."""
    return edge and (edge[0], edge[1] + by)


def text_of(edge: Edge | None) -> str | None:
    """`1042`, or microseconds since 1970 and the id: `1790000000000000.1042`."""
    if edge is None:
        return None
    when, pk = edge
    if when is None:
        return str(pk)
    when = zones.make_aware(when, zones.get_default_timezone()) if zones.is_naive(when) else when
    return f"{(when - _EPOCH) // timedelta(microseconds=1)}.{pk}"


def edge_of(text: str | None, timed: bool) -> Edge | None:
    """From text_of(). Raises InvalidMessage for what is none, and for one of a list in another
    order."""
    if not text:
        return None
    when, _, pk = text.rpartition(".")
    try:
        if bool(when) != timed or not -1 <= int(pk) <= LAST_ID + 1:
            raise ValueError
        return (instant_of(int(when) / 1000) if timed else None, int(pk))
    except (ValueError, OverflowError, OSError):
        raise InvalidMessage(
            f"{text!r:.60} is not a place in this list: begin at its top."
        ) from None
