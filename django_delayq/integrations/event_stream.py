"""What happens to messages, as one Redis stream that any process can read.

The signals of this process are put into a buffer, and a thread writes them in batches. So a run
waits for nothing, and what the last moments before a kill -9 put there is lost: read the archive
for accounts.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..core import exceptions, signals
from ..core.conf import get_settings
from ..core.exceptions import DelayQError
from ..core.signals import Event, TopicSignal
from ..store import get_store
from ..store.client import BATCH, Read
from ..store.keys import events_key

logger = logging.getLogger("delayq")

#: Seconds between two batches, and events that wait at most while Redis is away.
INTERVAL, MOST_WAITING = 0.05, 100_000

NAMES = (
    "enqueued", "rescheduled", "cancelled", "refused", "expired", "started", "acked", "retried",
    "snoozed", "put_off", "released", "dead", "reclaimed", "lease_lost", "topic_paused",
    "topic_resumed",
)  # fmt: skip


class EventWriter:
    """The buffer, and the thread that empties it."""

    def __init__(self) -> None:
        self._receivers: list[Any] = []
        self._reset()

    def _reset(self) -> None:
        """Begin anew, in this process. After a fork the events that wait are the parent's, which
        writes them itself, and a thread that is not here may hold the locks."""
        self._waiting: deque[tuple[str, str, int, Event]] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._has_begun = False
        self._lost = 0

    def connect(self) -> None:
        """Listen to all signals."""
        os.register_at_fork(after_in_child=self._reset)
        for name in NAMES:
            signal: TopicSignal = getattr(signals, name)
            receiver = self._receiver(name)
            self._receivers.append(receiver)  # a signal alone does not keep it
            signal.connect(receiver, dispatch_uid=f"delayq event stream {name}")

    def _receiver(self, name: str) -> Any:
        def receive(sender: str, events: Sequence[Event], **extra: Any) -> None:
            at_ms = time.time_ns() // 1_000_000
            for event in events:
                if len(self._waiting) >= MOST_WAITING:
                    self._lost += 1
                    continue
                self._waiting.append((name, str(sender), at_ms, event))
            self._begin()

        return receive

    def _begin(self) -> None:
        """Start the thread at the first event of this process."""
        if not self._has_begun:
            with self._lock:
                if not self._has_begun:
                    self._has_begun = True
                    thread = threading.Thread(target=self._work, name="delayq-events", daemon=True)
                    thread.start()
                    atexit.register(self.flush)
        self._wake.set()

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            time.sleep(INTERVAL)
            self.flush()

    def flush(self) -> None:
        """Write what waits. While Redis is away it goes on waiting."""
        with self._lock:
            while batch := [self._waiting[n] for n in range(min(BATCH, len(self._waiting)))]:
                try:
                    store = get_store()
                    key, most = events_key(store.client.prefix), get_settings().event_stream
                    store.client.read_all(
                        [
                            Read("XADD", None, (key, "MAXLEN", "~", most, "*", *_fields(*each)))
                            for each in batch
                        ]
                    )
                except DelayQError as error:
                    logger.debug("events wait: %s", error)
                    self._wake.set()
                    return
                for _ in batch:
                    self._waiting.popleft()
        if self._lost:
            lost, self._lost = self._lost, 0
            logger.warning("%d events were not written to the stream: too many waited", lost)


def _fields(name: str, topic: str, at_ms: int, event: Event) -> list[Any]:
    """Names and values. Keys and texts of errors may be about a person, and are left out."""
    fields: dict[str, Any] = {
        "event": name,
        "topic": topic,
        "at_ms": at_ms,
        "id": event.id,
        "task": event.task,
        "attempt": event.attempt,
        "lateness_ms": round(event.lateness_ms, 3),
        "run_ms": round(event.run_ms, 3),
        "delay_ms": "" if event.delay_ms is None else event.delay_ms,
        "reason": _word(event),
    }
    return [part for pair in fields.items() for part in pair]


def _word(event: Event) -> str:
    """The class of the error, or a word such as `poison`. What a task or an operator has said in a
    sentence is `told`."""
    if event.error is not None:
        return type(event.error).__name__
    first = event.reason.partition(":")[0]
    is_ours = hasattr(exceptions, first) or re.fullmatch("[a-z_]*", event.reason)
    return first if is_ours else "told"


writer = EventWriter()
