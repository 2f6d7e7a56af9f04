"""Writes to the log what producers and operators do, and failures of threads.

The receivers of signals are connected only if their records are shown.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from . import signals
from .present import on_one_line
from .signals import Event, Topic

logger = logging.getLogger("delayq")

_LEVELS = {
    "enqueued": logging.DEBUG,
    "rescheduled": logging.DEBUG,
    "cancelled": logging.DEBUG,
    "topic_paused": logging.INFO,
    "topic_resumed": logging.INFO,
}
_receivers: list[Any] = []


def connect_receivers() -> None:
    """Connect a receiver for each signal whose level the logger shows. One whose records nobody
    sees would only slow down every enqueue."""
    for name, level in _LEVELS.items():
        if logger.isEnabledFor(level):
            receiver = partial(_write, name, level)
            _receivers.append(receiver)  # signals hold their receivers weakly
            getattr(signals, name).connect(receiver, dispatch_uid=f"delayq.log.{name}")


def _write(name: str, level: int, sender: Topic, events: Sequence[Event], **kwargs: Any) -> None:
    ids = ", ".join(event.id for event in events[:5] if event.id)
    more = f" and {len(events) - 5} more" if len(events) > 5 else ""
    # The reason that an operator has typed may contain anything, also line ends.
    reasons = sorted({on_one_line(event.reason) for event in events if event.reason})
    logger.log(level, "%s: topic %s %s%s %s", name, sender, ids, more, "; ".join(reasons))


def log_failure(logger: logging.Logger, error: BaseException, text: str, *args: object) -> None:
    """Log the error with its traceback, or without it if it cannot be formatted. Write to stderr if
    a handler fails. This must not raise: it is the last defence of every thread."""
    for exc_info in (error, None):
        try:
            logger.error(text, *args, exc_info=exc_info)
        except BaseException:
            continue
        return
    os.write(2, f"{text % args}: {type(error).__name__}\n".encode(errors="replace"))
