"""Counts the calls of tokens of the HTTP API, and keeps answers of calls that may come again."""

from __future__ import annotations

from typing import NamedTuple

from . import keys
from .client import Read, RedisClient


class Answered(NamedTuple):
    """The answer that a call was given."""

    fingerprint: bytes
    """Of the call."""
    status: int
    body: bytes


class Requests:
    """What the processes of the HTTP API share."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    def count(self, token: str, window: int, seconds: int) -> int:
        """Count a call of a token in a window of so many seconds. Returns how many it has made
        there."""
        key = keys.calls_key(self._client.prefix, token, window)
        counted, _ = self._client.read_all(
            [Read("HINCRBY", None, (key, "n", 1)), Read("EXPIRE", None, (key, 2 * seconds))]
        )
        return int(counted)

    def begin(self, call: str, ms: int) -> Answered | bool:
        """The answer of a call that was made before. Else True: the caller makes it and then calls
        answer() or give_up(); or False: another caller does, at most for so many ms."""
        lock, kept = self._keys(call)
        # In this order: who has answered writes the answer while the lock is held.
        free, fields = self._client.read_all(
            [Read("SET", None, (lock, 1, "NX", "PX", ms)), Read("HGETALL", None, (kept,))]
        )
        if fields:
            return Answered(fields[b"of"], int(fields[b"status"]), fields[b"body"])
        return bool(free)

    def answer(self, call: str, given: Answered, seconds: int) -> None:
        """Keep the answer for `seconds`."""
        _, kept = self._keys(call)
        fields = ("of", given.fingerprint, "status", given.status, "body", given.body)
        self._client.read_all(
            [Read("HSET", None, (kept, *fields)), Read("EXPIRE", None, (kept, seconds))]
        )

    def give_up(self, call: str) -> None:
        """The call has failed: it may be made again at once."""
        self._client.command("EXPIRE", self._keys(call)[0], 0)

    def _keys(self, call: str) -> tuple[str, str]:
        return keys.answer_keys(self._client.prefix, call)
