"""What an audit looks at and mends: each id at one instant, each damage in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from ..core.message import STAMP
from . import keys
from .keys import Partition
from .link import BATCH
from .looking import Looking

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


class Mending(Looking):
    """The part of the store that an audit needs."""

    def look(self, partition: Partition, ids: Sequence[bytes]) -> Sequence[Look]:
        """What the partition holds under each of these ids (any number)."""
        found: list[Look] = []
        for at in range(0, len(ids), BATCH):
            found += map(_seen, self.call("look", partition, ids[at : at + BATCH]))
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
            args: list[Any] = [damage, archive or self.settings.archive_of(partition.topic)]
            for item in items[at : at + BATCH]:
                args += item
            words += map(bool, self.call("mend", partition, args))
        return words

    def told(self, partition: Partition) -> set[tuple[bytes, int]]:
        """Id and enqueued_at (us) of every life in the finished stream. Reads all of it, the newest
        first, in pages."""
        lives: set[tuple[bytes, int]] = set()
        for entry in self._entries_of(keys.finished_key(self.prefix, partition)):
            record = entry[b"record"]
            lives.add(
                (entry[b"id"], STAMP.unpack_from(record)[0] if len(record) >= STAMP.size else 0)
            )
        return lives

    def _entries_of(self, key: str) -> Iterator[dict[bytes, bytes]]:
        before = "+"
        while page := self.client.xrevrange(key, before, "-", count=PAGE):
            yield from (fields for _, fields in page)
            before = f"({page[-1][0].decode()}"


def _seen(answer: Sequence[Any]) -> Look:
    high, normal, low, lease, recorded, head, attempts, follower, done = answer
    flags = head[STAMP.size] if len(head) > STAMP.size else 1
    return Look(
        (_score(high), _score(normal), _score(low)),
        _score(lease),
        bool(recorded),
        _stamp(head),
        flags % 4 if flags % 4 < 3 else 1,
        bool(attempts),
        _stamp(follower),
        _stamp(done),
    )


def _score(score: Any) -> int | None:
    return None if score == b"" else int(float(score))


def _stamp(raw: bytes) -> int | None:
    return int.from_bytes(raw[:8], "big") if len(raw) >= 8 else None
