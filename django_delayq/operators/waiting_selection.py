"""Selects waiting messages by topic, task, key prefix, due time and argument, and reads them, in
Redis and in the outbox."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property
from itertools import dropwhile
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from ..archive.argument_match import ArgumentMatch
from ..archive.selection import MOST_IDS
from ..client.topics import list_messages
from ..core.cursors import cursor_of
from ..core.exceptions import InvalidKey, InvalidMessage
from ..core.message import Message, Page, State, check_key, parse_id
from ..core.present import counted, readable
from ..core.times import aware, epoch_us
from ..models import OutboxMessage, OutboxStatus
from ..outbox.existing import check_existing, every_topic, topics_of_outbox
from ..outbox.listing import list_outbox
from ..outbox.lookup import found_of
from ..store import get_store
from ..store.client import BATCH
from ..tasks.naming import shown
from ..tasks.redaction import check_search, shown_message
from .topic_permission import Topics

#: Where a selection is read, in this order. A message that the relay sends meanwhile is met in
#: Redis.
PLACES = {"outbox": (list_outbox, 2**63 - 1), "redis": (list_messages, 2**128 - 1)}


class WaitingSelection(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    dict=True,
):
    """Waiting messages. Each part that is given narrows them down; an empty selection is all that
    waits. Raises InvalidKey and InvalidMessage."""

    topic: str = ""
    task: str = ""
    """Name of the task."""
    key_prefix: str = ""
    """The first characters of the key."""
    since: datetime | None = None
    """Due then or later; aware."""
    until: datetime | None = None
    """Due before then; aware."""
    ids: tuple[str, ...] = ()
    """32 hexadecimal digits of each message; MOST_IDS at most."""
    argument: str = ""
    """`name` or `a.b` of an argument; `args.0` for a positional one."""
    value: str = ""
    """What that argument is, as JSON or as a plain word."""

    def __post_init__(self) -> None:
        if self.key_prefix:
            check_key(self.key_prefix)
        if len(self.ids) > MOST_IDS:
            raise InvalidMessage(
                f"At most {MOST_IDS:,} messages can be named one by one; say what they have in "
                "common."
            )
        for one in self.ids:
            parse_id(one)
        if any("\0" in part for part in (self.topic, self.task, self.argument, self.value)):
            raise InvalidMessage("A name or a value cannot contain the character 0.")
        if self.value and not self.argument:
            raise InvalidMessage("value needs the name of the argument.")
        if self.argument:
            check_search(self.argument, self.task)
        if self.since and self.until and aware(self.since) >= aware(self.until):
            raise InvalidMessage("The period ends before it begins.")

    @property
    def is_whole_topic(self) -> bool:
        """Whether nothing but a topic narrows it down, or nothing at all."""
        return self == WaitingSelection(topic=self.topic)

    def narrowed(self, **changes: Any) -> WaitingSelection:
        """The same with other parts. Raises InvalidMessage."""
        return msgspec.structs.replace(self, **changes)

    def topics(self) -> list[str]:
        """The topics that have to be read. Raises UnknownTopic."""
        return [check_existing(self.topic)] if self.topic else sorted(every_topic())

    def fits(self, message: Message) -> bool:
        """Whether a message of one of these topics belongs to it."""
        return (
            (not self.task or message.task == self.task)
            and (not self.ids or message.id in self.ids)
            and (not self.key_prefix or (message.key or "").startswith(self.key_prefix))
            and (self.since is None or message.due_at >= aware(self.since))
            and (self.until is None or message.due_at < aware(self.until))
            and (not self.argument or self._fits_argument(shown_message(message)))
        )

    def _fits_argument(self, seen: Message) -> bool:
        """By what people may see: else a search would tell what is hidden."""
        return self._argument.is_in(seen.task, list(seen.args), dict(seen.kwargs))

    @cached_property
    def _argument(self) -> ArgumentMatch:
        return ArgumentMatch.read(self.argument, self.value)

    def encode(self) -> str:
        """As JSON, with what is given only."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> WaitingSelection:
        """From encode(). Raises InvalidMessage."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, InvalidKey) as error:
            raise InvalidMessage(f"{text!r:.200} is not a selection: {error}") from error

    def in_words(self) -> str:
        """One line for people, also for those who may not see arguments."""
        named = {"topic": self.topic, "task": self.task, "key prefix": self.key_prefix}
        words = [counted(len(self.ids), "named message")] if self.ids else []
        words += [f"{name} {value}" for name, value in named.items() if value]
        words += [f"due since {self.since.isoformat(' ', 'seconds')}"] if self.since else []
        words += [f"due before {self.until.isoformat(' ', 'seconds')}"] if self.until else []
        words += [f"argument {self.argument} = …"] if self.argument else []
        return ", ".join(words) or "everything"


class Position(NamedTuple):
    """A place in the list of all that fits a selection."""

    place: str
    """One of PLACES."""
    topic: str
    cursor: str = ""
    """Of the messages that are read together; empty for the first ones."""
    last: str = ""
    """Id of the message that it is behind; empty for the first of them."""

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def read(cls, text: str, places: Sequence[tuple[str, str]]) -> Position:
        """From str(). Raises InvalidMessage for what is in none of these places and topics."""
        parts = text.split("/")
        if len(parts) == len(cls._fields) and (parts[0], parts[1]) in places:
            return cls(*parts)
        raise InvalidMessage(f"{text!r:.80} is not a place in this list: begin at its start.")


class WaitingPart(NamedTuple):
    """Messages that were read together."""

    messages: Sequence[Message]
    """Those that fit."""
    begin: Position
    end: Position | None
    """Where reading goes on; None when all was read."""
    is_full: bool
    """Whether as many were read as are read together."""


def waiting_parts(
    selection: WaitingSelection, permitted: Topics, after: str = ""
) -> Iterator[WaitingPart]:
    """All that fits in the topics that are permitted, from a position on: what Redis has first,
    for what is due soon is there. Of thousands of topics few have rows in the outbox: it is a query
    for each of these, and not for all. Raises InvalidMessage and UnknownTopic."""
    in_outbox = selection.topics() if selection.topic else list(topics_of_outbox())
    every = selection.topics() if selection.topic else every_topic(in_outbox=in_outbox)
    places = [
        (place, topic)
        for place, topics in (("redis", every), ("outbox", in_outbox))
        for topic in topics
        if permitted is None or topic in permitted
    ]
    at = 0
    cursor = last = ""
    if after:
        place, topic, cursor, last = Position.read(after, places)
        at = places.index((place, topic))
    for number, (place, topic) in enumerate(places[at:], at + 1):
        following = Position(*places[number]) if number < len(places) else None
        for page in pages(selection, topic, place, cursor or None):
            begin = Position(place, topic, cursor, last)
            end = Position(place, topic, page.cursor) if page.cursor else following
            yield WaitingPart(_behind(last, page.messages), begin, end, bool(page.cursor))
            cursor, last = page.cursor or "", ""
        cursor = last = ""  # it may end before the last page


def _behind(last: str, messages: Sequence[Message]) -> Sequence[Message]:
    """The messages behind the one with this id; all of them when it has gone meanwhile."""
    if not last or all(message.id != last for message in messages):
        return messages
    return list(dropwhile(lambda message: message.id != last, messages))[1:]


def pages_in_redis(selection: WaitingSelection, permitted: Topics) -> Iterator[Page]:
    """Pages of what Redis has in all topics of the selection that are permitted. Raises
    UnknownTopic."""
    every = selection.topics() if selection.topic else every_topic(in_outbox=())
    for topic in every:
        if permitted is None or topic in permitted:
            yield from pages(selection, topic, "redis")


def pages(
    selection: WaitingSelection, topic: str, place: str, cursor: str | None = None
) -> Iterator[Page]:
    """The messages of one topic and place ("redis" or "outbox") that fit, by due time: a page for
    each 500 that were read. `cursor` is that of the last page that was dealt with. Raises
    UnknownTopic."""
    if selection.ids:
        found = filter(selection.fits, _named(selection, topic, place))
        yield Page(messages=list(found), cursor=None)
        return
    listed, highest = PLACES[place]
    if cursor is None and selection.since is not None:
        since_ms = -(-epoch_us(selection.since) // 1000)
        cursor = cursor_of(since_ms - 1, highest) if since_ms > 0 else None
    while True:
        page = listed(topic, cursor=cursor, limit=BATCH)
        yield Page(messages=list(filter(selection.fits, page.messages)), cursor=page.cursor)
        cursor = page.cursor
        is_past = (
            selection.until is not None
            and page.messages
            and page.messages[-1].due_at >= aware(selection.until)
        )
        if cursor is None or is_past:
            return


def _named(selection: WaitingSelection, topic: str, place: str) -> Iterator[Message]:
    """Those of the named messages that wait there."""
    identities = [parse_id(one) for one in selection.ids]
    if place == "redis":
        for partition, found in get_store().find_many((topic, one) for one in identities):
            if found.state != State.LEASED:
                yield shown(partition, found)
        return
    named = [UUID(bytes=one) for one in identities]
    for row in OutboxMessage.objects.filter(
        topic=topic, status=OutboxStatus.WAITING, message_id__in=named
    ):
        yield readable(row.topic, row.task, found_of(row))


def waiting_messages(selection: WaitingSelection) -> Iterator[Message]:
    """The messages that fit, by due time. Raises UnknownTopic."""

    def of(topic: str, place: str) -> Iterator[Message]:
        for page in pages(selection, topic, place):
            yield from page.messages

    sources = [of(topic, place) for topic in selection.topics() for place in PLACES]
    return heapq.merge(*sources, key=lambda message: (message.due_at, message.id))
