"""A lease: the exclusive, fenced right to one claimed message."""

from __future__ import annotations

import struct
import time

from .keys import Partition

_COUNTS = struct.Struct(">HH6s6s")
#: Shortest and default length of a lease for records whose header cannot be read. Claim uses the
#: same default.
_DAMAGED_TTR_MS = 60_000


class Lease:
    """What a claim hands out. A plain slotted class: a drain builds tens of thousands of them a
    second."""

    __slots__ = (
        "claimed_at",
        "entry",
        "id",
        "lost",
        "partition",
        "record",
        "renewed_at",
        "started_at",
        "token",
    )

    def __init__(
        self,
        partition: Partition,
        message_id: bytes,
        record: bytes,
        entry: bytes,
        claimed_at: float,
    ) -> None:
        self.partition = partition
        self.id = message_id
        self.record = record
        self.entry = entry
        self.token = entry[16:32]
        self.claimed_at = self.renewed_at = claimed_at
        """Local monotonic times at which the lease was taken, and taken or last extended."""
        self.started_at = 0.0
        """Local monotonic time at which the task began; 0 while it waits in the worker."""
        self.lost = False
        """True once Redis refused to extend it: the run's result will be refused too."""

    @property
    def ended(self) -> bool:
        """Whether another worker may run the message: Redis said so, or nobody has extended it for
        its length."""
        return self.lost or time.monotonic() - self.renewed_at > self.ttr_ms / 1000

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return int(_COUNTS.unpack_from(self.entry)[0])

    @property
    def crashes(self) -> int:
        """Earlier leases that ended without a word."""
        return int(_COUNTS.unpack_from(self.entry)[1])

    @property
    def due_at_ms(self) -> int:
        """The due time of this run."""
        return int.from_bytes(self.entry[4:10], "big")

    @property
    def first_claimed_at_ms(self) -> int:
        """When the message was claimed for the first time."""
        return int.from_bytes(self.entry[10:16], "big")

    @property
    def put_off_since_ms(self) -> int:
        """When a worker whose code cannot run the message met it first; 0: none has since it ran
        last."""
        return int.from_bytes(self.entry[32:38], "big")

    @property
    def ttr_ms(self) -> int:
        """Length of the lease."""
        if len(self.record) < 23:
            return _DAMAGED_TTR_MS
        return int.from_bytes(self.record[15:19], "big")
