"""A live message as people see it."""

from __future__ import annotations

from .exceptions import UndecodableMessage
from .message import Found, Message, Record, State, decode_body
from .times import from_ms, shown_instant


def view(topic: str, task: str, state: State, found: Found) -> Message:
    """A message for people, from what a partition holds. Raises UndecodableMessage."""
    record = Record.decode(found.record)
    body = decode_body(record.flags, record.body)
    try:
        enqueued_at, due_at = from_ms(record.enqueued_at_us / 1000), from_ms(found.due_at_ms)
        expires_at = from_ms(record.expires_at_ms) if record.expires_at_ms else None
    except (ValueError, OverflowError) as error:
        raise UndecodableMessage(f"The record's times are impossible: {error}.") from None
    return Message(
        id=found.id.hex(),
        topic=topic,
        task=task,
        state=state,
        key=body.key,
        args=body.args,
        kwargs=body.kwargs,
        headers=body.headers,
        priority=record.priority,
        attempt=found.attempts.attempt if found.attempts else 0,
        crashes=found.attempts.crashes if found.attempts else 0,
        runs=found.attempts.runs if found.attempts else (),
        enqueued_at=enqueued_at,
        due_at=due_at,
        expires_at=expires_at,
        replay_of=body.replay_of,
    )


def bare(
    topic: str, identity: bytes, task: str, state: State, due_at_ms: int, attempt: int = 0
) -> Message:
    """A message without its contents."""
    when = shown_instant(due_at_ms)
    return Message(
        id=identity.hex(),
        topic=topic,
        task=task,
        state=state,
        attempt=attempt,
        enqueued_at=when,
        due_at=when,
    )
