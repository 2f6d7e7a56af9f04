"""Waits for the end of a message, and reads its result."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import msgspec
from asgiref.sync import sync_to_async

from ..archive.endings import End, end_in, find_end
from ..core.exceptions import (
    InvalidMessage,
    MessageCancelled,
    MessageExpired,
    MessageFailed,
    NoResult,
    WaitTimeout,
)
from ..core.message import Final, stamp_us_of
from ..core.times import duration_ms
from ..outbox import lookup
from ..store import get_store
from ..store.keys import Partition
from ..tasks.task import Receipt
from . import on_commit

#: Seconds between two looks: the first pause, by how much it grows, and the longest.
FIRST_PAUSE, GROWTH, LONGEST_PAUSE = 0.05, 2.0, 1.0
#: The same for coroutines, which nothing wakes up.
FIRST_PAUSE_ASYNC, GROWTH_ASYNC, LONGEST_PAUSE_ASYNC = 0.02, 1.5, 0.5


class Wait:
    """The wait for one message."""

    def __init__(self, receipt: Receipt, timeout: timedelta | float | None) -> None:
        self._receipt = receipt
        self._address = receipt.topic, receipt.identity
        self._stamp_us: int | None = None
        """Names the life that we wait for; known once it was seen live."""
        self._partition = Partition(receipt.topic, 0)
        """Where it was seen last."""
        self._after = b"0"
        """The newest result of an earlier life of this id."""
        seconds = None if timeout is None else duration_ms(timeout, "timeout") / 1000
        self._timeout = seconds
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def check(self) -> End | None:
        """How it has ended; None while it goes on. Of a message that was replaced: how the
        replacement has ended. Raises NoResult when nobody knows, WaitTimeout, and
        InvalidMessage."""
        # Not only when nothing is live: an earlier message may have the key.
        if not self._receipt.outcome and on_commit.find(*self._address):
            raise InvalidMessage(
                "This message is sent when the open transaction commits: wait after that."
            )
        is_live, end = self._is_live(), None
        if not is_live:
            end = find_end(*self._address, self._stamp_us)
        if not is_live and end is None and self._stamp_us is not None:
            # It has not ended: another took its place.
            replaced_us, self._stamp_us = self._stamp_us, None
            is_live = self._is_live()
            newest = None if is_live else find_end(*self._address)
            end = newest if newest and newest.stamp_us > replaced_us else None
        if is_live and self.left() <= 0:
            raise WaitTimeout(
                f"Message {self._receipt.id} has not ended within {self._timeout:g} s. It goes on."
            )
        if not is_live and end is None:
            raise NoResult
        return end

    def pause(self, seconds: float) -> End | None:
        """Wait so long, or until there is a result."""
        seconds = max(0.001, min(seconds, self.left()))
        reports = get_store().reports
        entry = reports.await_result(
            self._partition, self._receipt.identity, seconds, after=self._after
        )
        if entry is None:
            return None
        if self._stamp_us == stamp_us_of(entry.record):
            return end_in(entry)
        self._after = entry.entry
        return None

    def left(self) -> float:
        """Seconds until the timeout."""
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def end_of(self, end: End) -> Any:
        """The result. Raises the error that stands for another end."""
        row = end.row
        if row.state == Final.ACKED:
            raw = end.result
            if raw is None and "redaction" in row.result:
                raise NoResult("The result was redacted before it was archived.")
            return None if raw is None else msgspec.json.decode(raw)
        if row.state == Final.CANCELLED:
            raise MessageCancelled
        if row.state == Final.EXPIRED:
            raise MessageExpired
        words = f"{row.error_class}: {row.error_message}" if row.error_class else row.reason
        raise MessageFailed(
            f"Message {self._receipt.id} is dead. {words}",
            error_class=row.error_class,
            traceback=row.traceback,
        )

    def _is_live(self) -> bool:
        """Whether the life that we wait for goes on, in Redis or in the outbox."""
        located = get_store().find(*self._address)
        if located is not None:
            self._partition, found = located
            if self._receipt.outcome == "follows" and get_store().has_follower(*self._address):
                return True  # ours comes after this one
        elif kept := lookup.get(*self._address):
            _, found = kept
        else:
            return False
        stamp_us = stamp_us_of(found.record)
        if self._stamp_us is None:
            self._stamp_us = stamp_us
        return self._stamp_us == stamp_us


def wait_for(receipt: Receipt, timeout: timedelta | float | None) -> Any:
    """See Handle.wait()."""
    waiting, pause = Wait(receipt, timeout), FIRST_PAUSE
    end = waiting.check()
    while end is None:
        end = waiting.pause(pause) or waiting.check()
        pause = min(LONGEST_PAUSE, pause * GROWTH)
    return waiting.end_of(end)


async def await_end(receipt: Receipt, timeout: timedelta | float | None) -> Any:
    """See Handle.result()."""
    waiting, pause = Wait(receipt, timeout), FIRST_PAUSE_ASYNC
    check = sync_to_async(waiting.check, thread_sensitive=True)
    while (end := await check()) is None:
        await asyncio.sleep(max(0.001, min(pause, waiting.left())))
        pause = min(LONGEST_PAUSE_ASYNC, pause * GROWTH_ASYNC)
    return waiting.end_of(end)
