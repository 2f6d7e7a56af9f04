"""Names a message that was enqueued, and says what tasks and handles need of the producer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, overload

from asgiref.sync import sync_to_async

from ..core.exceptions import ConfigurationError
from ..core.message import Message
from ..core.times import from_ms
from .options import Duration, when


class Manner(NamedTuple):
    """How a message is cancelled or rescheduled. None: what DELAYQ says."""

    missing_ok: bool = False
    """Return False or None, instead of raising, when nothing waits."""
    after_commit: bool | None = None
    """False acts at once, whatever the open transaction does."""
    database: str | None = None
    """Alias of the transaction to wait for."""
    on_redis_error: str | None = None
    """spill: what Redis cannot be told is kept in the outbox. raise: it is an error."""


DEFAULT = Manner()


class Producer(Protocol):
    """What a task needs of producer.py, which stands above this module and introduces itself with
    connect()."""

    def send(self, calls: Iterable[Any]) -> list[Handle]: ...
    def send_one(self, call: Any) -> Handle: ...
    def cancel(self, topic: str, key: str | None, message_id: Any, manner: Manner) -> bool: ...
    def reschedule(
        self, topic: str, key: str | None, message_id: Any, when: str, manner: Manner
    ) -> datetime | None: ...
    def get(self, topic: str, key: str | None, message_id: Any) -> Message | None: ...


_producer: list[Producer] = []


def connect(producer: Producer) -> None:
    """Name the producer that tasks send through. The app does so when it is ready."""
    _producer[:] = [producer]


def producer() -> Producer:
    """The producer. Raises ConfigurationError before the app is ready."""
    if not _producer:
        raise ConfigurationError(
            "django_delayq is not ready: add it to INSTALLED_APPS and call django.setup()."
        )
    return _producer[0]


@dataclass(slots=True, repr=False)
class Handle:
    """What enqueue returns: names the message, already before the transaction commits."""

    identity: bytes
    topic: str
    task: str
    key: str | None
    outcome: str = ""
    """Empty until it is sent; then `stored`, `kept` (the live one stays), `replaced` or `follows`
    (the running one).

    `outbox`: the database has it, and the relay sends it when Redis is back, or its due time is
    near. What a commit could not do: `duplicate` (another has the key), `unknown` (the answer was
    lost) or `failed` (nobody has it).
    """
    due_ms: int | None = None

    def __repr__(self) -> str:
        key = f", key={self.key!r}" if self.key else ""
        due = f", due_at={self.due_at.isoformat()}" if self.due_at else ""
        return (
            f"Handle(id={self.id!r}, topic={self.topic!r}, task={self.task!r}{key}, "
            f"outcome={self.outcome!r}{due})"
        )

    @property
    def id(self) -> str:
        """32 hexadecimal digits."""
        return self.identity.hex()

    @property
    def due_at(self) -> datetime | None:
        """When it runs, by Redis' clock. None until it is sent, and for a kept message."""
        return None if self.due_ms is None else from_ms(self.due_ms)

    def get(self) -> Message | None:
        """The live message, or None when it is finished or not yet sent."""
        return producer().get(self.topic, None, self.identity)

    def cancel(self, *, missing_ok: bool = False, after_commit: bool | None = None) -> bool:
        """Take it back, as DelayedTask.cancel() does."""
        return producer().cancel(self.topic, None, self.identity, Manner(missing_ok, after_commit))

    async def aget(self) -> Message | None:
        """get() for async code."""
        return await sync_to_async(self.get, thread_sensitive=True)()

    async def acancel(self, *, missing_ok: bool = False, after_commit: bool | None = None) -> bool:
        """cancel() for async code."""
        call = sync_to_async(self.cancel, thread_sensitive=True)
        return await call(missing_ok=missing_ok, after_commit=after_commit)

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
        """Give it another due time, which is returned, as DelayedTask.reschedule() does."""
        manner = Manner(missing_ok, after_commit)
        return producer().reschedule(self.topic, None, self.identity, when(delay, due_at), manner)

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
        call: Any = sync_to_async(self.reschedule, thread_sensitive=True)
        moved: datetime | None = await call(
            delay=delay, due_at=due_at, missing_ok=missing_ok, after_commit=after_commit
        )
        return moved
