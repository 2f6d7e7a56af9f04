"""The subscription to wake-up hints.

A server sends a subscriber everything in the order in which it was published, or it closes the
connection. So a beat that a worker publishes proves to all workers that every hint before it has
arrived, and nobody has to look for lost ones. One worker after the other would publish the next
beat: the first does, and the others hear it. This does not hold in a cluster, whose nodes pass
hints on to each other, nor behind Sentinel, where the connection may lead to the former primary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import redis

from ..core.exceptions import DelayQError
from .connection_pool import LISTENING
from .keys import BEAT_HINT, Partition, wakeups_channel
from .redis_errors import ERRORS
from .store import RedisStore

#: Sweep intervals from one beat to the next; how many more for each worker that comes before, and
#: at most. After 3 without a beat a worker has to look for lost hints.
BEAT_AFTER, BEAT_TURN, BEAT_AFTER_MOST = 2.0, 0.05, 0.5


class HintStream:
    """Reads hints from a connection of its own, which it makes anew after every failure."""

    def __init__(
        self,
        store: RedisStore,
        turn: Callable[[], int] = int,
        on_beat: Callable[[int], None] = lambda subscriptions: None,
    ) -> None:
        self._store = store
        self._turn = turn
        """How many workers come before this one to publish a beat."""
        self._on_beat = on_beat
        """Called after a beat of this worker, with how many subscriptions get it."""
        self._pubsub: Any = None
        self._server: Any = None
        self._asked_at = 0.0
        self.complete_until = 0.0
        """Local monotonic time: every hint that was published before has been read. 0 while nothing
        proves it."""

    def connect(self) -> bool:
        """Subscribe unless subscribed. True when the subscription is new."""
        server = self._store.client.redis
        if self._pubsub is not None and server is self._server:
            return False
        self.close()  # the store has moved
        try:
            pubsub = server.pubsub(ignore_subscribe_messages=True)
            pubsub.subscribe(wakeups_channel(self._store.client.prefix))
        except ERRORS as error:
            raise self._store.client.failed(error) from error
        LISTENING.add(pubsub.connection)
        self._pubsub, self._server = pubsub, server
        self._asked_at = self.complete_until = 0.0
        return True

    def read(self, seconds: float) -> tuple[Partition | None, float] | None:
        """The next hint: partition and its due time in ms. None when none comes in time or it is
        not understood. Raises DelayQError when the server does not answer."""
        until = time.monotonic() + seconds
        try:
            while True:
                left = min(until, self._beat_when_due()) - time.monotonic()
                message = self._pubsub.get_message(timeout=max(0.0, left))
                if message is None:
                    if time.monotonic() >= until:
                        return None
                    continue
                text = message["data"].decode("utf-8", "replace")
                topic, number, due_ms = [*text.rsplit(":", 2), "", ""][:3]
                if topic != BEAT_HINT:
                    break
                self.complete_until, self._asked_at = time.monotonic(), 0.0
        except DelayQError:  # the beat could not be published
            self.close()
            raise
        except ERRORS as error:
            self.close()
            raise self._store.client.failed(error) from error
        if not number.isdecimal() or not due_ms.isdecimal():
            return None
        return Partition(topic, int(number)), float(due_ms)

    def _beat_when_due(self) -> float:
        """Publish a beat when the last one is old. Returns when there is something to do again."""
        now, settings = time.monotonic(), self._store.client.settings
        if self._asked_at:
            ends = self._asked_at + settings.socket_timeout
            if now > ends:
                raise redis.TimeoutError("The subscription does not answer.")
            return ends
        if not self._store.client.is_one_server:
            return math.inf
        beats = BEAT_AFTER + min(BEAT_AFTER_MOST, BEAT_TURN * self._turn())
        at = self.complete_until + settings.sweep_interval * beats
        if now >= at:
            self._asked_at = now  # first: it may be heard before the call returns
            self._on_beat(self._store.workers.hint(f"{BEAT_HINT}:0:0"))
            return now
        return at

    def close(self) -> None:
        """Unsubscribe."""
        pubsub, self._pubsub = self._pubsub, None
        self._asked_at = self.complete_until = 0.0
        if pubsub is not None:
            with suppress(*ERRORS, OSError):
                pubsub.close()
