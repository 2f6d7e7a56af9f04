"""The subscription to wake-up hints.

A server sends a subscriber everything in the order in which it was published, or it closes the
connection. So its answer to a PING on this connection proves that every hint before it has arrived,
and nobody has to look for lost ones. This does not hold in a cluster, whose nodes pass hints on to
each other, nor behind Sentinel, where the connection may lead to the former primary.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import redis

from .connection_pool import LISTENING
from .keys import Partition, wakeups_channel
from .redis_errors import ERRORS
from .store import RedisStore


class HintStream:
    """Reads hints from a connection of its own, which it makes anew after every failure."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
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
                self._ask()
                left = until - time.monotonic()
                message = self._pubsub.get_message(timeout=max(0.0, left))
                if not message or message["type"] != "pong":
                    break
                self.complete_until, self._asked_at = self._asked_at, 0.0
        except ERRORS as error:
            self.close()
            raise self._store.client.failed(error) from error
        if not message:
            return None
        text = message["data"].decode("utf-8", "replace")
        topic, number, due_ms = [*text.rsplit(":", 2), "", ""][:3]
        if not number.isdecimal() or not due_ms.isdecimal():
            return None
        return Partition(topic, int(number)), float(due_ms)

    def _ask(self) -> None:
        """Send a PING when the last answer is old."""
        now, settings = time.monotonic(), self._store.client.settings
        if self._asked_at:
            if now - self._asked_at > settings.socket_timeout:
                raise redis.TimeoutError("The subscription does not answer.")
        elif (
            now - self.complete_until >= settings.sweep_interval
            and self._store.client.is_one_server
        ):
            self._pubsub.ping()
            self._asked_at = now

    def close(self) -> None:
        """Unsubscribe."""
        pubsub, self._pubsub = self._pubsub, None
        self._asked_at = self.complete_until = 0.0
        if pubsub is not None:
            with suppress(*ERRORS, OSError):
                pubsub.close()
