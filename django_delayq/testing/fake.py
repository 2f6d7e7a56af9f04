"""Messages for a task that a test calls as a function."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..core.conf import get_settings
from ..core.exceptions import InvalidMessage
from ..core.message import ATTEMPTS, Record, decode_body, with_stamp
from ..store.keys import Partition
from ..store.lease import Lease
from ..tasks.batch import Batch, BatchMessage
from ..tasks.builder import build
from ..tasks.context import CurrentMessage, current_message, running
from ..tasks.task import Call, Task

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
    lease = _fake_lease(task, args, kwargs or {}, attempt)
    token = running.set(lease)
    try:
        yield current_message()
    finally:
        running.reset(token)


def fake_batch(
    task: Task[..., Any], *calls: Sequence[Any] | Mapping[str, Any], attempt: int = 1
) -> Batch[Unpack[tuple[Any, ...]]]:
    """A batch for a test that calls a batch task as a function: `close_orders(fake_batch(
    close_orders, (1,), (2,)))`. Each element has the arguments of one message, as for enqueue_many.
    Needs no server.

    What the function says of a message is in its `verdict`. Raises InvalidMessage for arguments
    that the task does not take.
    """
    options = task.definition.options
    if options.batch is None:
        raise InvalidMessage(f"{task.name} is no batch task: fake_message() is for the others.")
    limit = get_settings().body_limit if options.result else None
    messages: list[BatchMessage[Any]] = []
    for call in calls:
        args, kwargs = ((), call) if isinstance(call, Mapping) else (call, {})
        lease = _fake_lease(task, args, kwargs, attempt)
        record = Record.decode(lease.record)
        body = decode_body(record.flags, record.body, lease.id)
        body.args, body.kwargs = task.definition.annotations.read(body.args, body.kwargs)
        messages.append(BatchMessage(lease, body, limit))
    return Batch(messages)


def _fake_lease(
    task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], attempt: int
) -> Lease:
    """The lease of a message that a worker has just begun to run."""
    (item,) = build([Call(task, args, kwargs)])
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
    return lease
