"""Which tasks fall due in the next hour: reads the messages themselves, and so only on demand."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime

from ..client.topics import list_messages
from ..core.message import Page
from ..outbox.listing import list_outbox
from ..store.client import BATCH

#: Messages that are read at most, of Redis and of the outbox each.
MOST = 5_000


def tasks_due(topic: str, begins: Sequence[datetime]) -> tuple[list[Counter[str]], bool]:
    """How many messages of each task fall due in the minutes that begin then; the first minute also
    has what is overdue. And whether there are more than were read.

    Raises UnknownTopic, StoreUnavailable and django.db.Error.
    """
    minutes = [Counter[str]() for _ in begins]
    ends = [*begins[1:], begins[-1] + (begins[1] - begins[0])]
    is_partial = False
    for pages in (list_messages, list_outbox):
        is_partial |= _count(pages, topic, ends, minutes)
    return minutes, is_partial


def _count(
    pages: Callable[..., Page], topic: str, ends: Sequence[datetime], minutes: list[Counter[str]]
) -> bool:
    cursor: str | None = None
    for _ in range(MOST // BATCH):
        page = pages(topic, cursor=cursor, limit=BATCH)
        for message in page.messages:
            place = bisect_right(ends, message.due_at)
            if place == len(ends):
                return False
            minutes[place][message.task] += 1
        cursor = page.cursor
        if cursor is None:
            return False
    return True
