"""Signals for every state change.

Messages change state in batches (one script, one batch), and so do the signals: each is sent once per batch
with `sender` = the topic's name and `events` = a list of Event. Receivers must be quick: those of a worker run
on its settler thread. A receiver that raises is logged and does not stop the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.dispatch import Signal

logger = logging.getLogger("delayq")


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


enqueued = Signal()
"""delayed: a producer stored messages."""
rescheduled = Signal()
"""delayed -> delayed with another due time."""
cancelled = Signal()
"""delayed -> cancelled."""
expired = Signal()
"""delayed -> expired: too late by the message's own expires_at."""
started = Signal()
"""leased: a task begins. Sent per message, on the thread that runs it, and only when somebody listens."""
acked = Signal()
"""leased -> acked."""
retried = Signal()
"""leased -> delayed: a failed attempt with attempts left."""
snoozed = Signal()
"""leased -> delayed: the task asked for another time; the attempt does not count."""
released = Signal()
"""leased -> delayed: given back unrun, the attempt with it."""
dead = Signal()
"""leased -> dead."""
reclaimed = Signal()
"""leased -> delayed: the holder's lease ended without a word."""
lease_lost = Signal()
"""A run ended after its lease had gone; its result was refused."""
topic_paused = Signal()
"""A topic is held: nothing of it is claimed."""
topic_resumed = Signal()
"""A held topic goes on."""


def report(signal: Signal, topic: str, events: Sequence[Event], **extra: Any) -> None:
    """Send `events` to whoever listens; log the receivers that fail."""
    if not events or not signal.receivers:
        return
    for receiver, answer in signal.send_robust(sender=topic, events=events, **extra):
        if isinstance(answer, Exception):
            logger.error("signal receiver %r failed: %r", receiver, answer)
