"""Middleware that tests name by its path."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import MiddlewareNotUsed
from django.utils import translation
from django.utils.decorators import async_only_middleware, sync_and_async_middleware

from django_delayq import Snooze
from django_delayq.tasks.context import CurrentMessage

Run = Callable[[CurrentMessage], Any]

#: What happened, in order.
noted: list[Any] = []
#: How often each factory was called.
built: list[str] = []
request_id: ContextVar[str] = ContextVar("request_id", default="none")


def sync_layer(run: Run) -> Run:
    """For `def` tasks; adapted for others."""
    built.append("sync")

    def layer(message: CurrentMessage) -> Any:
        noted.append(("sync in", message.id))
        result = run(message)
        noted.append(("sync out", threading.current_thread().name))
        return result

    return layer


@async_only_middleware
def async_layer(run: Run) -> Run:
    """For `async def` tasks; adapted for others."""
    built.append("async")

    async def layer(message: CurrentMessage) -> Any:
        noted.append(("async in", message.id))
        result = await run(message)
        noted.append(("async out", ""))
        return result

    return layer


@sync_and_async_middleware
def both(run: Run) -> Run:
    """Fits each kind: it takes the request id and the language from the headers."""

    def enter(message: CurrentMessage) -> Any:
        request_id.set(message.headers.get("request-id", "none"))
        return translation.override(message.headers.get("language", "en"))

    async def around_async(message: CurrentMessage) -> Any:
        with enter(message):
            return await run(message)

    def around(message: CurrentMessage) -> Any:
        with enter(message):
            return run(message)

    return around_async if iscoroutinefunction(run) else around


class Leaves:
    """Leaves what it sets behind."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self, message: CurrentMessage) -> Any:
        noted.append((request_id.get(), translation.get_language()))
        request_id.set(message.id)
        translation.activate("de")
        return self.run(message)


class LeavesAsync:
    """The same for coroutines."""

    sync_capable, async_capable = False, True

    def __init__(self, run: Run) -> None:
        self.run = run
        markcoroutinefunction(self)

    async def __call__(self, message: CurrentMessage) -> Any:
        noted.append((request_id.get(), translation.get_language()))
        request_id.set(message.id)
        translation.activate("de")
        return await self.run(message)


class TenantAway(Exception):
    """The database of the tenants is away."""


def fails_before(run: Run) -> Run:
    def layer(message: CurrentMessage) -> Any:
        raise TenantAway("no such tenant yet")

    return layer


def fails_after(run: Run) -> Run:
    def layer(message: CurrentMessage) -> Any:
        run(message)
        raise TenantAway("cannot leave")

    return layer


def puts_off(run: Run) -> Run:
    def layer(message: CurrentMessage) -> Any:
        raise Snooze(30)

    return layer


def exits(run: Run) -> Run:
    def layer(message: CurrentMessage) -> Any:
        raise SystemExit(3)

    return layer


def forgets_to_say(run: Run) -> Run:
    """Is async, and does not say so."""

    async def layer(message: CurrentMessage) -> Any:
        return await run(message)

    return layer


def returns_nothing(run: Run) -> Run:
    def layer(message: CurrentMessage) -> None:
        run(message)

    return layer


def unused(run: Run) -> Run:
    raise MiddlewareNotUsed


def nothing(run: Run) -> None:
    """Forgets its return."""


class Neither:
    sync_capable = async_capable = False


number = 5
