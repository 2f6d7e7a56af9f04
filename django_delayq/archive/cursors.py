"""Where pages of the archive begin and end, and how an address carries that."""

from __future__ import annotations

from datetime import datetime

from ..core.exceptions import InvalidMessage
from ..core.times import epoch_us, stored_ms

Edge = tuple[datetime | None, int]
"""Where a page begins, itself not included: finished_at (in lists that are in its order) and the id
of a row."""

LAST_ID = 2**62


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
    return f"{epoch_us(when)}.{pk}"


def edge_of(text: str | None, timed: bool) -> Edge | None:
    """From text_of(). Raises InvalidMessage for what is none, and for one of a list in another
    order."""
    if not text:
        return None
    when, _, pk = text.rpartition(".")
    try:
        if bool(when) != timed or not -1 <= int(pk) <= LAST_ID + 1:
            raise ValueError
        return (stored_ms(int(when) / 1000) if timed else None, int(pk))
    except (ValueError, OverflowError, OSError):
        raise InvalidMessage(
            f"{text!r:.60} is not a place in this list: begin at its top."
        ) from None
