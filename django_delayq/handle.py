"""Names a message that was enqueued, and says what tasks and handles need of the producer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from asgiref.sync import sync_to_async

from .exceptions import ConfigurationError
from .message import Message
from .options import Duration, when
from .times import from_ms


class Producer(Protocol):
    """What a task needs of producer.py, which stands above this module and introduces itself with connect()."""

    def send(self, calls: Iterable[Any]) -> list[Handle]: ...
    def send_one(self, call: Any) -> Handle: ...
    def cancel(self, topic: str, key: str | None, message_id: Any) -> None: ...
    def reschedule(self, topic: str, key: str | None, message_id: Any, when: str) -> datetime: ...
    def get(self, topic: str, key: str | None, message_id: Any) -> Message | None: ...


_producer: list[Producer] = []


def connect(producer: Producer) -> None:
    """Name the producer that tasks send through. The app does so when it is ready."""
    _producer[:] = [producer]


def producer() -> Producer:
    """The producer. Raises ConfigurationError before the app is ready."""
    if not _producer:
        raise ConfigurationError("django_delayq is not ready: add it to INSTALLED_APPS and call django.setup().")
    return _producer[0]


@dataclass(slots=True)
class Handle:
    """What enqueue returns: names the message, already before the transaction commits."""

    identity: bytes
    topic: str
    task: str
    key: str | None
    outcome: str = ""
    """Empty until it is sent; then `stored`, `kept` (the live one stays), `replaced` or `follows` (the running one).

    `outbox`: the database has it, and the relay sends it when Redis is back, or its due time is near.
    """
    due_ms: int | None = None

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

    def cancel(self) -> None:
        """Take it back. Raises MessageNotFound or MessageRunning."""
        producer().cancel(self.topic, None, self.identity)

    async def aget(self) -> Message | None:
        """get() for async code."""
        return await sync_to_async(self.get, thread_sensitive=True)()

    async def acancel(self) -> None:
        """cancel() for async code."""
        await sync_to_async(self.cancel, thread_sensitive=True)()

    async def areschedule(self, *, delay: Duration | None = None, due_at: datetime | None = None) -> datetime:
        """reschedule() for async code."""
        return await sync_to_async(self.reschedule, thread_sensitive=True)(delay=delay, due_at=due_at)

    def reschedule(self, *, delay: Duration | None = None, due_at: datetime | None = None) -> datetime:
        """Give it another due time, which is returned. Raises MessageNotFound or MessageRunning."""
        return producer().reschedule(self.topic, None, self.identity, when(delay, due_at))
