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


class KnownCall(NamedTuple):
    """What is known of a call that begins."""

    first: bytes
    """The fingerprint of the first call with this Idempotency-Key."""
    answer: Answered | None
    """What it was answered; None: nothing that was kept."""
    is_free: bool
    """Whether no call with this Idempotency-Key is on its way."""


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

    def begin(self, call: str, fingerprint: bytes, ms: int, seconds: int) -> KnownCall:
        """What is known of a call. If it is free and has no answer, the caller makes it and then
        calls answer() or give_up(); no other caller does within so many ms. The fingerprint of the
        first call is kept for `seconds`."""
        lock, kept, first = self._keys(call)
        # In this order: who has answered writes the answer while the lock is held.
        _, known, free, fields = self._client.read_all(
            [
                Read("SET", None, (first, fingerprint, "NX", "EX", seconds)),
                Read("GET", None, (first,)),
                Read("SET", None, (lock, 1, "NX", "PX", ms)),
                Read("HGETALL", None, (kept,)),
            ]
        )
        if not fields:
            # Without `known` it has ended in this moment.
            return KnownCall(known or fingerprint, None, bool(free))
        answer = Answered(fields[b"of"], int(fields[b"status"]), fields[b"body"])
        return KnownCall(answer.fingerprint, answer, bool(free))

    def answer(self, call: str, given: Answered, seconds: int) -> None:
        """Keep the answer for `seconds`."""
        _, kept, _ = self._keys(call)
        fields = ("of", given.fingerprint, "status", given.status, "body", given.body)
        self._client.read_all(
            [Read("HSET", None, (kept, *fields)), Read("EXPIRE", None, (kept, seconds))]
        )

    def give_up(self, call: str, *, refused: bool = False) -> None:
        """The call has ended without an answer to keep: it may be made again at once. When it was
        refused, nothing was done, and its Idempotency-Key is free for another call."""
        lock, _, first = self._keys(call)
        freed = (first, lock) if refused else (lock,)
        self._client.read_all([Read("EXPIRE", None, (key, 0)) for key in freed])

    def _keys(self, call: str) -> tuple[str, str, str]:
        return keys.answer_keys(self._client.prefix, call)
