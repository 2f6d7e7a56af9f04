"""What a running task can ask about its own message."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import msgspec

from ..core.exceptions import DelayQError, InvalidMessage, LeaseLost, UndecodableMessage
from ..core.message import ATTEMPTS, Found, Message, State, task_code_of
from ..core.present import view
from ..core.task_report import TaskProgress, TaskReport, checked_progress
from ..core.times import Duration, duration_ms
from ..store import get_store
from ..store.lease import Lease
from . import registry
from .recurrence import TICK

logger = logging.getLogger("delayq.worker")

#: Seconds between two reports of progress of one message.
PROGRESS_INTERVAL = 0.5
#: Redis forgets a progress that was not renewed for so many ms.
PROGRESS_TTL_MS = 3_600_000
#: Most that extend() gives, as for max_runtime.
MOST_RUNTIME_MS = 7 * 86_400_000
#: The lease whose task runs in this thread or coroutine. The message is decoded only when somebody
#: asks.
running: ContextVar[Lease | None] = ContextVar("delayq_running", default=None)
#: Of a batch task: the leases of all messages of the call.
running_together: ContextVar[Sequence[Lease]] = ContextVar("delayq_running_together", default=())


#: The worker of this process, as heartbeats and the archive name it; empty where none runs.
worker_name = ""


class MessageFilter(logging.Filter):
    """For handlers in LOGGING: every record says which message runs: `delayq_id`, `delayq_task`,
    `delayq_attempt`.

    They are empty outside a task that a worker runs.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Never leaves a record out."""
        lease = running.get()
        task = registry.by_code.get(task_code_of(lease.record)) if lease else None
        record.delayq_id = lease.id.hex() if lease else ""
        record.delayq_task = task.name if task else ""
        record.delayq_attempt = lease.attempts.attempt if lease else ""
        return True


class CurrentMessage(Message, frozen=True, kw_only=True):
    """The message whose task is running."""

    lease: Any
    """The lease it runs under."""

    @property
    def lease_lost(self) -> bool:
        """True once the lease has ended: another worker may run the message, so a long task should
        stop here."""
        return bool(self.lease.ended)

    @property
    def tick(self) -> datetime | None:
        """Of a recurring task: the instant that this run is for, the same in each attempt. None
        when the message was enqueued by other code."""
        text = self.headers.get(TICK)
        return datetime.fromisoformat(text) if text else None

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report how far the task has come, for the pages and `handle.progress()`: `progress(3, 10,
        "pages")`. Call it as often as you like: at most two reports a second are sent.

        The first report is sent, and the one with `done == total`. The last one is kept with the
        archive's row. Never waits for Redis in a coroutine, and never fails because of Redis.
        Raises InvalidMessage for what is no number or no text.
        """
        report = self.lease.report = self.lease.report or TaskReport()
        progress = checked_progress(done, total, note, self.attempt)
        report.keep_progress(progress)
        now = time.monotonic()
        if now - report.sent_at < PROGRESS_INTERVAL and done != total:
            return
        report.sent_at = now
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            _send_progress(self.lease, progress)
        else:
            loop.run_in_executor(None, _send_progress, self.lease, progress)

    def extend(self, duration: Duration) -> None:
        """Let this run go on for so long from now (timedelta or seconds, 1 s to 7 days), beyond its
        `max_runtime`. Never shortens it.

        The worker extends the lease by itself as long as the run may go on. Raises LeaseLost when
        the lease has ended, and InvalidMessage for what is no such duration.
        """
        milliseconds = duration_ms(duration, "extend()")
        if not 1000 <= milliseconds <= MOST_RUNTIME_MS:
            raise InvalidMessage(f"extend() takes from 1 to 604,800 seconds, not {duration!r:.80}.")
        if self.lease_lost:
            raise LeaseLost
        report = self.lease.report = self.lease.report or TaskReport()
        report.allow(milliseconds / 1000)


def _send_progress(lease: Lease, progress: TaskProgress) -> None:
    try:
        get_store().progress(lease, msgspec.json.encode(progress), PROGRESS_TTL_MS)
    except DelayQError as error:
        logger.debug("a progress of message %s was not stored: %s", lease.id.hex(), error)


def current_message() -> CurrentMessage:
    """The message that this task runs for: id, key, attempt, headers, of a recurring task the
    tick, and so on. Raises DelayQError when no worker runs the task."""
    lease = running.get()
    if lease is None:
        raise DelayQError("current_message() is known only while a worker runs a task.")
    task = registry.by_code.get(task_code_of(lease.record))
    if task is None or len(lease.entry) < ATTEMPTS.size:
        raise UndecodableMessage
    attempts = lease.attempts
    found = Found(lease.id, State("leased"), attempts.due_at_ms, lease.record, attempts)
    message = view(lease.partition.topic, task.name, found)
    return CurrentMessage(
        lease=lease, **{name: getattr(message, name) for name in message.__struct_fields__}
    )
