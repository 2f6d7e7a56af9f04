"""A lease: the exclusive, fenced right to one claimed message."""

from __future__ import annotations

import hashlib
import os
import time
from typing import NamedTuple

from ..core.message import Attempts, token_of, ttr_ms_of
from ..core.task_report import TaskReport
from .keys import Partition

#: Bytes of a token that name its holder, and bytes of the time of the claim (ms).
_HOLDER, _TIME = 5, 6


class Holder(NamedTuple):
    """Who claimed a message, and when."""

    code: bytes
    """holder_code() of the worker."""
    claimed_ms: int
    """By Redis' clock, as far as the holder knew it."""


def holder_code(worker: str) -> bytes:
    """Stands for a worker in the tokens of its leases."""
    return hashlib.blake2b(worker.encode(), digest_size=_HOLDER).digest()


#: Stands for all that consume over HTTP.
HTTP = holder_code("http")


def new_token(code: bytes, now_ms: float) -> bytes:
    """A token that no other claim has. It tells who claimed and when, so that people can be shown
    both and Redis keeps nothing more."""
    at = int(now_ms).to_bytes(_TIME, "big")
    return code + at + os.urandom(16 - _HOLDER - _TIME)


def holder_of(token: bytes) -> Holder:
    """What new_token() has put into a token."""
    return Holder(token[:_HOLDER], int.from_bytes(token[_HOLDER : _HOLDER + _TIME], "big"))


class Lease:
    """The result of a claim for one message. A plain class with slots: a worker builds tens of
    thousands of them a second."""

    __slots__ = (
        "_attempts",
        "claimed_at",
        "entry",
        "id",
        "lost",
        "partition",
        "record",
        "renewed_at",
        "report",
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
        self.token = token_of(entry)
        self._attempts: Attempts | None = None
        self.claimed_at = self.renewed_at = claimed_at
        """Local monotonic times at which the lease was taken, and taken or last extended."""
        self.started_at = 0.0
        """Local monotonic time at which the task began; 0 while it waits in the worker."""
        self.lost = False
        """True once Redis refused to extend it: the run's result will be refused too."""
        self.report: TaskReport | None = None
        """What the task has to say beside its end. None for nearly all."""

    @classmethod
    def found(
        cls, partition: Partition, message_id: bytes, record: bytes, attempts: Attempts
    ) -> Lease:
        """The newest lease of a message that was looked up: its holder is another process, which
        knows the token."""
        entry = bytes(16) + attempts.token
        lease = cls(partition, message_id, record, entry, time.monotonic())
        lease._attempts = attempts
        return lease

    @property
    def ended(self) -> bool:
        """Whether another worker may run the message: Redis refused to extend it, or it has
        not been extended for its length."""
        return self.lost or time.monotonic() - self.renewed_at > self.ttr_ms / 1000

    @property
    def attempts(self) -> Attempts:
        """The attempts that the partition knows of, this claim included."""
        if self._attempts is None:
            self._attempts = Attempts.decode(self.entry)
        return self._attempts

    @property
    def ttr_ms(self) -> int:
        """Length of the lease."""
        return ttr_ms_of(self.record)
