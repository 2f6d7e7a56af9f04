"""Signals for every change of state.

Messages change state in batches, and a signal is sent once for each batch: `sender` is the Topic,
`events` a list of Event. A receiver has to be quick: in a worker it runs on a thread that claims or
settles. An error in a receiver is logged and does not stop the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django.dispatch import Signal

logger = logging.getLogger("delayq")


class Topic(str):
    """The name of a topic as the sender of signals. There is one object for each name, because
    Django compares senders by identity."""

    __slots__ = ()

    def __new__(cls, name: str) -> Topic:
        return _topics.get(name) or _topics.setdefault(str(name), super().__new__(cls, name))


_topics: dict[str, Topic] = {}


class TopicSignal(Signal):
    """A signal whose receivers can ask for one topic by its name."""

    def connect(
        self, receiver: Any, sender: object = None, weak: bool = True, dispatch_uid: Any = None
    ) -> None:
        """Connect a receiver, as Django does; `sender` is the name of a topic. Raises TypeError for
        any other sender."""
        super().connect(receiver, _sender(sender), weak, dispatch_uid)

    def disconnect(
        self, receiver: Any = None, sender: object = None, dispatch_uid: Any = None
    ) -> bool:
        """Disconnect a receiver, as Django does; `sender` is the name of a topic."""
        return super().disconnect(receiver, _sender(sender), dispatch_uid)


def _sender(sender: object) -> Topic | None:
    if sender is None or isinstance(sender, str):
        return None if sender is None else Topic(sender)
    raise TypeError(
        f"sender is {sender!r:.80}: give the name of a topic. event.task names the task."
    )


class Event(NamedTuple):
    """The change of state of one message."""

    id: str
    """Id of the message: 32 hexadecimal digits."""
    task: str = ""
    """Name of the task. It is empty where only ids are known: in `rescheduled`, `cancelled`,
    `expired`, `reclaimed`, and in `dead` with the reason `poison`."""
    key: str | None = None
    """Business key, or None. It is also None where only ids are known."""
    attempt: int = 0
    """Number of the run: 1 for the first, 0 before it."""
    lateness_ms: float = 0.0
    """Start of the run minus due time, in milliseconds."""
    run_ms: float = 0.0
    """How long the task ran, in milliseconds."""
    delay_ms: int | None = None
    """Wait until the next attempt in milliseconds, or None if there is none."""
    reason: str = ""
    """Why it happened: error class and message, or a word such as `poison`. Empty for success."""
    error: BaseException | None = None
    """The exception of the task with its traceback, only in the process that ran the task; for an
    isolated task a TaskFailedInChild with the text of it. Do not keep a reference."""


enqueued = TopicSignal()
"""(new) → delayed: messages are stored in Redis. Sent by the caller; for a message from the outbox
by the relay."""
rescheduled = TopicSignal()
"""delayed → delayed with another due time. Sent by the caller or the relay."""
cancelled = TopicSignal()
"""delayed → cancelled, also by a purge; leased → cancelled by `cancel(running=True)`. Sent by the
caller or the relay."""
refused = TopicSignal()
"""A commit, or the relay after an outage, could not do its work. The argument `action` is
`enqueue`, `cancel` or `reschedule`. Sent by the caller or the relay."""
expired = TopicSignal()
"""delayed → expired: a worker met the message after its own `expires`. Sent by the worker."""
started = TopicSignal()
"""ready → leased: a task begins. Sent for each message alone, by the thread that runs it."""
acked = TopicSignal()
"""leased → acked. Sent by the worker."""
retried = TopicSignal()
"""leased → delayed: an attempt failed, and attempts are left. Sent by the worker."""
snoozed = TopicSignal()
"""leased → delayed: the task raised Snooze; the attempt does not count. Sent by the worker."""
put_off = TopicSignal()
"""leased → delayed: this worker's code cannot run the message, another version may. The attempt
does not count. Sent by the worker."""
released = TopicSignal()
"""leased → delayed: a worker gave the message back without running it, for example because it
stops. The attempt does not count. Sent by the worker."""
dead = TopicSignal()
"""leased → dead: no attempt is left, or the task raised Reject. Sent by the worker."""
reclaimed = TopicSignal()
"""leased → delayed: the lease ended without an answer of its worker. Sent by another worker."""
lease_lost = TopicSignal()
"""A run goes on, or ended, after its lease, or its message was cancelled while it ran; its result
is refused. Sent by the worker."""
topic_paused = TopicSignal()
"""A topic was paused: nothing of it is claimed. One event without an id; its `reason` is that of
the pause. Sent by the caller."""
topic_resumed = TopicSignal()
"""A paused topic goes on. Sent by the caller."""


def report_ids(signal: Signal, topic: str, ids: Iterable[bytes], reason: str) -> None:
    """Report messages of which only the ids are known."""
    report(signal, topic, [Event(message_id.hex(), reason=reason) for message_id in ids])


def report(signal: Signal, topic: str, events: Sequence[Event], **extra: Any) -> None:
    """Send `events` to all receivers; log the receivers that fail."""
    if not events or not signal.receivers:
        return
    for receiver, answer in signal.send_robust(sender=Topic(topic), events=events, **extra):
        if isinstance(answer, Exception):
            logger.error("signal receiver %r failed", receiver, exc_info=answer)
