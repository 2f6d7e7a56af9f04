"""The kinds of findings of an audit, and what a repair does about each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, cast

import msgspec

from ...store.keys import Partition
from ...store.queries import Life
from ...store.repair import Damage, Suspect


class FindingKind(str, Enum):
    """A way in which Redis, the outbox, the archive and the lake contradict themselves or one
    another. They are repaired in this order: what has ended is out of the way first."""

    repair: str
    """What a repair has done, for the record of it; empty: there is none."""

    def __new__(cls, name: str, repair: str = "") -> FindingKind:
        """A kind and its row of the table."""
        kind = str.__new__(cls, name)
        kind._value_, kind.repair = name, repair
        return kind

    UNCLOSED = "unclosed", "The row of the outbox was closed: the message is archived."
    """A row of the outbox whose life is archived."""
    LIVE_AGAIN = (
        "live again",
        "It was taken out of Redis: it is archived, and must not run again.",
    )
    """A life that is archived and waits all the same."""
    NO_RECORD = "no record", "It ended as dead, body_missing, or was sent again from the outbox."
    """An id in a lane, or leased, without a record."""
    NO_PLACE = (
        "no place",
        "It was put back into its lane, or ended as dead, due_lost: nobody knows when it was due.",
    )
    """A record in no lane and not leased."""
    TWO_LANES = "two lanes", "Only its place in the right lane stays."
    """A message in two lanes."""
    LANE_AND_LEASE = "lane and lease", "Its place in the lane was removed: it is leased."
    """A message in a lane and leased."""
    WRONG_LANE = "wrong lane", "It was put into the lane of its priority."
    """A message in another lane than its priority says."""
    WRONG_PARTITION = "wrong partition", "It was moved to the partition where it is looked for."
    """A message where no number of partitions that its topic has had puts it."""
    STRAY_ATTEMPTS = "stray attempts", "They were removed."
    """Attempts of a message that is gone."""
    STRAY_FOLLOWER = "stray follower", "What was to follow was enqueued."
    """A message that is to follow a run which does not go on."""
    LOST_END = "lost end", "Its end was told as dead, end_lost: nobody knows how it ended."
    """A message that ended, of which neither the finished stream nor the archive knows."""
    STALE_END = "stale end", "It is not remembered any more: it is archived."
    """An end that is remembered although it is archived."""
    LOST = "lost", "It was sent again under its stamp."
    """A row of the outbox that was sent and is nowhere: neither live, nor ended, nor archived."""
    LATE_ROW = "late row", "It was exported again."
    """A row of SQL that its batch of the lake lacks."""
    CHANGED_ROW = "changed row", "It was exported again."
    """A row that differs between SQL and the lake."""
    ANOTHER_LIFE = "another life"
    """A row of one message in SQL and of another one in the lake: nobody can say which is
    right."""
    LOST_ROW = "lost row"
    """A row of the lake that SQL lacks, though nobody has pruned it."""

    @property
    def damage(self) -> Damage:
        """Its name in Redis, which checks and mends it."""
        return cast("Damage", "surplus" if self is FindingKind.LIVE_AGAIN else self.name.lower())

    @classmethod
    def of_damage(cls, damage: str) -> FindingKind:
        """The kind that Redis finds under this name."""
        return cls[damage.upper()]


#: Those about rows of the lake.
OF_THE_LAKE = (
    FindingKind.LATE_ROW,
    FindingKind.CHANGED_ROW,
    FindingKind.ANOTHER_LIFE,
    FindingKind.LOST_ROW,
)


class Finding(msgspec.Struct, frozen=True):
    """One kind, in one message or row."""

    kind: FindingKind
    partition: Partition = Partition("", 0)
    life: Life = Life(b"", 0)
    """Stamp 0: whatever life is under this id."""
    row: int = 0
    """Id in the archive."""
    lake: bool = False
    """Whether only the lake knows its end."""

    @property
    def name(self) -> str:
        """How the report names it."""
        return str(self.row) if self.kind in OF_THE_LAKE else self.life.id.hex()

    def suspect(self, argument: bytes = b"") -> Suspect:
        """The message as Redis checks and mends it."""
        stamp = self.life.stamp_us.to_bytes(8, "big") if self.life.stamp_us else b""
        return Suspect(self.life.id, stamp, argument)


class Candidates(NamedTuple):
    """What the first look has found."""

    found: Sequence[Finding]
    """At most `most` of each kind."""
    counts: Mapping[FindingKind, int]
    """How many there are of each."""
