"""Finds the message that a key or an id names, in Redis or in the outbox."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from ..core.exceptions import (
    InvalidMessage,
    MessageNotFound,
    MessageRunning,
    OutcomeUnknown,
    StoreUnavailable,
)
from ..core.message import Message, check_key, key_id, parse_id, task_code_of
from ..core.present import view
from ..core.signals import Event
from ..outbox import lookup
from ..outbox.existing import check_existing
from ..store import get_store
from ..tasks.naming import task_name
from .sender import named


class Target(NamedTuple):
    """The message that a caller names."""

    topic: str
    identity: bytes
    key: str | None

    @classmethod
    def of(cls, topic: str, key: str | None, message_id: str | UUID | bytes | None) -> Target:
        """Raises InvalidMessage and its subclasses."""
        check_existing(topic)
        if (key is None) == (message_id is None):
            raise InvalidMessage("Give either key or id.")
        identity = (
            key_id(topic, check_key(key) or "") if message_id is None else parse_id(message_id)
        )
        return cls(topic, identity, key)

    @property
    def address(self) -> tuple[str, bytes]:
        """Topic and id."""
        return self.topic, self.identity

    def event(self) -> Event:
        """For signals."""
        return Event(self.identity.hex(), key=self.key)

    def not_live(self) -> MessageNotFound:
        """The error when nothing waits."""
        words = f"{named(self.key, self.identity)} is not live in topic {self.topic!r}"
        return MessageNotFound(f"{words}: never sent, finished or cancelled.")

    def running(self, verb: str) -> MessageRunning:
        """The error when a worker holds it."""
        return MessageRunning(
            f"{named(self.key, self.identity)}: a worker holds it, so it can no longer be {verb}."
        )


def get(topic: str, key: str | None, message_id: str | UUID | bytes | None) -> Message | None:
    """The live message, or None."""
    identity = Target.of(topic, key, message_id).identity
    try:
        located = get_store().find(topic, identity)
        if located is not None:
            partition, found = located
            code = task_code_of(found.record)
            return view(topic, task_name(partition, code), found)
    except (StoreUnavailable, OutcomeUnknown):
        kept = lookup.get(topic, identity, only_waiting=True)
        if kept is None and not lookup.is_cancelled(topic, identity):
            raise
    else:
        kept = lookup.get(topic, identity)
    return view(topic, *kept) if kept else None
