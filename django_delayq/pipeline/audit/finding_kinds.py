"""What an audit tells apart."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from ...store.queries import Life


class Kind(str, Enum):
    """A way in which Redis, the outbox, the archive and the lake can contradict themselves or one
    another."""

    UNCLOSED = "unclosed"
    """A row of the outbox whose life is archived."""
    LIVE_AGAIN = "live again"
    """A life that is archived and waits all the same."""
    NO_RECORD = "no record"
    """An id in a lane, or leased, without a record."""
    NO_PLACE = "no place"
    """A record in no lane and not leased."""
    TWO_LANES = "two lanes"
    """A message in two lanes."""
    LANE_AND_LEASE = "lane and lease"
    """A message in a lane and leased."""
    WRONG_LANE = "wrong lane"
    """A message in another lane than its priority says."""
    WRONG_PARTITION = "wrong partition"
    """A message where no number of partitions that its topic has had puts it."""
    STRAY_ATTEMPTS = "stray attempts"
    """Attempts of a message that is gone."""
    STRAY_FOLLOWER = "stray follower"
    """What is to follow a run that does not go on."""
    LOST_END = "lost end"
    """A message that ended, of which neither the finished stream nor the archive knows."""
    STALE_END = "stale end"
    """An end that is remembered although it is archived."""
    LOST = "lost"
    """A row of the outbox that was sent and is nowhere: neither live, nor ended, nor archived."""
    TWICE = "archived twice"
    """A life with two rows, in SQL or in the lake."""
    LATE_ROW = "late row"
    """A row of SQL that its batch of the lake lacks."""
    CHANGED_ROW = "changed row"
    """A row that SQL and the lake tell differently."""
    ANOTHER_LIFE = "another life"
    """A row that is of one message in SQL and of another one in the lake: nobody can say which is
    right."""
    LOST_ROW = "lost row"
    """A row of the lake that SQL lacks, though nobody has pruned it."""
    SURPLUS_ROW = "surplus row"
    """A row of the lake that SQL lacks, and that the commit of its batch has not counted."""
    ALTERED_BATCH = "altered batch"
    """A batch of the lake that does not hold what its commit says, and that SQL cannot vouch for
    any more."""


#: Those about rows and batches of the lake.
OF_ROWS = (Kind.LATE_ROW, Kind.CHANGED_ROW, Kind.ANOTHER_LIFE, Kind.LOST_ROW, Kind.SURPLUS_ROW)
OF_THE_LAKE = (Kind.TWICE, *OF_ROWS, Kind.ALTERED_BATCH)


class Difference(msgspec.Struct, frozen=True):
    """One of them, in one message, row or batch."""

    kind: Kind
    topic: str = ""
    partition: int | None = None
    message_id: str = ""
    stamp: int | None = None
    """enqueued_at in microseconds: with the id it names one life."""
    row: int | None = None
    """Id in the archive."""
    batch: int | None = None
    """Number of the lake's batch, from 0."""
    lake: bool = False
    """Whether it is the lake that knows its end."""

    @property
    def id(self) -> bytes:
        """Of the message."""
        return bytes.fromhex(self.message_id)

    @property
    def life(self) -> Life:
        """Id and stamp."""
        return Life(self.id, self.stamp or 0)

    @property
    def name(self) -> str:
        """For people."""
        if self.kind == Kind.ALTERED_BATCH:
            return f"batch {self.batch}"
        return str(self.row) if self.kind in OF_ROWS else self.message_id


def difference_of(row: Any) -> Difference:
    """From a row of a frame with these columns."""
    return msgspec.convert(row.asDict(), Difference)
