"""What operators did to one message or one topic. Only the newest records are read: the table
grows."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import F, Subquery

from ..models import OperatorAction

#: How many records are read at most.
NEWEST = 1_000


def of_message(message_id: str) -> Sequence[OperatorAction]:
    """What was done to the message with this id (32 hexadecimal digits), the newest first."""
    return _newest(message_id=message_id)[:20]


def of_topic(topic: str) -> Sequence[OperatorAction]:
    """What was done to the topic as a whole, the newest first: paused, resumed, purged."""
    found = _newest(topic=topic, message_id=None)
    # For MariaDB and MySQL capital letters do not matter.
    return [action for action in found if action.topic == topic][:10]


def _newest(**fields: str | None) -> Sequence[OperatorAction]:
    every = OperatorAction.objects.all()
    newest = every.order_by("-pk").values(floor=F("pk") - NEWEST)[:1]
    return list(every.filter(**fields, pk__gt=Subquery(newest)).order_by("-pk")[:40])
