"""One finished message, as the scripts write it down."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..core.message import is_durable, stamp_of
from .keys import Partition


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One finished message, as the scripts wrote it down."""

    entry: bytes
    """The stream's id of the entry."""
    partition: Partition
    id: bytes
    state: str
    at_ms: int
    """When it ended, by Redis' clock."""
    record: bytes
    """Empty when it was missing."""
    attempts: bytes
    """Empty when it was never claimed."""
    detail: bytes
    """JSON: reason, error and times, from the worker or the call that ended it."""
    due_ms: int = 0
    """When a message would have run that never ran. Else 0: `attempts` has the due time."""

    @property
    def stamp(self) -> bytes:
        """Names the outbox row of a durable message. Empty for others."""
        return stamp_of(self.record) if is_durable(self.record) else b""


def entry_of(partition: Partition, entry: bytes, fields: Mapping[bytes, bytes]) -> Entry:
    """From the fields of a stream's entry."""
    return Entry(
        entry,
        partition,
        fields[b"id"],
        fields[b"state"].decode(),
        int(fields[b"at"]),
        fields[b"record"],
        fields[b"attempts"],
        fields[b"detail"],
        int(fields.get(b"due", 0)),
    )
