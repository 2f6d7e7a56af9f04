"""Finds one message wherever it is: live in Redis or the outbox, or its newest row in the archive. Never scans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from . import producer, tasks
from .conf import get_settings
from .exceptions import UndecodableMessage
from .identity import key_id, parse_id
from .message import Message, State
from .models import ArchivedMessage, OutboxMessage
from .naming import task_name
from .options import check_key
from .store import get_store
from .times import shown_instant


@dataclass(frozen=True, kw_only=True)
class Hit:
    """Where a message is."""

    topic: str
    message_id: str
    """32 hexadecimal digits."""
    task: str
    key: str | None
    state: str
    at: datetime
    """When it is due, or for an archived one when it ended."""
    row: int | None = None
    """The row of the archive; None for a live one."""


@dataclass(frozen=True, kw_only=True)
class Live:
    """A live message."""

    message: Message
    problem: str = ""
    """Why it cannot be decoded; then the message has neither arguments nor headers."""
    outbox: str = ""
    """Status of its row in the outbox: waiting (only there), sent (in Redis too), or empty for none."""


def by_id(message_id: str, topic: str = "") -> Hit | None:
    """The message with this id, in any known topic unless one is given. Raises InvalidMessage or UnknownTopic."""
    identity = parse_id(message_id)
    lives = _lives(dict.fromkeys(_topics(topic), identity))
    row = None if lives else archived(message_id)
    return next(iter(lives.values())) if lives else _archived_hit(row) if row else None


def by_key(key: str, topic: str = "") -> list[Hit]:
    """The message with this key in each known topic, or in the one that is given; the live ones first.

    Raises InvalidKey or UnknownTopic.
    """
    checked = check_key(key) or ""
    identities = {name: key_id(name, checked) for name in _topics(topic)}
    lives = _lives(identities)
    rows = [archived(identity.hex()) for name, identity in identities.items() if name not in lives]
    return [*lives.values(), *(_archived_hit(row) for row in rows if row)]


def live(topic: str, message_id: str) -> Live | None:
    """The live message, also one that cannot be decoded. Raises UnknownTopic or InvalidMessage."""
    identity = parse_id(message_id)
    rows = OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic=topic)
    try:
        message = producer.get(topic, None, identity)
    except UndecodableMessage as error:
        bare = _bare(topic, identity)
        return Live(message=bare, problem=str(error)) if bare else None
    return Live(message=message, outbox=rows.values_list("status", flat=True).first() or "") if message else None


def archived(message_id: str) -> ArchivedMessage | None:
    """The row of the newest life with this id. Raises InvalidMessage."""
    rows = ArchivedMessage.objects.using(get_settings().database).filter(message_id=UUID(bytes=parse_id(message_id)))
    row: ArchivedMessage | None = rows.order_by("-enqueued_at").first()
    return row


def _topics(topic: str) -> Sequence[str]:
    return [tasks.check_topic(topic)] if topic else sorted(tasks.known_topics())


def _lives(identities: Mapping[str, bytes]) -> dict[str, Hit]:
    """The live ones among these ids, by topic."""
    uuids = {UUID(bytes=identity) for identity in identities.values()}
    kept = set(OutboxMessage.objects.filter(message_id__in=uuids).values_list("topic", flat=True))
    there = [topic for topic, identity in identities.items() if topic in kept or _in_redis(topic, identity)]
    found = {topic: live(topic, identities[topic].hex()) for topic in there}
    return {topic: _live_hit(one.message) for topic, one in found.items() if one}


def _in_redis(topic: str, identity: bytes) -> bool:
    store = get_store()
    return any(store.find(p, [identity])[0] is not None for p in store.partitions.candidates(topic, identity))


def _live_hit(message: Message) -> Hit:
    return Hit(
        topic=message.topic,
        message_id=message.id,
        task=message.task,
        key=message.key,
        state=message.state.value,
        at=message.due_at,
    )


def _archived_hit(row: ArchivedMessage) -> Hit:
    return Hit(
        topic=row.topic,
        message_id=row.message_id.hex,
        task=row.task,
        key=row.key or None,
        state=row.state,
        at=row.finished_at,
        row=row.pk,
    )


def _bare(topic: str, identity: bytes) -> Message | None:
    """What is known of a live message without decoding it."""
    store = get_store()
    for partition in store.partitions.candidates(topic, identity):
        if found := store.find(partition, [identity])[0]:
            name = task_name(partition, found.record[19:23])
            attempts = found.attempts
            return bare(topic, identity, name, found.state, found.due_at_ms, attempts.attempt if attempts else 0)
    row = OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic=topic).first()
    return bare(topic, identity, row.task, State("delayed"), row.due_at_ms) if row else None


def bare(topic: str, identity: bytes, task: str, state: State, due_at_ms: int, attempt: int = 0) -> Message:
    """A message without its contents."""
    when = shown_instant(due_at_ms)
    return Message(
        id=identity.hex(), topic=topic, task=task, state=state, attempt=attempt, enqueued_at=when, due_at=when
    )
