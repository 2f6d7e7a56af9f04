"""Adds very many messages at once, behind a fence that lets none through twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from operator import add
from typing import Any, NamedTuple

from ..core.chunks import chunked, chunked_by_weight
from ..core.exceptions import FenceChanged, LoadLost
from . import keys
from .client import BATCH_BYTES, Read, RedisClient
from .keys import Partition

#: Seconds for which the fence of a load is kept after the load was last at work: 30 days.
FENCE_LIFE = 30 * 86_400
#: Seconds after which a process prolongs that life.
RENEW = 3_600.0
#: Fences that are read in one round trip.
FENCES = 500

#: id, when, expires, record: see load.lua.
Loadable = tuple[bytes, str, str, bytes]


class BulkLoad(NamedTuple):
    """A bulk load, as its fence knows it."""

    job: str
    """The name of the load: part of a Redis key."""
    fingerprint: str
    """Stands for all messages of the load. A job can add one set of messages only."""
    record_conflicts: bool = False
    """Whether the fence records the ids that were kept because another message had them."""


class LoadProgress(NamedTuple):
    """The results of a call."""

    began_ms: int
    """When the load began in this partition, by Redis' clock: repeated ones keep it."""
    new: int = 0
    skipped: int = 0
    """The fence had passed them before."""
    same: int = 0
    """The same record was there."""
    kept: int = 0
    """Another message with this id is live. It stays as it is."""


class BulkLoader:
    """Adds the messages of bulk loads."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._renewed_at: dict[str, float] = {}

    def load(
        self,
        partition: Partition,
        load: BulkLoad,
        split: int,
        tasks: Mapping[bytes, str],
        messages: Sequence[Loadable],
        passed: bytes = b"",
    ) -> Callable[[], Callable[[], LoadProgress]]:
        """- -> delayed for at most 500 messages of a split, ids ascending; without any, it only
        opens the fence.

        Nothing is sent yet. The function that is returned sends the call, as often as it is called:
        to send it again is safe. It returns a function that reads the answer and must be called,
        once; that one raises FenceChanged, and LoadLost when the fence has not passed `passed`: the
        last id of the call before, which was answered.
        """
        names = [text for code, name in tasks.items() for text in (code.hex(), name)]
        fence = keys.fence_key(self._client.prefix, partition, load.job)
        script_keys = (*keys.partition_keys(self._client.prefix, partition), fence)

        def packed(part: Sequence[Loadable], passed: bytes) -> Callable[[], Callable[[], Any]]:
            notes = int(load.record_conflicts)
            head = (split, load.fingerprint, notes, passed, len(tasks), *names)
            return self._client.packed("load", script_keys, chain(head, *part))

        parts = [*chunked_by_weight(messages, lambda one: len(one[3]), BATCH_BYTES)]
        first = packed(parts[0] if parts else (), passed)

        def begin() -> Callable[[], LoadProgress]:
            answer = first()
            others = (packed(part, before[-1][0])()() for before, part in pairwise(parts))
            return lambda: read(chain([answer()], others))

        def read(answers: Iterable[Any]) -> LoadProgress:
            counts = [0] * 5
            for word, *rest in answers:
                if word == b"CHANGED":
                    raise FenceChanged(f"{FenceChanged.meaning()} ({load.job}: {rest[0].decode()})")
                if word == b"LOST":
                    raise LoadLost
                began_ms, *some = map(int, rest)
                counts = [began_ms, *map(add, counts[1:], some)]
            # Not in the script: a client that only writes should not decide when Redis forgets
            # something.
            now = time.monotonic()
            if now - self._renewed_at.get(fence, -RENEW) >= RENEW:
                self._client.command("EXPIRE", fence, FENCE_LIFE)
                self._renewed_at[fence] = now
            return LoadProgress(*counts)

        return begin

    def fences(self, partitions: Sequence[Partition], job: str) -> list[dict[str, str]]:
        """The fields of the fence in each partition: fingerprint, began (ms), new, same, kept.
        Empty without a fence. One round trip for many of them."""
        names = ("fingerprint", "began", "new", "same", "kept")
        found = []
        for page in chunked(partitions, FENCES):
            reads = [
                Read("HMGET", None, (keys.fence_key(self._client.prefix, partition, job), *names))
                for partition in page
            ]
            found += [
                {
                    name: value.decode()
                    for name, value in zip(names, values, strict=True)
                    if value is not None
                }
                for values in self._client.read_all(reads)
            ]
        return found

    def left(
        self, partition: Partition, job: str, messages: Sequence[tuple[int, bytes]]
    ) -> set[bytes]:
        """The ids of those of these messages (split, id) that the load has left to other messages.
        Only of a load that records them. Raises LoadLost when the fence has not passed one of
        them: Redis has lost it."""
        key = keys.fence_key(self._client.prefix, partition, job)
        splits, ids = sorted({split for split, _ in messages}), [one for _, one in messages]
        names = [f"split:{split}".encode() for split in splits]
        names += [b"kept:" + identity for identity in ids]
        found = self._client.command("HMGET", key, *names)
        passed = dict(zip(splits, found, strict=False))
        if any(passed[split] is None or passed[split] < identity for split, identity in messages):
            raise LoadLost
        kept = zip(ids, found[len(splits) :], strict=True)
        return {identity for identity, value in kept if value is not None}
