"""Writes what producers and operators do to the log: receivers of signals, connected only where
somebody reads them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from . import signals
from .signals import Event, Topic
from .text import on_one_line

logger = logging.getLogger("delayq")

_LEVELS = {
    "enqueued": logging.DEBUG,
    "rescheduled": logging.DEBUG,
    "cancelled": logging.DEBUG,
    "topic_paused": logging.INFO,
    "topic_resumed": logging.INFO,
}
_receivers: list[Any] = []


def connect() -> None:
    """Connect a receiver for each signal whose level the logger shows: a silent one would cost
    every enqueue."""
    for name, level in _LEVELS.items():
        if logger.isEnabledFor(level):
            receiver = _receiver(name, level)
            _receivers.append(receiver)  # signals hold their receivers weakly
            getattr(signals, name).connect(receiver, dispatch_uid=f"delayq.log.{name}")


def _receiver(name: str, level: int) -> Any:
    def receive(sender: Topic, events: Sequence[Event], **kwargs: Any) -> None:
        ids = ", ".join(event.id for event in events[:5] if event.id)
        more = f" and {len(events) - 5} more" if len(events) > 5 else ""
        # What an operator has typed is one line here, whatever it is.
        reasons = {on_one_line(event.reason) for event in events if event.reason}
        logger.log(
            level, "%s: topic %s %s%s %s", name, sender, ids, more, "; ".join(sorted(reasons))
        )

    return receive
