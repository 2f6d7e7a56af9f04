"""Lists the waiting messages that fit a selection, page by page: all that a topic has in Redis by
due time, one topic after the other, and then what is in the outbox."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import dropwhile
from typing import NamedTuple

from ..core.exceptions import InvalidMessage
from ..core.message import Message
from ..outbox.existing import every_topic, topics_of_outbox
from ..store.client import BATCH
from .operations import User
from .topic_permission import permitted_topics
from .waiting_orders import LEAST, LOOKS_FOR, SMALL_TOPIC, check_selection
from .waiting_selection import WaitingSelection, pages


class WaitingList(NamedTuple):
    """A page of the list."""

    messages: Sequence[Message]
    further: str
    """Where the next page begins; empty on the last one. The next page may have no messages: a page
    reads a bounded number of them."""


class _Position(NamedTuple):
    """The place in the list behind a message."""

    place: str
    topic: str
    cursor: str
    """Of the page of messages that were read together; empty for the first one."""
    last: str
    """Id of the message in that page; empty for its beginning."""

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def read(cls, text: str) -> _Position:
        parts = text.split("/")
        if len(parts) != len(cls._fields):
            raise InvalidMessage(f"{text!r:.80} is not a place in this list: begin at its start.")
        return cls(*parts)


def list_waiting(
    user: User, selection: WaitingSelection, after: str = "", size: int = 50
) -> WaitingList:
    """The next messages that fit. `after`: `further` of the page before. The cost has a bound, as
    that of preview_waiting(). Raises NotPermitted, InvalidMessage, UnknownTopic and
    StoreUnavailable."""
    check_selection(user, selection)
    permitted = permitted_topics(user, *(["view_payload"] if selection.argument else []))
    in_outbox = selection.topics() if selection.topic else list(topics_of_outbox())
    every = selection.topics() if selection.topic else every_topic(in_outbox=in_outbox)
    places = [
        (place, topic)
        for place, topics in (("redis", every), ("outbox", in_outbox))
        for topic in topics
        if permitted is None or topic in permitted
    ]
    begin = _Position.read(after) if after else None
    if begin is not None:
        if begin[:2] not in places:
            raise InvalidMessage(f"{after!r:.80} is not a place in this list: begin at its start.")
        places = places[places.index(begin[:2]) :]
    until, read, found = time.monotonic() + LOOKS_FOR, 0, list[Message]()
    for place, topic in places:
        cursor, last = ("", "") if begin is None else begin[2:]
        begin = None
        for page in pages(selection, topic, place, cursor or None):
            messages = _behind(last, page.messages)
            found += messages[: size - len(found)]
            if len(found) == size:
                at = _Position(place, topic, cursor, found[-1].id)
                return WaitingList(found, str(at))
            read += BATCH if page.cursor else SMALL_TOPIC
            cursor, last = page.cursor or "", ""
            if read >= LEAST and time.monotonic() >= until and page.cursor:
                return WaitingList(found, str(_Position(place, topic, page.cursor, "")))
    return WaitingList(found, "")


def _behind(last: str, messages: Sequence[Message]) -> Sequence[Message]:
    """The messages behind the one with this id; all of them when it has gone meanwhile."""
    if not last or all(message.id != last for message in messages):
        return messages
    return list(dropwhile(lambda message: message.id != last, messages))[1:]
