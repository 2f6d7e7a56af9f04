"""A task whose messages are not run here but sent on, in batches."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...client.decorator import BatchTask, delayed_task
from ...core.exceptions import DelayQError, InvalidTask, Snooze
from ...tasks.batch import Batch

logger = logging.getLogger("delayq.worker")

#: Seconds until the next try while a target is away: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0


class TargetAway(DelayQError):
    """The other side did not take a batch, or nobody knows whether it did. All messages that were
    not confirmed are sent again; this counts as no attempt."""

    def __init__(self, reason: str, confirmed: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.confirmed = frozenset(confirmed)
        """Places in the batch of the messages that the other side has."""


@dataclass(frozen=True)
class ForwardedMessage:
    """One message as a target sends it."""

    id: str
    """32 hexadecimal digits. It is the same when the message is sent again: the other side can tell
    a repetition by it."""
    topic: str
    attempt: int
    payload: Any
    """The argument that was enqueued."""
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The payload as JSON."""
        return json.dumps(self.payload, ensure_ascii=False, separators=(",", ":")).encode()

    @property
    def properties(self) -> dict[str, str]:
        """What travels beside the body, as texts."""
        named = {"delayq-id": self.id, "delayq-topic": self.topic}
        named["delayq-attempt"] = str(self.attempt)
        if self.key is not None:
            named["delayq-key"] = self.key
        return {**self.headers, **named}


class ForwardTarget(Protocol):
    """Another place. A target of your own is any object with this method."""

    def send(self, messages: Sequence[ForwardedMessage]) -> Mapping[int, str]:
        """Send the messages, and return when the other side has confirmed them.

        Returns the reasons of those that the other side refuses for good, by their places; each of
        these has failed one attempt. Raises TargetAway when the other side is not there. Called by
        several threads.
        """


class _Forwarder:
    """Sends batches of one task. While its target is away only one batch after each pause tries it.
    All others wait, so that a long outage costs few calls."""

    def __init__(self, name: str, target: ForwardTarget) -> None:
        self._name = name
        self._target = target
        self._lock = threading.Lock()
        self._pause = 0.0
        self._until = 0.0

    def forward(self, messages: Batch[Any]) -> None:
        """Send the messages, and say of each what becomes of it."""
        if wait := self._wait():
            raise Snooze(wait + random.uniform(0.0, 1.0))
        sent = [
            ForwardedMessage(
                each.id, each.topic, each.attempt, each.args[0], each.key, each.headers
            )
            for each in messages
        ]
        try:
            refused = self._target.send(sent)
        except TargetAway as error:
            with self._lock:
                pause = self._pause = min(LONGEST_PAUSE, 2 * self._pause or FIRST_PAUSE)
                self._until = time.monotonic() + pause
            logger.warning(
                "%s: the target is away, next try in %.0f s: %s", self._name, pause, error
            )
            for place, message in enumerate(messages):
                if place not in error.confirmed:
                    message.snooze(pause + random.uniform(0.0, 1.0))
            return
        with self._lock:
            was_away, self._pause, self._until = bool(self._pause), 0.0, 0.0
        if was_away:
            logger.warning("%s: the target is back", self._name)
        for place, reason in refused.items():
            messages[place].retry(reason)

    def _wait(self) -> float:
        """Seconds until the next try; 0: try now."""
        with self._lock:
            left = self._until - time.monotonic()
            if left <= 0 and self._pause:
                self._until = time.monotonic() + self._pause  # this caller tries for all
            return max(0.0, left)


def forwarded_task(
    name: str,
    target: ForwardTarget,
    *,
    topic: str,
    batch: int = 500,
    linger: float = 0.02,
    **options: Any,
) -> BatchTask[[Any], None]:
    """Declare a task whose due messages go to the target, up to `batch` at a time, and are acked
    when the target has confirmed them. Its messages have one argument, anything that is JSON.

    While the target is away they wait: that counts as no attempt. A message that the target refuses
    has failed an attempt. Each message arrives at least once; after a crash or a timeout what was
    in flight may arrive again, with the same id. `options`: those of delayed_task for a batch task.
    Raises InvalidTask.
    """
    if not callable(getattr(target, "send", None)):
        raise InvalidTask(f"{name} cannot be forwarded: {target!r:.80} has no method `send`.")
    forwarder = _Forwarder(name, target)

    def forward(messages: Batch[Any]) -> None:
        forwarder.forward(messages)

    forward.__qualname__ = forward.__name__ = name.rpartition(".")[2]
    return delayed_task(name=name, topic=topic, batch=batch, linger=linger, **options)(forward)
