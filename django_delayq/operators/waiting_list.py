"""Shows waiting messages that fit a selection: how many, and which, page by page. What it reads has
a bound."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..client.topics import topic_stats
from ..core.message import Message
from ..outbox.listing import CAP, count_outbox
from ..store.client import BATCH
from .bulk import MANY
from .operations import User
from .topic_permission import Topics, permitted_topics
from .waiting_orders import check_selection
from .waiting_selection import Position, WaitingPart, WaitingSelection, waiting_parts

#: Messages that are read at least, whatever it takes, and seconds for which reading goes on.
LEAST, LOOKS_FOR = 2_000, 0.05
#: A topic with few messages takes about as long as so many.
SMALL_TOPIC = 40
#: Messages of a page.
SHOWN = 50


class WaitingList(NamedTuple):
    """A page of the list."""

    messages: Sequence[Message]
    further: str
    """Where the next page begins; empty on the last one. The next page may have no messages."""


@dataclass(frozen=True, kw_only=True)
class WaitingPreview:
    """Messages that fit a selection, as of now."""

    count: int
    """How many were found among those that were read."""
    more: bool
    """Whether there is more to read: then the count is a lower bound. A dry run counts all."""
    first: WaitingList
    """The first page of them."""


def preview_waiting(
    user: User, selection: WaitingSelection, *, seconds: float = 0.0
) -> WaitingPreview:
    """Count the messages, and show the first ones. It reads for LOOKS_FOR seconds, at least LEAST
    and at most MANY messages, or on for so many `seconds`. All of a topic is counted without
    reading. Raises NotPermitted, InvalidMessage, UnknownTopic and StoreUnavailable."""
    permitted = _checked(user, selection)
    if selection.is_whole_topic:
        first = list_waiting(user, selection)
        stats, outbox = topic_stats(selection.topic), count_outbox(selection.topic)
        count = stats.delayed + stats.backlog + outbox
        return WaitingPreview(count=count, more=outbox >= CAP, first=first)
    until = time.monotonic() + (seconds or LOOKS_FOR)
    least, most = (MANY, math.inf) if seconds else (LEAST, MANY)
    count, read, found = 0, 0, list[Message]()
    further: Position | None = None
    for part in waiting_parts(selection, permitted):
        count += len(part.messages)
        if len(found) < SHOWN:
            further = _add(found, part)
        read += BATCH if part.is_full else SMALL_TOPIC
        if part.end and (read >= most or (read >= least and time.monotonic() >= until)):
            first = WaitingList(found, str(further or ""))
            return WaitingPreview(count=count, more=True, first=first)
    is_all = count == len(found)
    first = WaitingList(found, "" if is_all else str(further or ""))
    return WaitingPreview(count=count, more=False, first=first)


def list_waiting(user: User, selection: WaitingSelection, after: str = "") -> WaitingList:
    """The next messages that fit. `after`: `further` of the page before. It reads for LOOKS_FOR
    seconds, and at least LEAST messages. Raises NotPermitted, InvalidMessage, UnknownTopic and
    StoreUnavailable."""
    permitted = _checked(user, selection)
    until, read, found = time.monotonic() + LOOKS_FOR, 0, list[Message]()
    further: Position | None = None
    for part in waiting_parts(selection, permitted, after):
        further = _add(found, part)
        read += BATCH if part.is_full else SMALL_TOPIC
        if len(found) == SHOWN or (read >= LEAST and time.monotonic() >= until):
            break
    return WaitingList(found, str(further or ""))


def _checked(user: User, selection: WaitingSelection) -> Topics:
    """The topics that the user may look at."""
    check_selection(user, selection)
    return permitted_topics(user, *(["view_payload"] if selection.argument else []))


def _add(found: list[Message], part: WaitingPart) -> Position | None:
    """Fill a page with these messages. Returns where the next one begins."""
    taken = part.messages[: SHOWN - len(found)]
    found += taken
    if len(taken) < len(part.messages):
        return part.begin._replace(last=taken[-1].id)
    return part.end
