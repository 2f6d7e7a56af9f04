"""The finished streams as the archiver reads them: by consumer group, removed only when SQL has the
rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import redis

from ..core.chunks import chunked
from .client import BATCH, Read
from .connection import RedisPy
from .entries import Entry, entry_of
from .keys import Partition, finished_key
from .redis_errors import ERRORS
from .store import RedisStore

GROUP = "archive"
#: We take over an entry that another archiver has not archived so many ms after it read it: the
#: other is dead. If it is only slow, both insert the same row, and the database keeps one of them.
TAKE_OVER_AFTER_MS = 15_000
#: Most bytes of the entries that are read at once. It is known afterwards: the next read takes as
#: many entries as those of the read before would let it.
READ_BYTES = 2 * 1024 * 1024
#: How many entries the first read takes, and how much more each further one may.
FIRST_READ, GROWTH = 32, 8
#: Bytes of several reads, which are in memory and in SQL statements.
TOGETHER_BYTES = 4 * 1024 * 1024
#: Consumers that have read nothing for so many ms, and hold nothing, are removed from the group.
FORGET_AFTER_MS = 3_600_000

#: Entries as redis-py gives them: the stream's id, and the fields.
Found = Sequence[tuple[bytes, dict[bytes, bytes] | None]]


class FinishedStream:
    """The stream of one partition, for one consumer."""

    def __init__(self, store: RedisStore, partition: Partition, consumer: str) -> None:
        self._store = store
        self.partition = partition
        self._key = finished_key(store.client.prefix, partition)
        self._consumer = consumer
        self._grouped = False
        self._batch = max(1, min(FIRST_READ, READ_BYTES // store.client.settings.body_limit))

    def read(self, batches: int = 1) -> Sequence[Entry]:
        """Entries that no archiver has read, up to 500 for each batch; fewer batches where bodies
        are large."""

        def read(client: RedisPy) -> Found:
            found: list[tuple[bytes, dict[bytes, bytes] | None]] = []
            most, size = BATCH * batches, 0
            while len(found) < most and size < TOGETHER_BYTES:
                asked = min(self._batch, most - len(found))
                answer = client.xreadgroup(GROUP, self._consumer, {self._key: ">"}, count=asked)
                more = answer[0][1] if answer else []
                found += more
                size += self._follow_sizes(more)
                if len(more) < asked:
                    break
            return found

        return self._in_group(read)

    def _follow_sizes(self, found: Found) -> int:
        """Choose how many to read next, by the sizes of these. Returns their bytes."""
        sizes = [sum(map(len, fields.values())) for _, fields in found if fields]
        if sizes:
            fits = READ_BYTES * len(sizes) // max(1, sum(sizes))
            self._batch = max(1, min(BATCH, GROWTH * self._batch, fits))
        return sum(sizes)

    def take_over(self) -> Sequence[Entry]:
        """Up to 500 entries that another archiver, or an earlier process of this one, has read and
        not archived. Removes dead consumers from the group."""

        def take_over(client: RedisPy) -> Found:
            _, found, *_ = client.xautoclaim(
                self._key, GROUP, self._consumer, TAKE_OVER_AFTER_MS, "0-0", count=self._batch
            )
            self._follow_sizes(found)
            for consumer in client.xinfo_consumers(self._key, GROUP):
                if not consumer["pending"] and consumer["idle"] > FORGET_AFTER_MS:
                    client.xgroup_delconsumer(self._key, GROUP, consumer["name"])
            return found

        return self._in_group(take_over)

    def remove(self, entries: Sequence[Entry]) -> int:
        """Forget entries whose rows are committed. Returns how many are left in the stream."""
        left = 0
        for chunk in chunked(entries, BATCH):
            durable = [(entry.id, stamp) for entry in chunk if (stamp := entry.stamp)]
            left = self._store.trim_finished(
                self.partition, GROUP, [entry.entry for entry in chunk], durable
            )
        return left

    def _in_group(self, read: Callable[[RedisPy], Found]) -> Sequence[Entry]:
        """The entries that `read` gets through the group, which is made at the first read. None
        when the stream was deleted, and its group with it."""
        client = self._store.client
        try:
            if not self._grouped:
                try:
                    client.redis.xgroup_create(self._key, GROUP, id="0", mkstream=True)
                except redis.ResponseError as error:
                    if "BUSYGROUP" not in str(error):
                        raise
                self._grouped = True
            found = read(client.redis)
        except ERRORS as error:
            if not isinstance(error, redis.ResponseError):
                raise client.failed(error) from error
            self._grouped = False
            if "NOGROUP" not in str(error) and "no such key" not in str(error):
                raise client.failed(error) from error
            return []
        return [
            entry_of(self.partition, entry, fields)
            for entry, fields in found
            if fields  # None: deleted since it was read
        ]


def lengths(store: RedisStore, partitions: Sequence[Partition]) -> Sequence[int]:
    """How many finished messages wait for the archiver, for each partition; one round trip."""
    prefix = store.client.prefix
    return store.client.read_all(
        [Read("XLEN", None, (finished_key(prefix, partition),)) for partition in partitions]
    )


def unarchived(store: RedisStore, partition: Partition) -> Iterator[Sequence[Entry]]:
    """All finished messages of a partition that wait for the archiver, the newest first, 500 at a
    time. Changes nothing."""
    key, end = finished_key(store.client.prefix, partition), "+"
    while found := store.client.command("XREVRANGE", key, end, "-", "COUNT", BATCH):
        yield [entry_of(partition, entry, fields) for entry, fields in found]
        end = f"({found[-1][0].decode()}"
