"""Signals for every state change.

Messages change state in batches (one script, one batch), and so do the signals: each is sent once
per batch with `sender` = the Topic and `events` = a list of Event. Receivers must be quick: those
of a worker run on its settler thread, whose database connections are looked after. A receiver that
raises is logged and does not stop the queue. docs/signals.md has the table.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.dispatch import Signal

logger = logging.getLogger("delayq")


class Topic(str):
    """The name of a topic as the sender of signals. There is one object for each name: Django
    compares senders by identity, and of a plain str there may be any number that are equal."""

    __slots__ = ()

    def __new__(cls, name: str) -> Topic:
        return _topics.get(name) or _topics.setdefault(str(name), super().__new__(cls, name))


_topics: dict[str, Topic] = {}


class TopicSignal(Signal):
    """A signal whose receivers may ask for one topic, by its name."""

    def connect(
        self, receiver: Any, sender: object = None, weak: bool = True, dispatch_uid: Any = None
    ) -> None:
        """As Django's. `sender`: the name of a topic. Raises TypeError for anything else."""
        super().connect(receiver, _sender(sender), weak, dispatch_uid)

    def disconnect(
        self, receiver: Any = None, sender: object = None, dispatch_uid: Any = None
    ) -> bool:
        """As Django's."""
        return super().disconnect(receiver, _sender(sender), dispatch_uid)


def _sender(sender: object) -> Topic | None:
    if sender is None or isinstance(sender, str):
        return None if sender is None else Topic(sender)
    raise TypeError(
        f"sender is {sender!r:.80}: give the name of a topic. Of which task an event is, "
        f"event.task says."
    )


class Event(NamedTuple):
    """One message's change of state."""

    id: str
    """32 hexadecimal digits."""
    task: str = ""
    """Name of the task, empty when unknown."""
    key: str | None = None
    """Business key, if any."""
    attempt: int = 0
    """1 for the first run; 0 before it."""
    lateness_ms: float = 0.0
    """Start minus due time."""
    run_ms: float = 0.0
    """How long the task ran."""
    delay_ms: int | None = None
    """Wait until the next attempt, if one follows."""
    reason: str = ""
    """Why, for everything but success: error class and message, or a word such as `poison`."""
    error: BaseException | None = None
    """What the task raised, with its traceback: for receivers in the process that ran it. Do not
    keep it."""


enqueued = TopicSignal()
"""delayed: a producer stored messages."""
rescheduled = TopicSignal()
"""delayed -> delayed with another due time."""
cancelled = TopicSignal()
"""delayed -> cancelled."""
refused = TopicSignal()
"""What a commit, or the end of an outage, was to do and could not: `action` is enqueue, cancel or
reschedule."""
expired = TopicSignal()
"""delayed -> expired: too late by the message's own expires_at."""
started = TopicSignal()
"""leased: a task begins. Sent per message, on the thread that runs it, and only when somebody
listens."""
acked = TopicSignal()
"""leased -> acked."""
retried = TopicSignal()
"""leased -> delayed: a failed attempt with attempts left."""
snoozed = TopicSignal()
"""leased -> delayed: the task asked for another time; the attempt does not count."""
put_off = TopicSignal()
"""leased -> delayed: the code of this worker cannot run the message, that of another may; does not
count."""
released = TopicSignal()
"""leased -> delayed: given back unrun, the attempt with it."""
dead = TopicSignal()
"""leased -> dead."""
reclaimed = TopicSignal()
"""leased -> delayed: the holder's lease ended without a word."""
lease_lost = TopicSignal()
"""A run ended after its lease had gone; its result was refused."""
topic_paused = TopicSignal()
"""A topic is held: nothing of it is claimed."""
topic_resumed = TopicSignal()
"""A held topic goes on."""


def report(signal: Signal, topic: str, events: Sequence[Event], **extra: Any) -> None:
    """Send `events` to whoever listens; log the receivers that fail."""
    if not events or not signal.receivers:
        return
    for receiver, answer in signal.send_robust(sender=Topic(topic), events=events, **extra):
        if isinstance(answer, Exception):
            logger.error("signal receiver %r failed", receiver, exc_info=answer)
