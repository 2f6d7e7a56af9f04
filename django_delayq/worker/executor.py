"""Runs one message as a pipeline of named steps: resolve, perform, classify, settle."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import traceback as tracebacks
from collections.abc import Awaitable, Callable, Collection
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from asgiref.sync import sync_to_async

from ..core import signals
from ..core.connections import check_shared, close_all, renew_all
from ..core.exceptions import (
    DelayQError,
    InvalidArguments,
    IsolatedRunFailed,
    MissingKey,
    NewerRecord,
    Reject,
    Retry,
    Snooze,
    TransactionLeftOpen,
    UndecodableMessage,
    UndecryptableMessage,
)
from ..core.log import log_failure
from ..core.message import VERSION, Record, decode_body, task_code_of
from ..core.task_report import TaskReport, encode_result
from ..core.times import duration_ms
from ..core.version import PACKAGE_VERSION
from ..store.lease import Lease
from ..tasks import context, redaction, registry
from ..tasks.context import running
from ..tasks.naming import kept_task_name
from ..tasks.task import Task
from .outcome import ClassifiedElsewhere, Outcome, Result
from .resolved import Resolved, refuse_unrun
from .shared import Shared

if TYPE_CHECKING:
    from .middleware import Middleware

logger = logging.getLogger("delayq.worker")

#: How long a message that this code cannot run waits before the next worker may try: at first, and
#: at most (seconds). Many tries fit into the grace, and a crowd of such messages keeps nobody busy.
PUT_OFF_FIRST = 5.0
PUT_OFF_MOST = 15.0
#: Names this worker in the reason why it put a message off.
HERE = f"this worker: django-delayq {PACKAGE_VERSION}, records of version {VERSION}"
#: Seconds for which an exactly_once task waits for a worker that was started with a database.
NO_DATABASE_DELAY = 5.0
#: How long a message waits when the worker itself has failed, and not its task.
FAILURE_DELAY_MS = 5_000
#: Most characters of an error's message and of its traceback that are kept.
MAX_REASON = 2_000
MAX_CLASS_NAME = 200
MAX_TRACEBACK = 16_000
#: Coroutines share one database connection per loop. Seconds between two checks of its age.
ASYNC_CONNECTION_CHECK = 1.0


class UnknownTask(DelayQError):
    """No task of this name is declared here."""


#: Why a message cannot run, as one word for the archive.
_REASONS: dict[type[DelayQError], str] = {
    UnknownTask: "unknown_task",
    InvalidArguments: "bad_args",
    UndecodableMessage: "undecodable",
    NewerRecord: "undecodable",
    UndecryptableMessage: "undecryptable",
    MissingKey: "undecryptable",
}
#: Another version of the code, or of the settings, may be able to run these messages.
_ANOTHER_MAY = (UnknownTask, InvalidArguments, NewerRecord, MissingKey)


class ChildProcesses(Protocol):
    """Run the messages of isolated tasks: see isolated/isolation.py."""

    def run(self, lease: Lease, resolved: Resolved) -> None:
        """Raises what ends the attempt."""

    def warm_up(self) -> None:
        """Start a child before there is a message."""

    def stop(self) -> Collection[Lease]:
        """Kill all. Returns the leases whose runs end by that."""


class Executor:
    """Turns a lease into an outcome. Knows neither Redis nor threads."""

    def __init__(
        self,
        shared: Shared,
        settle: Callable[[Outcome], None],
        *,
        isolate: Callable[[Shared], ChildProcesses] | None = None,
    ) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._clock = shared.clock
        self.settle = settle
        self._connections_checked_at = 0.0
        self._connection_check: asyncio.Future[None] | None = None
        self._call: Callable[[Resolved], Any] = Resolved.call
        self._start: Callable[[Resolved], Awaitable[Any]] = Resolved.call
        self.middleware: Middleware | None = None
        if self._settings.middleware:
            from .middleware import Middleware

            self.middleware = Middleware(self._settings.middleware)
            self._call, self._start = self.middleware.call, self.middleware.start
        context.worker_name = shared.name
        self._isolate = isolate
        """Makes the child processes of isolated tasks. None: these run as others do, in a child
        process itself, and in tests."""
        self._isolating = threading.Lock()
        self._made: ChildProcesses | None = None

    def run(self, lease: Lease) -> None:
        """Run a `def` task on this thread. Never raises: whatever happens becomes the outcome."""
        # A copy of the thread's context, which has nothing but its caches. What a task, a
        # middleware or a receiver of `started` sets (a language, a time zone) ends with the run.
        copy_context().run(self._run, lease)

    def _run(self, lease: Lease) -> None:
        try:
            resolved, outcome = self.resolve(lease)
            if resolved is not None:
                outcome = self.classify(lease, resolved, self._perform(lease, resolved))
        except BaseException as error:
            outcome = self.fail(lease, error)
        self.settle(outcome)

    async def run_async(self, lease: Lease) -> None:
        """Run an `async def` task on this loop. A cancelled one has failed."""
        try:
            resolved, outcome = self.resolve(lease)
            if resolved is not None:
                outcome = self.classify(lease, resolved, await self._perform_async(lease, resolved))
        except BaseException as error:
            outcome = self.fail(lease, error)
        self.settle(outcome)

    def warm_up(self, topics: Collection[str]) -> None:
        """Start a child process if one of the topics has isolated tasks: the first message need not
        wait until it has loaded the project."""
        declared = [task.definition.options for task in registry.by_name.values()]
        isolated = [options for options in declared if options.isolate]
        if self._isolate and any(options.topic in topics for options in isolated):
            self._children(self._isolate).warm_up()

    def stop_children(self) -> Collection[Lease]:
        """Kill the child processes. Returns the leases whose runs end by that: the threads that
        wait for them release their messages."""
        with self._isolating:
            return () if self._made is None else self._made.stop()

    async def close_connections(self) -> None:
        """Close the database connections of the thread that coroutines use, if there was any
        coroutine."""
        if self._connections_checked_at:
            await sync_to_async(close_all)()

    # Steps

    def resolve(self, lease: Lease) -> tuple[Resolved | None, Any]:
        """The task and its arguments, or the outcome of a message that cannot run."""
        now = time.monotonic()
        if lease.ended:  # this process stood still, or Redis was away: another worker has it by now
            return None, Outcome(lease, None, Result.RELEASED, now)
        try:
            record = Record.decode(lease.record)
            task = registry.by_code.get(record.task_code)
            if task is None:
                task = self._find(lease)
                if task.definition.is_async:  # this is a thread; now the dispatcher knows the task
                    return None, Outcome(lease, None, Result.RELEASED, now)
            body = decode_body(record.flags, record.body, lease.id)
            task.definition.check_arguments(body.args, body.kwargs)
            if not task.definition.annotations.are_json:
                read = task.definition.annotations.read
                body.args, body.kwargs = read(body.args, body.kwargs)
        except DelayQError as error:
            return None, self._unrunnable(lease, error)
        lease.started_at = now
        if signals.started.receivers:
            event = Outcome(lease, task, Result.ACKED, lease.started_at).event(self._clock)
            signals.report(signals.started, lease.partition.topic, [event])
        return Resolved(task, body), None

    def _perform(self, lease: Lease, resolved: Resolved) -> BaseException | None:
        running.set(lease)
        error: BaseException | None = None
        try:
            definition = resolved.task.definition
            if definition.runs_apart and definition.options.exactly_once:
                self._perform_once(lease, partial(self._run_def, lease, resolved))
            elif definition.runs_apart and self._isolate is not None:
                self._children(self._isolate).run(lease, resolved)
            else:
                self._run_def(lease, resolved)
        except BaseException as raised:  # SystemExit of a task must not end the thread
            error = raised
        if renew_all() and error is None:
            error = TransactionLeftOpen()
        return error

    def _run_def(self, lease: Lease, resolved: Resolved) -> None:
        result = self._call(resolved)
        if result is not None:
            refuse_unrun(resolved.task.name, result)
        if resolved.task.definition.options.result:
            keep_result(lease, result, self._settings.body_limit)

    def _children(self, isolate: Callable[[Shared], ChildProcesses]) -> ChildProcesses:
        """The child processes of this worker, made for the first message that needs one."""
        with self._isolating:
            self._made = self._made or isolate(self._shared)
            return self._made

    def _perform_once(self, lease: Lease, run: Callable[[], object]) -> None:
        perform_once = self._shared.perform_once
        if perform_once is None:
            raise Snooze(NO_DATABASE_DELAY)
        perform_once([lease], lambda _: run(), self.acked_detail)
        report = lease.report = lease.report or TaskReport()
        report.archived = True

    def acked_detail(self, lease: Lease) -> tuple[int, bytes]:
        """The time (ms) at which the run has ended, now, and the JSON for its row."""
        ended_at = time.monotonic()
        outcome = Outcome(lease, None, Result.ACKED, ended_at)
        return int(self._clock.at_ms(ended_at)), outcome.detail(self._shared.name, self._clock)

    def check_connection(self) -> None:
        """Now and then check the database connection of coroutines, and do not wait for that: the
        one thread for all of them may be busy with somebody else's query."""
        now = time.monotonic()
        if now - self._connections_checked_at > ASYNC_CONNECTION_CHECK and (
            not self._connection_check or self._connection_check.done()
        ):
            self._connections_checked_at = now
            self._connection_check = asyncio.ensure_future(sync_to_async(check_shared)())

    async def _perform_async(self, lease: Lease, resolved: Resolved) -> BaseException | None:
        running.set(lease)  # a coroutine task has a context of its own
        try:
            self.check_connection()
            result = await self._start(resolved)
            if result is not None:
                refuse_unrun(resolved.task.name, result)
            if resolved.task.definition.options.result:
                keep_result(lease, result, self._settings.body_limit)
        except BaseException as error:
            return error
        return None

    def classify(
        self,
        lease: Lease,
        resolved: Resolved,
        error: BaseException | None,
        shown: BaseException | None = None,
    ) -> Outcome:
        """What the end of the task means for the message. `shown`: what people may see of the
        error, where the caller knows it. The error itself decides."""
        task = resolved.task
        if error is None:
            return Outcome(lease, task, Result.ACKED, time.monotonic())
        outcome = Outcome(lease, task, Result.DEAD, time.monotonic(), "failed")
        if isinstance(error, ClassifiedElsewhere):
            return error.apply_to(outcome)
        if shown is None:
            is_safe = not redaction.hides(task.definition.code)
            shown = error if is_safe else redaction.safe_error(error, redaction.hidden_in(lease))
        if isinstance(error, Reject):
            outcome.reason = _message(shown)
            return outcome
        outcome.error = None if isinstance(error, Snooze) else shown
        outcome.error_class, outcome.error_message = _class_name(shown), _message(shown)
        # Of a child that was killed: places in the code, without values.
        stack = error.stack if isinstance(error, IsolatedRunFailed) else ""
        outcome.traceback = stack or _traceback(shown)
        failures = lease.attempts.attempt - lease.attempts.crashes
        try:
            if isinstance(error, Snooze):
                outcome.result, outcome.delay_ms = Result.SNOOZED, duration_ms(error.delay)
            elif task.tries_again(error, failures, resolved.body.max_attempts):
                wait = error.delay if isinstance(error, Retry) else None
                wait = task.options.backoff(failures) if wait is None else wait
                outcome.result, outcome.delay_ms = Result.RETRIED, duration_ms(wait)
        except Exception as broken:  # a backoff function or a delay that is itself wrong
            outcome.result, outcome.delay_ms = Result.DEAD, None
            also = f"; and its delay failed: {type(broken).__name__}: {_message(broken)}"
            outcome.error_message = f"{outcome.error_message}{also}"[:MAX_REASON]
        return outcome

    def fail(self, lease: Lease, error: BaseException) -> Outcome:
        """The worker itself has failed, and not the task. This counts as an attempt, so that the
        message is not tried for ever."""
        try:
            if redaction.hides(task_code_of(lease.record)):
                error = redaction.safe_error(error, redaction.hidden_in(lease))
        except Exception:  # what failed may be just this
            error = DelayQError("The error cannot be shown, for nobody knows what it has to hide.")
        log_failure(logger, error, "the worker failed at a message of %s", lease.partition)
        outcome = Outcome(lease, None, Result.DEAD, time.monotonic(), "failed")
        outcome.error_class, outcome.error_message = _class_name(error), _message(error)
        if lease.attempts.attempt - lease.attempts.crashes < self._settings.max_attempts:
            outcome.result, outcome.delay_ms = Result.RETRIED, FAILURE_DELAY_MS
        return outcome

    def _unrunnable(self, lease: Lease, error: DelayQError) -> Outcome:
        """A damaged message is dead at once. One that does not fit the code of this worker waits
        for another worker, whose code it may fit."""
        outcome = Outcome(lease, None, Result.DEAD, time.monotonic(), _REASONS.get(type(error), ""))
        outcome.task_name = self._task_name(lease)
        wait = 0.0
        if isinstance(error, _ANOTHER_MAY):
            # The grace counts from the first worker that could not run it. When it is over, `wait`
            # is not positive.
            since_ms = lease.attempts.put_off_since_ms
            waited = max(0.0, (self._clock.now_ms() - since_ms) / 1000) if since_ms else 0.0
            wait = min(
                self._settings.unknown_task_grace - waited,
                max(PUT_OFF_FIRST, min(PUT_OFF_MOST, waited / 4)),
            )
        if wait > 0:
            outcome.result, outcome.delay_ms = Result.PUT_OFF, math.ceil(wait * 1000)
            version = Record.version_of(lease.record)
            outcome.reason = (
                f"{outcome.reason}: {_message(error)} The record: version {version}; {HERE}."
            )
        elif not isinstance(error, UnknownTask):
            outcome.error_class, outcome.error_message = _class_name(error), _message(error)
        return outcome

    def _find(self, lease: Lease) -> Task[..., Any]:
        """A task that is declared now, because somebody asks for it. Raises UnknownTask."""
        task = registry.find(self._task_name(lease)) if registry.finders else None
        if task is None:
            raise UnknownTask
        return task

    def _task_name(self, lease: Lease) -> str:
        """The task's name, for a message that cannot run here. Its producer has stored the name in
        the partition."""
        code = task_code_of(lease.record)
        try:
            return kept_task_name(lease.partition, code) if len(code) == 4 else ""
        except DelayQError:
            return ""


def keep_result(lease: Lease, value: object, limit: int) -> None:
    """Let the ack take the return value with it. Raises InvalidResult."""
    lease.report = lease.report or TaskReport()
    lease.report.result = encode_result(value, limit)


def _storable(text: str) -> str:
    """The text in UTF-8, which has no half characters (surrogates). File names can have them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _message(error: BaseException) -> str:
    try:
        return _storable(str(error))[:MAX_REASON]
    except Exception:
        return "its message cannot be shown"


def _traceback(error: BaseException) -> str:
    try:
        return _storable("".join(tracebacks.format_exception(error)))[-MAX_TRACEBACK:]
    except Exception:  # of a SyntaxError with bytes for its line, for example
        return "its traceback cannot be shown"


def _class_name(error: BaseException) -> str:
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return _storable(name)[-MAX_CLASS_NAME:]
