"""Runs one message as a pipeline of named steps: resolve, perform, classify, settle."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback as tracebacks
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from .. import signals, tasks
from ..context import running
from ..exceptions import ConfigurationError, DelayQError, InvalidArguments, Reject, Retry, Snooze, UndecodableMessage
from ..message import Body, Record, decode_body
from ..store.lease import Lease
from ..tasks import DelayedTask
from ..times import duration_ms
from .outcome import Outcome, Result
from .shared import Shared

logger = logging.getLogger("delayq.worker")

#: How long a message of an unknown task waits before the next worker may try. Many tries fit into the grace.
UNKNOWN_TASK_DELAY_MS = 5_000
#: Seconds for which an exactly_once task waits for its database, or for a worker that was started with one.
NO_DATABASE_DELAY = 5.0
#: Most characters of an error's message and of its traceback that are kept.
MAX_REASON = 2_000
MAX_CLASS_NAME = 200
MAX_TRACEBACK = 16_000
#: Coroutines share one database connection per loop, whose age is looked at not more often than this (seconds).
ASYNC_CONNECTION_CHECK = 1.0


class Resolved(NamedTuple):
    """A message whose task is known and can be called."""

    task: DelayedTask[..., Any]
    body: Body


class Executor:
    """Turns a lease into an outcome. Knows neither Redis nor threads."""

    def __init__(self, shared: Shared, settle: Callable[[Outcome], None]) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._clock = shared.clock
        self._settle = settle
        self._connections_checked_at = 0.0

    def run(self, lease: Lease) -> None:
        """Run a `def` task on this thread. Never raises: whatever happens becomes the outcome."""
        resolved, outcome = self._begin(lease)
        if resolved is not None:
            outcome = self._end(lease, resolved, self._perform(lease, resolved))
        self._settle(outcome)

    async def run_async(self, lease: Lease) -> None:
        """Run an `async def` task on this loop. A cancelled one has failed."""
        resolved, outcome = self._begin(lease)
        if resolved is not None:
            outcome = self._end(lease, resolved, await self._perform_async(lease, resolved))
        self._settle(outcome)

    # Steps

    def _begin(self, lease: Lease) -> tuple[Resolved | None, Any]:
        now = time.monotonic()
        if now - lease.renewed_at > lease.ttr_ms / 1000:  # this process stood still: another worker has it by now
            return None, Outcome(lease, None, Result.RELEASED, now)
        try:
            resolved = self._resolve(lease)
        except DelayQError as error:
            return None, self._unrunnable(lease, error)
        lease.started_at = now
        if signals.started.receivers:
            event = Outcome(lease, resolved.task, Result.ACKED, lease.started_at).event(self._clock)
            signals.report(signals.started, lease.partition.topic, [event])
        return resolved, None

    def _resolve(self, lease: Lease) -> Resolved:
        record = Record.decode(lease.record)
        task = tasks.by_code.get(record.task_code)
        if task is None:
            raise ConfigurationError("unknown task")
        body = decode_body(record.flags, record.body)
        task.definition.check_arguments(body.args, body.kwargs)
        return Resolved(task, body)

    def _perform(self, lease: Lease, resolved: Resolved) -> BaseException | None:
        token = running.set(lease)
        try:
            close_old_connections()
            run = partial(resolved.task.definition.func, *resolved.body.args, **resolved.body.kwargs)
            if resolved.task.definition.options.exactly_once:
                self._perform_once(lease, run)
            else:
                run()
        except BaseException as error:  # SystemExit of a task must not end the thread
            return error
        else:
            return None
        finally:
            running.reset(token)
            _close_old_connections()

    def _perform_once(self, lease: Lease, run: Callable[[], object]) -> None:
        perform_once = self._shared.perform_once
        if perform_once is None:
            raise Snooze(NO_DATABASE_DELAY)

        def detail() -> tuple[int, bytes]:
            ended_at = time.monotonic()
            outcome = Outcome(lease, None, Result.ACKED, ended_at)
            return int(self._clock.at_ms(ended_at)), outcome.detail(self._shared.name, self._clock)

        perform_once(lease, run, detail)

    async def _perform_async(self, lease: Lease, resolved: Resolved) -> BaseException | None:
        running.set(lease)  # a coroutine task has a context of its own
        try:
            if time.monotonic() - self._connections_checked_at > ASYNC_CONNECTION_CHECK:
                self._connections_checked_at = time.monotonic()
                await sync_to_async(close_old_connections)()
            await resolved.task.definition.func(*resolved.body.args, **resolved.body.kwargs)
        except BaseException as error:
            return error
        return None

    def _end(self, lease: Lease, resolved: Resolved, error: BaseException | None) -> Outcome:
        if error is None:
            return Outcome(lease, resolved.task, Result.ACKED, time.monotonic())
        return self._classify(lease, resolved, error)

    def _classify(self, lease: Lease, resolved: Resolved, error: BaseException) -> Outcome:
        """What the exception means for the message."""
        task = resolved.task
        outcome = Outcome(lease, task, Result.DEAD, time.monotonic(), "failed")
        if isinstance(error, Reject):
            outcome.reason = _message(error)
            return outcome
        outcome.error_class, outcome.error_message = _class_name(error), _message(error)
        outcome.traceback = _storable("".join(tracebacks.format_exception(error)))[-MAX_TRACEBACK:]
        failures = lease.attempt - lease.crashes
        attempts = resolved.body.max_attempts or task.max_attempts
        worth = isinstance(error, Retry | asyncio.CancelledError | SystemExit | KeyboardInterrupt)
        try:
            if isinstance(error, Snooze):
                outcome.result, outcome.delay_ms = Result.SNOOZED, duration_ms(error.delay)
            elif failures < attempts and (worth or isinstance(error, task.options.retry_for)):
                wait = error.delay if isinstance(error, Retry) else None
                wait = task.options.backoff(failures) if wait is None else wait
                outcome.result, outcome.delay_ms = Result.RETRIED, duration_ms(wait)
        except Exception as broken:  # a backoff function or a delay that is itself wrong
            outcome.result, outcome.delay_ms = Result.DEAD, None
            also = f"; and its delay failed: {type(broken).__name__}: {_message(broken)}"
            outcome.error_message = f"{outcome.error_message}{also}"[:MAX_REASON]
        return outcome

    def _unrunnable(self, lease: Lease, error: DelayQError) -> Outcome:
        """Dead at once, but a task that nobody here knows may be known to a newer worker."""
        outcome = Outcome(lease, None, Result.DEAD, time.monotonic())
        if isinstance(error, ConfigurationError):
            waited_s = (self._clock.now_ms() - lease.first_claimed_at_ms) / 1000
            outcome.reason = "unknown_task"
            if waited_s < self._settings.unknown_task_grace:
                outcome.result, outcome.delay_ms = Result.SNOOZED, UNKNOWN_TASK_DELAY_MS
        elif isinstance(error, InvalidArguments | UndecodableMessage):
            outcome.reason = "bad_args" if isinstance(error, InvalidArguments) else "undecodable"
            outcome.error_class, outcome.error_message = _class_name(error), _message(error)
        return outcome


def _close_old_connections() -> None:
    """After a task: a connection that cannot even be closed says nothing about the task that has run."""
    try:
        close_old_connections()
    except Exception:
        logger.exception("a database connection could not be closed")


def _storable(text: str) -> str:
    """UTF-8 has no half characters (surrogates), which file names for example bring along."""
    return text.encode("utf-8", "backslashreplace").decode()


def _message(error: BaseException) -> str:
    try:
        return _storable(str(error))[:MAX_REASON]
    except Exception:
        return "its message cannot be shown"


def _class_name(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return _storable(name)[-MAX_CLASS_NAME:]
