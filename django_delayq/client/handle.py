"""The handle that an enqueue returns: it finds, cancels and reschedules its message."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal, overload

from asgiref.sync import sync_to_async

from ..core.message import Message
from ..core.task_report import TaskProgress
from ..core.times import Duration, When, from_ms
from ..store import get_store
from ..tasks.options import ChangeOptions
from ..tasks.task import Receipt


class Handle(Receipt):
    """The result of an enqueue. It names the message already before the transaction commits."""

    __slots__ = ()

    def __repr__(self) -> str:
        key = f", key={self.key!r}" if self.key else ""
        due = f", due_at={self.due_at.isoformat()}" if self.due_at else ""
        return (
            f"Handle(id={self.id!r}, topic={self.topic!r}, task={self.task!r}{key}, "
            f"outcome={self.outcome!r}{due})"
        )

    @property
    def due_at(self) -> datetime | None:
        """When it runs, by Redis' clock. None until it is sent, and for a kept message."""
        return None if self.due_ms is None else from_ms(self.due_ms)

    def get(self) -> Message | None:
        """The live message, or None when it is finished or not yet sent."""
        from .finding import get

        return get(self.topic, None, self.identity)

    def cancel(
        self,
        *,
        missing_ok: bool = False,
        after_commit: bool | None = None,
        running: bool = False,
    ) -> bool:
        """Take it back, as DelayedTask.cancel() does; with `running` also while it runs."""
        from .changes import cancel

        how = ChangeOptions(missing_ok, after_commit, running=running)
        return cancel(self.topic, None, self.identity, how)

    def wait(self, *, timeout: timedelta | float | None = None) -> Any:
        """Wait until the message has ended, and return the result of its task: JSON values, None
        for a task without `result=True`.

        An ack with a result is seen at once, every other end within a second. `timeout` is a
        timedelta or seconds; None waits for ever. Raises MessageFailed, MessageCancelled,
        MessageExpired, WaitTimeout, or NoResult itself when nobody keeps how it has ended;
        InvalidMessage while the open transaction has yet to send it; StoreUnavailable.
        """
        from .waiting import wait_for

        return wait_for(self, timeout)

    async def result(self, *, timeout: timedelta | float | None = None) -> Any:
        """wait() for async code. Looks after 20 ms, then less and less often, twice a second in
        the end."""
        from .waiting import await_end

        return await await_end(self, timeout)

    def progress(self) -> TaskProgress | None:
        """What the running task has reported last. None before the first report, and an hour after
        the last one."""
        return get_store().reports.progress(self.topic, self.identity)

    async def aget(self) -> Message | None:
        """get() for async code."""
        return await sync_to_async(self.get, thread_sensitive=True)()

    async def acancel(
        self,
        *,
        missing_ok: bool = False,
        after_commit: bool | None = None,
        running: bool = False,
    ) -> bool:
        """cancel() for async code."""
        return await sync_to_async(self.cancel, thread_sensitive=True)(
            missing_ok=missing_ok, after_commit=after_commit, running=running
        )

    @overload
    def reschedule(
        self,
        *,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        missing_ok: Literal[False] = False,
        after_commit: bool | None = None,
    ) -> datetime: ...
    @overload
    def reschedule(
        self,
        *,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        missing_ok: bool,
        after_commit: bool | None = None,
    ) -> datetime | None: ...
    def reschedule(
        self,
        *,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        missing_ok: bool = False,
        after_commit: bool | None = None,
    ) -> datetime | None:
        """Give it another due time and return that, as DelayedTask.reschedule() does."""
        from .changes import reschedule

        how = ChangeOptions(missing_ok, after_commit)
        return reschedule(self.topic, None, self.identity, When.given(delay, due_at), how)

    @overload
    async def areschedule(
        self,
        *,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        missing_ok: Literal[False] = False,
        after_commit: bool | None = None,
    ) -> datetime: ...
    @overload
    async def areschedule(
        self,
        *,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        missing_ok: bool,
        after_commit: bool | None = None,
    ) -> datetime | None: ...
    async def areschedule(
        self,
        *,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        missing_ok: bool = False,
        after_commit: bool | None = None,
    ) -> datetime | None:
        """reschedule() for async code."""
        reschedule: Callable[..., datetime | None] = self.reschedule
        return await sync_to_async(reschedule, thread_sensitive=True)(
            delay=delay, due_at=due_at, missing_ok=missing_ok, after_commit=after_commit
        )
