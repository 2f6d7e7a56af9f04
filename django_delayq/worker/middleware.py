"""The middleware of DELAYQ["MIDDLEWARE"] around each run of a task, built as Django's own is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

from asgiref.sync import ThreadSensitiveContext, async_to_sync, iscoroutinefunction, sync_to_async
from django.core.exceptions import MiddlewareNotUsed
from django.utils.module_loading import import_string

from ..core.connections import close_all
from ..core.exceptions import (
    ConfigurationError,
    MiddlewareFailed,
    Reject,
    Retry,
    Snooze,
)
from ..tasks.context import CurrentMessage, current_message
from .resolved import Runnable, refuse_unrun

#: What a middleware is given, and what it returns: it calls the next one, at last the task.
Run = Callable[[CurrentMessage], Any]


class _Inside:
    """What the innermost layer runs."""

    __slots__ = ("failed", "resolved", "result")

    def __init__(self, resolved: Runnable) -> None:
        self.resolved = resolved
        self.failed = False
        """Whether the task itself has raised."""
        self.result: Any = None
        """What the task returned, whatever the layers return."""


_inside: ContextVar[_Inside] = ContextVar("delayq_inside")


class Middleware:
    """The layers around a run: one chain for `def` tasks, and one for `async def` tasks."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Raises ConfigurationError when a path names no middleware."""
        self._chain, _ = _build(paths, _call, is_async=False)
        self._async_chain, self._borrows = _build(paths, _await, is_async=True)

    def call(self, resolved: Runnable) -> Any:
        """The result of a `def` task that ran inside its layers."""
        inside = _Inside(resolved)
        _inside.set(inside)
        try:
            refuse_unrun("a middleware", self._chain(current_message()))
        except Exception as error:
            _raise(error, inside)
        return inside.result

    async def start(self, resolved: Runnable) -> Any:
        """The result of an `async def` task that ran inside its layers."""
        inside = _Inside(resolved)
        _inside.set(inside)
        try:
            if not self._borrows:
                await self._async_chain(current_message())
                return inside.result
            # As Django does for a request: a sync layer waits in a thread of this run alone, and
            # does not hold up other coroutines. The run's database connections are that thread's.
            async with ThreadSensitiveContext():
                try:
                    await self._async_chain(current_message())
                finally:
                    await sync_to_async(close_all)()
        except Exception as error:
            _raise(error, inside)
        return inside.result


def _build(paths: Sequence[str], innermost: Run, *, is_async: bool) -> tuple[Run, bool]:
    """The layers, outermost first, around the innermost, and whether one of them is not of its
    kind. Each layer is sync or async, as what it wraps, where it can."""
    handler, handler_is_async, is_mixed = innermost, is_async, False
    for path in reversed(paths):
        where = f'DELAYQ["MIDDLEWARE"] has {path!r}'
        try:
            factory = import_string(path)
        except ImportError as error:
            raise ConfigurationError(f"{where}: it cannot be imported ({error}).") from error
        if not callable(factory):
            raise ConfigurationError(f"{where}, which is no class or function.")
        can_sync = getattr(factory, "sync_capable", True)
        can_async = getattr(factory, "async_capable", False)
        if not can_sync and not can_async:
            raise ConfigurationError(
                f"{where}: its sync_capable or its async_capable has to be True."
            )
        layer_is_async = can_async and (handler_is_async or not can_sync)
        try:
            layer = factory(_adapted(handler, handler_is_async, layer_is_async))
        except MiddlewareNotUsed:
            continue
        if not callable(layer):
            raise ConfigurationError(
                f"{where}: it returned {layer!r:.80} and not a function that takes a message."
            )
        is_coroutine = iscoroutinefunction(layer) or iscoroutinefunction(type(layer).__call__)
        if is_coroutine and not layer_is_async:
            raise ConfigurationError(
                f"{where}, which is async and does not say so: decorate it with "
                "async_only_middleware of django.utils.decorators."
            )
        is_mixed = is_mixed or layer_is_async != is_async
        handler, handler_is_async = layer, layer_is_async
    return _adapted(handler, handler_is_async, is_async), is_mixed


def _adapted(handler: Any, handler_is_async: bool, wanted_async: bool) -> Any:
    if handler_is_async == wanted_async:
        return handler
    return sync_to_async(handler) if wanted_async else async_to_sync(handler)


def _call(message: CurrentMessage) -> Any:
    inside = _inside.get()
    try:
        inside.result = inside.resolved.call()
        refuse_unrun(inside.resolved.task.name, inside.result)
    except BaseException:
        inside.failed = True
        raise
    return inside.result


async def _await(message: CurrentMessage) -> Any:
    inside = _inside.get()
    try:
        inside.result = await inside.resolved.call()
        refuse_unrun(inside.resolved.task.name, inside.result)
    except BaseException:
        inside.failed = True
        raise
    return inside.result


def _raise(error: Exception, inside: _Inside) -> NoReturn:
    """Raise what ends the attempt: the error itself, or MiddlewareFailed for one that is not the
    task's. What the task's retry_for names is about the task."""
    if inside.failed or isinstance(error, Retry | Snooze | Reject):
        raise error
    raise MiddlewareFailed(f"{type(error).__name__}: {error}") from error
