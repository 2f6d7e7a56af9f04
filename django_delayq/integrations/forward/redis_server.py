"""Redis as a target: a stream, or a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ...core.conf import parse_settings
from ...store.connection import open_client
from ...store.redis_errors import ERRORS
from .forwarding import ForwardedMessage, TargetAway


class _RedisServer:
    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key

    @cached_property
    def _redis(self) -> Any:
        return open_client(parse_settings({"REDIS": self._url}))

    def send(self, messages: Sequence[ForwardedMessage]) -> Mapping[int, str]:
        """In one transaction: all of them, or none."""
        pipeline = self._redis.pipeline(transaction=True)
        for message in messages:
            pipeline.execute_command(*self._command(message))
        try:
            pipeline.execute()
        except ERRORS as error:
            raise TargetAway(f"{type(error).__name__}: {error}") from error
        return {}

    def _command(self, message: ForwardedMessage) -> tuple[Any, ...]:
        raise NotImplementedError


class RedisStream(_RedisServer):
    """Adds an entry for each message: `body` (JSON) and the properties. `most`: about so many
    entries are kept; None: all."""

    def __init__(self, url: str, key: str, *, most: int | None = None) -> None:
        super().__init__(url, key)
        self._limit = () if most is None else ("MAXLEN", "~", most)

    def _command(self, message: ForwardedMessage) -> tuple[Any, ...]:
        fields = [part for pair in message.properties.items() for part in pair]
        return ("XADD", self._key, *self._limit, "*", "body", message.body, *fields)


class RedisList(_RedisServer):
    """Pushes the body of each message to the end of a list."""

    def _command(self, message: ForwardedMessage) -> tuple[Any, ...]:
        return ("RPUSH", self._key, message.body)
