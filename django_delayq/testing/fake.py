"""A message for a task that a test calls as a function."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..core.exceptions import InvalidMessage
from ..core.message import ATTEMPTS, with_stamp
from ..store.keys import Partition
from ..store.lease import Lease
from ..tasks.builder import build
from ..tasks.context import CurrentMessage, current_message, running
from ..tasks.task import Call, Task


@contextmanager
def fake_message(
    task: Task[..., Any],
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    attempt: int = 1,
) -> Iterator[CurrentMessage]:
    """Inside this block `current_message()` returns a message of the task with these arguments, as
    if a worker ran it. Needs no server.

    Key, headers and other options come from `task.using(...)`. `attempt` is 1 or more. Raises
    InvalidMessage for arguments that the task does not take.
    """
    (item,) = build([Call(task, args, kwargs or {})])
    if not 1 <= attempt <= 0xFFFF:
        raise InvalidMessage(f"attempt is {attempt!r}: the first run is attempt 1.")
    when, now_ms = item.message.when, time.time_ns() // 1_000_000
    # A delay has just passed.
    due_ms, enqueued_ms = (now_ms, now_ms - when.ms) if when.is_delay else (when.ms, now_ms)
    expires_ms = item.message.expires.from_ms(due_ms)
    record = with_stamp(enqueued_ms * 1000, expires_ms, item.message.record)
    due, first = due_ms.to_bytes(6, "big"), now_ms.to_bytes(6, "big")
    entry = ATTEMPTS.pack(attempt, 0, due, first, os.urandom(16), bytes(6))
    partition = Partition(task.options.topic, 0)
    lease = Lease(partition, item.message.id, record, entry, time.monotonic())
    lease.started_at = lease.claimed_at
    token = running.set(lease)
    try:
        yield current_message()
    finally:
        running.reset(token)
