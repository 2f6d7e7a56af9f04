"""What an audit looks at and mends: each id at one instant, each damage in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from ..core.message import lane_of, stamp_us_of
from . import keys
from .client import BATCH, RedisClient
from .keys import Partition
from .queries import Life

Damage = Literal[
    "record",  # in a lane or leased without a record: ended as dead, body_missing
    # a record in no lane and not leased (argument: its due time in ms): back; without one dead,
    # due_lost
    "place",
    "places",  # in two lanes, in a wrong one, or in a lane and leased: the right place stays
    "attempts",  # attempts without a message: removed
    "follower",  # a follower whose run does not go on: takes its place
    "stale",  # a remembered end (argument: its stamp) that is archived: forgotten
    # a remembered end that is in no stream (argument: its record): told as dead, end_lost
    "untold",
    "out",  # this life (argument: its stamp) leaves the partition, unless it runs
    "tried",  # gets this attempts entry (argument), where it has none
]
"""What mend.lua can do."""

PAGE = 500


class Look(NamedTuple):
    """All that a partition holds under one id, at one instant."""

    lanes: tuple[int | None, int | None, int | None]
    """Due time in ms in the lanes high, normal, low."""
    lease_ms: int | None
    """Deadline."""
    recorded: bool
    stamp_us: int | None
    """enqueued_at of the record; None without one that has it."""
    lane: int
    """Where the record belongs: 0 to 2."""
    has_attempts: bool
    follower_us: int | None
    """enqueued_at of what follows the run."""
    done_us: int | None
    """enqueued_at of the newest life whose end is remembered."""

    @property
    def waits(self) -> bool:
        """Whether it is in a lane."""
        return any(due is not None for due in self.lanes)

    @property
    def leased(self) -> bool:
        """Whether a worker has it."""
        return self.lease_ms is not None


class Repair:
    """The part of the store that an audit needs."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    def look(self, partition: Partition, ids: Sequence[bytes]) -> Sequence[Look]:
        """What the partition holds under each of these ids (any number)."""
        found: list[Look] = []
        for at in range(0, len(ids), BATCH):
            found += map(_seen, self._client.call("look", partition, ids[at : at + BATCH]))
        return found

    def mend(
        self,
        partition: Partition,
        damage: Damage,
        items: Sequence[tuple[bytes, bytes]],
        archive: str = "",
    ) -> Sequence[bool]:
        """Mend one kind of damage in these messages: id and argument (see Damage, b"" without one)
        of each.

        Returns whether each of them was damaged so; what was not is unchanged. `archive`: all, dead
        or none; empty: as the topic's setting says.
        """
        words: list[bool] = []
        for at in range(0, len(items), BATCH):
            args: list[Any] = [damage, archive or self._client.settings.archive_of(partition.topic)]
            for item in items[at : at + BATCH]:
                args += item
            words += map(bool, self._client.call("mend", partition, args))
        return words

    def finished_lives(self, partition: Partition) -> set[Life]:
        """Every life in the finished stream. Reads all of it, the newest first, in pages."""
        entries = self._entries_of(keys.finished_key(self._client.prefix, partition))
        return {Life(entry[b"id"], stamp_us_of(entry[b"record"]) or 0) for entry in entries}

    def _entries_of(self, key: str) -> Iterator[dict[bytes, bytes]]:
        before = "+"
        while page := self._client.redis.xrevrange(key, before, "-", count=PAGE):
            yield from (fields for _, fields in page)
            before = f"({page[-1][0].decode()}"


def _seen(answer: Sequence[Any]) -> Look:
    high, normal, low, lease, recorded, head, attempts, follower, done = answer
    return Look(
        (_score(high), _score(normal), _score(low)),
        _score(lease),
        bool(recorded),
        stamp_us_of(head),
        lane_of(head),
        bool(attempts),
        stamp_us_of(follower),
        stamp_us_of(done),
    )


def _score(score: Any) -> int | None:
    return None if score == b"" else int(float(score))
