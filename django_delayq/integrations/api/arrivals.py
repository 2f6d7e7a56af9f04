"""Lets long polls sleep until a message may be there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection

from ...core.exceptions import DelayQError
from ...store.hints import HintStream
from ...store.store import RedisStore

logger = logging.getLogger("delayq.api")

#: Seconds after which the thread ends when nobody waits.
IDLE = 30.0


class Arrivals:
    """One thread of a process listens to the hints of producers, while anybody waits.

    A hint is only a hint: who waits looks again after SWEEP_INTERVAL anyway.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: dict[threading.Event, Collection[str]] = {}
        self._thread: threading.Thread | None = None
        self._waited_at = 0.0

    def wait(self, seconds: float, bell: threading.Event) -> None:
        """Sleep until the bell rings, or until `seconds` are over."""
        self._waited_at = time.monotonic()
        bell.wait(seconds)
        bell.clear()

    def hang_up(self, topics: Collection[str]) -> threading.Event:
        """A bell that rings from now on when there is a hint about one of the topics; take_down()
        it."""
        bell = threading.Event()
        with self._lock:
            self._waiting[bell] = topics
            self._waited_at = time.monotonic()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._listen, name="delayq-api-hints", daemon=True
                )
                self._thread.start()
        return bell

    def take_down(self, bell: threading.Event) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._waiting.pop(bell, None)

    def _listen(self) -> None:
        stream = HintStream(self._store)
        try:
            while self._waiting or time.monotonic() - self._waited_at < IDLE:
                try:
                    if stream.connect():
                        self._ring(None)
                    heard = stream.read(seconds=1.0)
                except DelayQError:
                    time.sleep(1.0)
                    continue
                if heard is not None and heard[0] is not None:
                    self._ring(heard[0].topic)
        finally:
            stream.close()

    def _ring(self, topic: str | None) -> None:
        with self._lock:
            for bell, topics in self._waiting.items():
                if topic is None or topic in topics:
                    bell.set()
