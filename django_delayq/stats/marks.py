"""Marks in the charts: what people did to many messages or to a whole topic, and deploys. A curve
that bends is explained by what stands at the bend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import F, Q, QuerySet, Subquery
from django.utils import timezone

from ..core.conf import get_settings
from ..core.exceptions import InvalidMessage
from ..core.times import aware
from ..models import OperatorAction

#: The action of a mark, such as a deploy.
MARK = "mark"
#: Most characters of its words.
MOST_WORDS = 60
#: Marks of these actions are drawn, and of every bulk operation.
WIDE = (MARK, "pause", "resume", "purge", "quiet", "unquiet", "move", "move store")
#: The charts of the overview show so much. Only the newest records are read: the table grows.
SHOWN, MOST, NEWEST = timedelta(hours=24), 60, 2_000


class ChartMark(NamedTuple):
    """Something that happened at an instant."""

    at: datetime
    action: str
    words: str
    """Of a deploy: what was deployed. Else empty."""
    topic: str
    """Empty for what is not about one topic."""


def leave_mark(words: str, by: str) -> OperatorAction:
    """Note an event for the charts. Raises InvalidMessage for words that are empty or too long."""
    words = words.replace("\0", "").strip()
    if not 0 < len(words) <= MOST_WORDS:
        raise InvalidMessage(f"A mark has 1 to {MOST_WORDS} characters, not {len(words)}.")
    action = OperatorAction.new(MARK, by, selection=words)
    action.finish()
    return action


def read_marks() -> Sequence[ChartMark]:
    """The newest marks of the time that is shown, the oldest first. Raises django.db.Error."""
    return marks_of(mark_rows(SHOWN))


def mark_rows(age: timedelta) -> QuerySet[OperatorAction]:
    """The records of this time that are drawn, the newest first."""
    every = OperatorAction.objects.using(get_settings().database)
    newest = every.order_by("-pk").values(floor=F("pk") - NEWEST)[:1]
    wide = Q(action__in=WIDE) | (Q(bulk_operation__isnull=False) & ~Q(action="cancel bulk"))
    recent = every.filter(wide, pk__gt=Subquery(newest), started_at__gte=timezone.now() - age)
    return recent.order_by("-pk")[:MOST]


def marks_of(rows: Iterable[OperatorAction]) -> Sequence[ChartMark]:
    """The marks of these records, the oldest first."""
    return [
        ChartMark(
            aware(row.started_at),
            row.action,
            row.selection if row.action == MARK else "",
            row.topic,
        )
        for row in sorted(rows, key=lambda row: row.pk)
    ]
