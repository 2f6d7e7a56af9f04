"""What operators did to one message or one topic: a look at the newest records only, as the table
may grow."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import F, Q, Subquery

from ..models import OperatorAction

#: How many records are looked at.
NEWEST = 1_000


def of_message(message_id: str, limit: int = 20) -> Sequence[OperatorAction]:
    """What was done to the message with this id (32 hexadecimal digits) by name, the newest
    first."""
    return _named(f"message {message_id}", " ", limit)


def of_topic(topic: str, limit: int = 10) -> Sequence[OperatorAction]:
    """What was done to the topic as a whole, the newest first: paused, resumed, purged."""
    return _named(f"topic {topic}", ",:", limit)


def _named(beginning: str, goes_on: str, limit: int) -> Sequence[OperatorAction]:
    """Records whose selection is just this, or goes on behind it with one of these characters. One
    query."""
    every = OperatorAction.objects.all()
    newest = every.order_by("-pk").values(floor=F("pk") - NEWEST)[:1]
    is_meant = Q(selection=beginning)
    for character in goes_on:
        is_meant |= Q(selection__startswith=beginning + character)
    found = every.filter(is_meant, pk__gt=Subquery(newest)).order_by("-pk")[:limit]
    # Databases differ in whether capital letters matter.
    return [one for one in found if one.selection.startswith(beginning)]
