"""Reads what tasks report: results, how messages have ended, and progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ..core.task_report import TaskProgress
from .client import Read, RedisClient
from .entries import Entry, entry_of
from .keys import Partition, progress_key, result_key
from .redis_errors import ERRORS

#: So many of the newest entries of a finished stream are searched. An archiver that runs leaves far
#: fewer.
MOST_SEARCHED = 5_000


class Reports:
    """A part of the store. Every method raises what RedisStore's do."""

    def __init__(
        self, client: RedisClient, candidates: Callable[[str, bytes], Sequence[Partition]]
    ) -> None:
        self._client = client
        self._candidates = candidates

    def result(self, topic: str, message_id: bytes) -> Entry | None:
        """The finished entry of an acked message with a result, while RESULT_TTL lasts."""
        for partition in self._candidates(topic, message_id):
            if found := self.await_result(partition, message_id):
                return found
        return None

    def await_result(
        self,
        partition: Partition,
        message_id: bytes,
        seconds: float = 0.0,
        after: bytes = b"0",
    ) -> Entry | None:
        """The same in one partition. Waits until it is there, at most so long, and never as long
        as SOCKET_TIMEOUT. A result up to the entry `after` does not count."""
        key = result_key(self._client.prefix, partition, message_id)
        most_s = min(seconds, self._client.settings.socket_timeout / 2)
        try:
            answer = self._client.redis.xread(
                {key: after}, count=1, block=max(1, int(most_s * 1000)) if seconds else None
            )
        except ERRORS as error:
            raise self._client.failed(error) from error
        if not answer:
            return None
        entry, fields = answer[0][1][0]
        return entry_of(partition, entry, fields)

    def ended(self, topic: str, message_id: bytes) -> Entry | None:
        """How a message has ended that the archiver has not taken yet: the newest entry of this
        id."""
        for partition in self._candidates(topic, message_id):
            found = self._client.call("ended", partition, (message_id, MOST_SEARCHED))
            if found:
                entry, flat = found
                return entry_of(partition, entry, dict(zip(flat[::2], flat[1::2], strict=True)))
        return None

    def progress(self, topic: str, message_id: bytes) -> TaskProgress | None:
        """What the task of a running message has reported last."""
        for partition in self._candidates(topic, message_id):
            key = progress_key(self._client.prefix, partition, message_id)
            if raw := self._client.command("GET", key):
                return msgspec.json.decode(raw, type=TaskProgress)
        return None

    def progress_of(
        self, messages: Sequence[tuple[Partition, bytes]]
    ) -> Sequence[TaskProgress | None]:
        """The same of each of these messages; one round trip."""
        prefix = self._client.prefix
        reads = [Read("GET", None, (progress_key(prefix, *message),)) for message in messages]
        return [
            msgspec.json.decode(raw, type=TaskProgress) if raw else None
            for raw in (self._client.read_all(reads) if reads else ())
        ]

    def forget(self, topic: str, ids: Sequence[bytes]) -> None:
        """Remove the results and the progress of these messages."""
        prefix = self._client.prefix
        for message_id in ids:
            for partition in self._candidates(topic, message_id):
                for key in (result_key, progress_key):
                    # Not DEL: a Redis user with the rights of the docs may not.
                    self._client.command("EXPIRE", key(prefix, partition, message_id), 0)
