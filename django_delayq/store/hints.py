"""The subscription to wake-up hints."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from .connection_pool import LISTENING
from .keys import Partition, wakeups_channel
from .redis_errors import ERRORS
from .store import RedisStore


class HintStream:
    """Reads hints from a connection of its own, which it makes anew after every failure."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._pubsub: Any = None
        self._asked: Any = None

    def connect(self) -> bool:
        """Subscribe unless subscribed. True when the subscription is new."""
        asked = self._store.client.redis
        if self._pubsub is not None and asked is self._asked:
            return False
        self.close()  # the store has moved
        try:
            pubsub = asked.pubsub(ignore_subscribe_messages=True)
            pubsub.subscribe(wakeups_channel(self._store.client.prefix))
        except ERRORS as error:
            raise self._store.client.failed(error) from error
        LISTENING.add(pubsub.connection)
        self._pubsub, self._asked = pubsub, asked
        return True

    def read(self, seconds: float) -> tuple[Partition | None, float] | None:
        """The next hint: partition and its due time in ms. None when none comes in time or it is
        not understood."""
        try:
            message = self._pubsub.get_message(timeout=seconds)
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

    def close(self) -> None:
        """Unsubscribe."""
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            with suppress(*ERRORS, OSError):
                pubsub.close()
